//! The agent loop of Cantle: turns, tools, sessions and runs.
//!
//! An [`Agent`] is an immutable definition: a model, tools, rules. A [`Session`] is one use of it, with
//! an open sandbox, tools and input files. A [`Run`] is one task in a session; it is a stream of
//! [events](cantle_core::event) and ends with an [`Outcome`].
//!
//! # Structure
//!
//! The crate is a stack; each module uses only those below it.
//!
//! - `sub_agents`: agents as tools of other agents
//! - `agent`, `session`: definitions, and the resources that one use of them opens
//! - `run`: the life of a run; its driver performs the actions of the state machine
//! - `events`, `trajectory`: kept runs as events and as messages
//! - `scope`: the state shared by everything that works on one run: `hub` (events), `budget` (accounts),
//!   `approval` (requests)
//! - `journal`: the durable record of a run
//! - `rules`: the pure state machine, its facts and actions, and the ledger
//!
//! The other modules serve one of these: `environment`, `prompt`, `inputs` and `skills` make the texts and files with
//! which a run begins; `progress`, `spans` and `console` show a run to its parent, to tracing and to people.
//!
//! # Guarantees
//!
//! - Every tool call gets exactly one result, even if it is unknown, invalid, refused, cancelled or
//!   panics; the run continues.
//! - A run ends: with a finish call, or with a typed [`RunError`]. A model that overflows its context,
//!   answers nothing or stops responding does not keep it running forever.
//! - Cancellation signals running calls, waits for a grace period, and keeps all work so far.
//! - Every model call is in the [ledger](cantle_core::ledger), including failed and dropped ones.
//! - A slow reader of events never delays a run.

#![forbid(unsafe_code)]

mod agent;
mod approval;
mod budget;
mod console;
mod definition;
mod environment;
mod error;
mod events;
mod hooks;
mod hub;
mod inputs;
mod journal;
mod progress;
mod prompt;
mod resource;
mod rules;
mod run;
mod scope;
mod session;
mod skills;
mod spans;
mod sub_agents;
mod time;
mod tool_table;
mod trajectory;

pub use cantle_core::tool::{ApprovalScope, Decision};

pub use self::agent::{Agent, AgentBuilder};
pub use self::approval::{Approvals, DecisionError, InvalidRule, Permission};
pub use self::budget::Budget;
pub use self::console::ConsoleLogger;
pub use self::environment::UserDirectory;
pub use self::error::{InvalidAgent, RunError, RunErrorKind, SessionError, SessionErrorKind};
pub use self::hooks::{AfterTool, AtFinish, BeforeModel, BeforeTool, Hooks};
pub use self::inputs::{IgnoreRules, InputEntries, InputOptions};
pub use self::journal::{KeptRun, KeptStatus, LockedRun, RunStore, StoreError, StoreErrorKind};
pub use self::resource::Resource;
pub use self::rules::TextAnswers;
pub use self::run::{InvalidFinish, Outcome, Run, RunControl, RunOptions};
pub use self::session::{ResumeOptions, Session, SessionOptions};
pub use self::sub_agents::SubAgent;
pub use self::trajectory::Trajectory;
