//! A run from its beginning to its outcome: what stands before the first turn and after the last.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use cantle_core::content::Content;
use cantle_core::event::EventKind;
use cantle_core::ids::RunId;
use cantle_core::message::{Message, SharedMessage};
use cantle_core::sandbox::{SandboxErrorKind, SandboxExt as _, SavedOutputs, Survival};
use serde_json::Value;
use tokio::sync::OwnedMutexGuard;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};
use tracing::Instrument as _;

use super::{Begin, Ending, Outcome};
use crate::approval::Questions;
use crate::budget::Account;
use crate::calls;
use crate::driver::{Asked, Driver, Gate, JOURNAL_ADVICE};
use crate::error::{RunError, RunErrorKind};
use crate::hub::Hub;
use crate::journal::{self, Files, Header, Journal, Left, Reopened};
use crate::machine::{Fact, FreshSandbox, Machine};
use crate::prompt;
use crate::session::{Keeping, Resumable, Shared};
use crate::spans;
use crate::sub_agent::Background;
use crate::time::unix_seconds;

/// Ends the event streams, also where the run panics.
struct CloseHub(Arc<Hub>);

impl Drop for CloseHub {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// A run as the task that works on it.
pub(super) struct Work {
    pub(super) id: RunId,
    pub(super) shared: Arc<Shared>,
    pub(super) hub: Arc<Hub>,
    pub(super) ending: Ending,
    pub(super) questions: Arc<Questions>,
    /// Where sub-agents in the background are told of.
    pub(super) heard: UnboundedSender<Fact>,
}

/// A run that is ready to be driven, but for its machine.
struct Prepared {
    journal: Option<Journal>,
    account: Account,
    /// Sub-agents that worked in the background when an earlier process ended.
    left: Vec<Left>,
    background: Background,
}

impl Work {
    /// Works on it to its end.
    pub(super) async fn execute(
        self,
        mut history: OwnedMutexGuard<Vec<SharedMessage>>,
        begin: Begin,
        said: UnboundedReceiver<Fact>,
    ) -> Outcome {
        let started = Instant::now();
        let _close = CloseHub(Arc::clone(&self.hub));
        let ready = match begin {
            Begin::Task(task) => self.begin(&history, task).await,
            Begin::Resume(resumable) => self.resume(*resumable).await,
        };
        let (mut machine, ready) = match ready {
            Ok(ready) => ready,
            Err(error) => return self.not_begun(error, started),
        };
        let journal = ready.journal.clone();
        let mut driver = self.driver(ready, said);
        let agent = &self.shared.agent;
        let span = spans::run(
            &agent.name,
            &agent.client.model().slug,
            self.id,
            driver.depth,
        );
        let end = driver.drive(&mut machine).instrument(span.clone()).await;
        drop(driver);
        if let Err(error) = &end {
            spans::failed(&span, &error.kind());
        }

        let (finish, mut error) = match end {
            Ok(finish) => (Some(finish), None),
            Err(error) => (None, Some(error)),
        };
        let mut outputs = SavedOutputs::default();
        if let Some(finish) = &finish {
            let saved = tokio::select! {
                saved = self.save(&finish.params) => saved,
                () = self.ending.cancellation.cancelled() => Err(RunError::cancelled()),
            };
            match saved {
                Ok(saved) => outputs = saved,
                Err(failure) => error = Some(failure),
            }
        }
        let turns = machine.turns();
        let (messages, summarized, ledger) = machine.into_parts();
        *history = messages.get(1..).unwrap_or_default().to_vec();
        let mut outcome = Outcome {
            run: self.id,
            finish,
            error,
            history: messages,
            summarized,
            ledger,
            outputs,
            turns,
            duration: started.elapsed(),
        };
        if let Some(journal) = journal {
            self.close_journal(&journal, &mut outcome).await;
        }
        self.emit_finished(&outcome);
        outcome
    }

    /// Prepares a run that begins now.
    async fn begin(
        &self,
        history: &[SharedMessage],
        task: Content,
    ) -> Result<(Machine, Prepared), RunError> {
        let shared = &self.shared;
        self.announce(&task.text());
        let skills = shared.skills.as_ref().filter(|_| shared.sandbox.is_some());
        let prompt = prompt::system_prompt(
            &shared.agent,
            &shared.input_files,
            skills.and_then(|skills| skills.prompt_section()).as_deref(),
            shared.tools.contains_key("user_input"),
        );
        let text = task.text();
        let task = calls::images_within(task).await;
        let mut messages = vec![SharedMessage::new(Message::system(prompt))];
        messages.extend(history.iter().cloned());
        messages.push(SharedMessage::new(Message::user(task)));
        let journal = match &shared.keeping {
            None => None,
            Some(keeping) => Some(self.begin_journal(keeping, text, &messages).await?),
        };
        let rules = shared.agent.rules.clone();
        let machine = Machine::new(rules, shared.traits.clone(), messages);
        let prepared = Prepared {
            journal,
            account: self.account(),
            left: Vec::new(),
            background: self.background(),
        };
        Ok((machine, prepared))
    }

    fn background(&self) -> Background {
        Background::new(self.heard.clone(), &self.ending.cancellation)
    }

    /// The run's account, within that of its caller.
    fn account(&self) -> Account {
        let lineage = self.shared.lineage.as_ref();
        let above = lineage.map(|lineage| Arc::clone(&lineage.account));
        Account::new(self.shared.budget, above)
    }

    async fn begin_journal(
        &self,
        keeping: &Keeping,
        task: String,
        messages: &[SharedMessage],
    ) -> Result<Journal, RunError> {
        let header = Header {
            version: journal::VERSION,
            run: self.id,
            time: unix_seconds(),
            identity: self.shared.identity.clone(),
            note: keeping.note.clone(),
            rules: self.shared.agent.rules.clone(),
            task,
            input_files: self.shared.input_files.clone(),
            sandbox: keeping.sandbox.clone(),
            messages: messages.iter().map(|message| (**message).clone()).collect(),
        };
        let begun = keeping.store.begin(header).await;
        let journal = begun.map_err(|error| {
            RunError::new(RunErrorKind::Journal, error.to_string()).with_advice(JOURNAL_ADVICE)
        })?;
        // From here on there is something to go on with.
        keeping.unfinished.fetch_add(1, Ordering::AcqRel);
        Ok(journal)
    }

    /// Prepares a run that another process began.
    async fn resume(&self, resumable: Resumable) -> Result<(Machine, Prepared), RunError> {
        let Resumable {
            reopened,
            fresh_sandbox,
        } = resumable;
        let Reopened {
            header,
            facts,
            journal,
            time_used,
            finished: _,
        } = reopened;
        self.announce(&header.task);
        let (left, background) = self.taken_up(&facts).await?;
        let messages = header
            .messages
            .into_iter()
            .map(SharedMessage::new)
            .collect();
        let mut machine = Machine::new(header.rules, self.shared.traits.clone(), messages);
        for fact in facts {
            machine.apply(fact);
        }
        let account = self.account();
        account.carry_over(machine.ledger(), time_used);
        let lost = self.lost(&machine, fresh_sandbox);
        let handle = || self.shared.keeping.as_ref()?.sandbox.clone();
        let fact = Fact::Resumed {
            rules: self.shared.agent.rules.clone(),
            lost,
            fresh: fresh_sandbox.then(|| FreshSandbox { handle: handle() }),
            time: unix_seconds(),
        };
        journal.record(&fact)?;
        // Where the sandbox is must be known before anything is done in it.
        journal.commit().await?;
        machine.apply(fact);
        self.hub.emit(EventKind::RunResumed {
            turns: machine.turns(),
        });
        let prepared = Prepared {
            journal: Some(journal),
            account,
            left,
            background,
        };
        Ok((machine, prepared))
    }

    /// The sub-agents that were begun in the background: those that have not ended, and the others as
    /// they can still be asked about.
    async fn taken_up(&self, facts: &[Fact]) -> Result<(Vec<Left>, Background), RunError> {
        let background = self.background();
        let Some(keeping) = &self.shared.keeping else {
            return Ok((Vec::new(), background));
        };
        let (store, run) = (keeping.store.clone(), self.id);
        let left = tokio::task::spawn_blocking(move || store.left(run)).await;
        let mut left = left
            .map_err(|error| internal(&error.to_string()))?
            .map_err(|error| RunError::new(RunErrorKind::Journal, error.to_string()))?;
        let mut known = HashSet::new();
        for fact in facts {
            let Fact::SubAgentEnded(ended) = fact else {
                continue;
            };
            if let Some(left) = left.iter().find(|left| left.id == ended.id) {
                known.insert(left.id.clone());
                background.had_ended(left.clone(), ended.result.clone());
            }
        }
        left.retain(|left| !known.contains(&left.id));
        for left in &left {
            background.had_begun(left);
        }
        Ok((left, background))
    }

    /// What the model must know of what the end of the other process took along.
    fn lost(&self, machine: &Machine, fresh_sandbox: bool) -> Option<String> {
        if fresh_sandbox {
            return Some(
                "The run was interrupted, and its sandbox is gone. You go on in a new one: all files \
                 that you had, input files among them, and everything that ran are lost."
                    .to_owned(),
            );
        }
        let survival = self.shared.sandbox.as_ref()?.info().survival;
        (machine.has_left_running() && survival != Survival::Processes).then(|| {
            "The run was interrupted and goes on now. Files are as they were; processes that you had \
             left running in the background are gone."
                .to_owned()
        })
    }

    /// Notes how the run ended, and whether there is something to go on with.
    async fn close_journal(&self, journal: &Journal, outcome: &mut Outcome) {
        let message = outcome.error.as_ref().map(RunError::to_string);
        let files = Files::from(&outcome.outputs);
        let noted = journal.ended(outcome.status(), message, outcome.finish.clone(), files);
        let noted = match noted {
            Ok(()) => journal.commit().await,
            Err(error) => Err(error),
        };
        if let Err(error) = noted
            && outcome.error.is_none()
        {
            outcome.error = Some(error.into());
        }
        if let Some(keeping) = &self.shared.keeping
            && outcome.error.is_none()
        {
            keeping.unfinished.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// The outcome of a run that could not even begin.
    fn not_begun(&self, error: RunError, started: Instant) -> Outcome {
        let mut outcome = Outcome::lost(self.id, started, "");
        outcome.error = Some(error);
        self.emit_finished(&outcome);
        outcome
    }

    fn emit_finished(&self, outcome: &Outcome) {
        self.hub.emit(EventKind::RunFinished {
            status: outcome.status(),
            finish: outcome.finish.clone(),
            error: outcome.error.as_ref().map(RunError::to_string),
            turns: outcome.turns,
            duration: outcome.duration,
            ledger: outcome.ledger.clone(),
        });
    }

    fn driver(&self, ready: Prepared, said: UnboundedReceiver<Fact>) -> Driver {
        let Prepared {
            journal,
            account,
            left,
            background,
        } = ready;
        let Shared {
            agent,
            tools,
            specs,
            sandbox,
            answers_approvals,
            keeping,
            ..
        } = &*self.shared;
        let above = self.shared.lineage.as_ref();
        let held_above = above.is_some_and(|lineage| lineage.questions.is_some());
        let asked = if *answers_approvals || held_above {
            Asked::Holder(Arc::clone(&self.questions))
        } else if agent.user.is_available() {
            Asked::User(Arc::clone(&agent.user))
        } else {
            Asked::Nobody
        };
        Driver {
            run: self.id,
            depth: self
                .shared
                .lineage
                .as_ref()
                .map_or(0, |lineage| lineage.depth),
            client: Arc::clone(&agent.client),
            tools: Arc::clone(tools),
            finish_tools: agent
                .finish_tools
                .iter()
                .map(|tool| tool.name().to_owned())
                .collect(),
            specs: specs.clone(),
            sandbox: sandbox.clone(),
            user: Arc::clone(&agent.user),
            hub: Arc::clone(&self.hub),
            ending: self.ending.clone(),
            gate: Arc::new(Gate {
                approvals: agent.approvals.clone(),
                hooks: agent.hooks.clone(),
                run: self.id,
                asked,
            }),
            account: Arc::new(account),
            store: keeping.as_ref().map(|keeping| keeping.store.clone()),
            skills: self.shared.skills.clone(),
            journal,
            background: Arc::new(background),
            left,
            said,
        }
    }

    fn announce(&self, task: &str) {
        let shared = &self.shared;
        self.hub.emit(EventKind::RunStarted {
            agent: shared.agent.name.clone(),
            model: shared.agent.client.model().slug.clone(),
            task: task.to_owned(),
            max_turns: shared.agent.rules.max_turns,
            tools: shared
                .specs
                .iter()
                .map(|spec| spec.name().to_owned())
                .collect(),
            sandbox: shared
                .sandbox
                .as_ref()
                .map(|sandbox| sandbox.info().clone()),
            input_files: shared.input_files.clone(),
        });
        for message in &shared.warnings {
            self.hub.emit(EventKind::Warning {
                message: message.clone(),
            });
        }
    }

    /// Saves the files that a finish call names in its `paths`.
    async fn save(&self, params: &Value) -> Result<SavedOutputs, RunError> {
        let paths = params
            .get("paths")
            .and_then(Value::as_array)
            .into_iter()
            .flatten();
        let paths: Vec<String> = paths.filter_map(Value::as_str).map(str::to_owned).collect();
        let Shared {
            sandbox,
            output_dir,
            lineage,
            ..
        } = &*self.shared;
        let caller = lineage.as_ref().filter(|lineage| !lineage.shares_sandbox);
        let caller = caller.and_then(|lineage| lineage.sandbox.as_ref());
        let saved = match (sandbox, output_dir, caller) {
            (Some(sandbox), Some(directory), _) => sandbox.save_outputs(&paths, directory).await,
            (Some(sandbox), None, Some(caller)) => sandbox.hand_over(&paths, &**caller).await,
            _ => return Ok(SavedOutputs::default()),
        };
        let saved = saved.map_err(|error| {
            let kind = match error.kind() {
                SandboxErrorKind::Gone => RunErrorKind::SandboxGone,
                _ => RunErrorKind::Internal,
            };
            RunError::new(
                kind,
                format!("the task is finished, but its files could not be saved: {error}"),
            )
        })?;
        for file in &saved.saved {
            self.hub.emit(EventKind::OutputSaved {
                source: file.source.clone(),
                path: file.path.display().to_string(),
                size_bytes: file.size_bytes,
            });
        }
        for refusal in &saved.refused {
            self.hub.emit(EventKind::OutputRefused {
                source: refusal.source.clone(),
                reason: refusal.reason.clone(),
            });
        }
        Ok(saved)
    }
}

fn internal(message: &str) -> RunError {
    RunError::new(RunErrorKind::Internal, message)
}
