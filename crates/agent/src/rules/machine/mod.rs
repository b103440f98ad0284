//! The state machine of a run: its state, its facts, and the order of turns.
//!
//! `answer` and `text_answers` handle answers of the model, `space` the context window, `budgets` warnings
//! and the last turn, `interruption` stopping, cancelling and resuming; `events` are those of facts.

mod answer;
mod budgets;
mod events;
#[cfg(test)]
mod inspection;
mod interruption;
mod space;
mod text_answers;

use std::collections::VecDeque;
use std::sync::Arc;

use cantle_core::content::Content;
use cantle_core::event::{EventKind, Finish};
use cantle_core::ledger::{Ledger, ModelCall};
use cantle_core::message::{Message, SharedMessage, ToolCall, ToolMessage, UserKind, UserMessage};
use indexmap::IndexMap;

use crate::error::{RunError, RunErrorKind};
use crate::rules::action::{Action, RunEnd, SummaryAttempt};
use crate::rules::budget::{BudgetPhase, BudgetState, budget_error, unknown_cost_error};
use crate::rules::conversation::{Conversation, extract_images};
use crate::rules::fact::{CallOutcome, Fact, SubAgentEnded};
use crate::rules::ledger::LedgerFold;
use crate::rules::overflow::OverflowCounter;
use crate::rules::repeats::{RepeatCounter, Verdict};
use crate::rules::settings::{Rules, ToolTraits};
use crate::rules::turn::{CallResult, CallSlot, Turn, TurnResult};

#[cfg(test)]
pub(super) use self::answer::CUT_OFF;
use self::events::tool_refused;
pub(crate) use self::events::tool_started;
use self::text_answers::TextAnswerCounter;

/// One run: its conversation, its activity and its ledger.
#[derive(Debug)]
pub(crate) struct Machine {
    rules: Rules,
    tools: Arc<IndexMap<String, ToolTraits>>,
    conversation: Conversation,
    ledger: LedgerFold,
    /// Turns taken.
    turns: u32,
    activity: Activity,
    status: Status,
    budget: BudgetPhase,
    /// Budgets of which little is left, for the warning before the next turn.
    near_budgets: Vec<BudgetState>,
    /// User messages received since the last turn; sent with the next request.
    pending_messages: Vec<Content>,
    actions: VecDeque<Action>,
    overflows: OverflowCounter,
    repeats: RepeatCounter,
    /// Failed attempts at the current model call.
    failed_attempts: u32,
    empty_answers: u32,
    text_answers: TextAnswerCounter,
    /// Whether the model gave no summary when it was last asked for one.
    has_failed_summary: bool,
    /// Whether processes run in the sandbox that end with this process.
    has_background_processes: bool,
}

/// The work that a run waits for, or waited for when it ended.
#[derive(Debug)]
enum Activity {
    /// The model is asked for a turn.
    Asking,
    /// The model is asked for a summary.
    Summarizing(SummaryAttempt),
    /// The calls of a turn are decided on and run.
    Calling(Turn),
}

/// Whether a run continues.
#[derive(Debug)]
enum Status {
    Running,
    /// Cancelled, while calls still run.
    Cancelling,
    /// Ended, with this finish call if it succeeded.
    Ended(Option<Finish>),
}

impl Machine {
    /// A run with this conversation, which ends with the task.
    pub(crate) fn new(
        rules: Rules,
        tools: Arc<IndexMap<String, ToolTraits>>,
        messages: Vec<SharedMessage>,
    ) -> Self {
        let mut machine = Self {
            rules,
            tools,
            conversation: Conversation::new(messages),
            ledger: LedgerFold::default(),
            turns: 0,
            activity: Activity::Asking,
            status: Status::Running,
            budget: BudgetPhase::Available,
            near_budgets: Vec::new(),
            pending_messages: Vec::new(),
            actions: VecDeque::new(),
            overflows: OverflowCounter::default(),
            repeats: RepeatCounter::default(),
            failed_attempts: 0,
            empty_answers: 0,
            text_answers: TextAnswerCounter::default(),
            has_failed_summary: false,
            has_background_processes: false,
        };
        machine.ask();
        machine
    }

    /// The state of a run after these facts.
    pub(crate) fn replay(
        rules: Rules,
        tools: Arc<IndexMap<String, ToolTraits>>,
        messages: Vec<Message>,
        facts: Vec<Fact>,
    ) -> Self {
        let messages = messages.into_iter().map(SharedMessage::new).collect();
        let mut machine = Self::new(rules, tools, messages);
        facts.into_iter().for_each(|fact| machine.apply(fact));
        machine
    }

    /// Returns the next action; `None` until another fact is applied.
    pub(crate) fn next(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// Returns the next action if it is an event.
    pub(crate) fn next_event(&mut self) -> Option<EventKind> {
        match self.actions.pop_front()? {
            Action::Emit(event) => Some(*event),
            other => {
                self.actions.push_front(other);
                None
            }
        }
    }

    /// Whether a call of the turn has started.
    pub(crate) fn has_started(&self, index: usize) -> bool {
        matches!(&self.activity, Activity::Calling(turn) if turn.has_started(index))
    }

    /// A call of the turn, with the arguments that were decided on.
    pub(crate) fn call(&self, index: usize) -> Option<Arc<ToolCall>> {
        match &self.activity {
            Activity::Calling(turn) => turn.call(index),
            _ => None,
        }
    }

    /// The conversation so far.
    pub(crate) fn messages(&self) -> &[SharedMessage] {
        self.conversation.messages()
    }

    /// Turns taken.
    pub(crate) fn turns(&self) -> u32 {
        self.turns
    }

    /// The ledger so far.
    pub(crate) fn ledger(&self) -> &Ledger {
        self.ledger.ledger()
    }

    /// The ledger at the end of a process, with suspended sub-agents.
    pub(crate) fn final_ledger(&self) -> Ledger {
        self.ledger.clone().into_ledger()
    }

    /// Whether only a finish call is still possible: the model was informed, or time ran out.
    pub(crate) fn is_last_turn(&self) -> bool {
        use BudgetPhase::{LastTurn, LastTurnAnnounced};
        matches!(self.budget, LastTurnAnnounced(_) | LastTurn(_)) || self.budget.is_out_of_time()
    }

    /// Whether processes run in the sandbox that end with this process.
    pub(crate) fn has_background_processes(&self) -> bool {
        self.has_background_processes
    }

    /// The conversation, the parts of it that summaries replaced, and the ledger.
    ///
    /// If an internal error ended the run within a turn, its calls are answered all the same: the
    /// conversation may continue in another run.
    pub(crate) fn into_parts(mut self) -> (Vec<SharedMessage>, Vec<Vec<SharedMessage>>, Ledger) {
        if let Some(turn) = self.take_turn() {
            for message in turn.into_result().messages {
                self.conversation.push(Message::Tool(message));
            }
        }
        let (messages, replaced) = self.conversation.into_parts();
        (messages, replaced, self.ledger.into_ledger())
    }

    /// Applies a fact. Facts after the end change the ledger only.
    pub(crate) fn apply(&mut self, fact: Fact) {
        match fact {
            Fact::ModelAnswered {
                message,
                stop,
                call,
            } => self.model_answered(*message, &stop, call),
            Fact::AttemptFailed { call, is_last, .. } => {
                self.failed_attempts += 1;
                self.ledger.model_call(call);
                if is_last {
                    self.give_up_request();
                }
            }
            Fact::ModelFailed(failure) => self.model_failed(failure),
            Fact::Summarized { text, files, call } => self.summarized(&text, &files, call),
            Fact::CallDecided { index, decision } => {
                if let Some(slot) = self.slot_mut(index) {
                    slot.decision = Some(decision);
                }
            }
            // The scope of the run has it. The fact restores it when the run is resumed.
            Fact::ApprovedAlways(_) => {}
            Fact::TextAccepted => self.end(Ok(None)),
            Fact::TextRefused { feedback } => self.refuse_text(feedback),
            Fact::CallStarted { index, time } => {
                if let Some(slot) = self.slot_mut(index) {
                    slot.started = Some(time);
                }
            }
            Fact::CallFinished { index, outcome } => self.call_finished(index, *outcome),
            Fact::CallSuspended { index } => {
                if let Some(slot) = self.slot_mut(index) {
                    slot.result = CallResult::Suspended;
                }
                self.end_turn_if_done();
            }
            Fact::SubAgentEnded(ended) => self.sub_agent_ended(ended),
            Fact::SubAgentSuspended { tool, ledger } => {
                self.ledger.suspended_sub_agent(tool, *ledger);
            }
            Fact::UserMessage { content } => self.pending_messages.push(content),
            Fact::HookMessage { content } => {
                let message = UserMessage::new(UserKind::User, content);
                self.conversation.push(Message::User(message));
            }
            Fact::BudgetNear(state) => self.near_budgets.push(state),
            Fact::BudgetExhausted(state) => self.budget_exhausted(state),
            Fact::BudgetExhaustedBeforeTurn(state) => self.budget_exhausted_before_turn(state),
            Fact::Stopped { reason } => self.stop(RunError::new(RunErrorKind::Stopped, reason)),
            Fact::OutOfTime { state, call } => {
                self.record_unanswered(call);
                self.stop(budget_error(state));
            }
            Fact::CostUnknown { model } => self.stop(unknown_cost_error(&model)),
            Fact::Cancelled { call } => {
                self.record_unanswered(call);
                self.cancel();
            }
            Fact::Resumed {
                rules,
                lost_state,
                new_sandbox,
                time,
            } => self.resume(rules, lost_state, new_sandbox.is_some(), time),
        }
    }

    fn call_finished(&mut self, index: usize, mut outcome: CallOutcome) {
        let Activity::Calling(turn) = &mut self.activity else {
            return;
        };
        let Some(call) = turn.call(index) else { return };
        if turn.has_started(index) {
            self.ledger.tool_call(&call.name, &outcome);
        } else {
            self.ledger.refused_call(&call.name);
        }
        if let Some(ledger) = outcome.sub_agent.take() {
            self.ledger.sub_agent(&call.name, *ledger);
        }
        self.has_background_processes |= outcome.has_background_processes;
        turn.call_finished(index, outcome);
        if !matches!(self.status, Status::Cancelling) {
            turn.start_calls(&mut self.actions);
        }
        self.end_turn_if_done();
    }

    /// Records a background sub-agent, and informs the model unless a call does.
    fn sub_agent_ended(&mut self, ended: SubAgentEnded) {
        self.ledger.sub_agent(&ended.tool, *ended.ledger);
        if !ended.awaited {
            let text = format!("The sub-agent {} has ended.\n{}", ended.id, ended.result);
            self.pending_messages.push(text.into());
        }
    }

    /// Closes the turn once every call has its result, and continues from there.
    fn end_turn_if_done(&mut self) {
        let Activity::Calling(turn) = &self.activity else {
            return;
        };
        if turn.is_suspended() {
            // The turn stays as it is until the run is resumed.
            if !self.has_ended() {
                self.end(Err(RunError::cancelled()));
            }
        } else if turn.is_done()
            && let Some(turn) = self.take_turn()
        {
            self.end_turn(turn.into_result());
        }
    }

    fn end_turn(&mut self, result: TurnResult) {
        let verdict = if result.polls {
            self.repeats.reset();
            Verdict::Fine
        } else {
            let limit = self.rules.max_repeats;
            self.repeats.count(&result.calls, &result.messages, limit)
        };
        let has_new_input = !result.calls.is_empty();
        self.push_results(result.messages);
        // A successful finish call ends the run even if it was stopped meanwhile.
        if let Some(finish) = result.finish {
            self.actions.retain(|it| !matches!(it, Action::End(_)));
            return self.end(Ok(Some(finish)));
        }
        if self.has_ended() {
            return;
        }
        if let Some(message) = result.sandbox_gone {
            return self.fail(RunErrorKind::SandboxGone, message);
        }
        if matches!(self.status, Status::Cancelling) {
            return self.end(Err(RunError::cancelled()));
        }
        match verdict {
            Verdict::Fine => {}
            Verdict::Warn(repeated) => self.push_user_message(
                UserKind::User,
                format!(
                    "You have now made {repeated}. Doing it again will not help: try something else, \
                     or finish and report the obstacle."
                ),
            ),
            Verdict::End(repeated) => {
                let message = format!("the model made {repeated}");
                return self.fail(RunErrorKind::NoProgress, message);
            }
        }
        self.next_turn(has_new_input);
    }

    /// Adds the results of calls to the conversation, and their images behind them if results are text only.
    fn push_results(&mut self, results: Vec<ToolMessage>) {
        let mut images = Vec::new();
        for mut message in results {
            if self.rules.text_only_tool_responses {
                images.extend(extract_images(&mut message.content, &message.tool_call_id));
            }
            self.conversation.push(Message::Tool(message));
        }
        for image in images {
            self.conversation.push(Message::User(image));
        }
        self.conversation.remove_old_images(self.rules.images);
    }

    /// Begins the next turn, unless the limits are reached. `has_new_input` tells whether the model
    /// has anything new to respond to.
    fn next_turn(&mut self, has_new_input: bool) {
        if let BudgetPhase::LastTurn(state) = self.budget {
            return self.end(Err(budget_error(state)));
        }
        let max_turns = self.rules.max_turns;
        if self.turns >= max_turns {
            let message = format!("the task was not finished within {max_turns} turns");
            return self.fail(RunErrorKind::MaxTurns, message);
        }
        let has_new_input = has_new_input
            || self.warns_of_turns()
            || !self.pending_messages.is_empty()
            || !self.near_budgets.is_empty();
        if !has_new_input && self.rules.block_successive_assistant_messages {
            self.remind_of_finish_tools();
        }
        if self.needs_summary() {
            return self.summarize(SummaryAttempt::First);
        }
        self.ask();
    }

    fn warns_of_turns(&self) -> bool {
        self.turns > 0 && self.turns_left() <= self.rules.turn_warning_threshold
    }

    fn turns_left(&self) -> u32 {
        self.rules.max_turns.saturating_sub(self.turns)
    }

    /// Asks the model for the next turn, after pending messages and warnings.
    fn ask(&mut self) {
        self.push_pending_messages();
        if !self.warn_of_budgets() && self.warns_of_turns() {
            let warning = match self.turns_left() {
                1 => "This is the last turn. Finish the task now by calling a finish tool."
                    .to_owned(),
                turns => format!(
                    "You have {turns} turns left to complete the task. Keep one of them for calling \
                     a finish tool."
                ),
            };
            self.push_user_message(UserKind::TurnWarning, warning);
        }
        self.conversation.remove_old_images(self.rules.images);
        self.request_turn();
    }

    /// Asks the model for the next turn, with the conversation as it is.
    fn request_turn(&mut self) {
        self.activity = Activity::Asking;
        self.failed_attempts = 0;
        self.actions.push_back(Action::AskModel {
            turn: self.turns + 1,
        });
    }

    fn push_pending_messages(&mut self) {
        for content in std::mem::take(&mut self.pending_messages) {
            let text = content.text();
            self.emit(EventKind::UserMessage { text });
            self.conversation.push_injected(content);
        }
    }

    fn has_ended(&self) -> bool {
        matches!(self.status, Status::Ended(_))
    }

    fn slot_mut(&mut self, index: usize) -> Option<&mut CallSlot> {
        match &mut self.activity {
            Activity::Calling(turn) => turn.slot_mut(index),
            _ => None,
        }
    }

    fn take_turn(&mut self) -> Option<Turn> {
        match std::mem::replace(&mut self.activity, Activity::Asking) {
            Activity::Calling(turn) => Some(turn),
            other => {
                self.activity = other;
                None
            }
        }
    }

    /// Records a model call that was given up, if there is one.
    fn record_unanswered(&mut self, call: Option<ModelCall>) {
        if let Some(call) = call {
            self.ledger.model_call(call);
        }
    }

    fn refused(&mut self, call: &ToolCall, text: &str) {
        self.ledger.refused_call(&call.name);
        self.emit(tool_refused(call, text));
    }

    /// Adds a message in the user's role.
    fn push_user_message(&mut self, kind: UserKind, text: String) {
        self.emit(EventKind::UserMessage { text: text.clone() });
        self.conversation
            .push(Message::User(UserMessage::new(kind, text)));
    }

    fn emit(&mut self, event: EventKind) {
        self.actions.push_back(Action::Emit(Box::new(event)));
    }

    fn fail(&mut self, kind: RunErrorKind, message: impl Into<String>) {
        self.end(Err(RunError::new(kind, message)));
    }

    fn end(&mut self, end: RunEnd) {
        self.status = Status::Ended(end.as_ref().ok().cloned().flatten());
        self.actions.push_back(Action::End(end));
    }
}
