//! The subcommands, one module each.

pub(crate) mod chat;
pub(crate) mod config;
pub(crate) mod deliver;
pub(crate) mod demo;
pub(crate) mod doctor;
pub(crate) mod exec;
pub(crate) mod files;
pub(crate) mod gc;
pub(crate) mod mcp;
pub(crate) mod python;
pub(crate) mod repl;
pub(crate) mod run;
pub(crate) mod runs;
pub(crate) mod serve;
pub(crate) mod trust;

use std::io::Write as _;

use anyhow::Context as _;

use crate::exit::{Failure, FailureExt as _};

/// Writes to standard output; a reader that has gone away is no error.
pub(crate) fn print(text: impl AsRef<[u8]>) -> Result<(), Failure> {
    match std::io::stdout().lock().write_all(text.as_ref()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(error)
            .context("failed to write to standard output")
            .internal(),
        _ => Ok(()),
    }
}
