//! The tool of a background sub-agent: starts one, shows its status, waits for it, stops it.

use std::sync::Arc;
use std::time::Duration;

use cantle_core::metadata::Metadata;
use cantle_core::tool::{ToolContext, ToolError, ToolOutput};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use tokio::sync::oneshot;

use super::options::SubAgent;
use super::render;
use super::work::{EarlierRun, Params, SubAgentResult, SubAgentWork, find_earlier_run};
use crate::journal::BackgroundAgentRecord;
use crate::scope::{Background, SubAgentCall};

/// Default timeout of `wait`.
const WAIT: Duration = Duration::from_secs(60);

/// Maximum timeout of `wait`.
const MAX_WAIT: Duration = Duration::from_secs(600);

/// Timeout of `stop`: longer than a cancelled sub-agent takes to end.
const STOP_WAIT: Duration = Duration::from_secs(10);

/// The operation to perform.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(rename = "Action")]
pub(super) enum Operation {
    Start,
    Look,
    Wait,
    Stop,
}

#[derive(Deserialize, JsonSchema)]
pub(super) struct BackgroundParams {
    /// `start` gives a task to a new sub-agent, which works while you go on, and returns its id; you
    /// are informed when it has ended. `look` shows its status or its result. `wait` waits until one
    /// has ended. `stop` stops one.
    action: Operation,
    /// For `start`: what to do, with everything it has to know. It sees nothing of your conversation.
    #[serde(default)]
    task: Option<String>,
    /// For `start`: your files that it gets, relative to your working directory; directories and patterns work.
    #[serde(default)]
    input_files: Vec<String>,
    /// For `look`, `wait` and `stop`: which one. Without it, `look` shows all, and `wait` waits for
    /// the next that ends.
    #[serde(default)]
    id: Option<String>,
    /// For `wait`: the timeout in seconds; 60 by default, at most 600.
    #[serde(default)]
    timeout_s: Option<f64>,
}

impl SubAgent {
    /// Performs an operation on the background sub-agents of this tool.
    pub(super) async fn call_in_background(
        &self,
        params: BackgroundParams,
        cx: &ToolContext,
        call: &Arc<SubAgentCall>,
    ) -> Result<ToolOutput, ToolError> {
        let background = &call.scope.background;
        let (tool, id) = (self.agent.name(), params.id.as_deref());
        match params.action {
            Operation::Start => self.start(params, call, cx).await,
            Operation::Look => Ok(output(statuses(background, tool, id))),
            Operation::Wait => {
                let timeout = params.timeout_s.map(Duration::try_from_secs_f64);
                let timeout = timeout.and_then(Result::ok).unwrap_or(WAIT).min(MAX_WAIT);
                wait(background, tool, id, timeout, cx).await
            }
            Operation::Stop => {
                let Some(id) = id else {
                    let reason = "`stop` needs the `id` of the one that is to end";
                    return Ok(output(Err(reason.to_owned())));
                };
                if let Err(reason) = background.stop(tool, id) {
                    return Ok(output(Err(reason)));
                }
                wait(background, tool, Some(id), STOP_WAIT, cx).await
            }
        }
    }

    /// Starts a sub-agent, or resumes the one that this call started before.
    async fn start(
        &self,
        params: BackgroundParams,
        call: &Arc<SubAgentCall>,
        cx: &ToolContext,
    ) -> Result<ToolOutput, ToolError> {
        let background = &call.scope.background;
        if let Some(record) = background.of_call(&call.call_id) {
            return Ok(started(&record));
        }
        let record_of = |note: &Value| {
            let new_record = || background.new_record(self.agent.name(), &call.call_id);
            BackgroundAgentRecord::from_note(note).unwrap_or_else(new_record)
        };
        let (record, work) = match find_earlier_run(call).await? {
            EarlierRun::Nothing => return self.start_new(params, call, cx).await,
            EarlierRun::Unfinished(run, note) => {
                let work = self.resume(run, call, cx).await;
                (record_of(&note), work)
            }
            EarlierRun::Ended(content) => {
                let record = record_of(&content.header.note);
                (record, Err(self.ended(*content, call).await))
            }
        };
        // Its journal exists already.
        drop(spawn(call, &record, work));
        Ok(started(&record).with_metadata(Metadata::uses(1)))
    }

    /// Starts a new sub-agent, unless too many work already.
    async fn start_new(
        &self,
        params: BackgroundParams,
        call: &Arc<SubAgentCall>,
        cx: &ToolContext,
    ) -> Result<ToolOutput, ToolError> {
        let Some(task) = params.task.filter(|task| !task.trim().is_empty()) else {
            let reason = "`start` needs a `task`: what to do, with everything it has to know";
            return Ok(output(Err(reason.to_owned())));
        };
        if let Some(refusal) = self.refusal(call, cx) {
            return Ok(refusal);
        }
        let background = &call.scope.background;
        // The place is held until the sub-agent is known to have begun.
        let (record, _place) = match background.reserve(self.agent.name(), &call.call_id) {
            Ok(reserved) => reserved,
            Err(working) => {
                return Ok(output(Err(format!(
                    "{working} sub-agents work for you already. Wait for one of them, or stop one"
                ))));
            }
        };
        let input_files = params.input_files;
        let params = Params { task, input_files };
        let work = self.begin(params, call, cx, record.to_note()).await;
        if let Err(result) = &work
            && result.report.is_none()
        {
            return Ok(ToolOutput::failure(result.text.clone()));
        }
        let has_begun = spawn(call, &record, work);
        // Once its journal exists, an interrupted start finds it again.
        if let Some(has_begun) = has_begun
            && call.scope.store.is_some()
        {
            tokio::select! {
                _ = has_begun => {}
                () = cx.cancellation.cancelled() => {}
            }
        }
        Ok(started(&record).with_metadata(Metadata::uses(1)))
    }
}

/// Registers a sub-agent that works or has ended. Returns a receiver for the start of its first turn if it works.
fn spawn(
    call: &Arc<SubAgentCall>,
    record: &BackgroundAgentRecord,
    work: Result<SubAgentWork, SubAgentResult>,
) -> Option<oneshot::Receiver<()>> {
    let background = &call.scope.background;
    let (record, number) = (record.clone(), record.number);
    match work {
        Err(SubAgentResult { text, report, .. }) => {
            background.insert_ended(record, text, report);
            None
        }
        Ok(work) => {
            let (begun, has_begun) = oneshot::channel();
            let (progress, call) = (Arc::clone(&call.progress), Arc::clone(call));
            background.spawn(record, progress, |stop| {
                run(call, work, number, stop, begun)
            });
            Some(has_begun)
        }
    }
}

fn output(text: Result<String, String>) -> ToolOutput {
    match text {
        Ok(text) => ToolOutput::text(text),
        Err(reason) => ToolOutput::failure(format!("It can't be done: {reason}.")),
    }
}

fn statuses(background: &Background, tool: &str, id: Option<&str>) -> Result<String, String> {
    background
        .statuses(tool, id)
        .map(|it| render::statuses(&it))
}

async fn wait(
    background: &Background,
    tool: &str,
    id: Option<&str>,
    timeout: Duration,
    cx: &ToolContext,
) -> Result<ToolOutput, ToolError> {
    let waited = tokio::select! {
        waited = background.wait(tool, id, &cx.call_id, timeout) => waited,
        () = cx.cancellation.cancelled() => return Err(ToolError::cancelled()),
    };
    let text = match waited {
        Ok(Some(ended)) => Ok(render::statuses(&ended)),
        Ok(None) => statuses(background, tool, id).map(|text| {
            let seconds = timeout.as_secs_f64();
            format!("Not ended within {seconds} s; it continues.\n{text}")
        }),
        Err(reason) => Err(reason),
    };
    Ok(output(text))
}

/// Runs a background sub-agent to its end.
async fn run(
    call: Arc<SubAgentCall>,
    work: SubAgentWork,
    number: u64,
    stop: tokio_util::sync::CancellationToken,
    begun: oneshot::Sender<()>,
) {
    let scope = &call.scope;
    let suspends = || scope.suspends_calls() || scope.background.suspends();
    let result = work.run(&stop, suspends, Some(begun)).await;
    scope.background.ended(number, result.text, result.report);
}

fn started(record: &BackgroundAgentRecord) -> ToolOutput {
    let id = &record.id;
    ToolOutput::text(format!(
        "<sub_agent id=\"{id}\" state=\"working\">\nIt has begun. You are informed when it has ended.\n\
         </sub_agent>"
    ))
}
