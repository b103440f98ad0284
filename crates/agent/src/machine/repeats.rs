//! The same calls with the same results, over and over: a model that is stuck pays for nothing.
//!
//! Also where it goes round in a small circle: A, B, A, B.

use std::collections::VecDeque;
use std::fmt;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use cantle_core::content::{Content, Part};
use cantle_core::message::{ToolCall, ToolMessage};

/// Rounds after which the model is told.
const TOLD_AFTER: u32 = 3;

/// Rounds after which the run ends.
const ENDS_AFTER: u32 = 6;

/// Turns that a round may have.
const MAX_PERIOD: usize = 4;

/// Counts turns that are the same as some before.
#[derive(Debug, Default)]
pub(super) struct Repeats {
    /// The latest turns, the latest first: what was called and what came of it, as a number.
    latest: VecDeque<u64>,
    /// How many turns in a row were the same as the one so many before, for 1 to [`MAX_PERIOD`].
    same: [u32; MAX_PERIOD],
}

/// What was done how often.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Repeated {
    /// Turns that belong together.
    pub(super) period: u32,
    pub(super) count: u32,
}

impl fmt::Display for Repeated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { period, count } = self;
        match period {
            1 => write!(
                f,
                "the same call with the same result {count} times in a row"
            ),
            _ => write!(
                f,
                "the same {period} calls one after the other, with the same results, {count} times in \
                 a row"
            ),
        }
    }
}

/// What is to be done about repetition.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Nothing.
    Fine,
    /// Tell the model what it does.
    Tell(Repeated),
    /// End the run.
    End(Repeated),
}

impl Repeats {
    /// Notes a turn's calls and their results.
    pub(super) fn note(&mut self, calls: &[ToolCall], results: &[ToolMessage]) -> Verdict {
        if calls.is_empty() {
            self.reset();
            return Verdict::Fine;
        }
        let turn = digest(calls, results);
        let before = self.latest.iter().map(|it| Some(*it));
        let before = before.chain(std::iter::repeat(None));
        for (same, before) in self.same.iter_mut().zip(before) {
            *same = if before == Some(turn) { *same + 1 } else { 0 };
        }
        self.latest.push_front(turn);
        self.latest.truncate(MAX_PERIOD);
        // The smallest round says it best.
        let rounds = (1..).zip(self.same).filter_map(|(period, same)| {
            let whole = same % period == 0 && same > 0;
            whole.then_some(Repeated {
                period,
                count: same / period + 1,
            })
        });
        let mut rounds = rounds.filter(|repeated| repeated.count >= TOLD_AFTER);
        match rounds.next() {
            Some(repeated) if repeated.count >= ENDS_AFTER => Verdict::End(repeated),
            Some(repeated) => Verdict::Tell(repeated),
            None => Verdict::Fine,
        }
    }

    /// Forgets what came before: a model that polls is not stuck.
    pub(super) fn reset(&mut self) {
        *self = Self::default();
    }
}

/// A turn as a number; only this process ever compares it.
fn digest(calls: &[ToolCall], results: &[ToolMessage]) -> u64 {
    let mut digest = DefaultHasher::new();
    for call in calls {
        (&call.name, &call.arguments).hash(&mut digest);
    }
    for result in results {
        match &result.content {
            Content::Text(text) => text.hash(&mut digest),
            Content::Parts(parts) => parts.iter().for_each(|part| match part {
                Part::Text(text) => text.hash(&mut digest),
                Part::Media(media) => media.data().hash(&mut digest),
            }),
        }
    }
    digest.finish()
}
