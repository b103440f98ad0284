//! The tool calls of one turn: in which order they run, and their results.
//!
//! Ordinary calls run first, finish calls last. Calls that declare themselves concurrency-safe run
//! side by side with their neighbours of that kind; any other call runs alone. Results are kept in
//! call order, one for each call.

use std::collections::{HashMap, VecDeque};

use cantle_core::event::Finish;
use cantle_core::message::{ToolCall, ToolMessage};

use super::resume::{INTERRUPTED, SUSPENDED};
use super::{Action, CallOutcome, CallStart, ToolTraits};
use crate::approval::Decision;

#[derive(Debug)]
pub(super) struct Turn {
    calls: Vec<Call>,
    /// Indices of calls that have not started, in the order they will.
    waiting: VecDeque<usize>,
    running: usize,
    /// Indices of calls refused since [`Turn::newly_refused`] was last asked.
    refused: Vec<usize>,
}

#[derive(Debug)]
struct Call {
    call: ToolCall,
    traits: Option<ToolTraits>,
    /// What somebody decided on it.
    decision: Option<Decision>,
    started: Option<f64>,
    /// Whether another process had started it.
    again: bool,
    /// Whether it was stopped with the run, and goes on with it.
    suspended: bool,
    outcome: Option<Answer>,
}

#[derive(Debug)]
enum Answer {
    /// It ran.
    Ran(CallOutcome),
    /// It was refused with these words and never ran.
    Refused(String),
}

/// What a turn came to.
#[derive(Debug)]
pub(super) struct TurnResult {
    /// One result for each call, in call order.
    pub(super) messages: Vec<ToolMessage>,
    /// The calls.
    pub(super) calls: Vec<ToolCall>,
    /// The finish call that succeeded.
    pub(super) finish: Option<Finish>,
    /// Why the sandbox is gone, where it is.
    pub(super) sandbox_gone: Option<String>,
    /// Whether any of its calls polls for something.
    pub(super) polls: bool,
}

impl Turn {
    /// A turn with these calls. Where `only_finish` says why, nothing but a finish call runs.
    pub(super) fn new(
        calls: Vec<ToolCall>,
        tools: &HashMap<String, ToolTraits>,
        only_finish: Option<&str>,
    ) -> Self {
        let calls: Vec<Call> = calls
            .into_iter()
            .map(|call| Call {
                traits: tools.get(&call.name).copied(),
                call,
                decision: None,
                started: None,
                again: false,
                suspended: false,
                outcome: None,
            })
            .collect();
        let mut turn = Self {
            waiting: VecDeque::new(),
            calls,
            running: 0,
            refused: Vec::new(),
        };
        turn.refuse_unknown(tools);
        turn.refuse_several_finishes();
        if let Some(why) = only_finish {
            turn.refuse_work(why);
        }
        turn.refused = turn
            .calls
            .iter()
            .enumerate()
            .filter(|(_, call)| call.outcome.is_some())
            .map(|(index, _)| index)
            .collect();
        turn.waiting = turn.in_running_order();
        turn
    }

    /// Calls refused since the last time, with their answers.
    pub(super) fn newly_refused(&mut self) -> Vec<(ToolCall, String)> {
        let refused = std::mem::take(&mut self.refused);
        let calls = refused
            .into_iter()
            .filter_map(|index| self.calls.get(index));
        calls
            .filter_map(|call| match &call.outcome {
                Some(Answer::Refused(text)) => Some((call.call.clone(), text.clone())),
                _ => None,
            })
            .collect()
    }

    pub(super) fn name(&self, index: usize) -> Option<&str> {
        self.calls.get(index).map(|call| call.call.name.as_str())
    }

    fn refuse_unknown(&mut self, tools: &HashMap<String, ToolTraits>) {
        let mut names: Vec<_> = tools.keys().map(String::as_str).collect();
        names.sort_unstable();
        let names = names.join(", ");
        for call in self.calls.iter_mut().filter(|call| call.traits.is_none()) {
            let text = format!(
                "{} is not a valid tool. The tools are: {names}.",
                call.call.name
            );
            call.outcome = Some(Answer::Refused(text));
        }
    }

    /// Choosing one of several finish calls would throw away what the others say.
    fn refuse_several_finishes(&mut self) {
        let mut finishes: Vec<_> = self
            .calls
            .iter_mut()
            .filter(|call| call.finishes())
            .collect();
        if finishes.len() < 2 {
            return;
        }
        let names = finishes
            .iter()
            .map(|call| call.call.name.clone())
            .collect::<Vec<_>>();
        let names = names.join(", ");
        for call in &mut finishes {
            let text = format!(
                "Not run: several finish calls in one turn ({names}). Make exactly one finish call."
            );
            call.outcome = Some(Answer::Refused(text));
        }
    }

    fn refuse_work(&mut self, why: &str) {
        let open = |call: &&mut Call| call.outcome.is_none() && !call.finishes();
        for call in self.calls.iter_mut().filter(open) {
            call.outcome = Some(Answer::Refused(format!(
                "Not run: {why}, so that only a finish call is still possible."
            )));
        }
    }

    fn in_running_order(&self) -> VecDeque<usize> {
        let open = |finishes: bool| {
            let calls = self.calls.iter().enumerate();
            calls
                .filter(move |(_, call)| call.outcome.is_none() && call.finishes() == finishes)
                .map(|(index, _)| index)
        };
        open(false).chain(open(true)).collect()
    }

    /// The calls that may start now.
    pub(super) fn next_calls(&mut self) -> Vec<Action> {
        let mut actions = Vec::new();
        while let Some(&index) = self.waiting.front() {
            let Some(call) = self.calls.get(index) else {
                break;
            };
            let side_by_side = call.runs_side_by_side();
            if self.running > 0 && !side_by_side {
                break;
            }
            self.waiting.pop_front();
            self.running += 1;
            actions.push(Action::StartCall(CallStart {
                index,
                call: call.call.clone(),
                decision: call.decision.clone(),
                again: call.again,
            }));
            if !side_by_side {
                break;
            }
        }
        actions
    }

    pub(super) fn started(&mut self, index: usize, time: f64) {
        if let Some(call) = self.calls.get_mut(index) {
            call.started = Some(time);
        }
    }

    pub(super) fn decided(&mut self, index: usize, decision: Decision) {
        if let Some(call) = self.calls.get_mut(index) {
            call.decision = Some(decision);
        }
    }

    /// Whether a call began, rather than that it was refused.
    pub(super) fn has_begun(&self, index: usize) -> bool {
        let call = self.calls.get(index);
        call.is_some_and(|call| call.started.is_some())
    }

    /// Leaves a call open until the run goes on.
    pub(super) fn suspended(&mut self, index: usize) {
        if let Some(call) = self.calls.get_mut(index) {
            call.suspended = true;
        }
    }

    /// Whether calls are left open and nothing else goes on.
    pub(super) fn is_suspended(&self) -> bool {
        let at_rest = |call: &Call| call.suspended || call.outcome.is_some();
        self.calls.iter().all(at_rest) && self.calls.iter().any(|call| call.outcome.is_none())
    }

    /// The calls that had begun in another process and whose results nobody knows.
    pub(super) fn interrupted(&self) -> Vec<usize> {
        let calls = self.calls.iter().enumerate();
        calls
            .filter(|(_, call)| call.outcome.is_none() && call.started.is_some())
            .filter(|(_, call)| !call.resumes())
            .map(|(index, _)| index)
            .collect()
    }

    /// Forgets which calls were handed out to a process that is gone: those without a result start
    /// anew, in their order.
    pub(super) fn hand_out_again(&mut self) {
        for call in self.calls.iter_mut().filter(|call| call.outcome.is_none()) {
            call.again = call.started.is_some();
            call.suspended = false;
        }
        self.running = 0;
        self.waiting = self.in_running_order();
    }

    pub(super) fn finished(&mut self, index: usize, outcome: CallOutcome) {
        let Some(call) = self.calls.get_mut(index) else {
            return;
        };
        if call.outcome.is_none() {
            call.outcome = Some(Answer::Ran(outcome));
            self.running = self.running.saturating_sub(1);
        }
    }

    /// Answers the calls that have not started with these words.
    pub(super) fn refuse_waiting(&mut self, text: &str) {
        for index in std::mem::take(&mut self.waiting) {
            if let Some(call) = self.calls.get_mut(index) {
                call.outcome = Some(Answer::Refused(text.to_owned()));
                self.refused.push(index);
            }
        }
    }

    pub(super) fn is_done(&self) -> bool {
        self.calls.iter().all(|call| call.outcome.is_some())
    }

    pub(super) fn into_result(self) -> TurnResult {
        let mut result = TurnResult {
            messages: Vec::new(),
            calls: Vec::new(),
            finish: None,
            sandbox_gone: None,
            polls: false,
        };
        for Call {
            call,
            traits,
            started,
            suspended,
            outcome,
            ..
        } in self.calls
        {
            let message = match outcome {
                Some(Answer::Ran(outcome)) => {
                    if outcome.success && traits.is_some_and(|traits| traits.finishes) {
                        result.finish = Some(Finish::new(&call.name, outcome.arguments));
                    }
                    result.sandbox_gone = result.sandbox_gone.or(outcome.sandbox_gone);
                    let mut message = ToolMessage::new(&call, outcome.content);
                    message.args_was_valid = outcome.arguments_valid;
                    message.success = outcome.success;
                    message.tool_start_time = started;
                    message.tool_end_time = Some(outcome.time);
                    message
                }
                Some(Answer::Refused(text)) => ToolMessage::new(&call, text),
                None if suspended => ToolMessage::new(&call, SUSPENDED),
                None if started.is_some() => ToolMessage::new(&call, INTERRUPTED),
                None => ToolMessage::new(&call, "Not run: the run ended before."),
            };
            result.messages.push(message);
            result.calls.push(call);
            result.polls |= traits.is_some_and(|traits| traits.polls);
        }
        result
    }
}

impl Call {
    fn finishes(&self) -> bool {
        self.traits.is_some_and(|traits| traits.finishes)
    }

    fn resumes(&self) -> bool {
        self.traits.is_some_and(|traits| traits.resumes)
    }

    fn runs_side_by_side(&self) -> bool {
        self.traits
            .is_some_and(|traits| traits.concurrency_safe && !traits.finishes)
    }
}
