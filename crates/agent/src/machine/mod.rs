//! The loop as a pure state machine.
//!
//! It does no I/O and reads no clock. [`Machine::next`] says what to do; [`Machine::apply`] is told
//! single facts: the model answered, a call started, a call finished, the run was cancelled. So a
//! journal of facts is a run, and cancelling, resuming and testing are all the same mechanism, also
//! while calls of one turn run side by side.
//!
//! The rules of a turn are here and nowhere else: ordinary calls before finish calls, several
//! finish calls refused, one result for every call in call order, warnings before turns and budgets
//! run out, a word to a model that called nothing or does the same over and over, summaries, and
//! taking a turn back where the context overflows.

mod context;
mod facts;
mod overflow;
mod repeats;
mod resume;
mod summary;
mod telling;
mod turn;

#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::Duration;

use cantle_core::content::Content;
use cantle_core::event::Finish;
use cantle_core::ledger::{Ledger, ModelCall};
use cantle_core::llm::{LlmErrorKind, StopReason};
use cantle_core::message::{
    AssistantBlock, AssistantMessage, Message, SharedMessage, ToolCall, ToolMessage, UserKind,
    UserMessage,
};
use serde::{Deserialize, Serialize};

pub(crate) use self::context::{ImageBounds, estimate_usage, output_bytes};
pub(crate) use self::facts::{
    Action, CallOutcome, CallStart, End, Fact, FreshSandbox, ModelFailure, SummaryAttempt,
};
use self::overflow::Overflows;
use self::repeats::{Repeats, Verdict};
use self::turn::Turn;
use crate::budget::{BudgetState, Resource};
use crate::error::{RunError, RunErrorKind};

/// Empty answers in a row, after which the model is given up.
const MAX_EMPTY_ANSWERS: u32 = 3;

/// The rules that can be chosen.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Rules {
    /// Turns the run may take.
    pub(crate) max_turns: u32,
    /// With this many turns left or fewer, each turn begins with a warning.
    pub(crate) turn_warning_threshold: u32,
    /// Whether images in tool results move to a user message, for models that take text there.
    pub(crate) text_only_tool_responses: bool,
    /// Whether a turn without calls is answered, so that no two assistant messages meet.
    pub(crate) block_successive_assistant_messages: bool,
    /// Whether the latest turn is taken back where the context overflows.
    pub(crate) recover_from_context_overflow: bool,
    /// The part of the context window that is used before a summary makes room; none, never.
    pub(crate) summarize_at: Option<f64>,
    /// Tokens of the context window, where known.
    pub(crate) context_window: Option<u64>,
    /// Tokens that an answer may have, where known.
    pub(crate) max_output_tokens: Option<u64>,
    /// Images that one request may hold.
    pub(crate) images: ImageBounds,
}

/// What the machine must know of a tool.
#[derive(Clone, Copy, Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts of a tool")]
pub(crate) struct ToolTraits {
    /// Whether its success ends the run.
    pub(crate) finishes: bool,
    /// Whether its calls may run side by side with other such calls.
    pub(crate) concurrency_safe: bool,
    /// Whether the same call with the same result is its ordinary use.
    pub(crate) polls: bool,
    /// Whether a call that another process had started goes on where it was (a sub-agent's).
    pub(crate) resumes: bool,
}

/// One run: its conversation, where it stands, and its accounts.
#[derive(Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "independent facts of a run; those that exclude each other are options"
)]
pub(crate) struct Machine {
    rules: Rules,
    tools: HashMap<String, ToolTraits>,
    messages: Vec<SharedMessage>,
    /// Parts of the conversation that summaries replaced, oldest first.
    replaced: Vec<Vec<SharedMessage>>,
    /// Where the task is.
    task: usize,
    /// Where this run's own messages begin: after the task, or after the latest summary.
    floor: usize,
    /// Tokens that the conversation has, as far as known.
    context_tokens: u64,
    /// How many images the conversation has, and their bytes.
    images: ImageBounds,
    turns: u32,
    /// The calls of the turn being worked on; `None` while the model is asked.
    turn: Option<Turn>,
    /// How the summary was asked for that is waited for.
    summarizing: Option<SummaryAttempt>,
    actions: VecDeque<Action>,
    overflows: Overflows,
    empty_answers: u32,
    repeats: Repeats,
    /// What the user said since the latest turn.
    said: Vec<Content>,
    /// Where in the conversation what the user said meanwhile stands.
    heard: Vec<usize>,
    /// What the model is to be told of budgets before the next turn.
    near: Vec<BudgetState>,
    /// The budget that is spent: one more turn, to finish.
    spent: Option<BudgetState>,
    /// Whether the model was told so.
    told_last: bool,
    /// Whether that turn is the one being worked on.
    last_chance: bool,
    /// Whether something runs in the sandbox that ends with our process.
    left_running: bool,
    cancelled: bool,
    ended: bool,
    /// The finish call that ended it.
    finish: Option<Finish>,
    ledger: Ledger,
    /// Ids of all calls in the conversation.
    call_ids: HashSet<String>,
    /// Where the ledger keeps the call behind each assistant message of this run.
    entries: HashMap<String, usize>,
}

impl Machine {
    /// A run that begins with this conversation, which ends with what the model should answer.
    pub(crate) fn new(
        rules: Rules,
        tools: HashMap<String, ToolTraits>,
        messages: Vec<SharedMessage>,
    ) -> Self {
        let mut machine = Self {
            rules,
            tools,
            replaced: Vec::new(),
            task: messages.len().saturating_sub(1),
            floor: messages.len(),
            context_tokens: 0,
            images: ImageBounds::default(),
            turns: 0,
            turn: None,
            summarizing: None,
            actions: VecDeque::new(),
            overflows: Overflows::default(),
            empty_answers: 0,
            repeats: Repeats::default(),
            said: Vec::new(),
            heard: Vec::new(),
            near: Vec::new(),
            spent: None,
            told_last: false,
            last_chance: false,
            left_running: false,
            cancelled: false,
            ended: false,
            finish: None,
            ledger: Ledger::default(),
            call_ids: messages_call_ids(&messages),
            entries: HashMap::new(),
            messages,
        };
        machine.recount();
        machine.ask();
        machine
    }

    /// What to do next; `None` means: nothing until the next fact.
    pub(crate) fn next(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// The conversation so far.
    pub(crate) fn messages(&self) -> &[SharedMessage] {
        &self.messages
    }

    /// Turns taken.
    pub(crate) fn turns(&self) -> u32 {
        self.turns
    }

    /// What was paid and used so far.
    pub(crate) fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Whether nothing but a finish call may be waited for any more: the model was told so, or the
    /// time is over.
    pub(crate) fn is_last_turn(&self) -> bool {
        self.told_last || self.is_out_of_time()
    }

    fn is_out_of_time(&self) -> bool {
        self.spent
            .is_some_and(|state| state.resource == Resource::TimeS)
    }

    /// The conversation, what summaries replaced in it, and the accounts, at the end.
    ///
    /// Where a failure of ours ended the run amid a turn, its calls are answered all the same: the
    /// conversation may go on in another run.
    pub(crate) fn into_parts(mut self) -> (Vec<SharedMessage>, Vec<Vec<SharedMessage>>, Ledger) {
        if let Some(turn) = self.turn.take() {
            for message in turn.into_result().messages {
                self.push(Message::Tool(message));
            }
        }
        (self.messages, self.replaced, self.ledger)
    }

    /// Takes a fact. Facts that come after the end are accounted for and change nothing else.
    pub(crate) fn apply(&mut self, fact: Fact) {
        match fact {
            Fact::ModelAnswered {
                message,
                stop,
                call,
            } => self.model_answered(*message, &stop, call),
            Fact::ModelFailed(failure) => self.model_failed(failure),
            Fact::Summarized { text, files, call } => self.summarized(&text, &files, call),
            Fact::CallDecided { index, decision } => {
                if let Some(turn) = &mut self.turn {
                    turn.decided(index, decision);
                }
            }
            Fact::CallStarted { index, time } => {
                if let Some(turn) = &mut self.turn {
                    turn.started(index, time);
                }
            }
            Fact::CallFinished { index, outcome } => self.call_finished(index, *outcome),
            Fact::UserSaid { content } => self.said.push(content),
            Fact::BudgetNear(state) => self.near.push(state),
            Fact::Told { content } => {
                self.push(Message::User(UserMessage::new(UserKind::User, content)));
            }
            Fact::BudgetSpent(state) => self.budget_spent(state),
            Fact::BudgetWasSpent(state) => {
                self.budget_spent(state);
                self.warn_of_budgets();
            }
            Fact::Stopped { reason } => {
                self.stopped(RunError::new(RunErrorKind::Stopped, reason));
            }
            Fact::OutOfTime { state, call } => {
                self.ledger.model_calls.extend(call);
                self.stopped(RunError::budget(state));
            }
            Fact::Cancelled { call } => self.cancelled(call),
            Fact::Resumed {
                rules,
                lost,
                fresh,
                time,
            } => self.resumed(rules, lost, fresh.is_some(), time),
        }
    }

    fn model_answered(
        &mut self,
        mut message: AssistantMessage,
        stop: &StopReason,
        call: ModelCall,
    ) {
        self.entries
            .insert(message.id.clone(), self.ledger.model_calls.len());
        self.ledger.model_calls.push(call);
        if self.ended {
            return;
        }
        self.turns += 1;
        self.last_chance = self.told_last;
        self.repair_ids(&mut message);
        let tokens = self
            .ledger
            .model_calls
            .last()
            .map(|call| call.usage.total());
        let calls: Vec<ToolCall> = message.tool_calls().cloned().collect();
        let empty = calls.is_empty() && message.text().trim().is_empty();
        self.push(Message::Assistant(message));
        // What the provider counted is better than what was estimated.
        self.context_tokens = tokens
            .filter(|tokens| *tokens > 0)
            .unwrap_or(self.context_tokens);

        match stop {
            StopReason::Length => {
                let why = "the answer was cut off at the model's output limit";
                self.refuse_all(&calls, why);
                let advice = "Raise the client's output limit, or ask for smaller steps.";
                return self.end(Err(
                    RunError::new(RunErrorKind::OutputLimit, why).with_advice(advice)
                ));
            }
            StopReason::ContentFilter => {
                let why = "the provider's content filter stopped the answer";
                self.refuse_all(&calls, why);
                return self.end(Err(RunError::new(RunErrorKind::Model, why)));
            }
            _ => {}
        }
        self.empty_answers = if empty { self.empty_answers + 1 } else { 0 };
        if self.empty_answers >= MAX_EMPTY_ANSWERS {
            return self.end(Err(RunError::new(
                RunErrorKind::Model,
                format!("the model gave {MAX_EMPTY_ANSWERS} empty answers in a row"),
            )));
        }

        // Where the time is over, other calls would only be begun to be stopped.
        let only_finish = self
            .spent
            .filter(|_| self.last_chance || self.is_out_of_time())
            .map(|state| format!("the run's budget is spent ({state})"));
        let mut turn = Turn::new(calls, &self.tools, only_finish.as_deref());
        self.tell_refused(&mut turn);
        self.actions.extend(turn.next_calls());
        self.turn = Some(turn);
        self.end_turn_if_done();
    }

    fn call_finished(&mut self, index: usize, outcome: CallOutcome) {
        let Some(turn) = &mut self.turn else { return };
        let Some(name) = turn.name(index) else { return };
        self.ledger.record_repairs(name, outcome.repairs);
        self.ledger.record_tool(
            name,
            outcome.success,
            outcome.duration,
            outcome.metadata.clone(),
        );
        if let Some(ledger) = outcome.sub_agent.clone() {
            let ledgers = self.ledger.sub_agents.entry(name.to_owned()).or_default();
            ledgers.push(*ledger);
        }
        self.left_running |= outcome.left_running;
        turn.finished(index, outcome);
        if !self.cancelled {
            self.actions.extend(turn.next_calls());
        }
        self.end_turn_if_done();
    }

    /// Closes the turn once every call has its result, and goes on from there.
    fn end_turn_if_done(&mut self) {
        let Some(turn) = self.turn.take_if(|turn| turn.is_done()) else {
            return;
        };
        let result = turn.into_result();
        let verdict = if result.polls {
            self.repeats.reset();
            Verdict::Fine
        } else {
            self.repeats.note(&result.calls, &result.messages)
        };
        let mut images = Vec::new();
        for mut message in result.messages {
            if self.rules.text_only_tool_responses {
                images.extend(context::take_media(
                    &mut message.content,
                    &message.tool_call_id,
                ));
            }
            self.push(Message::Tool(message));
        }
        let shown = !images.is_empty();
        for image in images {
            self.push(Message::User(image));
        }
        self.evict_images();
        // A finish call that succeeded ends the run, also where it was stopped meanwhile.
        if let Some(finish) = result.finish {
            self.actions.retain(|it| !matches!(it, Action::End(_)));
            return self.end(Ok(finish));
        }
        if self.ended {
            return;
        }
        if let Some(message) = result.sandbox_gone {
            return self.end(Err(RunError::new(RunErrorKind::SandboxGone, message)));
        }
        if self.cancelled {
            return self.end(Err(RunError::cancelled()));
        }
        match verdict {
            Verdict::Fine => {}
            Verdict::Tell(count) => self.say(
                UserKind::User,
                format!(
                    "You have now made the same call with the same result {count} times in a row. \
                     Doing it again will not help: try something else, or finish and say what is in \
                     the way."
                ),
            ),
            Verdict::End(count) => {
                return self.end(Err(RunError::new(
                    RunErrorKind::NoProgress,
                    format!(
                        "the model made the same call with the same result {count} times in a row"
                    ),
                )));
            }
        }
        self.go_on(!result.calls.is_empty() || shown);
    }

    /// Begins the next turn, unless the run may take no more; `answered` says whether the model has
    /// something new to answer.
    fn go_on(&mut self, answered: bool) {
        if let Some(spent) = self.spent.filter(|_| self.last_chance) {
            return self.end(Err(RunError::budget(spent)));
        }
        if self.turns >= self.rules.max_turns {
            return self.end(Err(RunError::new(
                RunErrorKind::MaxTurns,
                format!(
                    "the task was not finished within {} turns",
                    self.rules.max_turns
                ),
            )));
        }
        let told = self.warns_next() || !self.said.is_empty() || !self.near.is_empty();
        if !answered && self.rules.block_successive_assistant_messages && !told {
            self.say(UserKind::User, "Please continue the task".to_owned());
        }
        if self.needs_summary() {
            return self.summarize(SummaryAttempt::First);
        }
        self.ask();
    }

    /// Keeps the images of the next request within their bounds; those of the task stay.
    fn evict_images(&mut self) {
        if self.images.exceed(self.rules.images)
            && context::evict_images(&mut self.messages, self.task, self.rules.images)
        {
            self.recount();
        }
    }

    /// Sizes up the conversation after something was taken out of it.
    fn recount(&mut self) {
        let messages = self.messages.iter();
        self.context_tokens = messages.map(|it| context::message_tokens(it)).sum();
        self.images = ImageBounds::default();
        for message in &self.messages {
            self.images += context::images(message);
        }
    }

    /// Ends the run, whatever goes on in it.
    fn stopped(&mut self, error: RunError) {
        if !self.ended {
            self.actions.clear();
            self.summarizing = None;
            self.end(Err(error));
        }
    }

    fn model_failed(&mut self, failure: ModelFailure) {
        self.ledger.model_calls.push(failure.call);
        if self.ended {
            return;
        }
        let error = failure.error;
        if error.kind() == LlmErrorKind::ContextOverflow {
            return self.take_back_a_turn(&error);
        }
        self.end(Err(
            RunError::new(RunErrorKind::Model, error.to_string()).with_llm(error)
        ));
    }

    fn cancelled(&mut self, call: Option<ModelCall>) {
        self.ledger.model_calls.extend(call);
        if self.ended || self.cancelled {
            return;
        }
        self.cancelled = true;
        self.actions.clear();
        self.summarizing = None;
        match self.turn.take() {
            // Calls that run are told by their token and will report; the others never start.
            Some(mut turn) => {
                turn.refuse_waiting("The run was cancelled before this call started.");
                self.tell_refused(&mut turn);
                self.turn = Some(turn);
                self.end_turn_if_done();
            }
            None => self.end(Err(RunError::cancelled())),
        }
    }

    /// Answers calls that will not run, so that every call has its result.
    fn refuse_all(&mut self, calls: &[ToolCall], why: &str) {
        let text = format!("Not run: {why}.");
        for call in calls {
            self.refused(call.clone(), text.clone());
            self.push(ToolMessage::new(call, text.clone()).into());
        }
    }

    /// Accounts for calls that were refused since the last time.
    fn tell_refused(&mut self, turn: &mut Turn) {
        for (call, text) in turn.newly_refused() {
            self.refused(call, text);
        }
    }

    fn refused(&mut self, call: ToolCall, text: String) {
        self.ledger
            .record_tool(&call.name, false, Duration::ZERO, None);
        self.actions.push_back(Action::CallRefused { call, text });
    }

    /// Some models repeat an id, within a turn (where results could not be told apart) or over turns
    /// (`call_0` each time, which other providers refuse). The later one gets a name of its own.
    fn repair_ids(&mut self, message: &mut AssistantMessage) {
        for block in &mut message.blocks {
            let AssistantBlock::ToolCall(call) = block else {
                continue;
            };
            if self.call_ids.insert(call.id.clone()) {
                continue;
            }
            let mut count = 2;
            let mut id = format!("{}-{count}", call.id);
            while !self.call_ids.insert(id.clone()) {
                count += 1;
                id = format!("{}-{count}", call.id);
            }
            call.id = id;
            call.has_provider_id = false;
        }
    }

    fn say(&mut self, kind: UserKind, text: String) {
        self.actions.push_back(Action::Say { text: text.clone() });
        self.push(Message::User(UserMessage::new(kind, text)));
    }

    fn push(&mut self, message: Message) {
        self.context_tokens += context::message_tokens(&message);
        self.images += context::images(&message);
        self.messages.push(SharedMessage::new(message));
    }

    fn end(&mut self, end: End) {
        self.ended = true;
        self.finish = end.as_ref().ok().cloned();
        self.actions.push_back(Action::End(end));
    }
}

fn messages_call_ids(messages: &[SharedMessage]) -> HashSet<String> {
    let turns = messages.iter().filter_map(|message| match &**message {
        Message::Assistant(message) => Some(message),
        _ => None,
    });
    turns
        .flat_map(|turn| turn.tool_calls().map(|call| call.id.clone()))
        .collect()
}
