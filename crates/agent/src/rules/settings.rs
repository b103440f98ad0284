//! The settings of the loop.

use std::num::NonZeroU32;
use std::ops::AddAssign;

use serde::{Deserialize, Serialize};

/// The settings of the loop. A resumed run takes those of the agent that resumes it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[expect(clippy::struct_excessive_bools, reason = "independent rules")]
pub(crate) struct Rules {
    /// Maximum number of turns.
    pub(crate) max_turns: u32,
    /// Turns left from which on each turn begins with a warning.
    pub(crate) turn_warning_threshold: u32,
    /// Whether images in tool results move to a user message, for models that take only text there.
    pub(crate) text_only_tool_responses: bool,
    /// Whether a turn without calls is answered, so that no two assistant messages are adjacent.
    pub(crate) block_successive_assistant_messages: bool,
    /// Whether the latest turn is dropped after a context overflow.
    pub(crate) recover_from_context_overflow: bool,
    /// Whether the run continues after an answer that was cut off at the output limit.
    #[serde(default)]
    pub(crate) continue_cut_answers: bool,
    /// The reaction to an answer in text.
    #[serde(default)]
    pub(crate) text_answers: TextAnswers,
    /// Number of equal rounds of calls with equal results after which the run ends; `None` for never.
    #[serde(default = "default_max_repeats")]
    pub(crate) max_repeats: Option<NonZeroU32>,
    /// Used part of the context window from which on the history is summarized; `None` for never.
    pub(crate) summarize_at: Option<f64>,
    /// Size of the context window in tokens, if known.
    pub(crate) context_window: Option<u64>,
    /// Output limit in tokens, if known.
    pub(crate) max_output_tokens: Option<u64>,
    /// Bounds of the images in one request.
    pub(crate) images: ImageBounds,
}

pub(crate) fn default_max_repeats() -> Option<NonZeroU32> {
    NonZeroU32::new(6)
}

/// The reaction to an answer of the model in text, without a tool call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum TextAnswers {
    /// The model is reminded of the finish tools. If it still answers in text (three times, or with the same answer), the
    /// run ends as [`AnsweredInText`](cantle_core::event::RunStatus::AnsweredInText), provided that the only finish
    /// tool [accepts text](cantle_core::tool::ToolProperties::accepts_text).
    #[default]
    Remind,
    /// The model is reminded of the finish tools, up to the limits of the run.
    Insist,
    /// The run ends as [`AnsweredInText`](cantle_core::event::RunStatus::AnsweredInText), as in a conversation.
    EndTurn,
}

/// The properties of a tool on which the rules depend.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
#[expect(clippy::struct_excessive_bools, reason = "independent properties")]
pub(crate) struct ToolTraits {
    /// Whether a successful call ends the run.
    pub(crate) finishes: bool,
    /// Whether calls may run side by side with others of this kind.
    pub(crate) concurrency_safe: bool,
    /// Whether repeating a call with the same result is ordinary use.
    pub(crate) polls: bool,
    /// Whether an answer in text may end the run in place of a call of this finish tool.
    pub(crate) accepts_text: bool,
    /// Whether a call whose result was lost with an earlier process is made again.
    #[serde(rename = "resumes")]
    pub(crate) repeatable: bool,
}

/// A number of images and their size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ImageBounds {
    pub(crate) count: usize,
    /// Bytes before encoding.
    pub(crate) bytes: usize,
}

impl ImageBounds {
    /// Whether this is more than `bounds`.
    pub(super) fn exceed(self, bounds: Self) -> bool {
        self.count > bounds.count || self.bytes > bounds.bytes
    }
}

impl AddAssign for ImageBounds {
    fn add_assign(&mut self, other: Self) {
        self.count += other.count;
        self.bytes += other.bytes;
    }
}
