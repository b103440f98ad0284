//! Whether an error says that the conversation doesn't fit the model's context window.
//!
//! There is no common way to say so. OpenAI and Azure have a code for it and llama.cpp a type; all
//! others have a sentence in the message of an ordinary bad request. `tests/fixtures/overflow` holds
//! what each was seen to send, and what must not be mistaken for it.

/// Codes and types that mean nothing else.
const NAMES: [&str; 3] = [
    // OpenAI, Azure, Groq: https://platform.openai.com/docs/guides/error-codes
    "context_length_exceeded",
    // llama.cpp: https://github.com/ggml-org/llama.cpp/pull/15780
    "exceed_context_size_error",
    // Anthropic, for a request of more than 32 MB: https://docs.claude.com/en/api/errors
    "request_too_large",
];

/// Parts of messages, in lower case.
const PHRASES: [&str; 20] = [
    "context_length_exceeded",
    "exceed_context_size_error",
    // OpenAI, Azure, DeepSeek, vLLM, OpenRouter, Mistral.
    "maximum context length",
    // OpenAI and Azure for models whose input has a limit of its own.
    "input tokens exceed the configured limit",
    "exceeds the context window",
    // vLLM since 0.15.
    "context length is only",
    // vLLM, where the prompt leaves less than nothing for the answer.
    "max_tokens must be at least 1, got -",
    // llama.cpp, and Ollama that runs it.
    "exceeds the available context size",
    // Ollama.
    "exceeded max context length",
    "exceeds the context length",
    "longer than the context length",
    // LiteLLM, whatever is behind it: its code is only "400".
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
    // llama-cpp-python.
    "exceed context window of",
];

/// Judges the parts of an error: its code and type, and what it says in words.
pub(super) fn is_overflow(names: &[&str], message: &str) -> bool {
    if names.iter().any(|name| NAMES.contains(name)) {
        return true;
    }
    let message = message.to_ascii_lowercase();
    PHRASES.iter().any(|phrase| message.contains(phrase))
}
