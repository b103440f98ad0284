//! Asking the model: for a turn, or for a summary.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use cantle_core::event::EventKind;
use cantle_core::ledger::{CallPurpose, ModelCall};
use cantle_core::llm::{
    ChatEvent, ChatRequest, Completion, Fold, LlmError, LlmErrorKind, StopReason, ToolSpecs,
};
use cantle_core::message::{Message, SharedMessage};
use cantle_core::sandbox::SandboxPath;
use cantle_core::usage::TokenUsage;
use futures_util::StreamExt as _;
use tokio::time::Instant;
use tracing::Instrument as _;

use super::{Driver, over};
use crate::budget::{Account, BudgetState, Notice};
use crate::error::RunError;
use crate::hooks::{BeforeModel, guarded};
use crate::machine::{Fact, Machine, ModelFailure, SummaryAttempt, estimate_usage, output_bytes};
use crate::spans;
use crate::time::unix_seconds;

/// Files of the working directory that are named behind a summary.
const MAX_LISTED_FILES: usize = 100;

/// How long listing them may take.
const LIST_DEADLINE: Duration = Duration::from_secs(10);

const SUMMARIZE: &str = "\
Your context window is nearly full. Write a summary of this conversation, from which you will go on \
with the task as if you remembered everything. It will take the place of everything since the task \
was given. Write down: what was asked, as far as it became clearer on the way; what you did and what \
came of it, with exact names, paths, numbers, commands and error messages that still matter; what was \
decided and why; what was tried and does not work; what is done, what is open, and the next step. \
Don't call any tool.";

const TEXT_ONLY: &str = " Answer with text only, now.";

/// An answer, and what the call cost.
struct Answered {
    completion: Completion,
    call: ModelCall,
    started: f64,
    duration: Duration,
}

impl Driver {
    /// Asks the model for a turn, and tells the machine what came of it.
    pub(super) async fn ask_model(
        &mut self,
        machine: &mut Machine,
        turn: u32,
    ) -> Result<(), RunError> {
        // A run that is taken up, or may use nothing, can have spent its budget before it asks.
        for notice in self.account.notices() {
            let fact = match notice {
                Notice::Near(state) => Fact::BudgetNear(state),
                Notice::Spent(state) => Fact::BudgetWasSpent(state),
            };
            self.tell(machine, fact)?;
        }
        if let Some((left, state)) = self.account.time_left(super::LAST_TURN)
            && left.is_zero()
        {
            return self.tell(machine, Fact::OutOfTime { state, call: None });
        }
        if let Some(hooks) = self.gate.hooks.clone() {
            let decided = tokio::select! {
                decided = guarded("before_model", hooks.before_model(turn, machine.messages())) => {
                    decided?
                }
                () = self.ending.cancellation.cancelled() => {
                    return self.tell(machine, Fact::Cancelled { call: None });
                }
                state = out_of_time(&self.account) => {
                    return self.tell(machine, Fact::OutOfTime { state, call: None });
                }
            };
            match decided {
                BeforeModel::Ask => {}
                BeforeModel::Tell(content) => {
                    self.hub.emit(EventKind::UserMessage {
                        text: content.text(),
                    });
                    self.tell(machine, Fact::Told { content })?;
                }
                BeforeModel::Stop { reason } => {
                    return self.tell(machine, Fact::Stopped { reason });
                }
            }
        }
        self.commit().await?;
        self.hub.emit(EventKind::TurnStarted { turn });
        let request = ChatRequest::new(machine.messages().to_vec(), self.specs.clone());
        let answered = self.call(machine, request, true).await?;
        let fact = match answered {
            Err(fact) => *fact,
            Ok(answered) => {
                let Answered {
                    completion,
                    call,
                    started,
                    duration,
                } = answered;
                let Completion {
                    mut message, stop, ..
                } = completion;
                message.request_start_time = Some(started);
                message.request_end_time = Some(started + duration.as_secs_f64());
                self.hub.emit(EventKind::ModelAnswered {
                    turn,
                    text: message.text(),
                    tool_calls: message.tool_calls().count(),
                    usage: call.usage,
                    usage_estimated: call.estimated,
                    cost_usd: call.cost_usd,
                    duration,
                });
                Fact::ModelAnswered {
                    message: Box::new(message),
                    stop,
                    call,
                }
            }
        };
        self.tell_answer(machine, fact)
    }

    /// Asks the model for a summary, and tells the machine what came of it.
    pub(super) async fn summarize(
        &mut self,
        machine: &mut Machine,
        attempt: SummaryAttempt,
    ) -> Result<(), RunError> {
        self.commit().await?;
        let mut prompt = SUMMARIZE.to_owned();
        let mut specs = self.specs.clone();
        if attempt != SummaryAttempt::First {
            prompt.push_str(TEXT_ONLY);
        }
        if attempt == SummaryAttempt::WithoutTools {
            prompt.push_str(" The tools that you have used, and will have again, are:");
            for spec in specs.iter() {
                let _ = write!(prompt, "\n- {}: {}", spec.name(), spec.description());
            }
            specs = ToolSpecs::default();
        }
        let mut messages = machine.messages().to_vec();
        messages.push(SharedMessage::new(Message::user(prompt)));
        let answered = self
            .call(machine, ChatRequest::new(messages, specs), false)
            .await?;
        let fact = match answered {
            Err(fact) => *fact,
            Ok(Answered {
                completion, call, ..
            }) => Fact::Summarized {
                text: summary_text(&completion),
                files: self.files().await,
                call,
            },
        };
        self.tell_answer(machine, fact)
    }

    /// Tells the machine a fact with a model call in it, and before it what that call spent.
    fn tell_answer(&mut self, machine: &mut Machine, fact: Fact) -> Result<(), RunError> {
        if let Some(call) = fact.model_call() {
            self.account.model_call(call);
            if let Some(limit) = self.account.unpriced(call) {
                let model = &call.model;
                self.hub.emit(EventKind::Warning {
                    message: format!(
                        "Nobody says what this call of {model} cost, so that the budget of ${limit} \
                         does not count it, nor others like it. Give the model's prices, or a budget \
                         of tokens."
                    ),
                });
            }
        }
        self.take_said(machine)?;
        self.note_budgets(machine)?;
        self.tell(machine, fact)
    }

    /// Calls the model. What is no answer comes back as the fact that it is. What the user says
    /// meanwhile is on the disk at once.
    async fn call(
        &mut self,
        machine: &mut Machine,
        request: ChatRequest,
        shown: bool,
    ) -> Result<Result<Answered, Box<Fact>>, RunError> {
        let span = spans::chat(&self.client.model().slug);
        let streamed = self.streamed(machine, request, shown);
        let answered = streamed.instrument(span.clone()).await?;
        match &answered {
            Ok(answered) => spans::used(&span, &answered.call),
            Err(fact) => match &**fact {
                Fact::ModelFailed(failure) => spans::failed(&span, &failure.error.kind()),
                _ => spans::failed(&span, &"Cancelled"),
            },
        }
        Ok(answered)
    }

    async fn streamed(
        &mut self,
        machine: &mut Machine,
        request: ChatRequest,
        shown: bool,
    ) -> Result<Result<Answered, Box<Fact>>, RunError> {
        let (started, start_time) = (Instant::now(), unix_seconds());
        let mut stream = self.client.stream(request);
        let mut fold = Fold::default();
        let mut streamed_bytes = 0;
        let account = Arc::clone(&self.account);
        let out_of_time = out_of_time(&account);
        tokio::pin!(out_of_time);
        let failure = loop {
            let event = tokio::select! {
                event = stream.next() => event,
                Some(fact) = self.said.recv() => {
                    self.tell(machine, fact)?;
                    self.commit().await?;
                    continue;
                }
                () = self.ending.cancellation.cancelled() => {
                    let call = self.wasted(machine, CallPurpose::Cancelled, started, streamed_bytes, true);
                    return Ok(Err(Box::new(Fact::Cancelled { call: Some(call) })));
                }
                state = &mut out_of_time => {
                    let call = self.wasted(machine, CallPurpose::Cancelled, started, streamed_bytes, true);
                    return Ok(Err(Box::new(Fact::OutOfTime { state, call: Some(call) })));
                }
            };
            match event {
                Some(Ok(event)) => {
                    streamed_bytes += self.show(&event, shown);
                    if let Some(completion) = fold.push(event) {
                        return Ok(Ok(self.answered(machine, completion, started, start_time)));
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
        let purpose = CallPurpose::Failed;
        let call = self.wasted(machine, purpose, started, streamed_bytes, read);
        Ok(Err(Box::new(Fact::ModelFailed(ModelFailure {
            error: Arc::new(failure),
            call,
        }))))
    }

    fn answered(
        &self,
        machine: &Machine,
        completion: Completion,
        started: Instant,
        start_time: f64,
    ) -> Answered {
        let duration = started.elapsed();
        let slug = &self.client.model().slug;
        let usage = completion.usage.unwrap_or_else(|| {
            estimate_usage(machine.messages(), output_bytes(&completion.message))
        });
        let mut call = ModelCall::new(slug, CallPurpose::Turn, usage, duration);
        call.estimated = completion.usage.is_none();
        call.cost_usd = completion.cost_usd.or_else(|| self.priced(&usage));
        call.served_by.clone_from(&completion.served_by);
        Answered {
            completion,
            call,
            started: start_time,
            duration,
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
        call.cost_usd = self.priced(&usage);
        call
    }

    /// What estimated tokens probably cost.
    fn priced(&self, usage: &TokenUsage) -> Option<f64> {
        let prices = self.client.model().prices?;
        (usage.total() > 0).then(|| prices.cost_usd(usage))
    }

    /// Shows a piece of an answer to those who watch; returns how many bytes of output it was.
    fn show(&self, event: &ChatEvent, shown: bool) -> usize {
        let shown = shown && self.hub.is_watched();
        match event {
            ChatEvent::TextDelta(text) => {
                if shown {
                    self.hub.emit(EventKind::TextDelta { text: text.clone() });
                }
                text.len()
            }
            ChatEvent::ReasoningDelta(text) => {
                if shown {
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

    /// The names of what is in the sandbox's working directory.
    async fn files(&self) -> Vec<String> {
        let (Some(sandbox), Ok(here)) = (&self.sandbox, SandboxPath::new(".")) else {
            return Vec::new();
        };
        // What can't be listed is not worth a failed summary.
        let listed = tokio::time::timeout(LIST_DEADLINE, sandbox.list(&here)).await;
        let files = listed.ok().and_then(Result::ok).unwrap_or_default();
        let more = files.len().saturating_sub(MAX_LISTED_FILES);
        let mut names: Vec<String> = files
            .into_iter()
            .take(MAX_LISTED_FILES)
            .map(|file| file.path.to_string())
            .collect();
        if more > 0 {
            names.push(format!("and {more} more"));
        }
        names
    }
}

/// Waits until a budget of time, with what is allowed for the last turn, is over.
async fn out_of_time(account: &Account) -> BudgetState {
    loop {
        match account.time_left(super::LAST_TURN) {
            Some((left, state)) if left.is_zero() => return state,
            Some((left, _)) => over(Some(left)).await,
            None => over(None).await,
        }
    }
}

/// What an answer is as a summary. One that calls tools has only begun to work on it, and one that a
/// filter stopped is none: both are blank.
fn summary_text(completion: &Completion) -> String {
    let message = &completion.message;
    if message.tool_calls().next().is_some() || completion.stop == StopReason::ContentFilter {
        return String::new();
    }
    let mut text = message.text();
    if completion.stop == StopReason::Length && !text.trim().is_empty() {
        text.push_str("\n[The summary was cut off here, at the output limit.]");
    }
    text
}
