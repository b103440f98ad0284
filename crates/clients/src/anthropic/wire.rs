//! What is read of a response. Fields that nothing here needs are skipped without being built.

use cantle_core::usage::TokenUsage;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

/// A whole answer.
#[derive(Debug, Deserialize)]
#[serde(expecting = "an object")]
pub(super) struct Message<'a> {
    pub(super) model: Option<String>,
    #[serde(borrow)]
    pub(super) content: Option<Vec<&'a RawValue>>,
    pub(super) stop_reason: Option<String>,
    pub(super) usage: Option<Usage>,
}

/// The beginning of a streamed answer.
#[derive(Debug, Deserialize)]
pub(super) struct Start {
    pub(super) model: Option<String>,
    pub(super) usage: Option<Usage>,
}

/// One event of a stream.
#[derive(Debug, Deserialize)]
#[serde(
    tag = "type",
    rename_all = "snake_case",
    expecting = "an event with a type"
)]
pub(super) enum StreamEvent {
    MessageStart {
        message: Start,
    },
    ContentBlockStart {
        index: u64,
        content_block: Value,
    },
    ContentBlockDelta {
        index: u64,
        delta: Delta,
    },
    ContentBlockStop {},
    MessageDelta {
        delta: MessageDelta,
        usage: Option<Usage>,
    },
    MessageStop {},
    Error {},
    /// `ping`, and whatever is added: <https://docs.claude.com/en/docs/build-with-claude/streaming>
    #[serde(other)]
    Unknown,
}

#[derive(Debug, Deserialize)]
#[serde(tag = "type")]
pub(super) enum Delta {
    #[serde(rename = "text_delta")]
    Text { text: String },
    #[serde(rename = "thinking_delta")]
    Thinking { thinking: String },
    #[serde(rename = "signature_delta")]
    Signature { signature: String },
    #[serde(rename = "input_json_delta")]
    InputJson { partial_json: String },
    /// Citations, which are not kept.
    #[serde(other)]
    Unknown,
}

#[derive(Debug, Deserialize)]
pub(super) struct MessageDelta {
    pub(super) stop_reason: Option<String>,
}

/// A content block, as far as it is known here.
#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum Block {
    Text {
        text: String,
    },
    Thinking {
        thinking: String,
        #[serde(default)]
        signature: String,
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

/// A tool call's arguments, as they were written.
#[derive(Debug, Deserialize)]
pub(super) struct Input<'a> {
    #[serde(borrow)]
    input: Option<&'a RawValue>,
}

impl Input<'_> {
    pub(super) fn text(&self) -> String {
        self.input
            .map_or_else(String::new, |input| input.get().to_owned())
    }
}

/// Counters, each apart from the others, but for thinking: that is part of the output.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
pub(super) struct Usage {
    input_tokens: Option<u64>,
    cache_creation_input_tokens: Option<u64>,
    cache_read_input_tokens: Option<u64>,
    output_tokens: Option<u64>,
    output_tokens_details: Option<OutputDetails>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
struct OutputDetails {
    thinking_tokens: Option<u64>,
}

impl Usage {
    /// What was said later counts, as far as it says something: the counts are sums.
    pub(super) fn then(self, later: Self) -> Self {
        Self {
            input_tokens: later.input_tokens.or(self.input_tokens),
            cache_creation_input_tokens: later
                .cache_creation_input_tokens
                .or(self.cache_creation_input_tokens),
            cache_read_input_tokens: later
                .cache_read_input_tokens
                .or(self.cache_read_input_tokens),
            output_tokens: later.output_tokens.or(self.output_tokens),
            output_tokens_details: later.output_tokens_details.or(self.output_tokens_details),
        }
    }

    pub(super) fn counted(&self) -> TokenUsage {
        let output = self.output_tokens.unwrap_or(0);
        let details = self.output_tokens_details.as_ref();
        let reasoning = details.and_then(|details| details.thinking_tokens);
        let reasoning = reasoning.unwrap_or(0).min(output);
        TokenUsage {
            input: self.input_tokens.unwrap_or(0),
            cache_read: self.cache_read_input_tokens.unwrap_or(0),
            cache_write: self.cache_creation_input_tokens.unwrap_or(0),
            answer: output - reasoning,
            reasoning,
        }
    }
}
