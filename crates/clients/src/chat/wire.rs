//! What is read of a response: a whole answer and a chunk of a stream have nearly the same shape.
//!
//! Everything is optional, since every field is missing or null somewhere; what must be there is
//! checked where it is used. Fields that nothing here needs are skipped without being built.

use cantle_core::usage::TokenUsage;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Map, Value};

/// A response body, or the data of one event.
#[derive(Debug, Default, Deserialize)]
#[serde(expecting = "an object")]
pub(super) struct Answer {
    pub(super) choices: Option<Vec<Choice>>,
    pub(super) usage: Option<Usage>,
    pub(super) model: Option<String>,
    /// Present where the provider failed after it had promised to succeed.
    pub(super) error: Option<IgnoredAny>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Choice {
    pub(super) index: Option<u64>,
    /// In a whole answer.
    message: Option<Message>,
    /// In a chunk.
    delta: Option<Message>,
    pub(super) finish_reason: Option<String>,
    /// Only where they were asked for: lists of tokens, by what they are tokens of.
    pub(super) logprobs: Option<Map<String, Value>>,
    /// OpenRouter's place for a failure under way.
    pub(super) error: Option<IgnoredAny>,
}

impl Choice {
    /// The message of a whole answer. Its calls are what the list says, whatever they call
    /// themselves.
    pub(super) fn whole(self) -> Option<Message> {
        let mut message = self.message.or(self.delta)?;
        let calls = message.tool_calls.iter_mut().flatten();
        for (index, call) in (0..).zip(calls) {
            call.index = Some(index);
        }
        Some(message)
    }

    /// The piece in a chunk.
    pub(super) fn piece(self) -> Option<Message> {
        self.delta.or(self.message)
    }
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct Message {
    pub(super) content: Option<String>,
    /// Why OpenAI's models don't answer, in the place of an answer.
    pub(super) refusal: Option<String>,
    pub(super) reasoning_content: Option<String>,
    /// The same in the words of OpenRouter, Ollama and newer vLLM.
    pub(super) reasoning: Option<String>,
    /// The same with signatures, as LiteLLM has them from Anthropic.
    pub(super) thinking_blocks: Option<Vec<Thinking>>,
    /// The same as OpenRouter has it, with all that must go back.
    pub(super) reasoning_details: Option<Vec<Map<String, Value>>>,
    pub(super) tool_calls: Option<Vec<Call>>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Thinking {
    #[serde(rename = "type")]
    pub(super) kind: Option<String>,
    pub(super) thinking: Option<String>,
    pub(super) signature: Option<String>,
    pub(super) data: Option<String>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Call {
    pub(super) index: Option<u64>,
    pub(super) id: Option<String>,
    pub(super) function: Option<Function>,
    provider_specific_fields: Option<Signed>,
    extra_content: Option<Extra>,
}

impl Call {
    /// Gemini's signature of the call, as LiteLLM hands it on, or as Gemini itself does.
    pub(super) fn signature(&mut self) -> Option<String> {
        let handed_on = self.provider_specific_fields.take();
        let own = self.extra_content.take().and_then(|extra| extra.google);
        [handed_on, own]
            .into_iter()
            .flatten()
            .find_map(|fields| fields.thought_signature)
    }
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct Function {
    pub(super) name: Option<String>,
    pub(super) arguments: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Signed {
    thought_signature: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Extra {
    google: Option<Signed>,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct Usage {
    prompt_tokens: Option<u64>,
    completion_tokens: Option<u64>,
    total_tokens: Option<u64>,
    prompt_tokens_details: Option<PromptDetails>,
    completion_tokens_details: Option<CompletionDetails>,
    /// Anthropic's name, which LiteLLM adds.
    cache_creation_input_tokens: Option<u64>,
    /// DeepSeek's name for cached tokens.
    prompt_cache_hit_tokens: Option<u64>,
    /// What OpenRouter charges, in US dollars.
    pub(super) cost: Option<f64>,
}

#[derive(Clone, Debug, Deserialize)]
struct PromptDetails {
    cached_tokens: Option<u64>,
    /// OpenRouter's name for tokens written to the cache.
    cache_write_tokens: Option<u64>,
    /// LiteLLM's.
    cache_creation_tokens: Option<u64>,
}

#[derive(Clone, Debug, Deserialize)]
struct CompletionDetails {
    reasoning_tokens: Option<u64>,
}

impl Usage {
    /// The counters apart from each other: on the wire the prompt includes what was cached, and the
    /// completion includes reasoning.
    pub(super) fn disjoint(&self) -> TokenUsage {
        let prompt = self.prompt_tokens.unwrap_or(0);
        let completion = self.completion_tokens.unwrap_or(0);
        let details = self.prompt_tokens_details.as_ref();
        let cache_read = details
            .and_then(|details| details.cached_tokens)
            .or(self.prompt_cache_hit_tokens)
            .unwrap_or(0)
            .min(prompt);
        let cache_write = details
            .and_then(|details| details.cache_write_tokens.or(details.cache_creation_tokens))
            .or(self.cache_creation_input_tokens)
            .unwrap_or(0)
            .min(prompt - cache_read);
        let reasoning = self
            .completion_tokens_details
            .as_ref()
            .and_then(|details| details.reasoning_tokens)
            .unwrap_or(0);
        // xAI counts reasoning beside the completion; only the total tells.
        // https://docs.cloud.google.com/vertex-ai/generative-ai/docs/partner-models/grok/capabilities/reasoning
        let beside = reasoning > 0
            && self.total_tokens
                == prompt
                    .checked_add(completion)
                    .and_then(|sum| sum.checked_add(reasoning));
        let (answer, reasoning) = if beside {
            (completion, reasoning)
        } else {
            let reasoning = reasoning.min(completion);
            (completion - reasoning, reasoning)
        };
        TokenUsage {
            input: prompt - cache_read - cache_write,
            cache_read,
            cache_write,
            answer,
            reasoning,
        }
    }
}

#[cfg(test)]
mod tests {
    use cantle_core::usage::TokenUsage;
    use serde_json::json;

    use super::Usage;

    fn disjoint(usage: serde_json::Value) -> TokenUsage {
        let usage: Usage = serde_json::from_value(usage).unwrap();
        usage.disjoint()
    }

    #[test]
    fn no_token_is_in_two_counters() {
        let openai = json!({
            "prompt_tokens": 120, "completion_tokens": 50, "total_tokens": 170,
            "prompt_tokens_details": {"cached_tokens": 64, "audio_tokens": 0},
            "completion_tokens_details": {"reasoning_tokens": 20},
        });
        assert_eq!(
            disjoint(openai),
            TokenUsage {
                input: 56,
                cache_read: 64,
                cache_write: 0,
                answer: 30,
                reasoning: 20
            }
        );
    }

    #[test]
    fn cache_writes_are_counted_under_each_providers_name() {
        let expected = TokenUsage {
            input: 10,
            cache_read: 60,
            cache_write: 30,
            answer: 5,
            reasoning: 0,
        };
        let litellm = json!({
            "prompt_tokens": 100, "completion_tokens": 5, "total_tokens": 105,
            "prompt_tokens_details": {"cached_tokens": 60},
            "cache_creation_input_tokens": 30, "cache_read_input_tokens": 60,
        });
        let openrouter = json!({
            "prompt_tokens": 100, "completion_tokens": 5, "total_tokens": 105,
            "prompt_tokens_details": {"cached_tokens": 60, "cache_write_tokens": 30},
        });
        assert_eq!(disjoint(litellm), expected);
        assert_eq!(disjoint(openrouter), expected);
    }

    #[test]
    fn reasoning_beside_the_completion_is_not_taken_from_it() {
        let xai = json!({
            "prompt_tokens": 32, "completion_tokens": 9, "total_tokens": 135,
            "completion_tokens_details": {"reasoning_tokens": 94},
        });
        assert_eq!(
            disjoint(xai),
            TokenUsage {
                input: 32,
                answer: 9,
                reasoning: 94,
                ..TokenUsage::default()
            }
        );
    }

    #[test]
    fn counts_that_contradict_each_other_do_not_wrap_around() {
        let nonsense = json!({
            "prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8,
            "prompt_tokens_details": {"cached_tokens": 50, "cache_write_tokens": 7},
            "completion_tokens_details": {"reasoning_tokens": 9},
        });
        assert_eq!(
            disjoint(nonsense),
            TokenUsage {
                input: 0,
                cache_read: 5,
                cache_write: 0,
                answer: 0,
                reasoning: 3
            }
        );
    }

    #[test]
    fn missing_and_null_counts_are_zero() {
        let bare =
            json!({"prompt_tokens": 7, "completion_tokens": null, "prompt_tokens_details": null});
        assert_eq!(
            disjoint(bare),
            TokenUsage {
                input: 7,
                ..TokenUsage::default()
            }
        );
    }
}
