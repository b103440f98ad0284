//! Token estimates, for text whose tokens no provider has counted yet.
//!
//! The only estimate in the workspace: budgets, summaries, rate limits and output limits use it, so
//! that they agree with each other. A number computed here is always marked as an estimate.

use crate::content::{Content, Part};
use crate::message::{AssistantBlock, AssistantMessage, Message, SharedMessage};
use crate::tool::ToolSpec;
use crate::usage::TokenUsage;

/// Tokens assumed for one image, video or audio clip.
const TOKENS_PER_MEDIA: u64 = 1500;

/// Estimates the tokens of `bytes` bytes of text, at four bytes a token.
pub fn text_tokens(bytes: usize) -> u64 {
    (bytes as u64).div_ceil(4)
}

/// Estimates the tokens of one message.
pub fn message_tokens(message: &Message) -> u64 {
    let content = match message {
        Message::System(message) => &message.content,
        Message::User(message) => &message.content,
        Message::Tool(message) => &message.content,
        Message::Assistant(message) => {
            let is_media = |block: &&AssistantBlock| matches!(block, AssistantBlock::Media(_));
            let media = message.blocks.iter().filter(is_media).count() as u64;
            return text_tokens(output_bytes(message)) + media * TOKENS_PER_MEDIA;
        }
    };
    match content {
        Content::Text(text) => text_tokens(text.len()),
        Content::Parts(parts) => parts
            .iter()
            .map(|part| match part {
                Part::Text(text) => text_tokens(text.len()),
                Part::Media(_) => TOKENS_PER_MEDIA,
            })
            .sum(),
    }
}

/// Estimates the tokens of a conversation: the count that a provider reported for the latest turn,
/// and an estimate for the messages after it.
pub fn context_tokens(messages: &[SharedMessage]) -> u64 {
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

/// Estimates the usage of a model call: the conversation and the tools as input, and `output_bytes`
/// of output.
pub fn call_usage(
    messages: &[SharedMessage],
    tools: &[ToolSpec],
    output_bytes: usize,
) -> TokenUsage {
    // A reported usage includes the tools.
    let is_reported = |message: &SharedMessage| matches!(&**message, Message::Assistant(turn) if turn.token_usage.total() > 0);
    let tools = match messages.iter().any(is_reported) {
        true => 0,
        false => tools.iter().map(spec_tokens).sum(),
    };
    TokenUsage {
        input: context_tokens(messages) + tools,
        answer: text_tokens(output_bytes),
        ..TokenUsage::default()
    }
}

fn spec_tokens(spec: &ToolSpec) -> u64 {
    let schema = spec.parameters().to_string();
    text_tokens(spec.name().len() + spec.description().len() + schema.len())
}

/// Counts the bytes of text, visible reasoning and tool calls in a turn.
pub fn output_bytes(message: &AssistantMessage) -> usize {
    let bytes = |block: &AssistantBlock| match block {
        AssistantBlock::Text { text, .. } => text.len(),
        AssistantBlock::Reasoning { content } | AssistantBlock::SignedReasoning { content, .. } => {
            content.len()
        }
        AssistantBlock::ToolCall(call) => call.name.len() + call.arguments.len(),
        _ => 0,
    };
    message.blocks.iter().map(bytes).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::content::Media;

    #[test]
    fn reported_usage_replaces_the_estimate_up_to_its_turn() {
        let mut turn = AssistantMessage::new(vec![AssistantBlock::text("x".repeat(40))]);
        let messages = |turn: &AssistantMessage| -> Vec<SharedMessage> {
            vec![
                Message::user("y".repeat(400)).into(),
                Message::from(turn.clone()).into(),
                Message::user("z".repeat(5)).into(),
            ]
        };
        assert_eq!(context_tokens(&messages(&turn)), 100 + 10 + 2);
        turn.token_usage.input = 1000;
        assert_eq!(context_tokens(&messages(&turn)), 1000 + 2);
    }

    #[test]
    fn media_count_as_a_fixed_number_of_tokens() {
        let image = || Media::image(&b"\x89PNG\r\n\x1a\n"[..]).unwrap();
        let parts = vec![Part::Text("abcde".to_owned()), Part::Media(image())];
        assert_eq!(message_tokens(&Message::user(parts)), 2 + 1500);
        let turn = AssistantMessage::new(vec![AssistantBlock::Media(image())]);
        assert_eq!(message_tokens(&turn.into()), 1500);
    }
}
