//! Overflow of the context window: what can be taken back, and when it is in vain.

use cantle_core::message::{Message, SharedMessage, UserKind, UserMessage};

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

fn is_summary(message: &Message) -> bool {
    matches!(
        message,
        Message::User(UserMessage {
            kind: UserKind::Summary { .. },
            ..
        })
    )
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
