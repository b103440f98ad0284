//! A run: the state machine is driven, the journal written, events emitted.

mod approve;
mod delivery;
mod drive;
mod execute;
mod handle;
mod model_call;
mod options;
mod outcome;
mod resources;
mod tool_call;

pub(crate) use self::execute::RunStart;
pub use self::handle::{Run, RunControl};
pub use self::options::RunOptions;
pub(crate) use self::outcome::last_text;
pub use self::outcome::{InvalidFinish, Outcome};
pub(crate) use self::resources::{KeptSession, ResumedRun, SessionResources};
