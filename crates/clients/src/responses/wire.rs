//! What is read of a response. Fields that nothing here needs are skipped without being built.

use cantle_core::usage::TokenUsage;
use serde::Deserialize;
use serde_json::Value;

/// The type of a piece of a summary.
pub(super) const SUMMARY: &str = "summary_text";

/// The type of a piece of reasoning.
pub(super) const REASONING: &str = "reasoning_text";

/// A whole response, or as much of it as an event has.
#[derive(Debug, Default, Deserialize)]
#[serde(expecting = "an object")]
pub(super) struct Response {
    pub(super) id: Option<String>,
    pub(super) model: Option<String>,
    pub(super) status: Option<String>,
    pub(super) output: Option<Vec<Value>>,
    pub(super) incomplete_details: Option<Incomplete>,
    pub(super) error: Option<Value>,
    pub(super) usage: Option<Usage>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Incomplete {
    pub(super) reason: Option<String>,
}

/// One event of a stream.
#[derive(Debug, Deserialize)]
#[serde(tag = "type", expecting = "an event with a type")]
pub(super) enum StreamEvent {
    #[serde(rename = "response.output_item.added")]
    Added { output_index: u64, item: Value },
    #[serde(rename = "response.output_item.done")]
    Done { output_index: u64, item: Value },
    #[serde(
        rename = "response.output_text.delta",
        alias = "response.refusal.delta"
    )]
    Text { delta: String },
    #[serde(
        rename = "response.reasoning_summary_text.delta",
        alias = "response.reasoning_text.delta"
    )]
    Reasoning { delta: String },
    #[serde(rename = "response.function_call_arguments.delta")]
    Arguments { output_index: u64, delta: String },
    #[serde(
        rename = "response.completed",
        alias = "response.incomplete",
        alias = "response.failed"
    )]
    Ended { response: Box<Response> },
    #[serde(rename = "error")]
    Error {},
    /// What only tells of progress, and whatever is added.
    #[serde(other)]
    Unknown,
}

/// An item of the output, as far as it is known here.
#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum Item {
    Message {
        #[serde(default)]
        content: Vec<Part>,
        phase: Option<String>,
    },
    Reasoning {
        id: String,
        summary: Option<Vec<Text>>,
        content: Option<Vec<Text>>,
        encrypted_content: Option<String>,
    },
    FunctionCall {
        call_id: Option<String>,
        name: String,
        #[serde(default)]
        arguments: String,
    },
    #[serde(other)]
    Unknown,
}

#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum Part {
    OutputText { text: String },
    Refusal { refusal: String },
}

#[derive(Debug, Deserialize)]
pub(super) struct Text {
    pub(super) text: String,
}

/// Counters: what was cached is part of the input, and reasoning of the output.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(super) struct Usage {
    input_tokens: Option<u64>,
    input_tokens_details: Option<InputDetails>,
    output_tokens: Option<u64>,
    output_tokens_details: Option<OutputDetails>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
struct InputDetails {
    cached_tokens: Option<u64>,
    cache_write_tokens: Option<u64>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
struct OutputDetails {
    reasoning_tokens: Option<u64>,
}

impl Usage {
    /// The counters apart from each other.
    pub(super) fn disjoint(&self) -> TokenUsage {
        let input = self.input_tokens.unwrap_or(0);
        let output = self.output_tokens.unwrap_or(0);
        let details = self.input_tokens_details.as_ref();
        let cached = |count: fn(&InputDetails) -> Option<u64>| details.and_then(count).unwrap_or(0);
        let cache_read = cached(|details| details.cached_tokens).min(input);
        let cache_write = cached(|details| details.cache_write_tokens).min(input - cache_read);
        let details = self.output_tokens_details.as_ref();
        let reasoning = details.and_then(|details| details.reasoning_tokens);
        let reasoning = reasoning.unwrap_or(0).min(output);
        TokenUsage {
            input: input - cache_read - cache_write,
            cache_read,
            cache_write,
            answer: output - reasoning,
            reasoning,
        }
    }
}
