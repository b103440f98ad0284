//! An output limit that fits what the context window leaves.
//!
//! Some servers refuse a request whose input and output limit together exceed the window, though its
//! input alone would fit: the limit must shrink as the conversation grows.

use cantle_core::content::{Content, Part};
use cantle_core::message::{AssistantBlock, Message, SharedMessage};

use super::Common;

/// Nobody is asked for less: an answer as short is cut off, and overflow says better what is wrong.
const LEAST: u64 = 256;

/// Kept free for what an estimate misses, as a part of the window.
const MARGIN: u64 = 32;

/// The longest that English text and JSON are taken to be for a token, in bytes. An estimate that is
/// too high only shortens an answer that would have been long.
const BYTES_PER_TOKEN: u64 = 3;

/// What an image is taken to be, in tokens.
const IMAGE: u64 = 1500;

/// An output limit, and the window that it shares with the input.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fitted {
    limit: u64,
    window: u64,
}

impl Fitted {
    /// `None` where either is not known.
    pub(crate) fn new(common: &Common<'_>) -> Option<Self> {
        Some(Self {
            limit: common.max_output_tokens?,
            window: common.context_window?,
        })
    }

    /// What this conversation leaves of the limit.
    pub(crate) fn limit(self, messages: &[SharedMessage]) -> u64 {
        let used = estimate(messages).saturating_add(self.window / MARGIN);
        let left = self.window.saturating_sub(used);
        self.limit.min(left.max(LEAST))
    }
}

/// The tokens of a conversation: what the provider counted for the latest turn, and an estimate for
/// what came after it.
fn estimate(messages: &[SharedMessage]) -> u64 {
    let mut tokens = 0u64;
    for message in messages.iter().rev() {
        if let Message::Assistant(turn) = &**message
            && turn.token_usage.total() > 0
        {
            return tokens.saturating_add(turn.token_usage.total());
        }
        tokens = tokens.saturating_add(size(message));
    }
    tokens
}

fn size(message: &Message) -> u64 {
    match message {
        Message::System(message) => content(&message.content),
        Message::User(message) => content(&message.content),
        Message::Tool(message) => content(&message.content),
        Message::Assistant(turn) => turn
            .blocks
            .iter()
            .map(|block| match block {
                AssistantBlock::Text { text, .. } => text_tokens(text),
                AssistantBlock::Reasoning { content }
                | AssistantBlock::SignedReasoning { content, .. } => text_tokens(content),
                AssistantBlock::ToolCall(call) => text_tokens(&call.arguments),
                _ => IMAGE,
            })
            .sum(),
    }
}

fn content(content: &Content) -> u64 {
    match content {
        Content::Text(text) => text_tokens(text),
        Content::Parts(parts) => parts
            .iter()
            .map(|part| match part {
                Part::Text(text) => text_tokens(text),
                Part::Media(_) => IMAGE,
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

    use super::Fitted;

    #[test]
    fn the_limit_shrinks_as_the_conversation_grows() {
        let fitted = Fitted {
            limit: 4_000,
            window: 32_000,
        };
        let text = |bytes: usize| SharedMessage::new(Message::user("x".repeat(bytes)));
        assert_eq!(fitted.limit(&[text(3_000)]), 4_000);
        assert_eq!(fitted.limit(&[text(87_000)]), 32_000 - 1_000 - 29_001);
        assert_eq!(fitted.limit(&[text(900_000)]), 256);

        // What was counted counts, not what it looks like.
        let mut turn = AssistantMessage::new(Vec::new());
        turn.token_usage = TokenUsage {
            input: 20_000,
            answer: 8_999,
            ..TokenUsage::default()
        };
        let turn = SharedMessage::new(turn.into());
        assert_eq!(
            fitted.limit(&[text(900_000), turn, text(300)]),
            32_000 - 1_000 - 29_100
        );
    }
}
