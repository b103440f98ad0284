//! The driver: performs what the machine says, and tells it what happened.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cantle_core::event::EventKind;
use cantle_core::ids::RunId;
use cantle_core::ledger::{CallPurpose, ModelCall};
use cantle_core::llm::{
    ChatEvent, ChatRequest, Completion, Fold, LlmClient, LlmError, LlmErrorKind, ToolSpecs,
};
use cantle_core::message::ToolCall;
use cantle_core::sandbox::Sandbox;
use cantle_core::tool::{AskUser, DynTool, Progress, ToolContext};
use cantle_core::usage::TokenUsage;
use futures_util::StreamExt as _;
use serde_json::Value;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::calls;
use crate::error::{RunError, RunErrorKind};
use crate::hub::Hub;
use crate::machine::{Action, CallOutcome, End, Fact, Machine, ModelFailure};
use crate::machine::{estimate_usage, output_bytes};
use crate::time::unix_seconds;

/// How long calls may take to end by themselves after the run was cancelled.
const CANCEL_GRACE: Duration = Duration::from_secs(3);

/// What a run needs besides the machine.
pub(crate) struct Driver {
    pub(crate) run: RunId,
    pub(crate) client: Arc<dyn LlmClient>,
    pub(crate) tools: Arc<HashMap<String, DynTool>>,
    pub(crate) specs: ToolSpecs,
    pub(crate) sandbox: Option<Arc<dyn Sandbox>>,
    pub(crate) user: Arc<dyn AskUser>,
    pub(crate) hub: Arc<Hub>,
    pub(crate) cancellation: CancellationToken,
}

/// The calls that are running.
#[derive(Default)]
struct Running {
    tasks: JoinSet<(usize, CallOutcome)>,
    calls: HashMap<usize, (ToolCall, Instant)>,
}

impl Driver {
    /// Drives the machine to its end.
    pub(crate) async fn drive(&self, machine: &mut Machine) -> End {
        let mut running = Running::default();
        loop {
            while let Some(action) = machine.next() {
                match action {
                    Action::AskModel { turn } => {
                        let fact = self.ask_model(machine, turn).await;
                        machine.apply(fact);
                    }
                    Action::StartCall { index, call } => {
                        self.start(&mut running, index, call);
                        machine.apply(Fact::CallStarted {
                            index,
                            time: unix_seconds(),
                        });
                    }
                    Action::CallRefused { call, text } => self.refuse(call, text),
                    Action::Say { text } => self.hub.emit(EventKind::UserMessage { text }),
                    Action::TurnDropped { turn } => self.hub.emit(EventKind::TurnDropped { turn }),
                    Action::End(end) => return end,
                }
            }
            let finished = tokio::select! {
                // A call that ends because it was cancelled must not start the next one.
                biased;
                () = self.cancellation.cancelled() => {
                    machine.apply(Fact::Cancelled { call: None });
                    self.wind_down(&mut running, machine).await;
                    continue;
                }
                finished = running.tasks.join_next() => finished,
            };
            match finished {
                Some(Ok((index, outcome))) => self.finish(&mut running, machine, index, outcome),
                // `calls::run` catches panics, and nothing aborts a task before this loop ends.
                Some(Err(_)) | None => {
                    return Err(RunError::new(
                        RunErrorKind::Internal,
                        "a tool call was lost",
                    ));
                }
            }
        }
    }

    /// Asks the model, and turns whatever comes of it into a fact.
    async fn ask_model(&self, machine: &Machine, turn: u32) -> Fact {
        self.hub.emit(EventKind::TurnStarted { turn });
        let request = ChatRequest::new(machine.messages().to_vec(), self.specs.clone());
        let started = (Instant::now(), unix_seconds());
        let mut stream = self.client.stream(request);
        let mut fold = Fold::default();
        let mut streamed_bytes = 0;
        let failure = loop {
            let event = tokio::select! {
                event = stream.next() => event,
                () = self.cancellation.cancelled() => {
                    let call = self.wasted(machine, CallPurpose::Cancelled, started.0, streamed_bytes, true);
                    return Fact::Cancelled { call: Some(call) };
                }
            };
            match event {
                Some(Ok(event)) => {
                    streamed_bytes += self.show(&event);
                    if let Some(completion) = fold.push(event) {
                        return self.answered(machine, turn, started, completion);
                    }
                }
                Some(Err(error)) => break error,
                None => {
                    break LlmError::protocol("the stream ended without saying how the turn ended");
                }
            }
        };
        let read = matches!(
            failure.kind(),
            LlmErrorKind::Timeout | LlmErrorKind::Interrupted
        );
        let call = self.wasted(
            machine,
            CallPurpose::Failed,
            started.0,
            streamed_bytes,
            read,
        );
        Fact::ModelFailed(ModelFailure {
            error: Arc::new(failure),
            call,
        })
    }

    fn answered(
        &self,
        machine: &Machine,
        turn: u32,
        (started, start_time): (Instant, f64),
        completion: Completion,
    ) -> Fact {
        let Completion {
            mut message,
            stop,
            usage,
            cost_usd,
            ..
        } = completion;
        let duration = started.elapsed();
        message.request_start_time = Some(start_time);
        message.request_end_time = Some(start_time + duration.as_secs_f64());
        let estimated = usage.is_none();
        let usage =
            usage.unwrap_or_else(|| estimate_usage(machine.messages(), output_bytes(&message)));
        let mut call = ModelCall::new(
            &self.client.model().slug,
            CallPurpose::Turn,
            usage,
            duration,
        );
        call.estimated = estimated;
        call.cost_usd = cost_usd;
        self.hub.emit(EventKind::ModelAnswered {
            turn,
            text: message.text(),
            tool_calls: message.tool_calls().count(),
            usage,
            usage_estimated: estimated,
            cost_usd,
            duration,
        });
        Fact::ModelAnswered {
            message: Box::new(message),
            stop,
            call,
        }
    }

    /// The ledger's entry for a call that came to nothing. A provider that refused the request at
    /// once used no tokens; one that went silent or was cut off has read it.
    fn wasted(
        &self,
        machine: &Machine,
        purpose: CallPurpose,
        started: Instant,
        streamed_bytes: usize,
        read: bool,
    ) -> ModelCall {
        let usage = if read || streamed_bytes > 0 {
            estimate_usage(machine.messages(), streamed_bytes)
        } else {
            TokenUsage::default()
        };
        let slug = &self.client.model().slug;
        let mut call = ModelCall::new(slug, purpose, usage, started.elapsed());
        call.estimated = true;
        call
    }

    /// Shows a piece of an answer to those who watch; returns how many bytes of output it was.
    fn show(&self, event: &ChatEvent) -> usize {
        match event {
            ChatEvent::TextDelta(text) => {
                if self.hub.is_watched() {
                    self.hub.emit(EventKind::TextDelta { text: text.clone() });
                }
                text.len()
            }
            ChatEvent::ReasoningDelta(text) => {
                if self.hub.is_watched() {
                    self.hub
                        .emit(EventKind::ReasoningDelta { text: text.clone() });
                }
                text.len()
            }
            ChatEvent::ToolCallDelta { arguments, .. } => arguments.len(),
            ChatEvent::Retrying {
                attempt,
                after,
                reason,
            } => {
                self.hub.emit(EventKind::ModelRetry {
                    attempt: *attempt,
                    after: *after,
                    reason: reason.clone(),
                });
                0
            }
            _ => 0,
        }
    }

    fn start(&self, running: &mut Running, index: usize, call: ToolCall) {
        // The machine starts only calls of tools it was told of.
        let Some(tool) = self.tools.get(&call.name).cloned() else {
            return;
        };
        self.hub.emit(EventKind::ToolStarted {
            call_id: call.id.clone(),
            tool: call.name.clone(),
            arguments: serde_json::from_str(&call.arguments)
                .unwrap_or_else(|_| Value::String(call.arguments.clone())),
        });
        let mut cx = ToolContext::new(self.run, &call.id);
        cx.cancellation = self.cancellation.child_token();
        cx.sandbox.clone_from(&self.sandbox);
        cx.user = Arc::clone(&self.user);
        cx.progress = Arc::new(CallProgress {
            hub: Arc::clone(&self.hub),
            call_id: call.id.clone(),
        });
        running.calls.insert(index, (call.clone(), Instant::now()));
        running
            .tasks
            .spawn(async move { (index, calls::run(tool, call, cx).await) });
    }

    fn refuse(&self, call: ToolCall, result: String) {
        self.hub.emit(EventKind::ToolFinished {
            call_id: call.id,
            tool: call.name,
            result,
            success: false,
            arguments_valid: true,
            duration: Duration::ZERO,
        });
    }

    fn finish(
        &self,
        running: &mut Running,
        machine: &mut Machine,
        index: usize,
        outcome: CallOutcome,
    ) {
        if let Some((call, _)) = running.calls.remove(&index) {
            self.hub.emit(EventKind::ToolFinished {
                call_id: call.id,
                tool: call.name,
                result: outcome.content.text(),
                success: outcome.success,
                arguments_valid: outcome.arguments_valid,
                duration: outcome.duration,
            });
        }
        machine.apply(Fact::CallFinished {
            index,
            outcome: Box::new(outcome),
        });
    }

    /// Lets cancelled calls end by themselves, and abandons those that don't.
    async fn wind_down(&self, running: &mut Running, machine: &mut Machine) {
        let deadline = tokio::time::sleep(CANCEL_GRACE);
        tokio::pin!(deadline);
        loop {
            tokio::select! {
                finished = running.tasks.join_next() => match finished {
                    Some(Ok((index, outcome))) => self.finish(running, machine, index, outcome),
                    Some(Err(_)) => {}
                    None => break,
                },
                () = &mut deadline => break,
            }
        }
        running.tasks.abort_all();
        let mut abandoned: Vec<_> = running
            .calls
            .iter()
            .map(|(index, (_, started))| (*index, *started))
            .collect();
        abandoned.sort_unstable_by_key(|(index, _)| *index);
        for (index, started) in abandoned {
            self.finish(running, machine, index, calls::abandoned(started.elapsed()));
        }
    }
}

struct CallProgress {
    hub: Arc<Hub>,
    call_id: String,
}

impl Progress for CallProgress {
    fn output(&self, text: &str) {
        if self.hub.is_watched() {
            let call_id = self.call_id.clone();
            self.hub.emit(EventKind::ToolOutputDelta {
                call_id,
                text: text.to_owned(),
            });
        }
    }
}
