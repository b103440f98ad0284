//! Arithmetic: the tool `calculator`.
//!
//! Expressions are Python's, since that is what models write: whole numbers are exact and of any
//! size, `/` gives a float, `//` and `%` round down, `**` binds tighter than a minus before it. What
//! an expression may cost is bounded: its length, its depth, the size of a number and the work on
//! all of them.

mod function;
mod lexer;
mod number;
mod parser;

use std::fmt;

use cantle_core::metadata::Metadata;
use cantle_core::tool::{DynTool, ToolOutput};
use schemars::JsonSchema;
use serde::Deserialize;

/// Characters of an expression.
const MAX_CHARS: usize = 10_000;

/// Lets the model calculate: `calculator {expression}`.
///
/// Whole numbers may have up to some 30,000 digits; of a result with more than 2,000, the model sees
/// both ends.
#[must_use]
pub fn calculator() -> DynTool {
    let description = "Evaluates an arithmetic expression, written as in Python: + - * / // % ** and \
         parentheses; sqrt, abs, round, floor, ceil, min, max, pow, sin, cos, tan, asin, acos, atan, \
         atan2, exp, log (natural, or log(x, base)), log2, log10, factorial, gcd; pi, e, tau. Whole \
         numbers are exact, angles are in radians. There are no variables and no comparisons.";
    DynTool::blocking("calculator", description, |params: Params, _| {
        let output = match evaluate(&params.expression) {
            Ok(result) => ToolOutput::text(result),
            Err(error) => ToolOutput::failure(error.to_string()),
        };
        Ok(output.with_metadata(Metadata::uses(1)))
    })
    .with_concurrency_safe(true)
}

#[derive(Deserialize, JsonSchema)]
struct Params {
    /// The expression, e.g. `(3 + 4) * 2**10 / sqrt(2)`.
    expression: String,
}

/// The value of an expression, as text.
fn evaluate(expression: &str) -> Result<String, Mistake> {
    if expression.chars().nth(MAX_CHARS).is_some() {
        let message = format!("the expression is longer than {MAX_CHARS} characters");
        return Err(Mistake::new(message));
    }
    parser::evaluate(expression).map(|number| number.to_string())
}

/// What is wrong with an expression.
#[derive(Clone, Debug, PartialEq)]
struct Mistake {
    message: String,
    /// The character it is at, counted from 1.
    at: Option<usize>,
}

impl Mistake {
    fn new(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            at: None,
        }
    }

    /// The same at a character, counted from 0, unless it is known better.
    fn at(mut self, position: usize) -> Self {
        self.at.get_or_insert(position + 1);
        self
    }
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Not calculated: {}", self.message)?;
        match self.at {
            Some(at) => write!(f, " (at character {at})."),
            None => f.write_str("."),
        }
    }
}

#[cfg(test)]
mod tests;
