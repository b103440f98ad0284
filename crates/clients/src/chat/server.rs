//! Server types of Chat Completions, and how their requests differ.
//!
//! Responses are parsed in all variants regardless of the server type. Sources are the providers'
//! documentation, as linked.

use std::str::FromStr;

use cantle_core::llm::LlmError;

use crate::http::invalid;

/// Type of a server that speaks Chat Completions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Server {
    /// Unknown server: requests contain what most servers understand and others ignore.
    #[default]
    Unknown,
    /// OpenAI. <https://platform.openai.com/docs/api-reference/chat>
    OpenAi,
    /// Azure OpenAI, which reads the key from `api-key`.
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
    /// Gemini's OpenAI-compatible endpoint. <https://ai.google.dev/gemini-api/docs/openai>
    Gemini,
    /// Mistral. <https://docs.mistral.ai/api>
    Mistral,
    /// Moonshot, the provider of Kimi. <https://platform.kimi.ai/docs/guide/use-kimi-k2-thinking-model>
    Moonshot,
    /// Cerebras. <https://inference-docs.cerebras.ai/capabilities/reasoning>
    Cerebras,
}

/// Deviations of a server type in the format of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "a table of independent properties"
)]
pub(super) struct ServerQuirks {
    /// Name of the output limit.
    pub(super) token_limit: &'static str,
    /// Fields in which unsigned reasoning is sent back, if any.
    pub(super) reasoning: &'static [&'static str],
    /// Whether turns must have the reasoning fields even if they are empty.
    pub(super) reasoning_required: bool,
    /// Whether unsigned reasoning is sent back as a `thinking` part of the content.
    pub(super) thinking_parts: bool,
    /// Whether signed reasoning is sent back as `thinking_blocks`.
    pub(super) thinking_blocks: bool,
    /// Whether `reasoning_details` are sent back.
    pub(super) reasoning_details: bool,
    /// Field for the signature of a tool call.
    pub(super) signature: SignatureField,
    /// Whether the first tool call of a turn must have a signature.
    pub(super) signature_required: bool,
    /// Whether ids of tool calls must have nine letters and digits.
    pub(super) short_call_ids: bool,
    /// Whether tool results contain the tool's name.
    pub(super) result_names: bool,
    /// Format of video input, if supported.
    pub(super) video: VideoFormat,
    /// Whether audio input is supported.
    pub(super) audio: bool,
    /// Whether Anthropic models behind this server need cache marks.
    pub(super) cache_marks: bool,
    /// Whether strict tool schemas are supported.
    pub(super) strict_tools: bool,
    /// Whether requests fail whose input and output limit together exceed the context window.
    pub(super) limit_counts_against_window: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SignatureField {
    None,
    /// `provider_specific_fields.thought_signature`
    LiteLlm,
    /// `extra_content.google.thought_signature`
    Google,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum VideoFormat {
    None,
    /// `file`
    File,
    /// `video_url`
    Url,
}

/// Understood or ignored by almost every server.
const DEFAULT: ServerQuirks = ServerQuirks {
    token_limit: "max_completion_tokens",
    reasoning: &["reasoning_content"],
    reasoning_required: false,
    thinking_parts: false,
    thinking_blocks: true,
    reasoning_details: true,
    signature: SignatureField::LiteLlm,
    signature_required: false,
    short_call_ids: false,
    result_names: true,
    video: VideoFormat::File,
    audio: true,
    cache_marks: false,
    strict_tools: true,
    limit_counts_against_window: false,
};

/// Only the fields of OpenAI's reference, for servers that reject others.
const STRICT: ServerQuirks = ServerQuirks {
    reasoning: &[],
    thinking_blocks: false,
    reasoning_details: false,
    signature: SignatureField::None,
    result_names: false,
    video: VideoFormat::None,
    ..DEFAULT
};

/// Servers of open models without audio and strict schemas.
const PLAIN: ServerQuirks = ServerQuirks {
    token_limit: "max_tokens",
    audio: false,
    strict_tools: false,
    ..STRICT
};

impl Server {
    /// All known server types.
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
        Self::Mistral,
        Self::Moonshot,
        Self::Cerebras,
    ];

    /// Returns the name in settings, e.g. `vllm`.
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
            Self::Mistral => "mistral",
            Self::Moonshot => "moonshot",
            Self::Cerebras => "cerebras",
        }
    }

    /// Detects the server type from the host name, or from Ollama's default port.
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
            "api.mistral.ai" => Self::Mistral,
            "api.moonshot.ai" | "api.moonshot.cn" | "api.kimi.com" => Self::Moonshot,
            "api.cerebras.ai" => Self::Cerebras,
            "ollama.com" => Self::Ollama,
            // Vertex AI, global or regional.
            name if name.ends_with("aiplatform.googleapis.com") => Self::Gemini,
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

    pub(super) fn quirks(self) -> ServerQuirks {
        match self {
            Self::Unknown => DEFAULT,
            Self::OpenAi | Self::Azure => STRICT,
            Self::LiteLlm => ServerQuirks {
                cache_marks: true,
                ..DEFAULT
            },
            Self::OpenRouter => ServerQuirks {
                token_limit: "max_tokens",
                reasoning: &["reasoning"],
                reasoning_details: true,
                video: VideoFormat::Url,
                cache_marks: true,
                ..STRICT
            },
            // A turn without the field is an error if the model thinks, also one without tool calls:
            // https://github.com/NousResearch/hermes-agent/pull/15228
            Self::DeepSeek => ServerQuirks {
                reasoning: &["reasoning_content"],
                reasoning_required: true,
                ..PLAIN
            },
            // The field that a model's template reads depends on the version.
            Self::Vllm => ServerQuirks {
                reasoning: &["reasoning", "reasoning_content"],
                video: VideoFormat::Url,
                limit_counts_against_window: true,
                ..STRICT
            },
            Self::Ollama => ServerQuirks {
                reasoning: &["reasoning"],
                ..PLAIN
            },
            // Both refuse fields that they don't know, such as `reasoning_content`.
            Self::Groq | Self::Cerebras => ServerQuirks {
                token_limit: STRICT.token_limit,
                reasoning: &["reasoning"],
                ..PLAIN
            },
            Self::Together => ServerQuirks {
                reasoning: &["reasoning"],
                video: VideoFormat::Url,
                ..PLAIN
            },
            Self::Fireworks => ServerQuirks {
                reasoning: &["reasoning_content"],
                ..PLAIN
            },
            Self::Gemini => ServerQuirks {
                signature: SignatureField::Google,
                signature_required: true,
                result_names: true,
                strict_tools: false,
                ..STRICT
            },
            Self::Mistral => ServerQuirks {
                thinking_parts: true,
                short_call_ids: true,
                strict_tools: true,
                ..PLAIN
            },
            // As for DeepSeek.
            Self::Moonshot => ServerQuirks {
                token_limit: STRICT.token_limit,
                reasoning: &["reasoning_content"],
                reasoning_required: true,
                video: VideoFormat::Url,
                ..PLAIN
            },
        }
    }
}

impl FromStr for Server {
    type Err = LlmError;

    /// Parses a [name](Self::as_str).
    fn from_str(name: &str) -> Result<Self, LlmError> {
        let mut known = Self::ALL.iter().copied();
        known.find(|server| server.as_str() == name).ok_or_else(|| {
            let names: Vec<_> = Self::ALL.iter().map(|server| server.as_str()).collect();
            invalid(format!(
                "unknown server type `{name}`; valid are {}",
                names.join(", ")
            ))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::Server;

    #[test]
    fn names_parse_to_server_types() {
        for server in Server::ALL {
            assert_eq!(server.as_str().parse::<Server>().unwrap(), *server);
        }
        let error = "vlm".parse::<Server>().unwrap_err().to_string();
        assert!(
            error.starts_with("unknown server type `vlm`; valid are openai, azure,"),
            "{error}"
        );
    }

    #[test]
    fn server_types_are_detected_from_urls() {
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
            ("https://api.mistral.ai/v1", Server::Mistral),
            ("https://api.moonshot.ai/v1", Server::Moonshot),
            ("https://api.kimi.com/coding/v1", Server::Moonshot),
            ("https://api.cerebras.ai/v1", Server::Cerebras),
            ("https://ollama.com/v1", Server::Ollama),
            (
                "https://europe-west1-aiplatform.googleapis.com/v1/projects/p/locations/l/endpoints/openapi",
                Server::Gemini,
            ),
            (
                "https://me.openai.azure.com/openai/deployments/d?api-version=1",
                Server::Azure,
            ),
            ("http://localhost:11434/v1", Server::Ollama),
            ("http://localhost:8000/v1", Server::Unknown),
            ("https://evil.example.com/api.openai.com", Server::Unknown),
            (
                "https://api.openai.com.evil.example.com/v1",
                Server::Unknown,
            ),
        ] {
            assert_eq!(Server::at(base_url), server, "{base_url}");
        }
    }
}
