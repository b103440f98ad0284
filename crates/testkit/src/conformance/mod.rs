//! Conformance: what a backend, a model client or a tool provider must do, as functions over the
//! trait.
//!
//! A suite is a table of cases, each named after the behaviour it asks for. It runs all of them
//! against what it is given and returns a [`Report`]: nothing panics half way, and one look shows
//! everything that is wrong. [`Report::assert`] turns it into a test:
//!
//! ```no_run
//! # async fn check(backend: &dyn cantle_core::sandbox::Backend) {
//! // In a `#[tokio::test]`:
//! cantle_testkit::conformance::sandbox(backend).await.assert();
//! # }
//! ```
//!
//! Every case has a deadline, so that what hangs fails instead of hanging the test. A few run at a
//! time; those that measure memory run alone. What an implementation answers with `Unsupported` is
//! skipped with its words, but only where a case is optional: what everything else stands on must
//! be there. [`Report::skipped`] lists them, for a test to compare with what it expects.
//!
//! The suites ask for what `cantle-core` documents and nothing more; where its words leave room,
//! they accept either reading. Run them on a tokio runtime with time and I/O, in a test binary of
//! their own where memory is to be measured well. They leave nothing behind, but they create
//! thousands of files and kill what they started: give them a backend whose sandboxes are
//! disposable.

mod check;
mod llm_client;
mod report;
#[cfg(unix)]
mod sandbox;
mod suite;
mod tool_provider;

pub use self::llm_client::{Dialect, Endpoint, llm_client, llm_client_cases, llm_client_of};
pub use self::report::{CaseResult, Outcome, Report};
#[cfg(unix)]
pub use self::sandbox::{SandboxOptions, sandbox, sandbox_cases, sandbox_with, transfers};
pub use self::tool_provider::tool_provider;
