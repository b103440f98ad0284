//! Model calls: for a turn, or for a summary.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use cantle_core::estimate::{call_usage, output_bytes, text_tokens};
use cantle_core::event::EventKind;
use cantle_core::ledger::{CallPurpose, ModelCall};
use cantle_core::llm::{
    ChatEvent, ChatRequest, Completion, FailedAttempt, Fold, LlmError, LlmErrorKind, StopReason,
    ToolSpecs,
};
use cantle_core::message::{Message, SharedMessage};
use cantle_core::sandbox::SandboxPath;
use cantle_core::usage::TokenUsage;
use futures_util::StreamExt as _;
use tokio::time::Instant;
use tracing::Instrument as _;

use super::drive::{Driver, LAST_TURN_TIME, out_of_time};
use crate::error::RunError;
use crate::hooks::{BeforeModel, guarded};
use crate::rules::{Fact, ModelFailure, SummaryAttempt};
use crate::spans;
use crate::time::unix_seconds;

/// Maximum number of files listed behind a summary.
const MAX_LISTED_FILES: usize = 100;

/// Deadline of listing them.
const LIST_DEADLINE: Duration = Duration::from_secs(10);

/// Maximum size of the text of a failed attempt that is recorded, in bytes.
const MAX_DISCARDED_TEXT: usize = 16 * 1024;

const SUMMARIZE: &str = "\
Your context window is nearly full. Write a summary of this conversation, from which you will continue \
the task as if you remembered everything. It will replace everything since the task was given. Include: \
what was asked, as far as it became clearer on the way; what you did and what the results were, with \
exact names, paths, numbers, commands and error messages that still matter; what was decided and why; \
what was tried and does not work; what is done, what is open, and the next step. Don't call any tool.";

const TEXT_ONLY: &str = " Answer with text only, now.";

/// A complete answer of the model, or the fact that describes a call without one.
type Answer = Result<(Completion, ModelCall), Box<Fact>>;

/// A request to the model.
struct Attempt {
    started: Instant,
    /// Its start, in seconds since the Unix epoch.
    start_time: f64,
    /// The model that is called, unless it is the client's own.
    model: Option<String>,
    /// Bytes of output received.
    output_bytes: usize,
    /// Start of the text received.
    text: String,
}

impl Attempt {
    /// An attempt that starts after a delay.
    fn after(delay: Duration, model: Option<String>) -> Self {
        let now = Instant::now();
        Self {
            started: now.checked_add(delay).unwrap_or(now),
            start_time: unix_seconds() + delay.as_secs_f64(),
            model,
            output_bytes: 0,
            text: String::new(),
        }
    }

    /// Counts a piece of the answer, and keeps its text up to a limit.
    fn add(&mut self, event: &ChatEvent) {
        let (ChatEvent::TextDelta(piece)
        | ChatEvent::ReasoningDelta(piece)
        | ChatEvent::ToolCallDelta {
            arguments: piece, ..
        }) = event
        else {
            return;
        };
        self.output_bytes += piece.len();
        if matches!(event, ChatEvent::TextDelta(_)) && self.text.len() < MAX_DISCARDED_TEXT {
            self.text.push_str(piece);
            let end = self.text.floor_char_boundary(MAX_DISCARDED_TEXT);
            self.text.truncate(end);
        }
    }
}

impl Driver {
    /// Asks the model for a turn, and records the result.
    pub(super) async fn ask_model(&mut self, turn: u32) -> Result<(), RunError> {
        // The budget of a resumed run, or one of zero, can be exhausted before its first request.
        self.record_budget_notices(Fact::BudgetExhaustedBeforeTurn)?;
        if let Some((left, state)) = self.scope.budget.time_left(LAST_TURN_TIME)
            && left.is_zero()
        {
            return self.record(Fact::OutOfTime { state, call: None });
        }
        if let Some(model) = self.scope.budget.model_without_cost() {
            return self.record(Fact::CostUnknown { model });
        }
        if let Some(fact) = self.before_model(turn).await? {
            return self.record(fact);
        }
        self.commit().await?;
        self.scope.hub.emit(EventKind::TurnStarted { turn });
        // The model is warned of an exhausted budget before it answers.
        self.emit_pending();
        let messages = self.machine.messages().to_vec();
        let request = ChatRequest::new(messages, self.resources.tools.specs().clone());
        let fact = match self.call(request, true).await? {
            Err(fact) => *fact,
            Ok((completion, call)) => {
                let Completion { message, stop, .. } = completion;
                Fact::ModelAnswered {
                    message: Box::new(message),
                    stop,
                    call,
                }
            }
        };
        self.record_answer(fact)
    }

    /// Calls the hook before a model call. Returns the fact that replaces the call, if any.
    async fn before_model(&mut self, turn: u32) -> Result<Option<Fact>, RunError> {
        let Some(hooks) = self.resources.agent.hooks.clone() else {
            return Ok(None);
        };
        // The hook may wait for long.
        self.commit().await?;
        let hook = hooks.before_model(turn, self.machine.messages());
        let decided = tokio::select! {
            decided = guarded("before_model", hook) => decided?,
            () = self.scope.cancellation.cancelled() => {
                return Ok(Some(Fact::Cancelled { call: None }));
            }
            state = out_of_time(&self.scope.budget) => {
                return Ok(Some(Fact::OutOfTime { state, call: None }));
            }
        };
        match decided {
            BeforeModel::Ask => Ok(None),
            BeforeModel::Stop { reason } => Ok(Some(Fact::Stopped { reason })),
            BeforeModel::Tell(content) => {
                self.record(Fact::HookMessage { content })?;
                Ok(None)
            }
        }
    }

    /// Asks the model for a summary, and records the result.
    pub(super) async fn summarize(&mut self, attempt: SummaryAttempt) -> Result<(), RunError> {
        if let Some(model) = self.scope.budget.model_without_cost() {
            return self.record(Fact::CostUnknown { model });
        }
        self.commit().await?;
        let mut prompt = SUMMARIZE.to_owned();
        let mut specs = self.resources.tools.specs().clone();
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
        let mut messages = self.machine.messages().to_vec();
        messages.push(SharedMessage::new(Message::user(prompt)));
        let fact = match self.call(ChatRequest::new(messages, specs), false).await? {
            Err(fact) => *fact,
            Ok((completion, call)) => Fact::Summarized {
                text: summary_text(&completion),
                files: self.list_files().await,
                call,
            },
        };
        self.record_answer(fact)
    }

    /// Records the fact that ends a model call.
    fn record_answer(&mut self, fact: Fact) -> Result<(), RunError> {
        self.receive_facts()?;
        self.record_budget_notices(Fact::BudgetExhausted)?;
        self.record(fact)
    }

    /// Prices a model call if its cost is unknown, and counts it against the budgets.
    fn count_call(&self, call: &mut ModelCall) {
        let model = self.resources.agent.client.model().named(&call.model);
        let budget = &self.scope.budget;
        let highest = || model.highest_prices.filter(|_| budget.limits_money());
        if call.has_unknown_cost()
            && let Some(prices) = model.prices.or_else(highest)
        {
            call.cost_usd = Some(prices.cost_usd(&call.usage));
            call.list_price_date = prices.list_date().map(str::to_owned);
        }
        budget.model_call(call);
    }

    /// Returns the fact of a failed attempt.
    fn attempt_failed(&self, failed: &FailedAttempt, attempt: &Attempt) -> Fact {
        let call = self.unanswered_call(CallPurpose::Failed, attempt, failed.kind, failed.usage);
        Fact::AttemptFailed {
            error_kind: failed.kind,
            reason: failed.reason.clone(),
            after: failed.delay,
            discarded: attempt.text.clone(),
            // An attempt that used nothing leaves the budgets as they were when the call began.
            is_last: call.usage.total() > 0 && self.scope.budget.is_exhausted(),
            call,
        }
    }

    /// Calls the model. User messages that arrive meanwhile are on disk at once.
    async fn call(&mut self, request: ChatRequest, emits_deltas: bool) -> Result<Answer, RunError> {
        let span = spans::chat(&self.resources.agent.client.model().slug);
        let answered = self.stream(request, emits_deltas);
        let answered = answered.instrument(span.clone()).await?;
        match &answered {
            Ok((_, call)) => spans::usage(&span, call),
            Err(fact) => match &**fact {
                Fact::ModelFailed(failure) => spans::failed(&span, &failure.error.kind()),
                _ => spans::failed(&span, &"Cancelled"),
            },
        }
        Ok(answered)
    }

    async fn stream(
        &mut self,
        request: ChatRequest,
        emits_deltas: bool,
    ) -> Result<Answer, RunError> {
        let mut stream = self.resources.agent.client.stream(request);
        let mut fold = Fold::default();
        let mut attempt = Attempt::after(Duration::ZERO, None);
        let budget = Arc::clone(&self.scope.budget);
        let out_of_time = out_of_time(&budget);
        tokio::pin!(out_of_time);
        let failure = loop {
            let event = tokio::select! {
                event = stream.next() => event,
                Some(fact) = self.facts.recv() => {
                    self.record(*fact)?;
                    self.commit().await?;
                    continue;
                }
                () = self.scope.cancellation.cancelled() => {
                    let call = self.cancelled_call(&attempt);
                    return Ok(Err(Box::new(Fact::Cancelled { call })));
                }
                state = &mut out_of_time => {
                    let call = self.cancelled_call(&attempt);
                    return Ok(Err(Box::new(Fact::OutOfTime { state, call })));
                }
            };
            let event = match event {
                Some(Ok(event)) => event,
                Some(Err(error)) => break error,
                None => break LlmError::protocol("the stream ended without a stop reason"),
            };
            if let ChatEvent::AttemptFailed(failed) = &event {
                let fact = self.attempt_failed(failed, &attempt);
                if let Fact::AttemptFailed { is_last: true, .. } = fact {
                    return Ok(Err(Box::new(fact)));
                }
                self.record_budget_notices(Fact::BudgetExhausted)?;
                self.record(fact)?;
                self.commit().await?;
                attempt = Attempt::after(failed.delay, failed.next_model.clone());
            }
            attempt.add(&event);
            if emits_deltas {
                self.emit_delta(&event);
            }
            if let Some(completion) = fold.push(event) {
                return Ok(Ok(self.answer(completion, &attempt)));
            }
        };
        let (kind, usage) = (failure.kind(), failure.usage());
        let call = self.unanswered_call(CallPurpose::Failed, &attempt, kind, usage);
        Ok(Err(Box::new(Fact::ModelFailed(ModelFailure {
            error: Arc::new(failure),
            call,
        }))))
    }

    fn answer(&self, mut completion: Completion, attempt: &Attempt) -> (Completion, ModelCall) {
        let usage = completion
            .usage
            .unwrap_or_else(|| self.estimated_usage(output_bytes(&completion.message)));
        let mut call = self.model_call(CallPurpose::Turn, attempt);
        if let Some(model) = &completion.model {
            call.model.clone_from(model);
        }
        call.usage = usage;
        call.estimated = completion.usage.is_none();
        call.cost_usd = completion.cost_usd;
        call.list_price_date.clone_from(&completion.list_price_date);
        call.served_by.clone_from(&completion.served_by);
        self.count_call(&mut call);
        let message = &mut completion.message;
        message.request_start_time = Some(attempt.start_time);
        message.request_end_time = Some(attempt.start_time + call.duration.as_secs_f64());
        (completion, call)
    }

    /// Counts an attempt without an answer. A request that the provider refused used no tokens; one that
    /// timed out or was interrupted was read.
    fn unanswered_call(
        &self,
        purpose: CallPurpose,
        attempt: &Attempt,
        kind: LlmErrorKind,
        reported: Option<TokenUsage>,
    ) -> ModelCall {
        let mut call = self.model_call(purpose, attempt);
        let was_read = matches!(kind, LlmErrorKind::Timeout | LlmErrorKind::Interrupted);
        call.usage = match reported.filter(|usage| usage.total() > 0) {
            // The output is mostly reported at the end.
            Some(mut usage) => {
                let answer = text_tokens(attempt.output_bytes).max(usage.output_total());
                usage.answer = answer.saturating_sub(usage.reasoning);
                usage
            }
            None if was_read || attempt.output_bytes > 0 => {
                self.estimated_usage(attempt.output_bytes)
            }
            None => TokenUsage::default(),
        };
        call.estimated = true;
        self.count_call(&mut call);
        call
    }

    /// Counts a call that was cancelled; `None` if its next attempt was not due yet, so that nothing was sent.
    fn cancelled_call(&self, attempt: &Attempt) -> Option<ModelCall> {
        if attempt.started > Instant::now() {
            return None;
        }
        let (purpose, kind) = (CallPurpose::Cancelled, LlmErrorKind::Interrupted);
        Some(self.unanswered_call(purpose, attempt, kind, None))
    }

    fn estimated_usage(&self, output_bytes: usize) -> TokenUsage {
        let tools = self.resources.tools.specs();
        call_usage(self.machine.messages(), tools, output_bytes)
    }

    /// A ledger entry of an attempt.
    fn model_call(&self, purpose: CallPurpose, attempt: &Attempt) -> ModelCall {
        let own = &self.resources.agent.client.model().slug;
        let model = attempt.model.as_ref().unwrap_or(own);
        let duration = attempt.started.elapsed();
        ModelCall::new(model, purpose, TokenUsage::default(), duration)
    }

    /// Emits a piece of the answer as a delta.
    fn emit_delta(&self, event: &ChatEvent) {
        let hub = &self.scope.hub;
        match event {
            ChatEvent::TextDelta(text) => {
                hub.emit_with(|| EventKind::TextDelta { text: text.clone() });
            }
            ChatEvent::ReasoningDelta(text) => {
                hub.emit_with(|| EventKind::ReasoningDelta { text: text.clone() });
            }
            _ => {}
        }
    }

    /// Lists the sandbox's working directory.
    async fn list_files(&self) -> Vec<String> {
        let Some(sandbox) = &self.resources.sandbox else {
            return Vec::new();
        };
        let directory = SandboxPath::working_directory();
        // A failure does not justify the loss of a summary.
        let listed = tokio::time::timeout(LIST_DEADLINE, sandbox.list(&directory)).await;
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

/// Returns the summary in an answer; blank if the answer calls tools, which means that the model went
/// on working, or if a filter stopped it.
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
