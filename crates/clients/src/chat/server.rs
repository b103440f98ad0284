//! Who is at the other end: the habits in which servers that speak Chat Completions differ, as data.
//!
//! Answers are read in all their spellings, whoever sends them; what is here is how requests are
//! written. Sources are the providers' documentation, as linked.

use std::str::FromStr;

use cantle_core::llm::LlmError;

use crate::http::invalid;

/// A kind of server that speaks Chat Completions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Server {
    /// One that is not known. It gets what most understand and the others pass over.
    #[default]
    Unknown,
    /// OpenAI. <https://platform.openai.com/docs/api-reference/chat>
    OpenAi,
    /// Azure OpenAI, where the key is sent as `api-key`.
    /// <https://learn.microsoft.com/azure/ai-foundry/openai/reference>
    Azure,
    /// OpenRouter. <https://openrouter.ai/docs/use-cases/reasoning-tokens>
    OpenRouter,
    /// A LiteLLM proxy. <https://docs.litellm.ai/docs/reasoning_content>
    LiteLlm,
    /// DeepSeek. <https://api-docs.deepseek.com/guides/thinking_mode>
    DeepSeek,
    /// vLLM. <https://docs.vllm.ai/en/latest/features/reasoning_outputs.html>
    Vllm,
    /// Ollama. <https://docs.ollama.com/openai>
    Ollama,
    /// Groq. <https://console.groq.com/docs/reasoning>
    Groq,
    /// Together. <https://docs.together.ai/docs/reasoning-overview>
    Together,
    /// Fireworks. <https://docs.fireworks.ai/guides/reasoning>
    Fireworks,
    /// Gemini's compatible endpoint. <https://ai.google.dev/gemini-api/docs/openai>
    Gemini,
}

/// How requests to a server are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "a table of habits, each of which a server has or has not"
)]
pub(super) struct Habits {
    /// What the limit of output tokens is called.
    pub(super) token_limit: &'static str,
    /// The fields in which reasoning without a signature goes back. Where there are none, the server
    /// has no use for it.
    pub(super) reasoning: &'static [&'static str],
    /// Whether a turn with tool calls has the first of these fields also where it is empty.
    pub(super) reasoning_with_calls: bool,
    /// Whether signed reasoning goes back as `thinking_blocks`.
    pub(super) thinking_blocks: bool,
    /// Whether `reasoning_details` go back.
    pub(super) reasoning_details: bool,
    /// Where the signature of a tool call goes back.
    pub(super) signature: Signature,
    /// Whether a tool's result carries the tool's name.
    pub(super) result_names: bool,
    /// How video is sent, where it can be.
    pub(super) video: Video,
    /// Whether sound can be sent.
    pub(super) audio: bool,
    /// Whether models of Anthropic's behind it want to be told what to cache.
    pub(super) cache_marks: bool,
    /// Whether a tool can be held to strictly.
    pub(super) strict_tools: bool,
    /// Whether a request is refused whose input and output limit together exceed the window.
    pub(super) counts_the_limit: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Signature {
    None,
    /// `provider_specific_fields.thought_signature`
    LiteLlm,
    /// `extra_content.google.thought_signature`
    Google,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Video {
    None,
    /// As a `file`.
    File,
    /// As a `video_url`.
    Url,
}

impl Server {
    /// All that are known.
    pub const ALL: &[Self] = &[
        Self::OpenAi,
        Self::Azure,
        Self::OpenRouter,
        Self::LiteLlm,
        Self::DeepSeek,
        Self::Vllm,
        Self::Ollama,
        Self::Groq,
        Self::Together,
        Self::Fireworks,
        Self::Gemini,
    ];

    /// Its name in settings, e.g. `vllm`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::OpenAi => "openai",
            Self::Azure => "azure",
            Self::OpenRouter => "openrouter",
            Self::LiteLlm => "litellm",
            Self::DeepSeek => "deepseek",
            Self::Vllm => "vllm",
            Self::Ollama => "ollama",
            Self::Groq => "groq",
            Self::Together => "together",
            Self::Fireworks => "fireworks",
            Self::Gemini => "gemini",
        }
    }

    /// Who is known to be at an address: the host's own name says it, or Ollama's usual port.
    #[must_use]
    pub fn at(base_url: &str) -> Self {
        let rest = base_url
            .split_once("://")
            .map_or(base_url, |(_, rest)| rest);
        let host = rest.split(['/', '?', '#']).next().unwrap_or_default();
        let (name, port) = host.rsplit_once(':').unwrap_or((host, ""));
        let name = name.to_ascii_lowercase();
        match &*name {
            "api.openai.com" => Self::OpenAi,
            "openrouter.ai" => Self::OpenRouter,
            "api.deepseek.com" => Self::DeepSeek,
            "api.groq.com" => Self::Groq,
            "api.together.xyz" | "api.together.ai" => Self::Together,
            "api.fireworks.ai" => Self::Fireworks,
            "generativelanguage.googleapis.com" => Self::Gemini,
            name if name.ends_with(".openai.azure.com")
                || name.ends_with(".cognitiveservices.azure.com")
                || name.ends_with(".services.ai.azure.com") =>
            {
                Self::Azure
            }
            _ if port == "11434" => Self::Ollama,
            _ => Self::Unknown,
        }
    }

    pub(super) fn habits(self) -> Habits {
        // What is understood or passed over almost everywhere.
        let usual = Habits {
            token_limit: "max_completion_tokens",
            reasoning: &["reasoning_content"],
            reasoning_with_calls: false,
            thinking_blocks: true,
            reasoning_details: true,
            signature: Signature::LiteLlm,
            result_names: true,
            video: Video::File,
            audio: true,
            cache_marks: false,
            strict_tools: true,
            counts_the_limit: false,
        };
        // Nothing beyond what OpenAI's reference has: those who refuse other fields.
        let strict = Habits {
            reasoning: &[],
            thinking_blocks: false,
            reasoning_details: false,
            signature: Signature::None,
            result_names: false,
            video: Video::None,
            ..usual
        };
        match self {
            Self::Unknown => usual,
            Self::OpenAi | Self::Azure => strict,
            Self::LiteLlm => Habits {
                cache_marks: true,
                ..usual
            },
            Self::OpenRouter => Habits {
                token_limit: "max_tokens",
                reasoning: &["reasoning"],
                reasoning_details: true,
                video: Video::Url,
                audio: true,
                cache_marks: true,
                ..strict
            },
            // "must be fully passed back", and a missing field is refused.
            Self::DeepSeek => Habits {
                strict_tools: false,
                token_limit: "max_tokens",
                reasoning: &["reasoning_content"],
                reasoning_with_calls: true,
                audio: false,
                ..strict
            },
            // Which of the two a model's template reads depends on the version.
            Self::Vllm => Habits {
                reasoning: &["reasoning", "reasoning_content"],
                video: Video::Url,
                counts_the_limit: true,
                ..strict
            },
            Self::Ollama => Habits {
                strict_tools: false,
                token_limit: "max_tokens",
                reasoning: &["reasoning"],
                audio: false,
                ..strict
            },
            Self::Groq => Habits {
                strict_tools: false,
                reasoning: &["reasoning"],
                audio: false,
                ..strict
            },
            Self::Together => Habits {
                strict_tools: false,
                token_limit: "max_tokens",
                reasoning: &["reasoning"],
                video: Video::Url,
                audio: false,
                ..strict
            },
            Self::Fireworks => Habits {
                strict_tools: false,
                token_limit: "max_tokens",
                reasoning: &["reasoning_content"],
                audio: false,
                ..strict
            },
            Self::Gemini => Habits {
                strict_tools: false,
                signature: Signature::Google,
                result_names: true,
                ..strict
            },
        }
    }

    /// The header that carries the key, and what stands before the key in it.
    pub(super) fn key_header(self) -> (&'static str, &'static str) {
        match self {
            Self::Azure => ("api-key", ""),
            _ => ("authorization", "Bearer "),
        }
    }
}

impl FromStr for Server {
    type Err = LlmError;

    /// Reads a [name](Self::as_str).
    fn from_str(name: &str) -> Result<Self, LlmError> {
        let mut known = Self::ALL.iter().copied();
        known.find(|server| server.as_str() == name).ok_or_else(|| {
            let names: Vec<_> = Self::ALL.iter().map(|server| server.as_str()).collect();
            invalid(format!(
                "no server is called `{name}`; there are {}",
                names.join(", ")
            ))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::Server;

    #[test]
    fn a_server_is_known_by_its_name() {
        for server in Server::ALL {
            assert_eq!(server.as_str().parse::<Server>().unwrap(), *server);
        }
        let error = "vlm".parse::<Server>().unwrap_err().to_string();
        assert!(
            error.starts_with("no server is called `vlm`; there are openai, azure,"),
            "{error}"
        );
    }

    #[test]
    fn an_address_names_its_server() {
        for (base_url, server) in [
            ("https://api.openai.com/v1", Server::OpenAi),
            ("https://openrouter.ai/api/v1", Server::OpenRouter),
            ("https://API.DeepSeek.com", Server::DeepSeek),
            ("https://api.groq.com/openai/v1", Server::Groq),
            ("https://api.together.xyz/v1", Server::Together),
            ("https://api.fireworks.ai/inference/v1", Server::Fireworks),
            (
                "https://generativelanguage.googleapis.com/v1beta/openai/",
                Server::Gemini,
            ),
            (
                "https://me.openai.azure.com/openai/deployments/d?api-version=1",
                Server::Azure,
            ),
            ("http://localhost:11434/v1", Server::Ollama),
            ("http://localhost:8000/v1", Server::Unknown),
            ("https://evil.example/api.openai.com", Server::Unknown),
            ("https://api.openai.com.evil.example/v1", Server::Unknown),
        ] {
            assert_eq!(Server::at(base_url), server, "{base_url}");
        }
    }
}
