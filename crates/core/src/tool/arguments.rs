//! Arguments: from the text a model wrote to typed parameters, with errors it can act on.

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

/// Arguments that are not what the tool takes. Its text is for the model: which argument, what was
/// expected, which names exist.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ArgumentError {
    path: Option<String>,
    message: String,
}

impl ArgumentError {
    pub(super) fn new(path: &str, message: impl Into<String>) -> Self {
        let path = (!path.is_empty() && path != ".").then(|| path.to_owned());
        let message = match &path {
            Some(path) => format!("Argument `{path}`: {}", message.into()),
            None => message.into(),
        };
        Self { path, message }
    }

    /// The way to the argument, e.g. `paths[1]`; `None` where it is about all of them.
    #[must_use]
    pub fn path(&self) -> Option<&str> {
        self.path.as_deref()
    }
}

/// Reads the text of a call's arguments. Nothing at all means no arguments.
pub(super) fn parse(text: &str) -> Result<Value, ArgumentError> {
    if text.trim().is_empty() {
        return Ok(Value::Object(Map::new()));
    }
    match serde_json::from_str(text) {
        Ok(Value::Object(arguments)) => Ok(Value::Object(arguments)),
        // Some models write `null` for a tool without parameters.
        Ok(Value::Null) => Ok(Value::Object(Map::new())),
        Ok(other) => Err(ArgumentError::new(
            "",
            format!(
                "Tool arguments must be a JSON object, not {}.",
                kind(&other)
            ),
        )),
        Err(error) => Err(ArgumentError::new(
            "",
            format!("Tool arguments are not valid JSON: {error}. Send one JSON object."),
        )),
    }
}

pub(super) fn typed<P: DeserializeOwned>(arguments: &Value) -> Result<P, ArgumentError> {
    serde_path_to_error::deserialize(arguments)
        .map_err(|error| ArgumentError::new(&error.path().to_string(), error.inner().to_string()))
}

/// What a JSON value is, with its article.
pub(super) fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}
