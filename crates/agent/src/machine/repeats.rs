//! The same calls with the same results, over and over: a model that is stuck pays for nothing.

use cantle_core::content::Content;
use cantle_core::message::{ToolCall, ToolMessage};

/// Identical turns in a row after which the model is told.
const TOLD_AFTER: u32 = 3;

/// Identical turns in a row after which the run ends.
const ENDS_AFTER: u32 = 6;

/// Counts turns that are the same as the one before.
#[derive(Debug, Default)]
pub(super) struct Repeats {
    latest: Vec<(String, String, Content)>,
    count: u32,
}

/// What is to be done about repetition.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Nothing.
    Fine,
    /// Tell the model how often it did the same.
    Tell(u32),
    /// End the run.
    End(u32),
}

impl Repeats {
    /// Notes a turn's calls and their results.
    pub(super) fn note(&mut self, calls: &[ToolCall], results: &[ToolMessage]) -> Verdict {
        let turn: Vec<_> = calls
            .iter()
            .zip(results)
            .map(|(call, result)| {
                (
                    call.name.clone(),
                    call.arguments.clone(),
                    result.content.clone(),
                )
            })
            .collect();
        if turn.is_empty() || turn != self.latest {
            self.count = 1;
            self.latest = turn;
            return Verdict::Fine;
        }
        self.count += 1;
        match self.count {
            ENDS_AFTER.. => Verdict::End(self.count),
            TOLD_AFTER.. => Verdict::Tell(self.count),
            _ => Verdict::Fine,
        }
    }

    /// Forgets what came before: a model that polls is not stuck.
    pub(super) fn reset(&mut self) {
        *self = Self::default();
    }
}
