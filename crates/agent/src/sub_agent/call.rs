//! A sub-agent's work, from a session to a result; and the tool whose call waits for that.

use std::sync::Arc;
use std::time::Duration;

use cantle_core::event::RunStatus;
use cantle_core::ids::RunId;
use cantle_core::ledger::Ledger;
use cantle_core::metadata::Metadata;
use cantle_core::sandbox::{Sandbox, SandboxExt as _, SandboxPath};
use cantle_core::tool::{Tool, ToolContext, ToolError, ToolOutput};
use futures_util::StreamExt as _;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use tokio::sync::oneshot;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::words::{self, Said};
use super::{Caller, Lineage, Report, SubAgent};
use crate::journal::{Ended, KeptStatus, RunStore, StoreError};
use crate::run::{Outcome, Run};
use crate::session::{ResumeOptions, Session, SessionOptions};

/// How long is waited for the end of whoever still works on a call that is to go on.
const LET_GO_DEADLINE: Duration = Duration::from_secs(5);

/// How often that is looked at.
const LET_GO_INTERVAL: Duration = Duration::from_millis(20);

/// The tool whose call waits.
pub(super) struct Callee(pub(super) SubAgent);

#[derive(Deserialize, JsonSchema)]
pub(super) struct Params {
    /// What to do, with everything it has to know: it sees nothing of your conversation.
    pub(super) task: String,
    /// Files of yours that it gets, relative to your working directory.
    #[serde(default)]
    pub(super) input_files: Vec<String>,
}

impl Tool for Callee {
    type Params = Params;

    fn name(&self) -> &str {
        self.0.agent.name()
    }

    fn description(&self) -> &str {
        &self.0.description
    }

    fn concurrency_safe(&self) -> bool {
        true
    }

    fn repeatable(&self) -> bool {
        // Its own journal knows what was done.
        true
    }

    fn timeout(&self) -> Option<Duration> {
        // It has turns, and budgets.
        None
    }

    async fn call(&self, params: Params, cx: ToolContext) -> Result<ToolOutput, ToolError> {
        let caller = caller(&cx)?;
        if let Some(refusal) = self.0.refuses(&caller, &cx) {
            return Ok(ToolOutput::failure(refusal.text));
        }
        let work = match begun(&caller).await? {
            Begun::Nothing => self.0.begin(params, &caller, &cx, Value::Null).await,
            Begun::Open(run, _) => self.0.go_on(run, &caller, &cx).await,
            Begun::Finished(ended, _) => Err(self.0.ended(*ended).await),
        };
        let done = match work {
            Ok(work) => {
                let leaves_open = || caller.leaves_open();
                work.until_its_end(&cx.cancellation, leaves_open, None)
                    .await
            }
            Err(done) => done,
        };
        if let Some(ledger) = done.ledger {
            let open = done.open;
            *caller.report() = Some(Report { ledger, open });
        }
        let mut output = ToolOutput::text(done.said.text).with_metadata(Metadata::uses(1));
        output.success = done.said.success;
        Ok(output)
    }
}

/// What the loop handed over with a call.
pub(super) fn caller(cx: &ToolContext) -> Result<Arc<Caller>, ToolError> {
    let caller = cx.caller.clone();
    let caller = caller.and_then(|it| it.downcast::<Caller>().ok());
    caller.ok_or_else(|| ToolError::failed("A sub-agent can only be called by an agent."))
}

/// What was done of a call before.
pub(super) enum Begun {
    Nothing,
    /// A run that can go on, with its note.
    Open(RunId, Value),
    /// One that finished, with its note.
    Finished(Box<Ended>, Value),
}

/// Looks whether this call was begun before: by another process, or before its run was cancelled.
pub(super) async fn begun(caller: &Caller) -> Result<Begun, ToolError> {
    let Some(store) = caller.store() else {
        return Ok(Begun::Nothing);
    };
    let deadline = Instant::now() + LET_GO_DEADLINE;
    loop {
        let store = store.clone();
        let looked = tokio::task::spawn_blocking(move || look(&store)).await;
        let unreadable = |error: &dyn std::fmt::Display| {
            ToolError::failed(format!("The sub-agent's journal can't be read: {error}"))
        };
        let found = looked.map_err(|error| unreadable(&error))?;
        match found.map_err(|error| unreadable(&error))? {
            Some(begun) => return Ok(begun),
            None if Instant::now() < deadline => tokio::time::sleep(LET_GO_INTERVAL).await,
            None => {
                let text = "Another process works on this call of the sub-agent.";
                return Err(ToolError::failed(text));
            }
        }
    }
}

/// What there is of a call's run; `None` while somebody works on it.
fn look(store: &RunStore) -> Result<Option<Begun>, StoreError> {
    let Some(run) = store.list()?.0.into_iter().next() else {
        return Ok(Some(Begun::Nothing));
    };
    Ok(match run.status {
        KeptStatus::Running => None,
        KeptStatus::Ended(RunStatus::Finished) => Some(match store.ended(run.run)? {
            Some(ended) => Begun::Finished(Box::new(ended), run.note),
            None => Begun::Nothing,
        }),
        _ => Some(Begun::Open(run.run, run.note)),
    })
}

/// What came of a sub-agent.
#[derive(Debug)]
pub(super) struct Done {
    pub(super) said: Said,
    /// What it used; `None` where it did not begin.
    pub(super) ledger: Option<Ledger>,
    /// Whether it was stopped with its caller, and goes on with it.
    pub(super) open: bool,
}

impl Done {
    pub(super) fn not_begun(why: &str) -> Self {
        Self {
            said: words::failed(why),
            ledger: None,
            open: false,
        }
    }
}

impl SubAgent {
    /// Why it can't be called from here.
    pub(super) fn refuses(&self, caller: &Caller, cx: &ToolContext) -> Option<Said> {
        if caller.depth >= self.max_depth {
            return Some(words::failed(&format!(
                "agents are {} deep already, and may not be deeper. Do it yourself",
                caller.depth
            )));
        }
        let lacks = self.share_sandbox && cx.sandbox.is_none();
        lacks.then(|| words::failed("it works in your sandbox, and you have none"))
    }

    fn lineage(&self, caller: &Caller, cx: &ToolContext) -> Lineage {
        Lineage {
            run: caller.run,
            depth: caller.depth + 1,
            account: Arc::clone(&caller.account),
            sandbox: cx.sandbox.clone(),
            shares_sandbox: self.share_sandbox,
            skills: caller.skills.clone(),
            questions: caller.questions.clone(),
        }
    }

    /// Begins to work on a task.
    pub(super) async fn begin(
        &self,
        params: Params,
        caller: &Arc<Caller>,
        cx: &ToolContext,
        note: Value,
    ) -> Result<Work, Done> {
        let mut options = SessionOptions::default().budget(self.budget);
        options.lineage = Some(self.lineage(caller, cx));
        options.progress = Some(Arc::clone(&cx.progress));
        if let Some(store) = caller.store() {
            options = options.kept_in(store, note);
        }
        let session = self.agent.session(options).await;
        let session = session.map_err(|error| Done::not_begun(&error.to_string()))?;
        let Params { task, input_files } = params;
        if !self.share_sandbox
            && let Err(problem) = hand_in(&input_files, cx.sandbox.as_deref(), &session).await
        {
            return Err(given_up(session, &problem).await);
        }
        match session.run(task) {
            Ok(run) => Ok(Work::new(session, run, caller)),
            Err(error) => Err(given_up(session, &error.to_string()).await),
        }
    }

    /// Goes on with a run that was begun.
    pub(super) async fn go_on(
        &self,
        run: RunId,
        caller: &Arc<Caller>,
        cx: &ToolContext,
    ) -> Result<Work, Done> {
        let failed = |why: String, store: Option<RunStore>| async move {
            let mut done = Done::not_begun(&why);
            // What it used before must not be lost with it.
            let accounts = tokio::task::spawn_blocking(move || store?.accounts().ok()?.pop());
            done.ledger = accounts.await.ok().flatten();
            done
        };
        let Some(store) = &caller.store() else {
            return Err(failed("its journal is gone".to_owned(), None).await);
        };
        let mut options = ResumeOptions::default().budget(self.budget);
        options.lineage = Some(self.lineage(caller, cx));
        options.progress = Some(Arc::clone(&cx.progress));
        let session = match self.agent.resume(store, run, options).await {
            Ok(session) => session,
            Err(error) => return Err(failed(error.to_string(), Some(store.clone())).await),
        };
        match session.resume() {
            Ok(run) => Ok(Work::new(session, run, caller)),
            Err(error) => Err(given_up(session, &error.to_string()).await),
        }
    }

    /// What came of a run that finished while nobody could be told. Its files were handed over before
    /// it had; its sandbox may still be there.
    pub(super) async fn ended(&self, ended: Ended) -> Done {
        let mut said = words::response(&ended.finish, &ended.files);
        if let Some(handle) = ended.sandbox.filter(|_| !self.share_sandbox)
            && let Err(error) = self.agent.discard(handle).await
        {
            said.text = format!("{}\n{error}", said.text);
        }
        Done {
            said,
            ledger: Some(ended.ledger),
            open: false,
        }
    }
}

/// Closes a session in which nothing was done.
async fn given_up(session: Session, why: &str) -> Done {
    // There is a reason already that says more.
    let _ = session.close_for_good().await;
    Done::not_begun(why)
}

/// A sub-agent's run that goes on.
pub(super) struct Work {
    session: Session,
    run: Run,
    caller: Arc<Caller>,
}

impl Work {
    fn new(session: Session, run: Run, caller: &Arc<Caller>) -> Self {
        Self {
            session,
            run,
            caller: Arc::clone(caller),
        }
    }

    /// Works to the end, and closes the session. Told to stop, it ends soon; `leaves_open` then says
    /// whether it may go on another time. `begun` hears when the first turn begins.
    pub(super) async fn until_its_end(
        self,
        stop: &CancellationToken,
        leaves_open: impl Fn() -> bool,
        begun: Option<oneshot::Sender<()>>,
    ) -> Done {
        let Self {
            session,
            run,
            caller,
        } = self;
        let outcome = watch(run, &caller, stop, &leaves_open, begun).await;
        let open = stop.is_cancelled() && leaves_open() && outcome.status() != RunStatus::Finished;
        let closed = if open {
            session.close().await
        } else {
            session.close_for_good().await
        };
        let mut said = words::said(&outcome);
        if let Err(error) = closed {
            said.text = format!("{}\n{error}", said.text);
        }
        Done {
            said,
            ledger: Some(outcome.ledger),
            open,
        }
    }
}

/// Passes on what a run tells until it ends.
async fn watch(
    mut run: Run,
    caller: &Caller,
    stop: &CancellationToken,
    leaves_open: &impl Fn() -> bool,
    mut begun: Option<oneshot::Sender<()>>,
) -> Outcome {
    let (id, control) = (run.id(), run.control());
    loop {
        tokio::select! {
            event = run.next() => match event {
                Some(event) => {
                    caller.progress.note(&event, id);
                    caller.hub.forward(&event);
                    if matches!(event.kind, cantle_core::event::EventKind::TurnStarted { .. })
                        && let Some(begun) = begun.take()
                    {
                        // Whoever waited may have been given up.
                        let _ = begun.send(());
                    }
                }
                None => break,
            },
            () = stop.cancelled(), if !control.is_cancelled() => {
                if leaves_open() {
                    control.cancel();
                } else {
                    control.cancel_for_good();
                }
            }
        }
    }
    run.outcome().await
}

/// Copies the caller's files to where they are in the sub-agent's sandbox.
async fn hand_in(
    files: &[String],
    from: Option<&dyn Sandbox>,
    session: &Session,
) -> Result<(), String> {
    if files.is_empty() {
        return Ok(());
    }
    let from = from.ok_or("you have no sandbox, so there are no files to hand over")?;
    let to = session
        .sandbox()
        .ok_or("it has no sandbox, so it can't be given files")?;
    let mut problems = Vec::new();
    for file in files {
        let copied = match SandboxPath::new(file) {
            Ok(path) => {
                let target = path
                    .strip_root(&from.info().working_directory)
                    .unwrap_or_else(|| path.clone());
                from.copy_to(&path, &**to, &target)
                    .await
                    .map_err(|error| error.to_string())
            }
            Err(error) => Err(error.to_string()),
        };
        problems.extend(copied.err().map(|error| format!("`{file}`: {error}")));
    }
    if problems.is_empty() {
        return Ok(());
    }
    Err(format!(
        "these input files could not be handed over, so it did not begin: {}",
        problems.join("; ")
    ))
}
