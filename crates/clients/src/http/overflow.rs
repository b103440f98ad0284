//! Recognizes errors that report a context overflow.
//!
//! There is no common error code: OpenAI and Azure have a code and llama.cpp has a type; all others
//! send a sentence in the message of an ordinary bad request. `tests/fixtures/overflow` contains
//! responses of each server, and similar ones with another meaning.

/// Unambiguous error codes and types.
const NAMES: [&str; 3] = [
    // OpenAI, Azure, Groq: https://platform.openai.com/docs/guides/error-codes
    "context_length_exceeded",
    // llama.cpp: https://github.com/ggml-org/llama.cpp/pull/15780
    "exceed_context_size_error",
    // Anthropic, for a request of more than 32 MB: https://docs.claude.com/en/api/errors
    "request_too_large",
];

/// Parts of error messages, in lower case.
const PHRASES: [&str; 30] = [
    "context_length_exceeded",
    "exceed_context_size_error",
    // OpenAI, Azure, DeepSeek, vLLM, OpenRouter, Mistral.
    "maximum context length",
    // OpenAI and Azure, for models with a separate input limit.
    "input tokens exceed the configured limit",
    "exceeds the context window",
    // vLLM since 0.15.
    "context length is only",
    // vLLM, if the prompt alone exceeds the window.
    "max_tokens must be at least 1, got -",
    // vLLM, for a conversation with images.
    "longer than the maximum model length",
    // llama.cpp, and Ollama, which runs it.
    "exceeds the available context size",
    "context size has been exceeded",
    // Ollama.
    "exceeded max context length",
    "exceeds the context length",
    "longer than the context length",
    // LiteLLM, for any provider; its code is just "400".
    "contextwindowexceedederror",
    // Anthropic.
    "prompt is too long",
    "exceed context limit",
    // Bedrock.
    "input is too long for requested model",
    // Together, SGLang.
    "longer than the model's context length",
    // xAI.
    "maximum prompt length is",
    // LM Studio.
    "greater than the context length",
    // Gemini.
    "exceeds the maximum number of tokens allowed",
    // Vertex AI.
    "the input token count is",
    // Moonshot.
    "exceeded model token limit",
    // MiniMax.
    "context window exceeds limit",
    // Alibaba Model Studio.
    "range of input length should be",
    // llama-cpp-python.
    "exceed context window of",
    // Z.AI.
    "prompt exceeds max length",
    "prompt too long",
    "tokens in request more than max tokens allowed",
    // Cloudflare.
    "exceeded this model context window limit",
];

/// Returns whether an error's code or type (`names`) or its message reports a context overflow.
pub(super) fn is_overflow(names: &[&str], message: &str) -> bool {
    if names.iter().any(|name| NAMES.contains(name)) {
        return true;
    }
    let message = message.to_ascii_lowercase();
    PHRASES.iter().any(|phrase| message.contains(phrase))
}
