//! Data types and traits of Cantle, for authors of backends, clients and tools.
//!
//! Depend on this crate, and on `cantle-testkit` for tests; applications that build agents depend on
//! the `cantle` facade. This crate opens no connections, starts no processes and needs no runtime.
//! The traits to implement:
//!
//! - [`sandbox::Backend`], which opens a [`sandbox::Sandbox`], which spawns a
//!   [`sandbox::Process`] for each command;
//! - [`llm::LlmClient`], which turns messages and tool specs into the model's next turn;
//! - [`tool::Tool`], or [`tool::ToolProvider`] for tools that need a resource.
//!
//! # Design
//!
//! **Configuration and instance are separate types.** Backends, clients and providers are immutable
//! and shared by all sessions; mutable state lives in the sandboxes and tool sets they open. There are
//! no globals and no task-locals: a tool gets everything from its [`tool::ToolContext`].
//!
//! **Traits are small and object-safe.** Convenience methods are in sealed extension traits
//! ([`sandbox::SandboxExt`], [`llm::LlmClientExt`]). All object-safe traits are implemented for
//! `Arc<T>` and `Box<T>` where possible, so builders take `impl Backend` and the like. Only
//! [`tool::Tool`] has an associated type; [`tool::DynTool`] erases it.
//!
//! **`Err` means that Cantle failed.** A command that exits with 1 is a result, and so is a refused
//! tool call. Errors are structs with a `kind()`; instructions for the model are in `advice()`.
//!
//! **Bytes move as streams**, at the reader's pace. Memory is bounded by limits, not by input.
//!
//! **Options are `#[non_exhaustive]` structs with constructors**, and every type that an implementor
//! returns can be constructed outside this crate.

#![forbid(unsafe_code)]

#[macro_use]
mod text;

pub mod code;
pub mod content;
pub mod escape;
pub mod estimate;
pub mod event;
pub mod ids;
pub mod ledger;
pub mod llm;
pub mod message;
pub mod metadata;
pub mod network;
pub mod policy;
pub mod principal;
pub mod sandbox;
pub mod seconds;
pub mod secret;
pub mod tool;
pub mod usage;

mod progress;

/// Turns a function into a tool.
///
/// The function's arguments are the tool's parameters: each needs a type that is `Deserialize` and
/// `JsonSchema`, and its doc comment describes it to the model. An `Option`, or an argument with
/// `#[serde(default)]`, is optional; `#[serde(…)]` and `#[schemars(…)]` work as on a field. One
/// argument may be a [`ToolContext`](tool::ToolContext), which is not a parameter.
///
/// The function is replaced by one of the same name without arguments that returns the
/// [`DynTool`](tool::DynTool).
///
/// ```
/// use cantle_core::tool;
/// use cantle_core::tool::{ToolContext, ToolError};
///
/// /// Reads a text file from the workspace.
/// #[tool(concurrency_safe)]
/// async fn read_text(
///     /// Path relative to the working directory.
///     path: String,
///     /// Maximum number of bytes.
///     limit_bytes: Option<u64>,
///     cx: ToolContext,
/// ) -> Result<String, ToolError> {
///     use cantle_core::sandbox::{SandboxExt as _, SandboxPath};
///
///     let path = SandboxPath::new(&path).map_err(|error| ToolError::failed(error.to_string()))?;
///     let limit = limit_bytes.unwrap_or(10_000);
///     let bytes = cx.require_sandbox()?.read_bytes(&path, limit).await?;
///     Ok(String::from_utf8_lossy(&bytes).into_owned())
/// }
///
/// let tool = read_text();
/// assert_eq!(tool.name(), "read_text");
/// assert_eq!(tool.spec().description(), "Reads a text file from the workspace.");
/// assert_eq!(tool.spec().parameters()["required"], serde_json::json!(["path"]));
/// ```
///
/// An `async fn` runs on the runtime and must not block it. A plain `fn` may block: each call runs on
/// its own thread, as with [`DynTool::blocking`](tool::DynTool::blocking).
///
/// The function returns text, a [`ToolOutput`](tool::ToolOutput), or any other `Serialize` type, which the model gets as
/// JSON; or a `Result` of these with [`ToolError`](tool::ToolError) or any other error, so that `?` works: with
/// `Box<dyn Error + Send + Sync>` or `anyhow::Error` on errors of all kinds.
///
/// A method with `&self` is a tool with state: it is replaced by one that takes `&Arc<Self>` and returns the tool.
///
/// ```
/// use std::collections::HashMap;
/// use std::sync::Arc;
///
/// use cantle_core::tool;
///
/// struct Populations(HashMap<String, u64>);
///
/// impl Populations {
///     /// Returns the population of a city.
///     #[tool]
///     async fn population(&self, city: String) -> Option<u64> {
///         self.0.get(&city).copied()
///     }
/// }
///
/// let populations = Arc::new(Populations(HashMap::from([("Oslo".to_owned(), 717_710)])));
/// let tool = populations.population();
/// assert_eq!(tool.name(), "population");
/// ```
///
/// Options, in parentheses:
///
/// - `name = "…"`: the tool's name, if not the function's;
/// - `description = "…"`: the description for the model, if not the function's doc comment;
/// - `concurrency_safe`: calls may run concurrently with other such calls of the same turn.
#[cfg(feature = "macros")]
pub use cantle_macros::tool;

/// Crates that the expansion of `#[tool]` refers to, so that its users need not depend on them.
#[doc(hidden)]
pub mod private {
    pub use schemars;
    pub use serde;
}
