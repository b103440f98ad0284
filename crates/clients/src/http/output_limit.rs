//! Output limits that shrink as the conversation grows.
//!
//! Some servers refuse a request whose input and output limit together exceed the context window, even
//! if its input alone fits.

use cantle_core::content::{Content, Part};
use cantle_core::message::{AssistantBlock, Message, SharedMessage};

use super::ClientSettings;

/// Smallest limit to request. If less remains, the server's overflow error is more useful than a
/// truncated answer.
const MIN_OUTPUT_TOKENS: u64 = 256;

/// Divisor of the context window: the part that is reserved for the error of the estimate.
const RESERVE_DIVISOR: u64 = 32;

/// Assumed bytes per token, a low value for English text and JSON. An estimate that is too high only
/// shortens very long answers.
const BYTES_PER_TOKEN: u64 = 3;

/// Assumed number of tokens of an image.
const IMAGE_TOKENS: u64 = 1500;

/// An output limit and the context window that it shares with the input.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OutputLimit {
    limit: u64,
    window: u64,
}

impl OutputLimit {
    /// Returns `None` unless both the limit and the window are known.
    pub(crate) fn new(settings: &ClientSettings<'_>) -> Option<Self> {
        Some(Self {
            limit: settings.max_output_tokens?,
            window: settings.context_window?,
        })
    }

    /// Returns the limit for the next request of this conversation.
    pub(crate) fn for_messages(self, messages: &[SharedMessage]) -> u64 {
        let used = estimate(messages).saturating_add(self.window / RESERVE_DIVISOR);
        let remaining = self.window.saturating_sub(used);
        self.limit.min(remaining.max(MIN_OUTPUT_TOKENS))
    }
}

/// Estimates the tokens of a conversation: the provider's count for the latest turn, plus an estimate
/// of the messages after it.
fn estimate(messages: &[SharedMessage]) -> u64 {
    let mut tokens = 0u64;
    for message in messages.iter().rev() {
        if let Message::Assistant(turn) = &**message
            && turn.token_usage.total() > 0
        {
            return tokens.saturating_add(turn.token_usage.total());
        }
        tokens = tokens.saturating_add(message_tokens(message));
    }
    tokens
}

fn message_tokens(message: &Message) -> u64 {
    match message {
        Message::System(message) => content_tokens(&message.content),
        Message::User(message) => content_tokens(&message.content),
        Message::Tool(message) => content_tokens(&message.content),
        Message::Assistant(turn) => turn
            .blocks
            .iter()
            .map(|block| match block {
                AssistantBlock::Text { text, .. } => text_tokens(text),
                AssistantBlock::Reasoning { content }
                | AssistantBlock::SignedReasoning { content, .. } => text_tokens(content),
                AssistantBlock::ToolCall(call) => text_tokens(&call.arguments),
                _ => IMAGE_TOKENS,
            })
            .sum(),
    }
}

fn content_tokens(content: &Content) -> u64 {
    match content {
        Content::Text(text) => text_tokens(text),
        Content::Parts(parts) => parts
            .iter()
            .map(|part| match part {
                Part::Text(text) => text_tokens(text),
                Part::Media(_) => IMAGE_TOKENS,
            })
            .sum(),
    }
}

fn text_tokens(text: &str) -> u64 {
    text.len() as u64 / BYTES_PER_TOKEN + 1
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
            32_000 - 1_000 - 29_001
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
            32_000 - 1_000 - 29_100
        );
    }
}
