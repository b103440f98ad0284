//! Conversion of the return values of functions under `#[tool]`.
//!
//! A blanket implementation for every serializable type would overlap with the one for text. The expansion of `#[tool]`
//! therefore calls these methods on a reference to a reference: of the traits that fit the concrete type, method
//! resolution takes the one with the most references.

use std::cell::Cell;
use std::error::Error as StdError;
use std::fmt::Write as _;

use serde::Serialize;

use super::{ToolError, ToolOutput};

/// A value that a function returned.
#[expect(missing_debug_implementations, reason = "a value on its way")]
pub struct Returned<T>(Cell<Option<T>>);

impl<T> Returned<T> {
    /// Wraps a value.
    pub fn new(value: T) -> Self {
        Self(Cell::new(Some(value)))
    }

    /// Returns the value, once.
    fn take(&self) -> Result<T, ToolError> {
        let value = self.0.take();
        value.ok_or_else(|| ToolError::failed("The tool returned nothing."))
    }
}

/// A `Result` with an error that is a [`ToolError`] or becomes one.
pub trait ToolErrorResult<T> {
    /// Returns the result.
    ///
    /// # Errors
    /// The error that the function returned.
    fn result(&self) -> Result<T, ToolError>;
}

impl<T, E: Into<ToolError>> ToolErrorResult<T> for &&Returned<Result<T, E>> {
    fn result(&self) -> Result<T, ToolError> {
        self.take()?.map_err(Into::into)
    }
}

/// A `Result` with any other error.
pub trait AnyErrorResult<T> {
    /// Returns the result.
    ///
    /// # Errors
    /// The error that the function returned, with its causes.
    fn result(&self) -> Result<T, ToolError>;
}

impl<T, E: Into<Box<dyn StdError + Send + Sync>>> AnyErrorResult<T> for &Returned<Result<T, E>> {
    fn result(&self) -> Result<T, ToolError> {
        self.take()?.map_err(|error| {
            let error = error.into();
            let mut message = error.to_string();
            let mut cause = error.source();
            while let Some(error) = cause {
                let _ = write!(message, ": {error}");
                cause = error.source();
            }
            ToolError::failed(message).with_source(error)
        })
    }
}

/// A value that is no `Result`.
pub trait NoResult<T> {
    /// Returns the value.
    ///
    /// # Errors
    /// Never.
    fn result(&self) -> Result<T, ToolError>;
}

impl<T> NoResult<T> for Returned<T> {
    fn result(&self) -> Result<T, ToolError> {
        self.take()
    }
}

/// A value that is text or a [`ToolOutput`].
pub trait OutputValue {
    /// Returns the output.
    ///
    /// # Errors
    /// Never.
    fn output(&self) -> Result<ToolOutput, ToolError>;
}

impl<T: Into<ToolOutput>> OutputValue for &Returned<T> {
    fn output(&self) -> Result<ToolOutput, ToolError> {
        self.take().map(Into::into)
    }
}

/// Any other value, which the model gets as JSON.
pub trait JsonValue {
    /// Returns the output.
    ///
    /// # Errors
    /// If the value can't be serialized.
    fn output(&self) -> Result<ToolOutput, ToolError>;
}

impl<T: Serialize> JsonValue for Returned<T> {
    fn output(&self) -> Result<ToolOutput, ToolError> {
        let json = serde_json::to_string(&self.take()?);
        let failed = |error: serde_json::Error| ToolError::failed(error.to_string());
        json.map(ToolOutput::text).map_err(failed)
    }
}
