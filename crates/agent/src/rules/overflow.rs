//! Overflow of the context window: which turn can be dropped, and when that is futile.

use cantle_core::message::{Message, SharedMessage, UserKind, UserMessage};

use super::summary::is_summary;

/// Consecutive overflows without progress after which the run ends.
const MAX_WITHOUT_PROGRESS: u32 = 3;

/// Counts overflows, so that a window that is too small ends the run. A dropped turn does not
/// count against the turns, so no other rule would.
#[derive(Debug, Default)]
pub(super) struct OverflowCounter {
    /// The highest number of turns at an overflow.
    most_turns: u32,
    without_progress: u32,
}

impl OverflowCounter {
    /// Counts an overflow after `turns` turns. Returns whether to continue.
    pub(super) fn count(&mut self, turns: u32) -> bool {
        if turns > self.most_turns {
            self.most_turns = turns;
            self.without_progress = 0;
        }
        self.without_progress += 1;
        self.without_progress <= MAX_WITHOUT_PROGRESS
    }
}

/// Returns the index at which the latest completed turn begins, including its warning. `first_own`
/// is the first message that the run itself added.
///
/// The only turn after the task or a summary can't be dropped: what remains must show that the run
/// made progress.
pub(super) fn latest_turn(messages: &[SharedMessage], first_own: usize) -> Option<usize> {
    let summary = messages.iter().rposition(|message| is_summary(message));
    let boundary = summary.map_or(0, |at| at + 1).max(first_own);
    let own = messages.iter().enumerate().skip(boundary).rev();
    let mut turns = own.filter(|(_, message)| matches!(***message, Message::Assistant(_)));
    let (at, _) = turns.next()?;
    turns.next()?;
    let before = at.checked_sub(1).and_then(|before| messages.get(before));
    let is_warned = before.is_some_and(|message| is_warning(message));
    Some(at - usize::from(is_warned))
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
