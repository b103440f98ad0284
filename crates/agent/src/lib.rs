//! The agent loop of Cantle: turns, tools, sessions and runs.
//!
//! An [`Agent`] is a definition: a model, tools, rules. It is immutable and shared. A [`Session`]
//! is one use of it, with a sandbox and tools open and input files in place. A [`Run`] is one task
//! being worked on in a session; it is a stream of [events](cantle_core::event) and ends in an
//! [`Outcome`].
//!
//! # How it works
//!
//! The rules of the loop are a pure state machine without I/O and clock, in the private module
//! `machine`: it says what to do next (ask the model, start a call) and is told single facts (the
//! model answered, a call finished). The `driver` performs what it says: it asks the model through
//! the client, runs tools side by side where they allow it, and hands events to those who watch.
//! So a rule of the loop is a line in one place and a test without a runtime.
//!
//! # What it promises
//!
//! - Every tool call gets exactly one result, also one that is unknown, invalid, refused, cancelled
//!   or panics; the run goes on.
//! - A run ends: with a finish call, or with a typed [`RunError`]. A model that overflows its
//!   context, answers nothing or goes silent does not keep it going for ever.
//! - Cancelling tells running calls, waits a moment, and keeps what was done.
//! - Every model call is in the [ledger](cantle_core::ledger), also failed and dropped ones.
//! - A slow reader of events, or none, never holds up a run.

#![forbid(unsafe_code)]

mod agent;
mod approval;
mod budget;
mod calls;
mod driver;
mod error;
mod hooks;
mod hub;
mod inputs;
mod journal;
mod machine;
mod prompt;
mod run;
mod session;
mod skills;
mod spans;
mod sub_agent;
mod time;

pub use self::agent::{Agent, AgentBuilder};
pub use self::approval::{Approvals, Decision, DecisionError, InvalidRule, Permission};
pub use self::budget::Budget;
pub use self::error::{AgentError, RunError, RunErrorKind, SessionError, SessionErrorKind};
pub use self::hooks::{AfterTool, AtFinish, BeforeModel, BeforeTool, Hooks};
pub use self::hub::Events;
pub use self::journal::{KeptRun, KeptStatus, RunStore, StoreError, StoreErrorKind};
pub use self::run::{Outcome, Run, RunControl};
pub use self::session::{ResumeOptions, Session, SessionOptions};
pub use self::sub_agent::SubAgent;
