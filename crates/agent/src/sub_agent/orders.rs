//! The tool of a sub-agent in the background: start one, look at it, wait for it, stop it.

use std::sync::Arc;
use std::time::Duration;

use cantle_core::metadata::Metadata;
use cantle_core::tool::{Tool, ToolContext, ToolError, ToolOutput};
use schemars::JsonSchema;
use serde::Deserialize;
use tokio::sync::oneshot;

use super::background::Background;
use super::call::{Begun, Done, Params, begun, caller};
use super::{Caller, SubAgent};
use crate::journal::Left;

/// How long `wait` waits, unless the model says, and at most.
const WAIT: Duration = Duration::from_secs(60);
const MAX_WAIT: Duration = Duration::from_secs(600);

/// How long `stop` waits for the end: more than one that is told to end takes.
const STOP_WAIT: Duration = Duration::from_secs(10);

/// The tool.
pub(super) struct Conductor(pub(super) SubAgent);

/// What to do.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum Action {
    Start,
    Look,
    Wait,
    Stop,
}

#[derive(Deserialize, JsonSchema)]
pub(super) struct Orders {
    /// `start` gives a task to a new sub-agent, which works while you go on, and returns its id; you
    /// are told when it has ended. `look` shows how one stands or what came of it. `wait` waits until
    /// one has ended. `stop` ends one.
    action: Action,
    /// For `start`: what to do, with everything it has to know. It sees nothing of your conversation.
    #[serde(default)]
    task: Option<String>,
    /// For `start`: files of yours that it gets, relative to your working directory.
    #[serde(default)]
    input_files: Vec<String>,
    /// For `look`, `wait` and `stop`: which one. Without it, `look` shows all, and `wait` waits for
    /// the next that ends.
    #[serde(default)]
    id: Option<String>,
    /// For `wait`: how many seconds at most; 60 unless set, never more than 600.
    #[serde(default)]
    timeout_s: Option<f64>,
}

impl Tool for Conductor {
    type Params = Orders;

    fn name(&self) -> &str {
        self.0.agent.name()
    }

    fn description(&self) -> &str {
        &self.0.description
    }

    fn concurrency_safe(&self) -> bool {
        true
    }

    fn polls(&self) -> bool {
        // Looking at one again is what there is to do until it has ended.
        true
    }

    fn repeatable(&self) -> bool {
        // One that was begun is not begun again: its own journal knows.
        true
    }

    fn timeout(&self) -> Option<Duration> {
        // Waiting has its own.
        None
    }

    async fn call(&self, orders: Orders, cx: ToolContext) -> Result<ToolOutput, ToolError> {
        let caller = caller(&cx)?;
        let background = caller.background.upgrade();
        let background = background.ok_or_else(ToolError::cancelled)?;
        let (tool, id) = (self.name(), orders.id.as_deref());
        let said = match orders.action {
            Action::Start => return self.start(orders, &caller, &background, &cx).await,
            Action::Look => background.look(tool, id),
            Action::Wait => {
                let time = orders.timeout_s.map(Duration::try_from_secs_f64);
                let time = time.and_then(Result::ok).unwrap_or(WAIT).min(MAX_WAIT);
                return wait(&background, tool, id, time, &cx).await;
            }
            Action::Stop => match id {
                None => Err("`stop` needs the `id` of the one that is to end".to_owned()),
                Some(id) => match background.stop(tool, id) {
                    Ok(()) => return wait(&background, tool, Some(id), STOP_WAIT, &cx).await,
                    Err(why) => Err(why),
                },
            },
        };
        Ok(output(said))
    }
}

fn output(said: Result<String, String>) -> ToolOutput {
    match said {
        Ok(text) => ToolOutput::text(text),
        Err(why) => ToolOutput::failure(format!("It can't be done: {why}.")),
    }
}

async fn wait(
    background: &Background,
    tool: &str,
    id: Option<&str>,
    time: Duration,
    cx: &ToolContext,
) -> Result<ToolOutput, ToolError> {
    let waited = tokio::select! {
        waited = background.wait(tool, id, time) => waited,
        () = cx.cancellation.cancelled() => return Err(ToolError::cancelled()),
    };
    let said = match waited {
        Ok(Some(text)) => Ok(text),
        Ok(None) => background.look(tool, id).map(|text| {
            let seconds = time.as_secs_f64();
            format!("Not ended within {seconds} s; it goes on.\n{text}")
        }),
        Err(why) => Err(why),
    };
    Ok(output(said))
}

impl Conductor {
    /// Begins one, or takes up the one that this call began before.
    async fn start(
        &self,
        orders: Orders,
        caller: &Arc<Caller>,
        background: &Arc<Background>,
        cx: &ToolContext,
    ) -> Result<ToolOutput, ToolError> {
        let sub_agent = &self.0;
        if let Some(left) = background.of_call(&cx.call_id) {
            return Ok(started(&left));
        }
        let left_by = |note| {
            Left::from_note(&note).unwrap_or_else(|| background.name(self.name(), &cx.call_id))
        };
        let mut is_new = false;
        let (left, work) = match begun(caller).await? {
            Begun::Open(run, note) => (left_by(note), sub_agent.go_on(run, caller, cx).await),
            Begun::Finished(ended, note) => (left_by(note), Err(sub_agent.ended(*ended).await)),
            Begun::Nothing => {
                let Some(task) = orders.task.filter(|task| !task.trim().is_empty()) else {
                    let why = "`start` needs a `task`: what to do, with everything it has to know";
                    return Ok(output(Err(why.to_owned())));
                };
                if let Some(refusal) = sub_agent.refuses(caller, cx) {
                    return Ok(ToolOutput::failure(refusal.text));
                }
                if let Some(why) = background.is_full() {
                    return Ok(output(Err(why)));
                }
                let left = background.name(self.name(), &cx.call_id);
                let input_files = orders.input_files;
                let params = Params { task, input_files };
                let work = sub_agent.begin(params, caller, cx, left.note()).await;
                match work {
                    Err(Done { said, ledger, .. }) if ledger.is_none() => {
                        return Ok(ToolOutput::failure(said.text));
                    }
                    work => {
                        is_new = caller.is_kept();
                        (left, work)
                    }
                }
            }
        };
        match work {
            Err(done) => background.take_in(left.clone(), done),
            Ok(work) => {
                let (begun, has_begun) = oneshot::channel();
                let progress = Arc::clone(&caller.progress);
                let (caller, weak) = (Arc::clone(caller), Arc::downgrade(background));
                background.attend(left.clone(), progress, |stop| async move {
                    let leaves_open = || {
                        let of_run = || weak.upgrade().is_some_and(|it| it.leaves_open());
                        caller.is_kept() && (caller.ending.leaves_open() || of_run())
                    };
                    work.until_its_end(&stop, leaves_open, Some(begun)).await
                });
                // Once its journal is there, it can be found again.
                if is_new {
                    tokio::select! {
                        _ = has_begun => {}
                        () = cx.cancellation.cancelled() => {}
                    }
                }
            }
        }
        Ok(started(&left).with_metadata(Metadata::uses(1)))
    }
}

fn started(left: &Left) -> ToolOutput {
    let id = &left.id;
    ToolOutput::text(format!(
        "<sub_agent id=\"{id}\" state=\"working\">\nIt has begun. You are told when it has ended.\n\
         </sub_agent>"
    ))
}
