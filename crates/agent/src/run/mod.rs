//! A run: the state machine is driven, the journal written, events emitted.
//!
//! In the order of a run: `handle` starts it and is its caller's side; `execute` prepares it, new or resumed, and ends
//! it. In between, `drive` performs the actions of the state machine: `model_call` asks the model, `approve` decides
//! on tool calls, `tool_call` executes one. `delivery` saves the files that the finish call names.
//!
//! A run works with two structures: `resources` is what its session opened, shared by the runs that follow each other
//! in it; the [`RunScope`](crate::scope::RunScope) is the state of this run, shared with the sub-agents that it calls.

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
