//! The loop as a pure state machine.
//!
//! It does no I/O and reads no clock. [`Machine::next`] says what to do; [`Machine::apply`] is told
//! single facts: the model answered, a call started, a call finished, the run was cancelled. So a
//! journal of facts is a run, and cancelling, resuming and testing are all the same mechanism, also
//! while calls of one turn run side by side.
//!
//! The rules of a turn are here and nowhere else: ordinary calls before finish calls, several
//! finish calls refused, one result for every call in call order, warnings before the turns run
//! out, a word to a model that called nothing, and taking a turn back where the context overflows.

mod facts;
mod overflow;
mod turn;

#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use cantle_core::content::{Content, Media, MediaKind, Part};
use cantle_core::ledger::{CallPurpose, Ledger, ModelCall};
use cantle_core::llm::{LlmError, LlmErrorKind, StopReason};
use cantle_core::message::{
    AssistantBlock, AssistantMessage, Message, SharedMessage, ToolCall, ToolMessage, UserKind,
    UserMessage,
};
use cantle_core::usage::TokenUsage;

pub(crate) use self::facts::{Action, CallOutcome, End, Fact, ModelFailure};
use self::overflow::Overflows;
use self::turn::Turn;
use crate::error::{RunError, RunErrorKind};

/// Empty answers in a row, after which the model is given up.
const MAX_EMPTY_ANSWERS: u32 = 3;

/// The rules that can be chosen.
#[derive(Clone, Debug)]
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
}

/// What the machine must know of a tool.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ToolTraits {
    /// Whether its success ends the run.
    pub(crate) finishes: bool,
    /// Whether its calls may run side by side with other such calls.
    pub(crate) concurrency_safe: bool,
}

/// One run: its conversation, where it stands, and its accounts.
#[derive(Debug)]
pub(crate) struct Machine {
    rules: Rules,
    tools: HashMap<String, ToolTraits>,
    messages: Vec<SharedMessage>,
    /// Where this run's own messages begin: after the task.
    floor: usize,
    turns: u32,
    /// The calls of the turn being worked on; `None` while the model is asked.
    turn: Option<Turn>,
    actions: VecDeque<Action>,
    overflows: Overflows,
    empty_answers: u32,
    cancelled: bool,
    ended: bool,
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
            turns: 0,
            turn: None,
            actions: VecDeque::new(),
            overflows: Overflows::default(),
            empty_answers: 0,
            cancelled: false,
            ended: false,
            ledger: Ledger::default(),
            call_ids: messages_call_ids(&messages),
            entries: HashMap::new(),
            floor: messages.len(),
            messages,
        };
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

    /// The conversation and the accounts, at the end.
    pub(crate) fn into_parts(self) -> (Vec<SharedMessage>, Ledger) {
        (self.messages, self.ledger)
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
            Fact::CallStarted { index, time } => {
                if let Some(turn) = &mut self.turn {
                    turn.started(index, time);
                }
            }
            Fact::CallFinished { index, outcome } => self.call_finished(index, *outcome),
            Fact::Cancelled { call } => self.cancelled(call),
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
        self.repair_ids(&mut message);
        let calls: Vec<ToolCall> = message.tool_calls().cloned().collect();
        let empty = calls.is_empty() && message.text().trim().is_empty();
        self.push(Message::Assistant(message));

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

        let mut turn = Turn::new(calls, &self.tools);
        self.tell_refused(&mut turn);
        self.actions.extend(turn.next_calls());
        self.turn = Some(turn);
        self.end_turn_if_done();
    }

    fn call_finished(&mut self, index: usize, outcome: CallOutcome) {
        let Some(turn) = &mut self.turn else { return };
        let Some(name) = turn.name(index) else { return };
        self.ledger.record_tool(
            name,
            outcome.success,
            outcome.duration,
            outcome.metadata.clone(),
        );
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
        let called = turn.len() > 0;
        let result = turn.into_result();
        let mut images = Vec::new();
        for mut message in result.messages {
            if self.rules.text_only_tool_responses {
                images.extend(take_media(&mut message.content, &message.tool_call_id));
            }
            self.push(Message::Tool(message));
        }
        let shown = !images.is_empty();
        for image in images {
            self.push(Message::User(image));
        }
        if let Some(message) = result.sandbox_gone {
            return self.end(Err(RunError::new(RunErrorKind::SandboxGone, message)));
        }
        // A finish call that succeeded ends the run, also where it was cancelled meanwhile.
        if let Some(finish) = result.finish {
            return self.end(Ok(finish));
        }
        if self.cancelled {
            return self.end(Err(RunError::cancelled()));
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
        if !called && !shown && self.rules.block_successive_assistant_messages && !self.warns_next()
        {
            self.say(UserKind::User, "Please continue the task".to_owned());
        }
        self.ask();
    }

    fn warns_next(&self) -> bool {
        self.turns > 0
            && self.rules.max_turns.saturating_sub(self.turns) <= self.rules.turn_warning_threshold
    }

    /// Asks the model for the next turn, after a warning where it is time for one.
    fn ask(&mut self) {
        if self.warns_next() {
            let left = self.rules.max_turns.saturating_sub(self.turns);
            let warning = if left == 1 {
                "This is the last turn. Finish the task now by calling a finish tool.".to_owned()
            } else {
                format!(
                    "You have {left} turns left to complete the task. Keep one of them for calling a finish tool."
                )
            };
            self.say(UserKind::TurnWarning, warning);
        }
        self.actions.push_back(Action::AskModel {
            turn: self.turns + 1,
        });
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

    /// Takes the latest completed turn out of the conversation and asks again; where that can't be
    /// done, or was done in vain, the run ends.
    fn take_back_a_turn(&mut self, error: &Arc<LlmError>) {
        let overflow = |why: &str| {
            let message = format!("{error}; {why}");
            let end = RunError::new(RunErrorKind::ContextOverflow, message);
            Err(end.with_llm(Arc::clone(error)))
        };
        if !self.rules.recover_from_context_overflow {
            return self.end(overflow("recovery from context overflow is switched off"));
        }
        if !self.overflows.another(self.turns) {
            return self.end(overflow("taking back turns made no room for going on"));
        }
        let Some(cut) = overflow::latest_turn(&self.messages, self.floor) else {
            return self.end(overflow("no turn is left that could be taken back"));
        };
        self.messages.truncate(cut.start);
        let entry = self.entries.get(&cut.assistant_id);
        if let Some(call) = entry.and_then(|entry| self.ledger.model_calls.get_mut(*entry)) {
            call.purpose = CallPurpose::DroppedTurn;
        }
        self.actions
            .push_back(Action::TurnDropped { turn: self.turns });
        self.turns = self.turns.saturating_sub(1);
        self.ask();
    }

    fn cancelled(&mut self, call: Option<ModelCall>) {
        self.ledger.model_calls.extend(call);
        if self.ended || self.cancelled {
            return;
        }
        self.cancelled = true;
        self.actions.clear();
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
        self.messages.push(SharedMessage::new(message));
    }

    fn end(&mut self, end: End) {
        self.ended = true;
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

/// Moves images out of a tool result into user messages, and leaves a word in their place.
fn take_media(content: &mut Content, call_id: &str) -> Vec<UserMessage> {
    let Content::Parts(parts) = content else {
        return Vec::new();
    };
    parts
        .iter_mut()
        .filter_map(|part| {
            let is_image = matches!(part, Part::Media(media) if media.kind() == MediaKind::Image);
            if !is_image {
                return None;
            }
            let placeholder = format!("The user will show you the image for tool call {call_id}.");
            let Part::Media(media) = std::mem::replace(part, Part::Text(placeholder)) else {
                return None;
            };
            Some(image_message(media, call_id))
        })
        .collect()
}

fn image_message(media: Media, call_id: &str) -> UserMessage {
    let text = format!("Here is the image for tool call {call_id}");
    UserMessage::new(UserKind::User, vec![Part::Text(text), Part::Media(media)])
}

/// Tokens of a text where nobody counted them: four bytes each.
fn estimate_tokens(bytes: usize) -> u64 {
    (bytes as u64).div_ceil(4)
}

/// What a call probably used: the conversation as input, and this much output.
pub(crate) fn estimate_usage(messages: &[SharedMessage], output_bytes: usize) -> TokenUsage {
    let input = messages.iter().map(|message| message_bytes(message)).sum();
    TokenUsage {
        input: estimate_tokens(input),
        answer: estimate_tokens(output_bytes),
        ..TokenUsage::default()
    }
}

fn message_bytes(message: &Message) -> usize {
    let content = match message {
        Message::System(message) => &message.content,
        Message::User(message) => &message.content,
        Message::Tool(message) => &message.content,
        Message::Assistant(message) => return output_bytes(message),
    };
    match content {
        Content::Text(text) => text.len(),
        Content::Parts(parts) => parts
            .iter()
            .map(|part| match part {
                Part::Text(text) => text.len(),
                Part::Media(_) => 0,
            })
            .sum(),
    }
}

/// The bytes of a model's turn that count as its output.
pub(crate) fn output_bytes(message: &AssistantMessage) -> usize {
    let block = |block: &AssistantBlock| match block {
        AssistantBlock::Text { text, .. } => text.len(),
        AssistantBlock::Reasoning { content } | AssistantBlock::SignedReasoning { content, .. } => {
            content.len()
        }
        AssistantBlock::ToolCall(call) => call.name.len() + call.arguments.len(),
        _ => 0,
    };
    message.blocks.iter().map(block).sum()
}
