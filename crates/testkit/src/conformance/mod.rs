//! Conformance suites for backends, model clients, tool providers and stores of files, as functions over the trait.
//!
//! A suite is a table of cases, each named after the required behaviour. It runs all of them and
//! returns a [`Report`] instead of panicking at the first failure. [`Report::assert`] turns it into
//! a test:
//!
//! ```no_run
//! # async fn check(backend: &dyn cantle_core::sandbox::Backend) {
//! // In a `#[tokio::test]`:
//! cantle_testkit::conformance::sandbox(backend).await.assert();
//! # }
//! ```
//!
//! Every case has a deadline, so a hang is a failure. Several cases run concurrently; those that
//! measure memory run alone. An optional case is skipped if the implementation returns
//! `Unsupported`; other cases fail. Tests should compare [`Report::skipped`] with the expected cases.
//!
//! The suites require only what `cantle-core` documents, and accept every reading where it leaves
//! room. They need a tokio runtime with time and I/O, and a test binary of their own for precise
//! memory measurements. They clean up, but create thousands of files and kill processes: use a
//! backend whose sandboxes are disposable.

mod check;
#[cfg(feature = "files")]
mod files;
mod llm_client;
mod report;
#[cfg(unix)]
mod sandbox;
mod suite;
mod tool_provider;

#[cfg(feature = "files")]
pub use self::files::{files, files_cases};
pub use self::llm_client::{Dialect, Endpoint, llm_client, llm_client_cases};
pub use self::report::{CaseResult, Outcome, Report};
#[cfg(unix)]
pub use self::sandbox::{SandboxOptions, sandbox, sandbox_with, transfers};
pub use self::tool_provider::tool_provider;
