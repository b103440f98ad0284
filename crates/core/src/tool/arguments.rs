//! Parsing of tool call arguments, with argument repair and errors that the model can act on.

use std::fmt::{self, Write as _};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Arguments that satisfy a tool's schema.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ParsedArguments {
    /// The arguments, an object.
    pub arguments: Value,
    /// The repairs that were made.
    pub repairs: Vec<Repair>,
}

/// A correction of one argument. [`Display`](fmt::Display) reads like `` `limit`: a number in text ``.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Repair {
    /// Path of the argument, e.g. `paths[1]`; empty for the arguments as a whole.
    pub path: String,
    /// The kind of the correction.
    pub kind: RepairKind,
}

impl Repair {
    pub(super) fn new(path: String, kind: RepairKind) -> Self {
        Self { path, kind }
    }
}

impl fmt::Display for Repair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.path.is_empty() {
            write!(f, "`{}`: ", self.path)?;
        }
        self.kind.fmt(f)
    }
}

/// The kind of a [`Repair`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum RepairKind {
    /// An object or a list was given as a string: `"{\"a\": 1}"`.
    JsonInText,
    /// A number was given as a string: `"5"`.
    NumberInText,
    /// A boolean was given as a string: `"true"`.
    BooleanInText,
    /// An integer was given for a string.
    TextFromNumber,
    /// A single value was given for a list.
    ListOfOne,
    /// `null` was given for an optional argument.
    NullDropped,
    /// An allowed value was given in different case.
    OtherCase,
}

impl fmt::Display for RepairKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::JsonInText => "JSON in text",
            Self::NumberInText => "a number in text",
            Self::BooleanInText => "a boolean in text",
            Self::TextFromNumber => "a number for a text",
            Self::ListOfOne => "one value for a list",
            Self::NullDropped => "null for an argument that may be left out",
            Self::OtherCase => "upper or lower case",
        })
    }
}

/// Invalid arguments. The message is for the model: it lists the problems with the expected types and
/// names.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct InvalidArguments {
    /// Empty for the arguments as a whole.
    path: String,
    message: String,
}

impl InvalidArguments {
    /// Creates an error about the arguments as a whole.
    fn whole(message: String) -> Self {
        let path = String::new();
        Self { path, message }
    }

    /// Creates an error from the first of `count` problems; `None` without problems.
    pub(super) fn of(problems: &[Problem], count: usize) -> Option<Self> {
        let first = problems.first()?;
        let mut message = first.to_string();
        if count > 1 {
            message = format!("{count} problems with the arguments:");
            for problem in problems {
                let _ = write!(message, "\n- {problem}");
            }
            if count > problems.len() {
                let _ = write!(message, "\n- and {} more", count - problems.len());
            }
        }
        let path = first.path.clone();
        Some(Self { path, message })
    }

    /// Returns the path of the first invalid argument, e.g. `paths[1]`; `None` for the arguments as a
    /// whole.
    pub fn path(&self) -> Option<&str> {
        (!self.path.is_empty()).then_some(&*self.path)
    }
}

/// One problem with the arguments.
#[derive(Debug)]
pub(super) struct Problem {
    pub(super) path: String,
    pub(super) message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.path.is_empty() {
            write!(f, "Argument `{}`: ", self.path)?;
        }
        f.write_str(&self.message)
    }
}

/// Parses the JSON text of a call's arguments. Empty text means no arguments.
pub(super) fn parse(text: &str, repairs: &mut Vec<Repair>) -> Result<Value, InvalidArguments> {
    if text.trim().is_empty() {
        return Ok(Value::Object(Map::new()));
    }
    let parsed = match serde_json::from_str(text) {
        Ok(Value::String(inner)) => match serde_json::from_str(&inner) {
            Ok(Value::Object(arguments)) => {
                repairs.push(Repair::new(String::new(), RepairKind::JsonInText));
                Ok(Value::Object(arguments))
            }
            _ => Ok(Value::String(inner)),
        },
        other => other,
    };
    match parsed {
        Ok(Value::Object(arguments)) => Ok(Value::Object(arguments)),
        // Some models write `null` for a tool without parameters.
        Ok(Value::Null) => Ok(Value::Object(Map::new())),
        Ok(other) => Err(InvalidArguments::whole(format!(
            "Tool arguments must be a JSON object, not a {}.",
            kind(&other)
        ))),
        Err(error) => Err(InvalidArguments::whole(format!(
            "Tool arguments are not valid JSON: {error}. Send one JSON object."
        ))),
    }
}

pub(super) fn typed<P: DeserializeOwned>(arguments: &Value) -> Result<P, InvalidArguments> {
    serde_path_to_error::deserialize(arguments).map_err(|error| {
        let path = Some(error.path().to_string()).filter(|path| path != ".");
        let path = path.unwrap_or_default();
        let message = without_rust_type(error.inner().to_string());
        let problem = Problem { path, message };
        let message = problem.to_string();
        InvalidArguments {
            path: problem.path,
            message,
        }
    })
}

/// Replaces the name of a Rust type at the end of one of serde's messages.
fn without_rust_type(message: String) -> String {
    let Some((problem, name)) = message.rsplit_once(", expected ") else {
        return message;
    };
    let expected = match name {
        "u8" => "an integer from 0 to 255",
        "u16" => "an integer from 0 to 65535",
        "u32" => "an integer from 0 to 4294967295",
        "u64" | "usize" => "an integer of at least 0",
        "a nonzero u8" => "an integer from 1 to 255",
        "a nonzero u16" => "an integer from 1 to 65535",
        "a nonzero u32" => "an integer from 1 to 4294967295",
        "a nonzero u64" | "a nonzero usize" => "an integer of at least 1",
        "i64" | "isize" => "an integer",
        "f32" | "f64" => "a number",
        _ => return message,
    };
    format!("{problem}, expected {expected}")
}

/// Names the type of a JSON value.
pub(super) fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "list",
        Value::Object(_) => "object",
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;

    use serde_json::json;

    use super::*;

    #[test]
    fn errors_name_no_rust_type() {
        #[derive(Debug, Deserialize)]
        #[expect(dead_code, reason = "only errors are tested")]
        struct Params {
            start: Option<u64>,
            lines: Option<NonZeroU64>,
        }
        let error = |arguments| typed::<Params>(&arguments).unwrap_err().to_string();
        assert_eq!(
            error(json!({"start": -1})),
            "Argument `start`: invalid value: integer `-1`, expected an integer of at least 0"
        );
        assert_eq!(
            error(json!({"lines": 0})),
            "Argument `lines`: invalid value: integer `0`, expected an integer of at least 1"
        );
    }
}
