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
mod ids;
mod overflow;
mod repeats;
mod resume;
mod summary;
mod telling;
mod turn;

#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet, VecDeque};

use cantle_core::content::Content;
use cantle_core::event::Finish;
use cantle_core::ledger::{Ledger, ModelCall};
use cantle_core::llm::{LlmErrorKind, StopReason};
use cantle_core::message::{
    AssistantMessage, Message, SharedMessage, ToolCall, ToolMessage, UserKind, UserMessage,
};
use serde::{Deserialize, Serialize};

pub(crate) use self::context::{ImageBounds, estimate_usage, output_bytes};
pub(crate) use self::facts::{
    Action, CallOutcome, CallStart, End, Fact, FreshSandbox, ModelFailure, SubAgentEnded,
    SummaryAttempt,
};
use self::ids::messages_call_ids;
use self::overflow::Overflows;
use self::repeats::{Repeats, Verdict};
use self::turn::Turn;
use crate::budget::{BudgetState, Resource};
use crate::error::{RunError, RunErrorKind};

/// What the model is told where its answer was cut off and it may go on.
const CUT_OFF: &str = "Your answer was cut off at the output limit. Go on where it ended. Make calls that \
                       did not run again, in smaller steps.";

/// Empty answers in a row, after which the model is given up.
const MAX_EMPTY_ANSWERS: u32 = 3;

/// The rules that can be chosen.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[expect(clippy::struct_excessive_bools, reason = "independent rules")]
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
    /// Whether the model goes on after an answer that was cut off at the output limit.
    #[serde(default)]
    pub(crate) continue_cut_answers: bool,
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
    /// What sub-agents used that go on with the run; their own journals say it again then.
    left: Vec<(String, Ledger)>,
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
            left: Vec::new(),
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
        for (tool, ledger) in std::mem::take(&mut self.left) {
            self.account_for(tool, ledger);
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
            Fact::CallSuspended { index } => {
                if let Some(turn) = &mut self.turn {
                    turn.suspended(index);
                }
                self.end_turn_if_done();
            }
            Fact::SubAgentEnded(ended) => self.sub_agent_ended(ended),
            Fact::SubAgentLeft { tool, ledger } => self.left.push((tool, *ledger)),
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
                // Of nothing there is nothing to go on from.
                if self.rules.continue_cut_answers && !empty {
                    self.say(UserKind::User, CUT_OFF.to_owned());
                    return self.go_on(true);
                }
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
        if turn.has_begun(index) {
            self.ledger.record_repairs(name, outcome.repairs);
            self.ledger.record_tool(
                name,
                outcome.success,
                outcome.duration,
                outcome.metadata.clone(),
            );
        } else {
            self.ledger.record_refused(name);
        }
        let name = name.to_owned();
        if let Some(ledger) = outcome.sub_agent.clone() {
            self.ledger
                .sub_agents
                .entry(name)
                .or_default()
                .push(*ledger);
        }
        self.left_running |= outcome.left_running;
        turn.finished(index, outcome);
        if !self.cancelled {
            self.actions.extend(turn.next_calls());
        }
        self.end_turn_if_done();
    }

    /// Accounts for a sub-agent in the background, and tells the model unless a call of its does.
    fn sub_agent_ended(&mut self, ended: SubAgentEnded) {
        self.account_for(ended.tool, *ended.ledger);
        if !ended.awaited {
            let text = format!("The sub-agent {} has ended.\n{}", ended.id, ended.result);
            self.said.push(text.into());
        }
    }

    fn account_for(&mut self, tool: String, ledger: Ledger) {
        self.ledger.sub_agents.entry(tool).or_default().push(ledger);
    }

    /// Closes the turn once every call has its result, and goes on from there.
    fn end_turn_if_done(&mut self) {
        // The turn stays as it is until the run goes on.
        if self.turn.as_ref().is_some_and(Turn::is_suspended) {
            if !self.ended {
                self.end(Err(RunError::cancelled()));
            }
            return;
        }
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
            Verdict::Tell(repeated) => self.say(
                UserKind::User,
                format!(
                    "You have now made {repeated}. Doing it again will not help: try something else, \
                     or finish and say what is in the way."
                ),
            ),
            Verdict::End(repeated) => {
                return self.end(Err(RunError::new(
                    RunErrorKind::NoProgress,
                    format!("the model made {repeated}"),
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
        self.ledger.record_refused(&call.name);
        self.actions.push_back(Action::CallRefused { call, text });
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
