//! Sessions: the resources that an agent opened, and the runs that follow each other in them.
//!
//! `options` are its settings. `handle` has the session itself, which `open` opens: first the providers, whose
//! `tool_sets` hold what has to be closed, then the files.

mod handle;
mod open;
mod options;
mod outputs;
mod tool_sets;
mod warnings;

pub use self::handle::Session;
pub use self::options::{ResumeOptions, SessionOptions};
