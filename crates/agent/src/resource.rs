//! The resources that a budget limits: for budgets, the rules of the loop, and errors.

use serde::{Deserialize, Serialize};

/// A resource that a [`Budget`](crate::Budget) limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Resource {
    /// Input and output tokens.
    Tokens,
    /// Cost in US dollars.
    CostUsd,
    /// Time in seconds.
    TimeS,
    /// Tool calls.
    ToolCalls,
}
