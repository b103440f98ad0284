//! The tool calls of one turn: their order, and their results.
//!
//! Ordinary calls run first, finish calls last. Calls that declare themselves concurrency-safe run
//! side by side with adjacent calls of that kind; any other call runs alone. Every call gets one
//! result, in call order.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use cantle_core::event::Finish;
use cantle_core::message::{ToolCall, ToolMessage};
use cantle_core::tool::Decision;
use indexmap::IndexMap;

use super::action::Action;
use super::fact::CallOutcome;
use super::settings::ToolTraits;

/// Maximum number of calls of one turn that run.
const MAX_CALLS: usize = 64;

/// Duration from which on repeating a call is not a sign that the model makes no progress.
const LONG_CALL: Duration = Duration::from_secs(10);

/// The result of a call that was running when its process ended. Whether it had its effect is
/// unknown, so it does not run again.
pub(super) const INTERRUPTED: &str = "Interrupted: the process that ran this call ended before the result was \
                           recorded. The call may have done all, some or none of its work. It is not \
                           repeated automatically; check the current state before you repeat it.";

/// The result of a call that continues when the run is resumed.
pub(super) const SUSPENDED: &str =
    "Not finished: the run was cancelled. This call continues when the run is resumed.";

/// The calls of a turn while they are decided on and run.
#[derive(Debug)]
pub(super) struct Turn {
    /// In the order of the model's answer. An index in a fact or an action is one in this list.
    calls: Vec<CallSlot>,
    /// Indices of the calls for which no action was returned yet, in the order of execution.
    waiting: VecDeque<usize>,
    /// Number of calls that are decided on or run.
    running: usize,
}

/// One call of a turn.
#[derive(Debug)]
pub(super) struct CallSlot {
    call: Arc<ToolCall>,
    /// The tool's properties; `None` for an unknown tool.
    traits: Option<ToolTraits>,
    pub(super) decision: Option<Decision>,
    /// Start of the call, in seconds since the Unix epoch.
    pub(super) started: Option<f64>,
    pub(super) result: CallResult,
}

#[derive(Debug)]
pub(super) enum CallResult {
    Pending,
    /// Stopped with the run; continues with it.
    Suspended,
    Ran(CallOutcome),
    /// Answered with this text, without running.
    Refused(String),
}

/// The results of a turn whose calls have all been answered.
#[derive(Debug)]
pub(super) struct TurnResult {
    /// One result for each call, in call order.
    pub(super) messages: Vec<ToolMessage>,
    pub(super) calls: Vec<Arc<ToolCall>>,
    /// The finish call that succeeded.
    pub(super) finish: Option<Finish>,
    /// The sandbox's error if it is gone.
    pub(super) sandbox_gone: Option<String>,
    /// Whether any of the tools polls, or a call took so long that it probably waited for something.
    pub(super) polls: bool,
}

impl Turn {
    /// A turn with these calls. If `only_finish` gives a reason, only a finish call runs.
    pub(super) fn new<'c>(
        calls: impl IntoIterator<Item = &'c ToolCall>,
        tools: &IndexMap<String, ToolTraits>,
        only_finish: Option<&str>,
    ) -> Self {
        let calls = calls.into_iter().map(|call| CallSlot {
            traits: tools.get(&call.name).copied(),
            call: Arc::new(call.clone()),
            decision: None,
            started: None,
            result: CallResult::Pending,
        });
        let mut turn = Self {
            calls: calls.collect(),
            waiting: VecDeque::new(),
            running: 0,
        };
        turn.refuse_unknown(tools);
        turn.refuse_excess();
        turn.refuse_several_finishes();
        if let Some(reason) = only_finish {
            turn.refuse_ordinary(reason);
        }
        turn.waiting = turn.execution_order();
        turn
    }

    /// Returns the calls that were refused, with their answers.
    pub(super) fn refused(&self) -> impl Iterator<Item = (&ToolCall, &str)> {
        self.calls.iter().filter_map(|slot| match &slot.result {
            CallResult::Refused(text) => Some((&*slot.call, text.as_str())),
            _ => None,
        })
    }

    /// A call, with the arguments that were decided on.
    pub(super) fn call(&self, index: usize) -> Option<Arc<ToolCall>> {
        let slot = self.calls.get(index)?;
        let mut call = Arc::clone(&slot.call);
        if let Some(Decision::Edit { arguments, .. }) = &slot.decision {
            Arc::make_mut(&mut call).arguments.clone_from(arguments);
        }
        Some(call)
    }

    fn refuse_unknown(&mut self, tools: &IndexMap<String, ToolTraits>) {
        if self.calls.iter().all(|slot| slot.traits.is_some()) {
            return;
        }
        let mut names: Vec<_> = tools.keys().map(String::as_str).collect();
        names.sort_unstable();
        let names = names.join(", ");
        for slot in self.calls.iter_mut().filter(|slot| slot.traits.is_none()) {
            slot.result = CallResult::Refused(format!(
                "{} is not a valid tool. The tools are: {names}.",
                slot.call.name
            ));
        }
    }

    /// The number of calls bounds what one answer of the model can make this process hold at once.
    fn refuse_excess(&mut self) {
        let count = self.calls.len();
        let open = |slot: &&mut CallSlot| slot.is_open();
        for slot in self.calls.iter_mut().skip(MAX_CALLS).filter(open) {
            slot.result = CallResult::Refused(format!(
                "Not run: a turn has at most {MAX_CALLS} calls, and this one has {count}. Make the others in later \
                 turns."
            ));
        }
    }

    /// Choosing one of several finish calls would discard the content of the others.
    fn refuse_several_finishes(&mut self) {
        let finishes = self.calls.iter().filter(|slot| slot.finishes());
        let names: Vec<_> = finishes.map(|slot| slot.call.name.as_str()).collect();
        if names.len() < 2 {
            return;
        }
        let names = names.join(", ");
        for slot in self.calls.iter_mut().filter(|slot| slot.finishes()) {
            slot.result = CallResult::Refused(format!(
                "Not run: several finish calls in one turn ({names}). Make exactly one finish call."
            ));
        }
    }

    fn refuse_ordinary(&mut self, reason: &str) {
        let ordinary = |slot: &&mut CallSlot| slot.is_open() && !slot.finishes();
        for slot in self.calls.iter_mut().filter(ordinary) {
            slot.result = CallResult::Refused(format!(
                "Not run: {reason}, so that only a finish call is still possible."
            ));
        }
    }

    fn execution_order(&self) -> VecDeque<usize> {
        let open = |finishes: bool| {
            let slots = self.calls.iter().enumerate();
            slots
                .filter(move |(_, slot)| slot.is_open() && slot.finishes() == finishes)
                .map(|(index, _)| index)
        };
        open(false).chain(open(true)).collect()
    }

    /// Adds an action for each call that can start now.
    pub(super) fn start_calls(&mut self, actions: &mut VecDeque<Action>) {
        while let Some(&index) = self.waiting.front() {
            let Some(slot) = self.calls.get(index) else {
                break;
            };
            let side_by_side = slot.runs_side_by_side();
            if self.running > 0 && !side_by_side {
                break;
            }
            self.waiting.pop_front();
            self.running += 1;
            actions.push_back(Action::StartCall {
                index,
                call: Arc::clone(&slot.call),
                decision: slot.decision.clone(),
                restarted: slot.started.is_some(),
            });
            if !side_by_side {
                break;
            }
        }
    }

    pub(super) fn slot_mut(&mut self, index: usize) -> Option<&mut CallSlot> {
        self.calls.get_mut(index)
    }

    pub(super) fn call_finished(&mut self, index: usize, outcome: CallOutcome) {
        let Some(slot) = self.calls.get_mut(index) else {
            return;
        };
        if slot.is_open() {
            slot.result = CallResult::Ran(outcome);
            self.running = self.running.saturating_sub(1);
        }
    }

    /// Whether a call started, rather than being refused.
    pub(super) fn has_started(&self, index: usize) -> bool {
        let slot = self.calls.get(index);
        slot.is_some_and(|slot| slot.started.is_some())
    }

    /// Whether some calls are suspended and all others have results.
    pub(super) fn is_suspended(&self) -> bool {
        let is_pending = |slot: &CallSlot| matches!(slot.result, CallResult::Pending);
        !self.calls.iter().any(is_pending) && self.calls.iter().any(CallSlot::is_open)
    }

    /// Whether every call has its result.
    pub(super) fn is_done(&self) -> bool {
        !self.calls.iter().any(CallSlot::is_open)
    }

    /// The calls that an earlier process started, whose results are unknown, with their indices.
    pub(super) fn interrupted(&self) -> Vec<(usize, Arc<ToolCall>)> {
        let slots = self.calls.iter().enumerate();
        slots
            .filter(|(_, slot)| slot.is_open() && slot.started.is_some() && !slot.is_repeatable())
            .map(|(index, slot)| (index, Arc::clone(&slot.call)))
            .collect()
    }

    /// Schedules the calls without a result again, in their order.
    pub(super) fn reschedule_unfinished(&mut self) {
        for slot in self.calls.iter_mut().filter(|slot| slot.is_open()) {
            slot.result = CallResult::Pending;
        }
        self.running = 0;
        self.waiting = self.execution_order();
    }

    /// Answers the calls that have not started with this text, and returns them.
    pub(super) fn refuse_waiting(&mut self, text: &str) -> Vec<Arc<ToolCall>> {
        let mut refused = Vec::new();
        for index in std::mem::take(&mut self.waiting) {
            if let Some(slot) = self.calls.get_mut(index) {
                slot.result = CallResult::Refused(text.to_owned());
                refused.push(Arc::clone(&slot.call));
            }
        }
        refused
    }

    /// The results; calls without one get a text that says why.
    pub(super) fn into_result(self) -> TurnResult {
        let mut result = TurnResult {
            messages: Vec::with_capacity(self.calls.len()),
            calls: Vec::with_capacity(self.calls.len()),
            finish: None,
            sandbox_gone: None,
            polls: false,
        };
        for slot in self.calls {
            let finishes = slot.finishes();
            let call = slot.call;
            result.messages.push(match slot.result {
                CallResult::Ran(outcome) => {
                    if outcome.success && finishes {
                        result.finish = Some(Finish::new(&call.name, outcome.arguments));
                    }
                    result.polls |= outcome.duration >= LONG_CALL;
                    result.sandbox_gone = result.sandbox_gone.or(outcome.sandbox_gone);
                    let mut message = ToolMessage::new(&call, outcome.content);
                    message.arguments_valid = outcome.arguments_valid;
                    message.success = outcome.success;
                    message.tool_start_time = slot.started;
                    message.tool_end_time = Some(outcome.time);
                    message
                }
                CallResult::Refused(text) => ToolMessage::new(&call, text),
                CallResult::Suspended => ToolMessage::new(&call, SUSPENDED),
                CallResult::Pending if slot.started.is_some() => {
                    ToolMessage::new(&call, INTERRUPTED)
                }
                CallResult::Pending => {
                    ToolMessage::new(&call, "Not run: the run ended before this call started.")
                }
            });
            result.polls |= slot.traits.is_some_and(|traits| traits.polls);
            result.calls.push(call);
        }
        result
    }
}

impl CallSlot {
    fn is_open(&self) -> bool {
        matches!(self.result, CallResult::Pending | CallResult::Suspended)
    }

    fn finishes(&self) -> bool {
        self.traits.is_some_and(|traits| traits.finishes)
    }

    fn is_repeatable(&self) -> bool {
        self.traits.is_some_and(|traits| traits.repeatable)
    }

    fn runs_side_by_side(&self) -> bool {
        self.traits
            .is_some_and(|traits| traits.concurrency_safe && !traits.finishes)
    }
}
