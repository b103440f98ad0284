//! Detection of repetition: a model that makes the same calls with the same results again and again,
//! also in a small cycle (A, B, A, B).

use std::collections::VecDeque;
use std::fmt;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::num::NonZeroU32;
use std::sync::Arc;

use cantle_core::content::{Content, Part};
use cantle_core::message::{ToolCall, ToolMessage};

/// Maximum turns in a round.
const MAX_PERIOD: usize = 4;

/// Counts turns that equal earlier ones.
#[derive(Debug, Default)]
pub(super) struct RepeatCounter {
    /// Hashes of the latest turns' calls and results, newest first.
    latest: VecDeque<u64>,
    /// For each period from 1 to [`MAX_PERIOD`]: consecutive turns that equal the one a period before.
    same: [u32; MAX_PERIOD],
}

/// A repeated round of turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RepeatedRound {
    /// Turns in the round.
    pub(super) period: u32,
    pub(super) count: u32,
}

impl fmt::Display for RepeatedRound {
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

/// The consequence of repetition.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Fine,
    /// Warn the model.
    Warn(RepeatedRound),
    /// End the run.
    End(RepeatedRound),
}

impl RepeatCounter {
    /// Adds a turn. The run ends after `limit` equal rounds, and the model is warned after half of them.
    pub(super) fn count(
        &mut self,
        calls: &[Arc<ToolCall>],
        results: &[ToolMessage],
        limit: Option<NonZeroU32>,
    ) -> Verdict {
        let Some(limit) = limit.map(NonZeroU32::get) else {
            return Verdict::Fine;
        };
        if calls.is_empty() {
            self.reset();
            return Verdict::Fine;
        }
        let turn = hash(calls, results);
        let before = self.latest.iter().map(|it| Some(*it));
        let before = before.chain(std::iter::repeat(None));
        for (same, before) in self.same.iter_mut().zip(before) {
            *same = if before == Some(turn) { *same + 1 } else { 0 };
        }
        self.latest.push_front(turn);
        self.latest.truncate(MAX_PERIOD);
        let rounds = (1..).zip(self.same).filter_map(|(period, same)| {
            let is_complete = same % period == 0 && same > 0;
            is_complete.then_some(RepeatedRound {
                period,
                count: same / period + 1,
            })
        });
        // The shortest period describes the repetition best.
        let mut rounds = rounds.filter(|round| round.count >= limit.div_ceil(2).max(2));
        match rounds.next() {
            Some(round) if round.count >= limit => Verdict::End(round),
            Some(round) => Verdict::Warn(round),
            None => Verdict::Fine,
        }
    }

    /// Forgets earlier turns, for a model that polls.
    pub(super) fn reset(&mut self) {
        *self = Self::default();
    }
}

/// Hashes a turn. Hashes are compared only within this process.
fn hash(calls: &[Arc<ToolCall>], results: &[ToolMessage]) -> u64 {
    let mut hasher = DefaultHasher::new();
    for call in calls {
        (&call.name, &call.arguments).hash(&mut hasher);
    }
    for result in results {
        match &result.content {
            Content::Text(text) => text.hash(&mut hasher),
            Content::Parts(parts) => parts.iter().for_each(|part| match part {
                Part::Text(text) => text.hash(&mut hasher),
                Part::Media(media) => media.data().hash(&mut hasher),
            }),
        }
    }
    hasher.finish()
}
