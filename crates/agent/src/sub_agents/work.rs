//! The work of a sub-agent, from its session to its result.

use std::sync::Arc;
use std::time::Duration;

use cantle_core::event::{EventKind, RunStatus};
use cantle_core::ids::RunId;
use cantle_core::sandbox::{Sandbox, SandboxExt as _, SandboxPath};
use cantle_core::tool::{ToolContext, ToolError, ToolOutput};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use tokio::sync::oneshot;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::options::SubAgent;
use super::render;
use crate::journal::{JournalContent, KeptStatus, RunStore, StoreError};
use crate::run::{Outcome, Run, RunOptions, last_text};
use crate::scope::{ParentRun, SubAgentCall, SubAgentReport};
use crate::session::{ResumeOptions, Session, SessionOptions};

/// Maximum time to wait until another process has released a call's run.
const LOCK_DEADLINE: Duration = Duration::from_secs(5);

/// Interval at which the lock is tried.
const LOCK_INTERVAL: Duration = Duration::from_millis(20);

/// The parameters of a call.
#[derive(Deserialize, JsonSchema)]
pub(super) struct Params {
    /// The task, with everything it has to know: it sees nothing of your conversation.
    pub(super) task: String,
    /// Your files that it gets, relative to your working directory; directories and patterns work.
    #[serde(default)]
    pub(super) input_files: Vec<String>,
}

/// The run that an earlier process, or an earlier attempt of this one, began for a call.
pub(super) enum EarlierRun {
    Nothing,
    /// A run that can be resumed, with its note.
    Unfinished(RunId, Value),
    /// A run that ended with a finish call or an answer in text, so that nothing is left to do.
    Ended(Box<JournalContent>),
}

/// Finds the run that was begun for this call.
pub(super) async fn find_earlier_run(call: &SubAgentCall) -> Result<EarlierRun, ToolError> {
    let Some(store) = call.store() else {
        return Ok(EarlierRun::Nothing);
    };
    let unreadable = |error: &dyn std::fmt::Display| {
        ToolError::failed(format!("The sub-agent's journal can't be read: {error}"))
    };
    let deadline = Instant::now() + LOCK_DEADLINE;
    loop {
        let store = store.clone();
        let found = tokio::task::spawn_blocking(move || find_in(&store)).await;
        let found = found.map_err(|error| unreadable(&error))?;
        match found.map_err(|error| unreadable(&error))? {
            Some(begun) => return Ok(begun),
            None if Instant::now() < deadline => tokio::time::sleep(LOCK_INTERVAL).await,
            None => {
                let text = "Another process works on this call of the sub-agent.";
                return Err(ToolError::failed(text));
            }
        }
    }
}

/// Finds a call's run; `None` while another process works on it.
fn find_in(store: &RunStore) -> Result<Option<EarlierRun>, StoreError> {
    let (runs, unreadable) = store.list()?;
    // A call that begins anew would repeat the effects of a damaged journal.
    if let Some(error) = unreadable.into_iter().next() {
        return Err(error);
    }
    let Some(run) = runs.into_iter().next() else {
        return Ok(Some(EarlierRun::Nothing));
    };
    Ok(match run.status {
        KeptStatus::Running => None,
        KeptStatus::Ended(RunStatus::Finished | RunStatus::AnsweredInText) => {
            Some(EarlierRun::Ended(Box::new(store.read(run.run)?)))
        }
        _ => Some(EarlierRun::Unfinished(run.run, run.note)),
    })
}

/// The result of a sub-agent.
#[derive(Debug)]
pub(super) struct SubAgentResult {
    /// The text for the calling model.
    pub(super) text: String,
    /// Whether the sub-agent finished.
    pub(super) success: bool,
    /// The costs; `None` if the sub-agent did not begin.
    pub(super) report: Option<SubAgentReport>,
}

impl SubAgentResult {
    fn not_begun(reason: &str) -> Self {
        Self {
            text: render::failure(reason),
            success: false,
            report: None,
        }
    }
}

impl SubAgent {
    /// Returns the answer to a call that is refused; `None` if it is not.
    pub(super) fn refusal(&self, call: &SubAgentCall, cx: &ToolContext) -> Option<ToolOutput> {
        let depth = call.scope.depth;
        let reason = if depth >= self.max_depth {
            format!("agents are {depth} deep already, and may not be deeper. Do it yourself")
        } else if self.shares_sandbox && cx.sandbox.is_none() {
            "it works in your sandbox, and you have none".to_owned()
        } else {
            return None;
        };
        Some(ToolOutput::failure(render::failure(&reason)))
    }

    fn run_options(&self, call: &SubAgentCall, cx: &ToolContext) -> RunOptions {
        RunOptions {
            budget: self.budget,
            principal: cx.principal.clone(),
            progress: Some(Arc::clone(&cx.progress)),
            parent: Some(ParentRun {
                scope: Arc::clone(&call.scope),
                call_id: call.call_id.clone(),
                sandbox: cx.sandbox.clone(),
                shares_sandbox: self.shares_sandbox,
            }),
            ..RunOptions::default()
        }
    }

    /// Starts a run.
    pub(super) async fn begin(
        &self,
        params: Params,
        call: &Arc<SubAgentCall>,
        cx: &ToolContext,
        note: Value,
    ) -> Result<SubAgentWork, SubAgentResult> {
        let options = SessionOptions {
            runs: self.run_options(call, cx),
            store: call.store(),
            note,
            ..SessionOptions::default()
        };
        let session = self.agent.session(options).await;
        let mut session = session.map_err(|error| SubAgentResult::not_begun(&error.to_string()))?;
        if !self.shares_sandbox {
            match copy_inputs(&params.input_files, cx.sandbox.as_deref(), &session).await {
                Ok(files) => session.add_input_files(files),
                Err(problem) => return Err(close_unused(session, &problem).await),
            }
        }
        match session.run(params.task) {
            Ok(run) => Ok(SubAgentWork::new(session, run, call)),
            Err(error) => Err(close_unused(session, &error.to_string()).await),
        }
    }

    /// Resumes a run.
    pub(super) async fn resume(
        &self,
        run: RunId,
        call: &Arc<SubAgentCall>,
        cx: &ToolContext,
    ) -> Result<SubAgentWork, SubAgentResult> {
        let Some(store) = call.store() else {
            return Err(SubAgentResult::not_begun("its journal is gone"));
        };
        let options = ResumeOptions {
            runs: self.run_options(call, cx),
            ..ResumeOptions::default()
        };
        let session = match self.agent.resume(&store, run, options).await {
            Ok(session) => session,
            Err(error) => {
                let mut result = SubAgentResult::not_begun(&error.to_string());
                // Its earlier costs still count.
                let content = tokio::task::spawn_blocking(move || store.read(run));
                let content = content.await.ok().and_then(Result::ok);
                result.report =
                    content.and_then(|content| self.recorded_result(content, call).report);
                return Err(result);
            }
        };
        match session.resume() {
            Ok(run) => Ok(SubAgentWork::new(session, run, call)),
            Err(error) => Err(close_unused(session, &error.to_string()).await),
        }
    }

    /// The result of a run that ended before its caller could record it. Its files were delivered
    /// before; its sandbox may still exist.
    pub(super) async fn ended(
        &self,
        content: JournalContent,
        call: &SubAgentCall,
    ) -> SubAgentResult {
        let sandbox = content.header.sandbox.clone();
        let mut result = self.recorded_result(content, call);
        // On the heap: every call reserves the space of what it may wait for.
        if let Some(handle) = sandbox.filter(|_| !self.shares_sandbox)
            && let Err(error) = Box::pin(Session::discard(&self.agent.0, handle)).await
        {
            result.text = format!("{}\n{error}", result.text);
        }
        result
    }

    /// Returns the result of a run, from its journal, and counts it against the budgets of its caller.
    fn recorded_result(&self, mut content: JournalContent, call: &SubAgentCall) -> SubAgentResult {
        let end = content.end.take();
        let answered = end
            .as_ref()
            .is_some_and(|end| end.status == RunStatus::AnsweredInText);
        let finish = end.and_then(|end| Some((end.finish?, end.files)));
        let (messages, _, ledger) = content.replay().into_parts();
        let models = self.agent.0.models();
        call.scope.budget.earlier_run(&ledger, &models);
        SubAgentResult {
            success: finish.is_some(),
            text: match finish {
                Some((finish, files)) => render::finish(&finish, &files),
                None if answered => render::answered_in_text(last_text(&messages), &[]),
                None => render::failure("it ended without a result"),
            },
            report: Some(SubAgentReport {
                ledger,
                suspended: false,
            }),
        }
    }
}

/// Closes a session in which no run was started.
async fn close_unused(session: Session, reason: &str) -> SubAgentResult {
    // The first error is the one to report.
    let _ = session.close_for_good().await;
    SubAgentResult::not_begun(reason)
}

/// A sub-agent's run in progress.
pub(super) struct SubAgentWork {
    session: Session,
    run: Run,
    call: Arc<SubAgentCall>,
}

impl SubAgentWork {
    fn new(session: Session, run: Run, call: &Arc<SubAgentCall>) -> Self {
        Self {
            session,
            run,
            call: Arc::clone(call),
        }
    }

    /// Runs to the end, and closes the session. After `stop` the run ends soon; `suspends` then tells
    /// whether it may be resumed. `begun` is signalled when the first turn begins.
    pub(super) async fn run(
        self,
        stop: &CancellationToken,
        suspends: impl Fn() -> bool,
        begun: Option<oneshot::Sender<()>>,
    ) -> SubAgentResult {
        let Self { session, run, call } = self;
        let outcome = forward_events(run, &call, stop, &suspends, begun).await;
        let suspended = stop.is_cancelled() && suspends() && outcome.error.is_some();
        let closed = if suspended {
            session.close().await
        } else {
            session.close_for_good().await
        };
        let mut text = render::outcome(&outcome);
        if let Err(error) = closed {
            text = format!("{text}\n{error}");
        }
        let success = outcome.status() == RunStatus::Finished;
        // The outcome of a run that panicked has no ledger.
        let ledger = call.progress.ledger();
        SubAgentResult {
            text,
            success,
            report: Some(SubAgentReport { ledger, suspended }),
        }
    }
}

/// Forwards the events of a run until it ends.
async fn forward_events(
    mut run: Run,
    call: &SubAgentCall,
    stop: &CancellationToken,
    suspends: &impl Fn() -> bool,
    mut begun: Option<oneshot::Sender<()>>,
) -> Outcome {
    let (id, control) = (run.id(), run.control());
    loop {
        tokio::select! {
            event = run.next() => {
                let Some(event) = event else { break };
                call.progress.update(&event, id);
                if matches!(event.kind, EventKind::TurnStarted { .. })
                    && let Some(begun) = begun.take()
                {
                    // The receiver may have been dropped.
                    let _ = begun.send(());
                }
                call.scope.hub.forward(event);
            }
            () = stop.cancelled(), if !control.is_cancelled() => {
                if suspends() {
                    control.cancel();
                } else {
                    control.cancel_for_good();
                }
            }
        }
    }
    run.outcome().await
}

/// Copies files of the caller to the same paths in the sub-agent's sandbox. Returns these paths.
async fn copy_inputs(
    files: &[String],
    from: Option<&dyn Sandbox>,
    session: &Session,
) -> Result<Vec<String>, String> {
    if files.is_empty() {
        return Ok(Vec::new());
    }
    let from = from.ok_or("you have no sandbox, so there are no files to copy")?;
    let to = session
        .sandbox()
        .ok_or("it has no sandbox, so it can't be given files")?;
    let matched = from.matching_files(files).await;
    let matched = matched.map_err(|error| error.to_string())?;
    let refused = matched.refused.iter();
    let mut problems: Vec<_> = refused
        .map(|it| format!("`{}`: {}", it.source, it.reason))
        .collect();
    let mut targets = Vec::new();
    for file in &matched.files {
        let copied = match SandboxPath::new(file) {
            Ok(path) => {
                let target = path
                    .strip_prefix(&from.info().working_directory)
                    .unwrap_or_else(|| path.clone());
                from.copy_to(&path, &**to, &target)
                    .await
                    .map(|()| target.to_string())
                    .map_err(|error| error.to_string())
            }
            Err(error) => Err(error.to_string()),
        };
        match copied {
            Ok(target) => targets.push(target),
            Err(error) => problems.push(format!("`{file}`: {error}")),
        }
    }
    if problems.is_empty() {
        targets.sort();
        targets.dedup();
        return Ok(targets);
    }
    Err(format!(
        "these input files could not be copied, so it did not begin: {}",
        problems.join("; ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_whose_journal_is_damaged_does_not_begin_anew() {
        let directory = tempfile::tempdir().unwrap();
        let store = RunStore::new(directory.path());
        assert!(matches!(find_in(&store), Ok(Some(EarlierRun::Nothing))));
        let run = store.run_directory(RunId::new());
        std::fs::create_dir(&run).unwrap();
        std::fs::write(run.join("journal.jsonl"), "{}\n").unwrap();
        assert!(find_in(&store).is_err());
    }
}
