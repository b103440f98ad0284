//! Progress: output for display while a tool runs or a backend opens a sandbox.

use std::fmt;

use auto_impl::auto_impl;

/// Receives the output of a running tool, or of a backend that opens a sandbox. Only for display:
/// pieces may be joined or dropped.
#[auto_impl(&, Arc, Box)]
pub trait Progress: fmt::Debug + Send + Sync {
    /// Receives a piece of output.
    fn output(&self, text: &str);
}

/// Discards all output.
#[derive(Debug)]
#[expect(clippy::exhaustive_structs, reason = "it holds nothing")]
pub struct NoProgress;

impl Progress for NoProgress {
    fn output(&self, _: &str) {}
}
