//! Output limits that shrink as the conversation grows.
//!
//! Some servers refuse a request whose input and output limit together exceed the context window, even
//! if its input alone fits.

use cantle_core::estimate::context_tokens;
use cantle_core::message::{Message, SharedMessage};

use super::ClientSettings;

/// Smallest limit to request. If less remains, the server's overflow error is more useful than a
/// truncated answer.
const MIN_OUTPUT_TOKENS: u64 = 256;

/// Divisor of the context window: the part that is reserved for the error of the estimate.
const RESERVE_DIVISOR: u64 = 32;

/// An output limit and the context window that it shares with the input.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OutputLimit {
    limit: u64,
    window: u64,
}

impl OutputLimit {
    /// Returns `None` unless both the limit and the window are known.
    pub(crate) fn new(settings: &ClientSettings) -> Option<Self> {
        Some(Self {
            limit: settings.max_output_tokens?,
            window: settings.context_window?,
        })
    }

    /// Returns the limit for the next request of this conversation.
    pub(crate) fn for_messages(self, messages: &[SharedMessage]) -> u64 {
        let is_counted = |message: &SharedMessage| matches!(&**message, Message::Assistant(turn) if turn.token_usage.total() > 0);
        let counted = messages.iter().rposition(is_counted).map_or(0, |at| at + 1);
        let (counted, new) = messages.split_at(counted);
        // A third more than the estimate, because too much only shortens very long answers.
        let new = context_tokens(new).saturating_mul(4) / 3;
        let used = context_tokens(counted).saturating_add(new);
        let used = used.saturating_add(self.window / RESERVE_DIVISOR);
        let remaining = self.window.saturating_sub(used);
        self.limit.min(remaining.max(MIN_OUTPUT_TOKENS))
    }
}

#[cfg(test)]
mod tests {
    use cantle_core::message::{AssistantMessage, Message, SharedMessage};
    use cantle_core::usage::TokenUsage;

    use super::OutputLimit;

    #[test]
    fn the_limit_shrinks_as_the_conversation_grows() {
        let output = OutputLimit {
            limit: 4_000,
            window: 32_000,
        };
        let text = |bytes: usize| SharedMessage::new(Message::user("x".repeat(bytes)));
        assert_eq!(output.for_messages(&[text(3_000)]), 4_000);
        assert_eq!(
            output.for_messages(&[text(87_000)]),
            32_000 - 1_000 - 29_000
        );
        assert_eq!(output.for_messages(&[text(900_000)]), 256);

        // The provider's count replaces the estimate of everything before it.
        let mut turn = AssistantMessage::new(Vec::new());
        turn.token_usage = TokenUsage {
            input: 20_000,
            answer: 8_999,
            ..TokenUsage::default()
        };
        let turn = SharedMessage::new(turn.into());
        assert_eq!(
            output.for_messages(&[text(900_000), turn, text(300)]),
            32_000 - 1_000 - 29_099
        );
    }
}
