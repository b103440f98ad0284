//! Functions that can't be tools.

use cantle_core::tool;

struct Counter;

impl Counter {
    /// Counts.
    #[tool]
    fn count(&self) -> String {
        String::new()
    }
}

/// Says it.
#[tool]
fn generic<T: ToString>(value: T) -> String {
    value.to_string()
}

/// Says it.
#[tool]
fn borrowed(text: &str, any: impl ToString, (a, b): (u8, u8)) -> String {
    format!("{text}{}{a}{b}", any.to_string())
}

/// Says it.
#[tool]
fn conditional(#[cfg(unix)] text: String) -> String {
    text
}

/// Says it.
#[tool]
fn contexts(first: tool::ToolContext, second: tool::ToolContext) -> String {
    first.call_id + &second.call_id
}

/// Says it.
#[tool]
unsafe fn dangerous() -> String {
    String::new()
}

#[tool]
struct NoFunction;

fn main() {}
