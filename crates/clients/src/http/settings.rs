//! Settings that all dialects share, and the error for an invalid one.

use cantle_core::llm::{LlmError, LlmErrorKind};
use serde_json::{Map, Value};

/// Builder settings that all dialects share.
#[derive(Debug, Default)]
pub struct ClientSettings {
    /// The provider's name for the model.
    pub model: String,
    /// Base URL as configured.
    pub base_url: String,
    /// Whether to stream responses.
    pub stream: bool,
    /// Maximum number of output tokens of one turn.
    pub max_output_tokens: Option<u64>,
    /// Maximum number of input and output tokens together.
    pub context_window: Option<u64>,
    /// Reasoning effort, as the provider names it.
    pub reasoning_effort: Option<String>,
    /// Sampling temperature.
    pub temperature: Option<f64>,
    /// Additional request parameters.
    pub extra: Map<String, Value>,
}

impl ClientSettings {
    /// Sets the context window unless it is set, or would be smaller than the output limit.
    pub(super) fn set_default_window(&mut self, window: Option<u64>) {
        let fits = |window: &u64| self.max_output_tokens.is_none_or(|limit| limit <= *window);
        self.context_window = self.context_window.or(window.filter(fits));
    }

    /// Returns the settings of requests that influence answers.
    pub(super) fn parameters(&self) -> Result<Map<String, Value>, LlmError> {
        let mut parameters = self.extra.clone();
        if let Some(effort) = &self.reasoning_effort {
            parameters.insert("reasoning_effort".to_owned(), effort.as_str().into());
        }
        if let Some(temperature) = self.temperature {
            if !(0.0..=f64::MAX).contains(&temperature) {
                return Err(invalid("the temperature must be a number from 0"));
            }
            parameters.insert("temperature".to_owned(), temperature.into());
        }
        Ok(parameters)
    }

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
        let own = [
            ("model", self.model.as_str().into()),
            ("stream", self.stream.into()),
        ]
        .map(Some);
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
