//! Response types of Anthropic Messages.

use cantle_core::usage::TokenUsage;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::http::TokenDetails;

/// A complete response.
#[derive(Debug, Deserialize)]
#[serde(expecting = "an object")]
pub(super) struct MessageResponse<'a> {
    pub(super) model: Option<String>,
    #[serde(borrow)]
    pub(super) content: Option<Vec<&'a RawValue>>,
    pub(super) stop_reason: Option<String>,
    pub(super) usage: Option<MessageUsage>,
}

/// Start of a streamed response.
#[derive(Debug, Deserialize)]
pub(super) struct MessageStart {
    pub(super) model: Option<String>,
    pub(super) usage: Option<MessageUsage>,
}

/// An event of a stream.
#[derive(Debug, Deserialize)]
#[serde(
    tag = "type",
    rename_all = "snake_case",
    expecting = "an event with a type"
)]
pub(super) enum MessageStreamEvent {
    MessageStart {
        message: MessageStart,
    },
    ContentBlockStart {
        index: u64,
        content_block: Value,
    },
    ContentBlockDelta {
        index: u64,
        delta: BlockDelta,
    },
    ContentBlockStop {},
    MessageDelta {
        delta: MessageDelta,
        usage: Option<MessageUsage>,
    },
    MessageStop {},
    Error {},
    /// `ping`, and future events: <https://docs.claude.com/en/docs/build-with-claude/streaming>
    #[serde(other)]
    Unknown,
}

#[derive(Debug, Deserialize)]
#[serde(tag = "type")]
pub(super) enum BlockDelta {
    #[serde(rename = "text_delta")]
    Text { text: String },
    #[serde(rename = "thinking_delta")]
    Thinking { thinking: String },
    #[serde(rename = "signature_delta")]
    Signature { signature: String },
    #[serde(rename = "input_json_delta")]
    InputJson { partial_json: String },
    /// Citations, which are ignored.
    #[serde(other)]
    Unknown,
}

#[derive(Debug, Deserialize)]
pub(super) struct MessageDelta {
    pub(super) stop_reason: Option<String>,
}

/// A content block of a known type.
#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum ContentBlock {
    Text {
        text: String,
    },
    Thinking {
        thinking: String,
        signature: Option<String>,
    },
    RedactedThinking {
        data: String,
    },
    ToolUse {
        #[serde(default)]
        id: String,
        name: String,
    },
    #[serde(other)]
    Unknown,
}

/// Verbatim arguments of a tool call.
#[derive(Debug, Deserialize)]
pub(super) struct ToolUseInput<'a> {
    #[serde(borrow)]
    input: Option<&'a RawValue>,
}

impl ToolUseInput<'_> {
    pub(super) fn text(&self) -> String {
        self.input
            .map_or_else(String::new, |input| input.get().to_owned())
    }
}

/// Token counts, disjoint except for thinking, which is part of the output.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
pub(super) struct MessageUsage {
    input_tokens: Option<u64>,
    cache_creation_input_tokens: Option<u64>,
    cache_read_input_tokens: Option<u64>,
    output_tokens: Option<u64>,
    output_tokens_details: Option<TokenDetails>,
}

impl MessageUsage {
    /// Merges later counts, which are cumulative, into these. Some servers send 0 for those that they sent before.
    pub(super) fn update(&mut self, later: Self) {
        for (count, later) in [
            (&mut self.input_tokens, later.input_tokens),
            (
                &mut self.cache_creation_input_tokens,
                later.cache_creation_input_tokens,
            ),
            (
                &mut self.cache_read_input_tokens,
                later.cache_read_input_tokens,
            ),
            (&mut self.output_tokens, later.output_tokens),
        ] {
            *count = later.max(*count);
        }
        self.output_tokens_details = later.output_tokens_details.or(self.output_tokens_details);
    }

    pub(super) fn to_token_usage(self) -> TokenUsage {
        let output = self.output_tokens.unwrap_or(0);
        let details = self.output_tokens_details.unwrap_or_default();
        let reasoning = details.thinking_tokens.unwrap_or(0).min(output);
        TokenUsage {
            input: self.input_tokens.unwrap_or(0),
            cache_read: self.cache_read_input_tokens.unwrap_or(0),
            cache_write: self.cache_creation_input_tokens.unwrap_or(0),
            answer: output - reasoning,
            reasoning,
        }
    }
}
