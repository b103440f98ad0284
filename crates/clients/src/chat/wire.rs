//! Response types; a complete response and a chunk of a stream differ little.
//!
//! Every field is optional, because some server omits it or sends null.

use cantle_core::usage::TokenUsage;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Map, Value};

use crate::http::{ReportedCost, TokenDetails, disjoint_usage};

/// A response body or the data of an event.
#[derive(Debug, Default, Deserialize)]
#[serde(expecting = "an object")]
pub(super) struct ChatCompletion {
    pub(super) choices: Option<Vec<ChatChoice>>,
    pub(super) usage: Option<ChatUsage>,
    pub(super) model: Option<String>,
    /// Failure despite a successful status.
    pub(super) error: Option<IgnoredAny>,
}

#[derive(Debug, Deserialize)]
pub(super) struct ChatChoice {
    pub(super) index: Option<u64>,
    /// Only in a complete response.
    message: Option<ChatMessage>,
    /// Only in a chunk.
    delta: Option<ChatMessage>,
    pub(super) finish_reason: Option<String>,
    /// Moonshot's place for the usage in the last chunk of a stream.
    pub(super) usage: Option<ChatUsage>,
    /// Lists of tokens by kind, if requested.
    pub(super) logprobs: Option<Map<String, Value>>,
    /// OpenRouter's field for a failure during the response.
    pub(super) error: Option<IgnoredAny>,
}

impl ChatChoice {
    /// Returns the message of a complete response, with its calls numbered by position.
    pub(super) fn into_message(self) -> Option<ChatMessage> {
        let mut message = self.message.or(self.delta)?;
        let calls = message.tool_calls.iter_mut().flatten();
        for (index, call) in (0..).zip(calls) {
            call.index = Some(index);
        }
        Some(message)
    }

    /// Returns the delta of a chunk.
    pub(super) fn into_delta(self) -> Option<ChatMessage> {
        self.delta.or(self.message)
    }
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct ChatMessage {
    pub(super) content: Option<ChatContent>,
    /// OpenAI's explanation of a refusal, instead of content.
    pub(super) refusal: Option<String>,
    pub(super) reasoning_content: Option<String>,
    /// Name of `reasoning_content` in OpenRouter, Ollama and newer vLLM.
    pub(super) reasoning: Option<String>,
    /// Reasoning with signatures, in LiteLLM's format for Anthropic models.
    pub(super) thinking_blocks: Option<Vec<ChatThinking>>,
    /// Reasoning in OpenRouter's format, to be sent back completely.
    pub(super) reasoning_details: Option<Vec<Map<String, Value>>>,
    pub(super) tool_calls: Option<Vec<ChatToolCall>>,
}

/// Text, or a list of parts from a reasoning model of Mistral or Databricks.
/// <https://docs.mistral.ai/capabilities/reasoning>
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "text or a list of parts")]
pub(super) enum ChatContent {
    Text(String),
    Parts(Vec<ChatPart>),
}

/// A part of type `text`, `thinking` (Mistral) or `reasoning` (Databricks); parts of other types are empty.
#[derive(Debug, Deserialize)]
pub(super) struct ChatPart {
    text: Option<String>,
    #[serde(alias = "summary")]
    thinking: Option<ChatContent>,
}

impl ChatContent {
    /// Returns the reasoning and the text.
    pub(super) fn split(self) -> (String, String) {
        let parts = match self {
            Self::Text(text) => return (String::new(), text),
            Self::Parts(parts) => parts,
        };
        let (mut reasoning, mut answer) = (String::new(), String::new());
        for part in parts {
            answer.push_str(&part.text.unwrap_or_default());
            if let Some(thinking) = part.thinking {
                reasoning.push_str(&thinking.split().1);
            }
        }
        (reasoning, answer)
    }
}

#[derive(Debug, Deserialize)]
pub(super) struct ChatThinking {
    #[serde(rename = "type")]
    pub(super) kind: Option<String>,
    pub(super) thinking: Option<String>,
    pub(super) signature: Option<String>,
    pub(super) data: Option<String>,
}

#[derive(Debug, Deserialize)]
pub(super) struct ChatToolCall {
    /// Position of the call. Gateways to Bedrock subtract 1 for a text that may be missing.
    pub(super) index: Option<i64>,
    pub(super) id: Option<String>,
    pub(super) function: Option<ChatFunction>,
    provider_specific_fields: Option<SignedFields>,
    extra_content: Option<ExtraContent>,
}

impl ChatToolCall {
    /// Takes Gemini's signature of the call from LiteLLM's or from Gemini's field.
    pub(super) fn signature(&mut self) -> Option<String> {
        let litellm = self.provider_specific_fields.take();
        let gemini = self.extra_content.take().and_then(|extra| extra.google);
        [litellm, gemini]
            .into_iter()
            .flatten()
            .find_map(|fields| fields.thought_signature)
    }
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct ChatFunction {
    pub(super) name: Option<String>,
    /// JSON text; from some servers, the object itself.
    arguments: Option<Value>,
}

impl ChatFunction {
    /// Takes the JSON text of the arguments, or a piece of it.
    pub(super) fn arguments(&mut self) -> String {
        match self.arguments.take() {
            Some(Value::String(text)) => text,
            Some(arguments) => arguments.to_string(),
            None => String::new(),
        }
    }
}

#[derive(Debug, Deserialize)]
struct SignedFields {
    thought_signature: Option<String>,
}

#[derive(Debug, Deserialize)]
struct ExtraContent {
    google: Option<SignedFields>,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct ChatUsage {
    prompt_tokens: Option<u64>,
    completion_tokens: Option<u64>,
    total_tokens: Option<u64>,
    prompt_tokens_details: Option<TokenDetails>,
    completion_tokens_details: Option<TokenDetails>,
    /// Anthropic's name for cache writes, added by LiteLLM.
    cache_creation_input_tokens: Option<u64>,
    /// DeepSeek's name for cached tokens.
    prompt_cache_hit_tokens: Option<u64>,
    /// Moonshot's name for them.
    cached_tokens: Option<u64>,
    #[serde(flatten)]
    pub(super) cost: ReportedCost,
}

impl ChatUsage {
    pub(super) fn to_token_usage(&self) -> TokenUsage {
        let input = self.prompt_tokens_details.unwrap_or_default();
        let cache_read = input.cached_tokens.or(self.prompt_cache_hit_tokens);
        let cache_write = input.cache_write_tokens.or(input.cache_creation_tokens);
        let details = self.completion_tokens_details.unwrap_or_default();
        let reasoning = details.reasoning_tokens.unwrap_or(0);
        // xAI's and Gemini's completion excludes reasoning, which only the total shows; Gemini has no details.
        // https://docs.cloud.google.com/vertex-ai/generative-ai/docs/partner-models/grok/capabilities/reasoning
        let completion = self.completion_tokens.unwrap_or(0);
        let output = self
            .total_tokens
            .and_then(|total| total.checked_sub(self.prompt_tokens.unwrap_or(0)));
        let beside = output.and_then(|output| output.checked_sub(completion));
        let beside = beside.filter(|&beside| beside > 0 && (reasoning == 0 || reasoning == beside));
        disjoint_usage(
            self.prompt_tokens,
            [
                cache_read.or(self.cached_tokens),
                cache_write.or(self.cache_creation_input_tokens),
            ],
            Some(completion + beside.unwrap_or(0)),
            beside.or(Some(reasoning)),
        )
    }
}

#[cfg(test)]
mod tests {
    use cantle_core::usage::TokenUsage;
    use serde_json::json;

    use super::ChatUsage;

    #[test]
    fn no_token_is_counted_twice() {
        let openai = json!({
            "prompt_tokens": 120, "completion_tokens": 50, "total_tokens": 170,
            "prompt_tokens_details": {"cached_tokens": 64, "audio_tokens": 0},
            "completion_tokens_details": {"reasoning_tokens": 20},
        });
        let litellm = json!({
            "prompt_tokens": 100, "completion_tokens": 5, "total_tokens": 105,
            "prompt_tokens_details": {"cached_tokens": 60},
            "cache_creation_input_tokens": 30, "cache_read_input_tokens": 60,
        });
        let openrouter = json!({
            "prompt_tokens": 100, "completion_tokens": 5, "total_tokens": 105,
            "prompt_tokens_details": {"cached_tokens": 60, "cache_write_tokens": 30},
        });
        let xai = json!({
            "prompt_tokens": 32, "completion_tokens": 9, "total_tokens": 135,
            "completion_tokens_details": {"reasoning_tokens": 94},
        });
        let gemini = json!({"prompt_tokens": 32, "completion_tokens": 9, "total_tokens": 135});
        let contradictory = json!({
            "prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8,
            "prompt_tokens_details": {"cached_tokens": 50, "cache_write_tokens": 7},
            "completion_tokens_details": {"reasoning_tokens": 9},
        });
        let moonshot = json!({
            "prompt_tokens": 100, "completion_tokens": 5, "total_tokens": 105, "cached_tokens": 60,
        });
        let bare =
            json!({"prompt_tokens": 7, "completion_tokens": null, "prompt_tokens_details": null});
        for (usage, [input, cache_read, cache_write, answer, reasoning]) in [
            (openai, [56, 64, 0, 30, 20]),
            (litellm, [10, 60, 30, 5, 0]),
            (openrouter, [10, 60, 30, 5, 0]),
            (xai, [32, 0, 0, 9, 94]),
            (gemini, [32, 0, 0, 9, 94]),
            (moonshot, [40, 60, 0, 5, 0]),
            (contradictory, [0, 5, 0, 0, 3]),
            (bare, [7, 0, 0, 0, 0]),
        ] {
            let expected = TokenUsage {
                input,
                cache_read,
                cache_write,
                answer,
                reasoning,
            };
            let parsed: ChatUsage = serde_json::from_value(usage.clone()).unwrap();
            assert_eq!(parsed.to_token_usage(), expected, "{usage}");
        }
    }
}
