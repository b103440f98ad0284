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
    /// Reasoning effort, as the provider names it.
    pub reasoning_effort: Option<&'a str>,
    /// Sampling temperature.
    pub temperature: Option<f64>,
    /// Additional request parameters.
    pub extra: &'a Map<String, Value>,
}

impl ClientSettings<'_> {
    /// Encodes the parameters that all requests have, as a JSON object without its closing brace: the model and
    /// whether to stream, `fixed` ones, those of `options` that are set (name of the setting, name and value of the
    /// parameter), the temperature, and the additional ones.
    pub(crate) fn encode(
        &self,
        fixed: impl IntoIterator<Item = Option<(&'static str, Value)>>,
        options: impl IntoIterator<Item = Option<(&'static str, &'static str, Value)>>,
    ) -> Result<Vec<u8>, LlmError> {
        let temperature = self.temperature;
        let temperature = temperature.map(|it| ("temperature", "temperature", it.into()));
        let own = [("model", self.model.into()), ("stream", self.stream.into())].map(Some);
        let fixed = own.into_iter().chain(fixed).flatten();
        let mut parameters: Map<String, Value> = fixed
            .map(|(name, value)| (name.to_owned(), value))
            .collect();
        for (setting, name, value) in options.into_iter().chain([temperature]).flatten() {
            if self.extra.contains_key(name) {
                return Err(invalid(format!(
                    "the {setting} is set twice: as an option and as the extra parameter `{name}`"
                )));
            }
            parameters.insert(name.to_owned(), value);
        }
        parameters.extend(self.extra.clone());
        let mut encoded = Value::Object(parameters).to_string().into_bytes();
        encoded.pop();
        Ok(encoded)
    }
}

/// Returns the error for an invalid setting or an unencodable request.
pub(crate) fn invalid(message: impl Into<String>) -> LlmError {
    LlmError::new(LlmErrorKind::InvalidRequest, message)
}
