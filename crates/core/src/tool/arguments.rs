//! Arguments: from the text a model wrote to typed parameters, with near-misses mended and errors
//! it can act on.

use std::fmt::{self, Write as _};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Arguments as a tool takes them.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Parsed {
    /// The arguments, an object that the tool's schema accepts.
    pub arguments: Value,
    /// The near-misses that were mended on the way.
    pub repairs: Vec<Repair>,
}

impl Parsed {
    pub(super) fn new(arguments: Value, repairs: Vec<Repair>) -> Self {
        Self { arguments, repairs }
    }
}

/// One near-miss that was mended. Displayed, it is for people and models: `` `limit`: a number in
/// text ``.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Repair {
    /// The way to the argument, e.g. `paths[1]`; empty where it is about all of them.
    pub path: String,
    /// What it was.
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

/// The near-misses that are mended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum RepairKind {
    /// An object or a list came as text: `"{\"a\": 1}"`.
    JsonInText,
    /// A number came as text: `"5"`.
    NumberInText,
    /// A boolean came as text: `"true"`.
    BooleanInText,
    /// A whole number came where a text is wanted.
    TextFromNumber,
    /// One value came where a list is wanted.
    ListOfOne,
    /// `null` came for an argument that may be left out.
    NullDropped,
    /// One of the allowed values came in upper or lower case.
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

/// Arguments that are not what the tool takes. Its text is for the model: which argument, what was
/// expected, which names exist; several problems at once, so that it can mend all of them.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ArgumentError {
    path: Option<String>,
    message: String,
}

impl ArgumentError {
    /// What is wrong, said in full.
    fn whole(message: String) -> Self {
        Self {
            path: None,
            message,
        }
    }

    /// An error of these problems, which are the first of `count`; `None` where there are none.
    pub(super) fn of(problems: &[Problem], count: usize) -> Option<Self> {
        let first = problems.first()?;
        let path = (!first.path.is_empty()).then(|| first.path.clone());
        if count == 1 {
            let message = first.to_string();
            return Some(Self { path, message });
        }
        let mut message = format!("{count} things are wrong with the arguments:");
        for problem in problems {
            let _ = write!(message, "\n- {problem}");
        }
        match count.saturating_sub(problems.len()) {
            0 => {}
            more => {
                let _ = write!(message, "\n- and {more} more");
            }
        }
        Some(Self { path, message })
    }

    /// The way to the first argument that is wrong, e.g. `paths[1]`; `None` where it is about all of
    /// them.
    #[must_use]
    pub fn path(&self) -> Option<&str> {
        self.path.as_deref()
    }
}

/// One thing that is wrong with arguments.
#[derive(Debug)]
pub(super) struct Problem {
    path: String,
    message: String,
}

impl Problem {
    pub(super) fn new(path: String, message: String) -> Self {
        Self { path, message }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.path.is_empty() {
            write!(f, "Argument `{}`: ", self.path)?;
        }
        f.write_str(&self.message)
    }
}

/// Reads the text of a call's arguments. Nothing at all means no arguments.
pub(super) fn parse(text: &str, repairs: &mut Vec<Repair>) -> Result<Value, ArgumentError> {
    if text.trim().is_empty() {
        return Ok(Value::Object(Map::new()));
    }
    let read = match serde_json::from_str(text) {
        Ok(Value::String(inner)) => match serde_json::from_str(&inner) {
            Ok(Value::Object(arguments)) => {
                repairs.push(Repair::new(String::new(), RepairKind::JsonInText));
                Ok(Value::Object(arguments))
            }
            _ => Ok(Value::String(inner)),
        },
        read => read,
    };
    match read {
        Ok(Value::Object(arguments)) => Ok(Value::Object(arguments)),
        // Some models write `null` for a tool without parameters.
        Ok(Value::Null) => Ok(Value::Object(Map::new())),
        Ok(other) => Err(ArgumentError::whole(format!(
            "Tool arguments must be a JSON object, not {}.",
            kind(&other)
        ))),
        Err(error) => Err(ArgumentError::whole(format!(
            "Tool arguments are not valid JSON: {error}. Send one JSON object."
        ))),
    }
}

pub(super) fn typed<P: DeserializeOwned>(arguments: &Value) -> Result<P, ArgumentError> {
    serde_path_to_error::deserialize(arguments).map_err(|error| {
        let path = error.path().to_string();
        let message = error.inner().to_string();
        let problem = Problem::new(if path == "." { String::new() } else { path }, message);
        let message = problem.to_string();
        ArgumentError {
            path: Some(problem.path).filter(|path| !path.is_empty()),
            message,
        }
    })
}

/// What a JSON value is, with its article.
fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}
