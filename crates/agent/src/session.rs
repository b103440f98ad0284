//! Sessions: what one use of an agent has open, and the runs that follow each other in it.

mod assembly;

use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError};

use cantle_core::content::Content;
use cantle_core::ids::RunId;
use cantle_core::llm::ToolSpecs;
use cantle_core::message::{Message, SharedMessage};
use cantle_core::sandbox::{Sandbox, SandboxHandle};
use cantle_core::tool::{DynTool, Progress};
use serde_json::Value;
use tokio::sync::Mutex;
use tokio_util::sync::{CancellationToken, DropGuard};

use self::assembly::{Assembly, Opened, Opening};
use crate::agent::Definition;
use crate::budget::Budget;
use crate::error::{SessionError, SessionErrorKind};
use crate::inputs;
use crate::journal::{Identity, Reopened, RunStore, is_finished};
use crate::machine::ToolTraits;
use crate::run::{Begin, Run};
use crate::skills::Skills;
use crate::sub_agent::Lineage;

/// What one session has of its own.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct SessionOptions {
    /// Files, directories and patterns on the host that are copied into the sandbox.
    pub input_files: Vec<PathBuf>,
    /// Where the files that a finished run names are saved.
    pub output_dir: Option<PathBuf>,
    /// A conversation to go on from. A system message at its start gives way to ours.
    pub history: Vec<Message>,
    /// How much each run may use.
    pub budget: Budget,
    /// Whether whoever holds a run decides on calls that need consent. Else the agent's user does, and
    /// where there is none, those calls don't run.
    pub answers_approvals: bool,
    /// Where runs are kept, so that they can be resumed.
    pub store: Option<RunStore>,
    /// What whoever resumes a run wants to find with it. Holds no secret.
    pub note: Value,
    /// A directory of skills on the host, each `NAME/SKILL.md`: copied into the sandbox as `skills`,
    /// and listed for the model.
    pub skills: Option<PathBuf>,
    /// Who is told what takes long while the session opens, a line each; a run's events come later.
    pub progress: Option<Arc<dyn Progress>>,
    /// What a sub-agent's session gets from its caller.
    pub(crate) lineage: Option<Lineage>,
}

/// What a session has of its own that goes on with a run.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct ResumeOptions {
    /// Where the files that a finished run names are saved.
    pub output_dir: Option<PathBuf>,
    /// How much the run may use, with what it used before.
    pub budget: Budget,
    /// Whether whoever holds the run decides on calls that need consent. Else the agent's user does,
    /// and where there is none, those calls don't run.
    pub answers_approvals: bool,
    /// Whether a new sandbox is opened where the run's own is gone. Its files are gone with it; the
    /// model is told.
    pub fresh_sandbox: bool,
    /// Who is told what takes long while the session opens, a line each.
    pub progress: Option<Arc<dyn Progress>>,
    /// What a sub-agent's session gets from its caller.
    pub(crate) lineage: Option<Lineage>,
}

/// What both kinds of options have.
macro_rules! common_options {
    ($options:ident) => {
        impl $options {
            /// The same with an output directory; it is made where it does not exist.
            #[must_use]
            pub fn output_dir(mut self, directory: impl Into<PathBuf>) -> Self {
                self.output_dir = Some(directory.into());
                self
            }

            /// The same with somebody who is told what takes long while the session opens: an image that
            /// is pulled.
            #[must_use]
            pub fn progress(mut self, progress: Arc<dyn Progress>) -> Self {
                self.progress = Some(progress);
                self
            }

            /// The same with a budget for each run.
            #[must_use]
            pub fn budget(mut self, budget: Budget) -> Self {
                self.budget = budget;
                self
            }

            /// The same with somebody who decides on calls that need consent, those of sub-agents
            /// among them: whoever holds the run
            /// ([`RunControl::decide`](crate::RunControl::decide)).
            #[must_use]
            pub fn answers_approvals(mut self) -> Self {
                self.answers_approvals = true;
                self
            }
        }
    };
}

common_options!(SessionOptions);
common_options!(ResumeOptions);

impl ResumeOptions {
    /// The same with a new sandbox where the run's own is gone.
    #[must_use]
    pub fn fresh_sandbox(mut self) -> Self {
        self.fresh_sandbox = true;
        self
    }
}

impl SessionOptions {
    /// The same with another input: a file, a directory (`data` comes as `data/…`, `data/` as what
    /// is in it) or a pattern (`*.csv`, `src/**/*.rs`).
    #[must_use]
    pub fn input_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.input_files.push(path.into());
        self
    }

    /// The same with a conversation to go on from.
    #[must_use]
    pub fn history(mut self, messages: Vec<Message>) -> Self {
        self.history = messages;
        self
    }

    /// The same with a directory of skills.
    #[must_use]
    pub fn skills(mut self, directory: impl Into<PathBuf>) -> Self {
        self.skills = Some(directory.into());
        self
    }

    /// The same with runs that are kept in `store`, with a note for whoever resumes them. Their
    /// sandbox then outlives this process, as far as its backend can.
    #[must_use]
    pub fn kept_in(mut self, store: RunStore, note: Value) -> Self {
        self.store = Some(store);
        self.note = note;
        self
    }
}

/// One use of an agent: its sandbox and tools are open, and tasks run in it one after another, each
/// continuing the conversation.
///
/// [`close`](Self::close) it when done; dropping it is the fall-back, which can't wait and can't
/// report what went wrong.
pub struct Session {
    shared: Arc<Shared>,
    /// Declared before `opened`: runs are cancelled before what they use is dropped.
    _cancel_runs: DropGuard,
    opened: Opened,
    resumable: std::sync::Mutex<Option<Resumable>>,
}

/// What runs of a session need, whether or not somebody still holds the session.
pub(crate) struct Shared {
    pub(crate) agent: Arc<Definition>,
    pub(crate) tools: Arc<HashMap<String, DynTool>>,
    pub(crate) specs: ToolSpecs,
    pub(crate) traits: HashMap<String, ToolTraits>,
    pub(crate) sandbox: Option<Arc<dyn Sandbox>>,
    pub(crate) input_files: Vec<String>,
    pub(crate) output_dir: Option<PathBuf>,
    pub(crate) warnings: Vec<String>,
    pub(crate) cancellation: CancellationToken,
    /// The conversation without the system message. A run holds the lock until it is over.
    pub(crate) history: Arc<Mutex<Vec<SharedMessage>>>,
    pub(crate) budget: Budget,
    pub(crate) answers_approvals: bool,
    pub(crate) identity: Identity,
    pub(crate) keeping: Option<Keeping>,
    pub(crate) skills: Option<Arc<Skills>>,
    pub(crate) lineage: Option<Lineage>,
}

/// How runs of a session are kept.
pub(crate) struct Keeping {
    pub(crate) store: RunStore,
    pub(crate) note: Value,
    /// The sandbox that outlives the process.
    pub(crate) sandbox: Option<SandboxHandle>,
    /// How many of its runs can be gone on with, so that their sandbox must stay.
    pub(crate) unfinished: AtomicUsize,
}

/// A run that a session was opened for.
pub(crate) struct Resumable {
    pub(crate) reopened: Reopened,
    /// Whether its sandbox is a new one.
    pub(crate) fresh_sandbox: bool,
}

impl Session {
    pub(crate) async fn open(
        agent: Arc<Definition>,
        options: SessionOptions,
    ) -> Result<Self, SessionError> {
        // What a person got wrong is found before anything is opened.
        let SessionOptions {
            input_files,
            output_dir,
            history,
            budget,
            answers_approvals,
            store,
            note,
            skills,
            progress,
            lineage,
        } = options;
        check_money(&agent, budget, lineage.as_ref())?;
        let looks_at_files = output_dir.is_some() || skills.is_some() || !input_files.is_empty();
        let look = move || {
            if let Some(directory) = &output_dir {
                assembly::check_output_dir(directory)?;
            }
            let skills = skills.as_deref().map(Skills::load).transpose();
            let skills = skills.map_err(|error| {
                SessionError::new(SessionErrorKind::Input, error.to_string()).with_source(error)
            });
            Ok((inputs::resolve(&input_files)?, output_dir, skills?))
        };
        let (inputs, output_dir, skills) = if looks_at_files {
            assembly::blocking(look).await?
        } else {
            look()?
        };
        let inherited = lineage.as_ref().and_then(|lineage| lineage.skills.clone());
        let opening = Opening {
            inputs,
            durable: store.is_some(),
            reattach: None,
            skills: skills.map(Arc::new).or(inherited),
            progress,
            lineage,
        };
        let mut session = Assembly::open(agent, &opening, output_dir).await?;
        let history = history
            .into_iter()
            .enumerate()
            .filter(|(index, message)| *index > 0 || !matches!(message, Message::System(_)))
            .map(|(_, message)| SharedMessage::new(message))
            .collect();
        session.history = history;
        session.budget = budget;
        session.answers_approvals = answers_approvals;
        if let Some(store) = store {
            session = session.keep(store, note, 0).await?;
        }
        Ok(session.finish(None))
    }

    /// Opens a session to go on with a run.
    pub(crate) async fn reopen(
        agent: Arc<Definition>,
        store: RunStore,
        run: RunId,
        options: ResumeOptions,
    ) -> Result<Self, SessionError> {
        let ResumeOptions {
            output_dir,
            budget,
            answers_approvals,
            fresh_sandbox,
            progress,
            lineage,
        } = options;
        check_money(&agent, budget, lineage.as_ref())?;
        let reading = store.clone();
        let read = assembly::blocking(move || {
            if let Some(directory) = &output_dir {
                assembly::check_output_dir(directory)?;
            }
            let reopened = reading.reopen(run).map_err(|error| {
                SessionError::new(SessionErrorKind::Journal, error.to_string()).with_source(error)
            });
            Ok((reopened?, output_dir))
        });
        let (reopened, output_dir) = read.await?;
        // Of a run that is finished, only what it finished with can be handed over again: where the
        // process ended before it had let go of the sandbox.
        let over = || {
            let error = is_finished(run);
            SessionError::new(SessionErrorKind::Journal, error.to_string()).with_source(error)
        };
        if reopened.finished && reopened.header.sandbox.is_none() {
            return Err(over());
        }
        let mut opening = Opening {
            inputs: Vec::new(),
            durable: true,
            reattach: reopened.header.sandbox.clone(),
            skills: None,
            progress,
            lineage,
        };
        let mut is_fresh = false;
        let prepared = Assembly::open(Arc::clone(&agent), &opening, output_dir.clone()).await;
        let mut session = match prepared {
            Err(error) if error.is_gone() && reopened.finished => return Err(over()),
            Err(error) if error.is_gone() && fresh_sandbox => {
                opening.reattach = None;
                is_fresh = true;
                Assembly::open(agent, &opening, output_dir).await?
            }
            Err(error) if error.is_gone() => {
                let message = format!(
                    "the sandbox of run {run} is gone, and the files in it with it ({error}); it can \
                     go on only in a fresh one"
                );
                return Err(
                    SessionError::new(SessionErrorKind::Sandbox, message).with_source(error)
                );
            }
            other => other?,
        };
        let was_kept = reopened.header.sandbox.is_some();
        if !was_kept && session.has_own_sandbox() {
            if !fresh_sandbox {
                // There is an error already that says why.
                let _ = session.close().await;
                let message = format!(
                    "the sandbox of run {run} did not outlive the program, and the files in it are \
                     gone; it can go on only in a fresh one"
                );
                return Err(SessionError::new(SessionErrorKind::Sandbox, message));
            }
            is_fresh = true;
        }
        let differences = reopened.header.identity.differences(&session.identity);
        if !differences.is_empty() {
            session.suspend().await;
            let message = format!(
                "run {run} was begun by an agent that is different from this one:\n  {}",
                differences.join("\n  ")
            );
            return Err(SessionError::new(SessionErrorKind::Identity, message));
        }
        session.budget = budget;
        session.answers_approvals = answers_approvals;
        session.input_files.clone_from(&reopened.header.input_files);
        let note = reopened.header.note.clone();
        let session = session.keep(store, note, 1).await?;
        Ok(session.finish(Some(Resumable {
            reopened,
            fresh_sandbox: is_fresh,
        })))
    }

    /// Removes the sandbox that a run left.
    pub(crate) async fn discard(
        agent: Arc<Definition>,
        sandbox: SandboxHandle,
    ) -> Result<(), SessionError> {
        let opening = Opening {
            inputs: Vec::new(),
            durable: true,
            reattach: Some(sandbox),
            skills: None,
            progress: None,
            lineage: None,
        };
        match Assembly::open(agent, &opening, None).await {
            Ok(assembly) => assembly.close().await,
            Err(error) if error.is_gone() => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Starts working on a task. Runs of a session follow each other: each one sees the
    /// conversation and the files that those before it left.
    ///
    /// # Errors
    /// [`SessionErrorKind::Busy`] while another run of this session goes on.
    pub fn run(&self, task: impl Into<Content>) -> Result<Run, SessionError> {
        let history = Arc::clone(&self.shared.history)
            .try_lock_owned()
            .map_err(|_| busy())?;
        let begin = Begin::Task(task.into());
        Ok(Run::start(Arc::clone(&self.shared), history, begin))
    }

    /// Whether it was opened for a run to go on with, which has not gone on yet.
    #[must_use]
    pub fn is_resumed(&self) -> bool {
        let resumable = self.resumable.lock();
        resumable.unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Goes on with the run that the session was [opened](crate::Agent::resume) for.
    ///
    /// # Errors
    /// [`SessionErrorKind::Journal`] where it was opened for none, or went on already.
    pub fn resume(&self) -> Result<Run, SessionError> {
        let history = Arc::clone(&self.shared.history)
            .try_lock_owned()
            .map_err(|_| busy())?;
        let mut resumable = self
            .resumable
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let resumable = resumable.take().ok_or_else(|| {
            let message = "the session has no run to go on with";
            SessionError::new(SessionErrorKind::Journal, message)
        })?;
        let begin = Begin::Resume(Box::new(resumable));
        Ok(Run::start(Arc::clone(&self.shared), history, begin))
    }

    /// The sandbox, where the session has one.
    #[must_use]
    pub fn sandbox(&self) -> Option<&Arc<dyn Sandbox>> {
        self.shared.sandbox.as_ref()
    }

    /// Cancels a run that goes on, and closes everything in reverse order. Where the latest run is
    /// kept and can be gone on with, its sandbox stays.
    ///
    /// # Errors
    /// Where something could not be closed; the message names everything that may be left.
    pub async fn close(self) -> Result<(), SessionError> {
        self.shared.cancellation.cancel();
        // The lock is free once the run is over. A run that hangs in a tool must not keep the rest
        // from being closed.
        let deadline = self.shared.agent.close_deadline;
        let _ = tokio::time::timeout(deadline, self.shared.history.lock()).await;
        let unfinished = |keeping: &Keeping| keeping.unfinished.load(Ordering::Acquire) > 0;
        if self.shared.keeping.as_ref().is_some_and(unfinished) {
            self.opened.suspend(deadline).await
        } else {
            self.opened.close(deadline).await
        }
    }
}

impl Session {
    /// Closes everything, also a sandbox that a run could be gone on with in.
    pub(crate) async fn close_for_good(self) -> Result<(), SessionError> {
        if let Some(keeping) = &self.shared.keeping {
            keeping.unfinished.store(0, Ordering::Release);
        }
        self.close().await
    }
}

/// Refuses a budget of money where nobody can say what the model's calls cost.
fn check_money(
    agent: &Definition,
    budget: Budget,
    lineage: Option<&Lineage>,
) -> Result<(), SessionError> {
    let limited = budget.cost_usd.is_some() || lineage.is_some_and(|it| it.account.limits_money());
    let model = agent.client.model();
    if !limited || !model.costs_nobody_knows_what() {
        return Ok(());
    }
    let message = format!(
        "a budget of money can't be kept with the model {}: its provider does not say what a call \
         costs, and no prices were given. Give its prices, or a budget of tokens",
        model.slug
    );
    Err(SessionError::new(SessionErrorKind::Budget, message))
}

fn busy() -> SessionError {
    let message = "another run of this session goes on";
    SessionError::new(SessionErrorKind::Busy, message)
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("agent", &self.shared.agent.name)
            .field("sandbox", &self.shared.sandbox)
            .finish_non_exhaustive()
    }
}
