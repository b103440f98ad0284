//! Response types of OpenAI Responses.

use cantle_core::usage::TokenUsage;
use serde::Deserialize;
use serde_json::Value;

use crate::http::{ReportedCost, TokenDetails, disjoint_usage};

/// Type of a reasoning summary text.
pub(super) const SUMMARY_TEXT: &str = "summary_text";

/// Type of a reasoning text.
pub(super) const REASONING_TEXT: &str = "reasoning_text";

/// A response, complete or within an event.
#[derive(Debug, Default, Deserialize)]
#[serde(expecting = "an object")]
pub(super) struct Response {
    pub(super) id: Option<String>,
    pub(super) model: Option<String>,
    pub(super) status: Option<String>,
    pub(super) output: Option<Vec<Value>>,
    pub(super) incomplete_details: Option<IncompleteDetails>,
    pub(super) error: Option<Value>,
    pub(super) usage: Option<ResponseUsage>,
}

#[derive(Debug, Deserialize)]
pub(super) struct IncompleteDetails {
    pub(super) reason: Option<String>,
}

/// An event of a stream.
#[derive(Debug, Deserialize)]
#[serde(tag = "type", expecting = "an event with a type")]
pub(super) enum ResponseStreamEvent {
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
    /// Progress notifications, and future events.
    #[serde(other)]
    Unknown,
}

/// An output item of a known type.
#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum OutputItem {
    Message {
        content: Option<Vec<OutputContent>>,
        phase: Option<String>,
    },
    Reasoning {
        /// Missing in the examples of xAI.
        #[serde(default)]
        id: String,
        summary: Option<Vec<TextPart>>,
        content: Option<Vec<TextPart>>,
        encrypted_content: Option<String>,
    },
    FunctionCall {
        call_id: Option<String>,
        name: String,
        arguments: Option<String>,
    },
    #[serde(other)]
    Unknown,
}

#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum OutputContent {
    OutputText {
        text: Option<String>,
    },
    Refusal {
        refusal: Option<String>,
    },
    #[serde(other)]
    Unknown,
}

#[derive(Debug, Deserialize)]
pub(super) struct TextPart {
    pub(super) text: String,
}

/// Token counts: the input includes cached tokens, and the output includes reasoning.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct ResponseUsage {
    input_tokens: Option<u64>,
    input_tokens_details: Option<TokenDetails>,
    output_tokens: Option<u64>,
    output_tokens_details: Option<TokenDetails>,
    #[serde(flatten)]
    pub(super) cost: ReportedCost,
}

impl ResponseUsage {
    pub(super) fn to_token_usage(&self) -> TokenUsage {
        let input = self.input_tokens_details.unwrap_or_default();
        let output = self.output_tokens_details.unwrap_or_default();
        disjoint_usage(
            self.input_tokens,
            [input.cached_tokens, input.cache_write_tokens],
            self.output_tokens,
            output.reasoning_tokens,
        )
    }
}
