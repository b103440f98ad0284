//! The events of a kept run, from its journal.

use std::sync::Arc;
use std::time::UNIX_EPOCH;

use cantle_core::content::{Content, Media, MediaKind};
use cantle_core::event::{Event, EventKind};
use cantle_core::ids::RunId;
use cantle_core::message::{Message, SharedMessage};
use cantle_core::seconds::unix_time;

use crate::journal::{End, Header, JournalContent, RunStore, StoreError, WorkClock};
use crate::rules::{Action, Fact, Machine, tool_started};

/// Maximum depth of sub-agents whose journals are read with that of a run.
pub(crate) const MAX_DEPTH: u32 = 16;

impl RunStore {
    /// Returns the durable events of a run in order, reconstructed from its journal; those of a sub-agent follow the
    /// start of its call. Blocks.
    ///
    /// Their numbers are not those that the run had while it was driven: a journal has no requests for approval, and only
    /// the warnings of the start. A run that has not ended has no [`EventKind::RunFinished`].
    ///
    /// # Errors
    /// [`StoreErrorKind::NotFound`](crate::StoreErrorKind::NotFound), or an error of reading a journal.
    pub fn events(&self, run: RunId) -> Result<Vec<Event>, StoreError> {
        let mut events = Vec::new();
        JournalEvents::read(self, run, None, 0, &mut events)?;
        Ok(events)
    }

    /// Returns the conversation of a run as it is now, for [`SessionOptions::history`](crate::SessionOptions::history).
    /// Blocks.
    ///
    /// # Errors
    /// As [`events`](Self::events).
    pub fn conversation(&self, run: RunId) -> Result<Vec<Message>, StoreError> {
        let (messages, _, _) = self.read(run)?.replay().into_parts();
        Ok(messages
            .iter()
            .map(|message| Message::clone(message))
            .collect())
    }

    /// Returns the images of a run's task, and those in the results of its tool calls with the ids of the calls. Blocks.
    ///
    /// # Errors
    /// As [`events`](Self::events).
    pub fn images(&self, run: RunId) -> Result<Vec<(Option<String>, Media)>, StoreError> {
        let JournalContent { header, facts, .. } = self.read(run)?;
        let (mut ids, mut found) = (Vec::new(), Vec::new());
        // The task is the last message that the run began with.
        if let Some(Message::User(task)) = header.messages.last() {
            found.extend(images(&task.content).map(|image| (None, image)));
        }
        for fact in facts {
            match fact {
                Fact::ModelAnswered { message, .. } => {
                    ids = message.tool_calls().map(|call| call.id.clone()).collect();
                }
                Fact::CallFinished { index, outcome } => {
                    let Some(id) = ids.get(index) else { continue };
                    let of_call = images(&outcome.content);
                    found.extend(of_call.map(|image| (Some(id.clone()), image)));
                }
                _ => {}
            }
        }
        Ok(found)
    }
}

fn images(content: &Content) -> impl Iterator<Item = Media> {
    let media = content.media();
    media
        .filter(|media| media.kind() == MediaKind::Image)
        .cloned()
}

/// Reconstructs the events of one run.
struct JournalEvents<'a> {
    store: &'a RunStore,
    run: RunId,
    parent: Option<RunId>,
    depth: u32,
    machine: Machine,
    clock: WorkClock,
    /// Number of the next event.
    number: u64,
    events: &'a mut Vec<Event>,
}

impl<'a> JournalEvents<'a> {
    /// Adds the events of a run. `parent` is the run that called it as a sub-agent, with the call.
    fn read(
        store: &'a RunStore,
        run: RunId,
        parent: Option<(RunId, String)>,
        depth: u32,
        events: &'a mut Vec<Event>,
    ) -> Result<(), StoreError> {
        let JournalContent {
            header, facts, end, ..
        } = store.read(run)?;
        let (parent, parent_call) = parent.unzip();
        let tools = Arc::new(header.tool_traits());
        let messages = header.messages.iter().cloned().map(SharedMessage::new);
        let mut journal = Self {
            store,
            run,
            parent,
            depth,
            machine: Machine::new(header.rules.clone(), tools, messages.collect()),
            clock: WorkClock::new(header.time),
            number: 0,
            events,
        };
        journal.started(header, parent_call);
        journal.actions();
        for fact in facts {
            journal.fact(fact)?;
            journal.actions();
        }
        if let Some(end) = end {
            journal.ended(end);
        }
        Ok(())
    }

    fn push(&mut self, kind: EventKind) {
        let time = unix_time(self.clock.latest).unwrap_or(UNIX_EPOCH);
        let mut event = Event::new(Some(self.number), self.run, time, kind);
        (event.parent, event.depth) = (self.parent, self.depth);
        self.number += 1;
        self.events.push(event);
    }

    fn started(&mut self, header: Header, parent_call: Option<String>) {
        let (agent, model) = header.identity.names();
        self.push(EventKind::RunStarted {
            agent: agent.to_owned(),
            model: model.to_owned(),
            task: header.task,
            max_turns: header.rules.max_turns,
            tools: header.tools.into_keys().collect(),
            sandbox: header.sandbox_info,
            input_files: header.input_files,
            parent_call,
        });
        for message in header.warnings {
            self.push(EventKind::Warning { message });
        }
    }

    /// Adds the events of a fact, and applies it.
    fn fact(&mut self, fact: Fact) -> Result<(), StoreError> {
        self.clock.add(&fact);
        if let Fact::CallStarted { index, .. } = &fact {
            self.call_started(*index)?;
        }
        if let Some(event) = self.machine.event(&fact) {
            self.push(event);
        }
        self.machine.apply(fact);
        Ok(())
    }

    fn call_started(&mut self, index: usize) -> Result<(), StoreError> {
        let Some(call) = self.machine.call(index) else {
            return Ok(());
        };
        self.push(tool_started(&call));
        // The journal of a sub-agent continues when its call does.
        if self.machine.has_started(index) || self.depth >= MAX_DEPTH {
            return Ok(());
        }
        let store = self.store.of_call(self.run, &call.id);
        for run in store.list()?.0 {
            let parent = Some((self.run, call.id.clone()));
            JournalEvents::read(&store, run.run, parent, self.depth + 1, self.events)?;
        }
        Ok(())
    }

    /// Adds the events of the machine's actions.
    fn actions(&mut self) {
        while let Some(action) = self.machine.next() {
            match action {
                Action::AskModel { turn } => self.push(EventKind::TurnStarted { turn }),
                Action::Emit(event) => self.push(*event),
                _ => {}
            }
        }
    }

    fn ended(&mut self, end: End) {
        end.files.events().for_each(|event| self.push(event));
        self.push(EventKind::RunFinished {
            status: end.status,
            finish: end.finish,
            error: end.error,
            turns: self.machine.turns(),
            duration: self.clock.used,
            ledger: self.machine.final_ledger(),
        });
    }
}
