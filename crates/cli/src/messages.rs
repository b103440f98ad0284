//! Messages on standard error, apart from those of a run, which [`crate::display`] writes.

use std::io::{self, Write as _};

use cantle::core::tool::Progress;

use crate::text::clean;

/// Writes a message. Commands continue even if nothing reads standard error.
pub(crate) fn warn(message: &str) {
    let line = format!("cantle: {}\n", clean(message));
    let _ = io::stderr().write_all(line.as_bytes());
}

/// A receiver of progress that writes it as messages.
#[derive(Debug)]
pub(crate) struct ProgressMessages;

impl Progress for ProgressMessages {
    fn output(&self, text: &str) {
        warn(text.trim_end());
    }
}
