//! Sessions: the resources that an agent opened, and the runs that follow each other in them.

mod handle;
mod open;
mod options;
mod outputs;
mod tool_sets;
mod warnings;

pub use self::handle::Session;
pub use self::options::{ResumeOptions, SessionOptions};
