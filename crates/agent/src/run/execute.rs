//! The life of a run: what precedes its first turn and follows its last.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use cantle_core::content::Content;
use cantle_core::event::EventKind;
use cantle_core::ids::RunId;
use cantle_core::message::{self, Message, SharedMessage};
use cantle_core::sandbox::Survival;
use tokio::sync::OwnedMutexGuard;
use tokio::sync::mpsc::UnboundedReceiver;
use tracing::Instrument as _;

use super::drive::Driver;
use super::outcome::Outcome;
use super::resources::{KeptSession, ResumedRun, SessionResources};
use super::tool_call::scale_images;
use crate::environment::{self, SandboxFacts};
use crate::error::RunError;
use crate::journal::{
    BackgroundAgentRecord, DeliveredFiles, End, Header, Journal, StoreErrorKind, VERSION,
};
use crate::prompt;
use crate::rules::{Fact, Machine, NewSandbox, RunEnd};
use crate::scope::RunScope;
use crate::spans;
use crate::time::unix_seconds;

const NEW_SANDBOX: &str = "The run was interrupted, and its sandbox is gone. You continue in a new one: all \
                           earlier files, including input files, and all processes are lost.";

const LOST_PROCESSES: &str = "The run was interrupted and continues now. Files are unchanged; background \
                              processes that you had started are gone.";

/// The start of a run.
pub(crate) enum RunStart {
    /// A new run with this task.
    Task(RunId, Content),
    /// A run that another process began.
    Resume(Box<ResumedRun>),
}

impl RunStart {
    pub(super) fn run_id(&self) -> RunId {
        match self {
            Self::Task(run, _) => *run,
            Self::Resume(resumed) => resumed.content.header.run,
        }
    }
}

/// Ends the event streams and the background sub-agents, even if the run panics or is aborted.
struct ScopeGuard(Arc<RunScope>);

impl Drop for ScopeGuard {
    fn drop(&mut self) {
        self.0.background.abort();
        self.0.hub.close();
    }
}

/// A run from its task to its outcome. Between the two, the driver works.
pub(super) struct RunLifecycle {
    pub(super) scope: Arc<RunScope>,
    pub(super) resources: Arc<SessionResources>,
}

impl RunLifecycle {
    /// Runs to the end.
    pub(super) async fn execute(
        self,
        mut history: OwnedMutexGuard<Vec<SharedMessage>>,
        start: RunStart,
        facts: UnboundedReceiver<Box<Fact>>,
    ) -> Outcome {
        let started = Instant::now();
        let _guard = ScopeGuard(Arc::clone(&self.scope));
        let run = self.scope.run;
        let (mut outcome, journal) = match self.drive(&history, start, facts).await {
            Ok((end, machine, journal)) => {
                let outcome = Outcome::new(run, started, end);
                (outcome.with_state(machine), journal)
            }
            Err(error) => {
                let outcome = Outcome::new(run, started, Err(error));
                self.scope.hub.emit(outcome.event());
                return outcome;
            }
        };
        if let Some(finish) = &outcome.finish {
            match self.save_outputs(finish).await {
                Ok(saved) => outcome.outputs = saved,
                Err(failure) => outcome.error = Some(failure),
            }
        } else if outcome.error.is_none() {
            outcome.undelivered = self.undelivered().await;
        }
        *history = outcome.history.get(1..).unwrap_or_default().to_vec();
        outcome.duration = started.elapsed();
        if let Some(journal) = journal {
            self.close_journal(&journal, &mut outcome).await;
        }
        self.scope.hub.emit(outcome.event());
        outcome
    }

    /// Prepares the run, and drives it to its end. An error means that it did not begin.
    async fn drive(
        &self,
        history: &[SharedMessage],
        start: RunStart,
        facts: UnboundedReceiver<Box<Fact>>,
    ) -> Result<(RunEnd, Machine, Option<Journal>), RunError> {
        let (mut driver, unfinished) = match start {
            RunStart::Task(_, task) => (self.begin(history, task, facts).await?, Ok(Vec::new())),
            // On the heap: few runs are resumed, but all reserve the space of what they may wait for.
            RunStart::Resume(resumed) => Box::pin(self.resume(*resumed, facts)).await,
        };
        let end = match unfinished {
            Ok(unfinished) => {
                let agent = &self.resources.agent;
                let model = &agent.client.model().slug;
                let span = spans::run(&agent.name, model, self.scope.run, self.scope.depth);
                let end = driver.drive(unfinished).instrument(span.clone()).await;
                if let Err(error) = &end {
                    spans::failed(&span, &error.kind());
                }
                end
            }
            Err(error) => Err(error),
        };
        let (machine, journal) = driver.into_parts();
        Ok((end, machine, journal))
    }

    /// Prepares a new run.
    async fn begin(
        &self,
        history: &[SharedMessage],
        task: Content,
        facts: UnboundedReceiver<Box<Fact>>,
    ) -> Result<Driver, RunError> {
        let resources = &self.resources;
        let text = task.text();
        self.emit_start(&text);
        let skills = resources.skills.as_ref();
        let skills = skills.filter(|_| resources.sandbox.is_some());
        let prompt = prompt::system_prompt(
            &resources.agent,
            skills.and_then(|skills| skills.prompt_section()).as_deref(),
            resources.tools.get("user_input").is_some(),
        );
        let task = self.describe_environment(scale_images(task).await).await;
        let mut messages = Vec::with_capacity(history.len() + 2);
        messages.push(SharedMessage::new(Message::system(prompt)));
        messages.extend(history.iter().cloned());
        messages.push(SharedMessage::new(Message::user(task)));
        let journal = match &resources.kept {
            None => None,
            Some(kept) => Some(self.begin_journal(kept, text, &messages).await?),
        };
        resources
            .has_earlier_sandbox
            .store(false, Ordering::Release);
        let tools = Arc::clone(resources.tools.traits());
        let machine = Machine::new(resources.agent.rules.clone(), tools, messages);
        Ok(self.driver(machine, journal, facts))
    }

    /// Puts the facts about this run at the head of its task.
    async fn describe_environment(&self, task: Content) -> Content {
        let resources = &self.resources;
        if !resources.agent.describes_environment {
            return task;
        }
        let sandbox = resources.sandbox.as_deref();
        let facts = match sandbox {
            Some(sandbox) => {
                let gather = || SandboxFacts::gather(sandbox);
                Some((sandbox, resources.sandbox_facts.get_or_init(gather).await))
            }
            None => None,
        };
        let turns = resources.agent.rules.max_turns;
        let user_directory = resources.run_options.user_directory.as_ref();
        let lines = environment::lines(turns, facts, &resources.input_files, user_directory);
        message::environment::describe(&lines, task)
    }

    async fn begin_journal(
        &self,
        kept: &KeptSession,
        task: String,
        messages: &[SharedMessage],
    ) -> Result<Journal, RunError> {
        let resources = &self.resources;
        let sandbox = resources.sandbox.as_ref();
        let header = Header {
            version: VERSION,
            run: self.scope.run,
            time: unix_seconds(),
            identity: resources.identity(),
            note: kept.note.clone(),
            rules: resources.agent.rules.clone(),
            task,
            input_files: resources.input_files.clone(),
            skill_files: resources.skill_files.clone(),
            sandbox: kept.sandbox.clone(),
            tools: (**resources.tools.traits()).clone(),
            sandbox_info: sandbox.map(|sandbox| sandbox.info().clone()),
            warnings: resources.warnings.clone(),
            messages: messages.iter().map(|message| (**message).clone()).collect(),
        };
        let journal = kept.store.begin(header).await;
        let journal = journal.map_err(|error| RunError::journal(&error))?;
        // From here on the run can be resumed.
        kept.unfinished.fetch_add(1, Ordering::AcqRel);
        Ok(journal)
    }

    fn driver(
        &self,
        machine: Machine,
        journal: Option<Journal>,
        facts: UnboundedReceiver<Box<Fact>>,
    ) -> Driver {
        let (scope, resources) = (Arc::clone(&self.scope), Arc::clone(&self.resources));
        Driver::new(scope, resources, machine, journal, facts)
    }

    /// Prepares a run that another process began. Returns its background sub-agents that had not ended, or the error
    /// because of which the run can't be driven.
    async fn resume(
        &self,
        resumed: ResumedRun,
        facts: UnboundedReceiver<Box<Fact>>,
    ) -> (Driver, Result<Vec<BackgroundAgentRecord>, RunError>) {
        let ResumedRun {
            content,
            journal,
            has_new_sandbox,
        } = resumed;
        let (header, time_used) = (content.header, content.time_used);
        self.emit_start(&header.task);
        let approved = content.facts.iter().filter_map(|fact| match fact {
            Fact::ApprovedAlways(approval) => Some(approval.clone()),
            _ => None,
        });
        self.scope.standing_approvals.lock().await.extend(approved);
        let unfinished = self.restore_background(&content.facts).await;
        let tools = Arc::clone(self.resources.tools.traits());
        let machine = Machine::replay(header.rules, tools, header.messages, content.facts);
        let mut driver = self.driver(machine, Some(journal), facts);
        let resumed = match unfinished {
            Ok(unfinished) => {
                let recorded = self.record_resumed(&mut driver, has_new_sandbox, time_used);
                recorded.await.map(|()| unfinished)
            }
            Err(error) => Err(error),
        };
        (driver, resumed)
    }

    /// Continues a run where its facts end, and counts its earlier spending.
    async fn record_resumed(
        &self,
        driver: &mut Driver,
        has_new_sandbox: bool,
        time_used: Duration,
    ) -> Result<(), RunError> {
        let kept = self.resources.kept.as_ref();
        let lost_state = self.lost_state(&driver.machine, has_new_sandbox);
        driver.record(Fact::Resumed {
            rules: self.resources.agent.rules.clone(),
            lost_state: lost_state.map(str::to_owned),
            new_sandbox: has_new_sandbox.then(|| NewSandbox {
                handle: kept.and_then(|kept| kept.sandbox.clone()),
            }),
            time: unix_seconds(),
        })?;
        // Calls that were interrupted are in the ledger now.
        let (ledger, models) = (driver.machine.ledger(), self.resources.agent.models());
        self.scope.budget.carry_over(ledger, &models, time_used);
        // The sandbox must be known before it is used.
        driver.commit().await
    }

    /// Restores the background sub-agents of earlier processes. Returns those that had not ended.
    async fn restore_background(
        &self,
        facts: &[Fact],
    ) -> Result<Vec<BackgroundAgentRecord>, RunError> {
        let Some(store) = self.scope.store.clone() else {
            return Ok(Vec::new());
        };
        let run = self.scope.run;
        let records = tokio::task::spawn_blocking(move || store.background_agents(run)).await;
        let (mut records, unreadable) = records.map_err(|error| RunError::journal(&error))?;
        for error in unreadable {
            if error.kind() == StoreErrorKind::Io {
                return Err(RunError::journal(&error));
            }
            let message = format!("The journal of a sub-agent can't be read: {error}");
            self.scope.hub.emit(EventKind::Warning { message });
        }
        records.retain(|record| {
            let ended = facts.iter().find_map(|fact| match fact {
                Fact::SubAgentEnded(ended) if ended.id == record.id => Some(ended),
                _ => None,
            });
            self.scope.background.restore(record, ended);
            ended.is_none()
        });
        Ok(records)
    }

    /// The message for the model about state that was lost with the other process.
    fn lost_state(&self, machine: &Machine, has_new_sandbox: bool) -> Option<&'static str> {
        if has_new_sandbox {
            return Some(NEW_SANDBOX);
        }
        let survival = self.resources.sandbox.as_ref()?.info().survival;
        let lost_processes = machine.has_background_processes();
        (lost_processes && survival != Survival::Processes).then_some(LOST_PROCESSES)
    }

    /// Records the end of the run, and whether it can be resumed.
    async fn close_journal(&self, journal: &Journal, outcome: &mut Outcome) {
        let recorded = journal.end(End {
            status: outcome.status(),
            error: outcome.error.as_ref().map(RunError::to_string),
            finish: outcome.finish.clone(),
            files: DeliveredFiles::from(&outcome.outputs),
        });
        let committed = match recorded {
            Ok(()) => journal.commit().await,
            Err(error) => Err(error),
        };
        if outcome.error.is_some() {
            return;
        }
        if let Err(error) = committed {
            outcome.error = Some(error);
        } else if outcome.undelivered.is_empty()
            && let Some(kept) = &self.resources.kept
        {
            kept.unfinished.fetch_sub(1, Ordering::AcqRel);
        }
    }

    fn emit_start(&self, task: &str) {
        let resources = &self.resources;
        let sandbox = resources.sandbox.as_ref();
        let parent = resources.run_options.parent.as_ref();
        let hub = &self.scope.hub;
        hub.emit_with(|| EventKind::RunStarted {
            agent: resources.agent.name.clone(),
            model: resources.agent.client.model().slug.clone(),
            task: task.to_owned(),
            max_turns: resources.agent.rules.max_turns,
            tools: resources
                .tools
                .specs()
                .iter()
                .map(|spec| spec.name().to_owned())
                .collect(),
            sandbox: sandbox.map(|sandbox| sandbox.info().clone()),
            input_files: resources.input_files.clone(),
            parent_call: parent.map(|parent| parent.call_id.clone()),
        });
        for message in &resources.warnings {
            hub.emit(EventKind::Warning {
                message: message.clone(),
            });
        }
    }
}
