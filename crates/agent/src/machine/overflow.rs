//! Overflow of the context window: what can be taken back, and when it is in vain.

use std::sync::Arc;

use cantle_core::ledger::CallPurpose;
use cantle_core::llm::LlmError;
use cantle_core::message::{Message, SharedMessage, UserKind, UserMessage};

use super::summary::{self, is_summary};
use super::{Action, Machine, SummaryAttempt};
use crate::error::{RunError, RunErrorKind};

/// Overflows that may follow each other without the run getting further than before.
const MAX_STRIKES: u32 = 3;

/// Counts overflows, so that a window that is simply too small ends the run instead of asking for
/// ever: a turn that was taken back does not count against the turns, so nothing else would.
#[derive(Debug, Default)]
pub(super) struct Overflows {
    /// The most turns the run had when it overflowed.
    furthest: u32,
    strikes: u32,
}

impl Overflows {
    /// Notes an overflow after `turns` turns; says whether to go on.
    pub(super) fn another(&mut self, turns: u32) -> bool {
        if turns > self.furthest {
            self.furthest = turns;
            self.strikes = 0;
        }
        self.strikes += 1;
        self.strikes <= MAX_STRIKES
    }
}

impl Machine {
    /// Takes the latest completed turn out of the conversation and asks again; where that can't be
    /// done, or was done in vain, the run ends.
    pub(super) fn take_back_a_turn(&mut self, error: &Arc<LlmError>) {
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
        let Some(cut) = latest_turn(&self.messages, self.floor) else {
            return self.end(overflow("no turn is left that could be taken back"));
        };
        self.keep_said(cut.start);
        self.messages.truncate(cut.start);
        let entry = self.entries.get(&cut.assistant_id);
        if let Some(call) = entry.and_then(|entry| self.ledger.model_calls.get_mut(*entry)) {
            call.purpose = CallPurpose::DroppedTurn;
        }
        self.actions
            .push_back(Action::TurnDropped { turn: self.turns });
        self.turns = self.turns.saturating_sub(1);
        self.recount();
        // The next turn would overflow just as well, unless there is more room than this one took.
        let attempt = self.summarizing.take().unwrap_or(SummaryAttempt::First);
        if self.rules.summarize_at.is_some() && summary::start(&self.messages).is_some() {
            return self.summarize(attempt);
        }
        self.ask();
    }

    /// What the user said in a part of the conversation that goes is said again.
    fn keep_said(&mut self, from: usize) {
        let at = self.heard.partition_point(|heard| *heard < from);
        let heard = self.heard.split_off(at);
        let said = heard
            .into_iter()
            .filter_map(|at| match self.messages.get(at).map(|it| &**it) {
                Some(Message::User(message)) => Some(message.content.clone()),
                _ => None,
            });
        let said: Vec<_> = said.collect();
        self.said.splice(0..0, said);
    }
}

/// A turn that can be taken back.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Cut {
    /// The first message that goes.
    pub(super) start: usize,
    /// The id of the turn's assistant message.
    pub(super) assistant_id: String,
}

/// The latest completed turn of this run (which begins at message `floor`) with its warning, unless
/// it is the only one after the task or a summary: what remains must show that the run got
/// somewhere.
pub(super) fn latest_turn(messages: &[SharedMessage], floor: usize) -> Option<Cut> {
    let summary = messages.iter().rposition(|message| is_summary(message));
    let boundary = summary.map_or(0, |at| at + 1).max(floor);
    let mut turns =
        messages.iter().enumerate().skip(boundary).rev().filter_map(
            |(at, message)| match &**message {
                Message::Assistant(message) => Some((at, message)),
                _ => None,
            },
        );
    let (at, assistant) = turns.next()?;
    turns.next()?;
    let warned = at.checked_sub(1).and_then(|before| messages.get(before));
    let warned = warned.is_some_and(|message| is_warning(message));
    Some(Cut {
        start: at - usize::from(warned),
        assistant_id: assistant.id.clone(),
    })
}

fn is_warning(message: &Message) -> bool {
    matches!(
        message,
        Message::User(UserMessage {
            kind: UserKind::TurnWarning,
            ..
        })
    )
}
