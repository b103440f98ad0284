//! Settings that all dialects share, and the error for an invalid one.

use cantle_core::llm::{LlmError, LlmErrorKind};
use serde_json::{Map, Value};

/// Builder settings that all dialects share.
#[derive(Debug)]
pub struct ClientSettings<'a> {
    /// The provider's name for the model.
    pub model: &'a str,
    /// Base URL as configured.
    pub base_url: &'a str,
    /// Whether to stream responses.
    pub stream: bool,
    /// Maximum number of output tokens of one turn.
    pub max_output_tokens: Option<u64>,
    /// Maximum number of input and output tokens together.
    pub context_window: Option<u64>,
    /// Additional request parameters.
    pub extra: &'a Map<String, Value>,
}

/// Returns the error for an invalid setting or an unencodable request.
pub(crate) fn invalid(message: impl Into<String>) -> LlmError {
    LlmError::new(LlmErrorKind::InvalidRequest, message)
}
