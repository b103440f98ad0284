//! The session and how it is opened, for new runs or to resume one.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use cantle_core::content::Content;
use cantle_core::ids::RunId;
use cantle_core::message::{Message, SharedMessage, history as histories};
use cantle_core::sandbox::{Sandbox, SandboxHandle};
use parking_lot::Mutex;
use tokio::sync::OwnedMutexGuard;
use tokio_util::sync::DropGuard;

use super::open::{OpenRequest, OpenSession};
use super::options::{ResumeOptions, SessionOptions};
use super::outputs::{blocking, check_directory};
use super::tool_sets::{CLOSE_DEADLINE, ToolSets};
use super::warnings::sandbox_warnings;
use crate::approval::Approvals;
use crate::definition::Definition;
use crate::error::{SessionError, SessionErrorKind};
use crate::inputs;
use crate::journal::{JournalContent, RunStore, StoreError, already_finished};
use crate::run::{ResumedRun, Run, RunOptions, RunStart, SessionResources};
use crate::skills::Skills;

/// An opened agent: its sandbox and tools are open, and tasks run in it one after another, each
/// continuing the conversation.
///
/// [`close`](Self::close) it when done. Dropping it is the fallback, which can't wait and can't
/// report errors.
pub struct Session {
    resources: Arc<SessionResources>,
    /// Declared before `sets`: runs are cancelled before their tools are dropped.
    _cancel_runs: DropGuard,
    sets: ToolSets,
    /// On the heap, because few sessions are opened to resume a run.
    resumed: Mutex<Option<Box<ResumedRun>>>,
}

impl Session {
    /// Opens a session for new runs.
    pub(crate) async fn open(
        agent: Arc<Definition>,
        options: SessionOptions,
    ) -> Result<Self, SessionError> {
        let SessionOptions {
            runs,
            input_files,
            inputs: input_options,
            history,
            sandbox,
            store,
            note,
            skills,
        } = options;
        // Mistakes of the caller are found before anything is opened.
        check_money_budget(&agent, &runs)?;
        let reads_files = runs.output_dir.is_some() || skills.is_some() || !input_files.is_empty();
        let read = move || {
            if let Some(directory) = runs.shared_output_dir() {
                check_directory(directory)?;
            }
            let inputs = inputs::resolve(&input_files, &input_options)?;
            let skills = load_skills(skills.as_deref(), &runs)?;
            Ok((inputs, runs, skills))
        };
        let (inputs, runs, skills) = if reads_files {
            blocking(read).await?
        } else {
            read()?
        };
        let has_earlier_sandbox = sandbox.is_some();
        let request = OpenRequest {
            inputs,
            durable: store.is_some(),
            reattach: sandbox,
            skills,
            run_options: runs,
        };
        let mut session = OpenSession::open(&agent, &request).await?;
        let history = histories::answer_open_calls(history);
        let has_system = matches!(history.first(), Some(Message::System(_)));
        let history = history.into_iter().skip(usize::from(has_system));
        let history = history.map(SharedMessage::new);
        session.resources.history = Arc::new(tokio::sync::Mutex::new(history.collect()));
        if let Some(store) = store {
            session = session.keep(store, note, 0).await?;
        }
        session.resources.has_earlier_sandbox = has_earlier_sandbox.into();
        Ok(Self::new(session, None))
    }

    /// Opens a session to resume a run.
    pub(crate) async fn reopen(
        agent: Arc<Definition>,
        store: RunStore,
        run: RunId,
        options: ResumeOptions,
    ) -> Result<Self, SessionError> {
        let ResumeOptions {
            runs,
            fresh_sandbox,
            skills,
        } = options;
        check_money_budget(&agent, &runs)?;
        let reading = store.clone();
        let read = blocking(move || {
            if let Some(directory) = runs.shared_output_dir() {
                check_directory(directory)?;
            }
            let skills = load_skills(skills.as_deref(), &runs)?;
            Ok((reading.reopen(run).map_err(store_error)?, runs, skills))
        });
        let ((content, journal), runs, skills) = read.await?;
        let header = &content.header;
        let request = OpenRequest {
            inputs: Vec::new(),
            durable: true,
            reattach: header.sandbox.clone(),
            // The run's own sandbox has them, perhaps changed.
            skills: skills.clone().filter(|_| header.sandbox.is_none()),
            run_options: runs,
        };
        let opened = open_for_run(&agent, request, &content, fresh_sandbox, skills.as_ref());
        let (mut session, mut has_new_sandbox) = opened.await?;
        let differences = header.identity.compare(&session.resources.identity());
        if !differences.conflicts.is_empty() {
            session.release().await;
            let message = format!(
                "run {run} was begun by an agent that is different from this one:\n  {}",
                differences.conflicts.join("\n  ")
            );
            return Err(SessionError::new(SessionErrorKind::Identity, message));
        }
        let resources = &mut session.resources;
        if !differences.warnings.is_empty() {
            resources.warnings.push(format!(
                "Since this run began, its agent has changed; the run continues with its own texts: {}.",
                differences.warnings.join("; ")
            ));
        }
        let specs = header.identity.recorded_specs(resources.tools.specs());
        Arc::make_mut(&mut resources.tools).set_specs(specs);
        resources.input_files.clone_from(&header.input_files);
        resources.skill_files.clone_from(&header.skill_files);
        resources.skills = skills;
        let note = header.note.clone();
        let session = session.keep(store, note, 1).await?;
        // A sandbox that is shared is a new one if the caller's own is.
        let kept = session.resources.kept.as_ref();
        let sandbox = kept.and_then(|kept| kept.sandbox.as_ref());
        let is_shared = session.resources.sandbox.is_some() && !session.has_own_sandbox();
        has_new_sandbox |= is_shared && (sandbox.is_none() || sandbox != header.sandbox.as_ref());
        let resumed = ResumedRun {
            content,
            journal,
            has_new_sandbox,
        };
        Ok(Self::new(session, Some(Box::new(resumed))))
    }

    fn new(session: OpenSession, resumed: Option<Box<ResumedRun>>) -> Self {
        let OpenSession {
            mut resources,
            sets,
            guard,
            ..
        } = session;
        let runs = &resources.run_options;
        if runs.parent.is_none() {
            let sandbox = resources.sandbox.as_deref();
            let delivers = runs.output_dir.is_some() || runs.user_directory.is_some();
            let warnings = sandbox_warnings(sandbox, delivers);
            resources.warnings.extend(warnings);
        }
        Self {
            resources: Arc::new(resources),
            _cancel_runs: guard,
            sets,
            resumed: Mutex::new(resumed),
        }
    }

    /// Removes the sandbox of a run that ended. One that is gone is not an error.
    pub(crate) async fn discard(
        agent: &Arc<Definition>,
        sandbox: SandboxHandle,
    ) -> Result<(), SessionError> {
        let request = OpenRequest {
            inputs: Vec::new(),
            durable: true,
            reattach: Some(sandbox),
            skills: None,
            run_options: RunOptions::default(),
        };
        match OpenSession::open(agent, &request).await {
            Ok(session) => session.sets.release(false).await,
            Err(error) if error.is_gone() => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Adds files that were copied into the sandbox before the first run.
    pub(crate) fn add_input_files(&mut self, files: Vec<String>) {
        // Only runs share the resources.
        if let Some(resources) = Arc::get_mut(&mut self.resources) {
            resources.input_files.extend(files);
        }
    }

    /// Starts a run. The runs of a session follow each other: each sees the conversation and the files
    /// of those before it.
    ///
    /// # Errors
    /// [`SessionErrorKind::Busy`] while another run of this session is in progress.
    pub fn run(&self, task: impl Into<Content>) -> Result<Run, SessionError> {
        let history = self.lock_history()?;
        let start = RunStart::Task(RunId::new(), task.into());
        Ok(Run::start(Arc::clone(&self.resources), history, start))
    }

    /// Whether the session was opened to resume a run, and [`resume`](Self::resume) has not been called.
    pub fn is_resumed(&self) -> bool {
        self.resumed.lock().is_some()
    }

    /// Resumes the run for which the session was [opened](crate::Agent::resume).
    ///
    /// # Errors
    /// [`SessionErrorKind::Journal`] if there is none, or it was resumed already.
    pub fn resume(&self) -> Result<Run, SessionError> {
        let history = self.lock_history()?;
        let resumed = self.resumed.lock().take().ok_or_else(|| {
            let message = "the session has no run to resume";
            SessionError::new(SessionErrorKind::Journal, message)
        })?;
        let start = RunStart::Resume(resumed);
        Ok(Run::start(Arc::clone(&self.resources), history, start))
    }

    fn lock_history(&self) -> Result<OwnedMutexGuard<Vec<SharedMessage>>, SessionError> {
        let history = Arc::clone(&self.resources.history);
        history.try_lock_owned().map_err(|_| {
            let message = "another run of this session is in progress";
            SessionError::new(SessionErrorKind::Busy, message)
        })
    }

    /// Returns the approval rules of the agent.
    pub fn approvals(&self) -> &Approvals {
        &self.resources.agent.approvals
    }

    /// Returns the sandbox.
    pub fn sandbox(&self) -> Option<&Arc<dyn Sandbox>> {
        self.resources.sandbox.as_ref()
    }

    /// Cancels a run in progress, and closes everything in reverse order. If a kept run can be resumed,
    /// its sandbox stays.
    ///
    /// # Errors
    /// If something could not be closed; the message lists all that may remain.
    pub async fn close(self) -> Result<(), SessionError> {
        self.release(false).await
    }

    /// Closes everything like [`close`](Self::close), except the sandbox of kept runs: another session can
    /// continue in it ([`SessionOptions::in_sandbox`]), or it is removed by reattaching and closing it.
    ///
    /// # Errors
    /// As [`close`](Self::close).
    pub async fn suspend(self) -> Result<(), SessionError> {
        self.release(true).await
    }

    async fn release(self, keeps_sandbox: bool) -> Result<(), SessionError> {
        let resources = &self.resources;
        resources.cancellation.cancel();
        // The lock is released when the run ends. A run that hangs in a tool must not prevent the rest
        // from being closed.
        let _ = tokio::time::timeout(CLOSE_DEADLINE, resources.history.lock()).await;
        let kept = resources.kept.as_ref();
        let can_go_on =
            kept.is_some_and(|kept| keeps_sandbox || kept.unfinished.load(Ordering::Acquire) > 0);
        let is_earlier = resources.has_earlier_sandbox.load(Ordering::Acquire);
        self.sets.release(can_go_on || is_earlier).await
    }

    /// Closes everything, even a sandbox in which a run could be resumed.
    pub(crate) async fn close_for_good(self) -> Result<(), SessionError> {
        if let Some(kept) = &self.resources.kept {
            kept.unfinished.store(0, Ordering::Release);
        }
        self.close().await
    }
}

/// Opens a session with the sandbox of a run that is resumed. If it is gone and `fresh_sandbox` is set, opens a new one
/// with the skills. Returns whether the sandbox is a new one.
async fn open_for_run(
    agent: &Arc<Definition>,
    mut request: OpenRequest,
    content: &JournalContent,
    fresh_sandbox: bool,
    skills: Option<&Arc<Skills>>,
) -> Result<(OpenSession, bool), SessionError> {
    let (run, had_sandbox) = (content.header.run, content.header.sandbox.is_some());
    let is_finished = content.is_finished();
    // Of a finished run only the files can be delivered again, if the process ended before it
    // released the sandbox.
    if is_finished && !had_sandbox {
        return Err(store_error(already_finished(run)));
    }
    let session = match OpenSession::open(agent, &request).await {
        Err(error) if error.is_gone() && is_finished => {
            return Err(store_error(already_finished(run)));
        }
        Err(error) if error.is_gone() && fresh_sandbox => {
            request.reattach = None;
            request.skills = skills.cloned();
            return Ok((OpenSession::open(agent, &request).await?, true));
        }
        Err(error) if error.is_gone() => {
            let message = format!(
                "the sandbox of run {run} is gone, and the files in it with it ({error}); \
                 it can go on only in a fresh one"
            );
            return Err(SessionError::new(SessionErrorKind::Sandbox, message).with_source(error));
        }
        other => other?,
    };
    let is_lost = !had_sandbox && session.has_own_sandbox();
    if !is_lost || fresh_sandbox {
        return Ok((session, is_lost));
    }
    session.release().await;
    let message = format!(
        "the sandbox of run {run} did not outlive the program, and the files in it are \
         gone; it can go on only in a fresh one"
    );
    Err(SessionError::new(SessionErrorKind::Sandbox, message))
}

/// Loads the skills of a directory, or returns those of the parent's run. Reads files, and therefore blocks.
fn load_skills(
    directory: Option<&Path>,
    runs: &RunOptions,
) -> Result<Option<Arc<Skills>>, SessionError> {
    let Some(directory) = directory else {
        let parent = runs.parent.as_ref();
        return Ok(parent.and_then(|it| it.scope.skills.clone()));
    };
    Ok(Some(Arc::new(Skills::load(directory)?)))
}

fn store_error(error: StoreError) -> SessionError {
    SessionError::new(SessionErrorKind::Journal, error.to_string()).with_source(error)
}

/// Rejects a budget of money if calls of one of the models, fallbacks and sub-agents included, have no
/// known cost.
fn check_money_budget(agent: &Definition, runs: &RunOptions) -> Result<(), SessionError> {
    let parent = runs.parent.as_ref();
    let limits_money =
        runs.budget.cost_usd.is_some() || parent.is_some_and(|it| it.scope.budget.limits_money());
    match agent.model_without_cost() {
        Some(model) if limits_money => {
            let message = format!(
                "no price is known for {model}, so a budget of money can't be enforced. Set its prices, or limit \
                 tokens instead"
            );
            Err(SessionError::new(SessionErrorKind::Budget, message))
        }
        _ => Ok(()),
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("agent", &self.resources.agent.name)
            .field("sandbox", &self.resources.sandbox)
            .finish_non_exhaustive()
    }
}
