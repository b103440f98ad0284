//! The nouns and traits of Cantle, for people who write backends, clients and tools.
//!
//! Depend on this crate, and for your tests on `cantle-testkit`; the `cantle` facade is for people
//! who build agents. Here are data and traits: no network, no process, no runtime. Three traits are
//! what you implement:
//!
//! - [`sandbox::Backend`], which opens a [`sandbox::Sandbox`], which spawns a
//!   [`sandbox::Process`] for each command;
//! - [`llm::LlmClient`], which turns messages and tool specs into the model's next turn;
//! - [`tool::Tool`], or [`tool::ToolProvider`] for tools that need something opened.
//!
//! # Why they have this shape
//!
//! **Configuration and instance are two types.** A backend, a client and a provider are immutable
//! and shared by a thousand sessions; everything that changes lives in what they open. Nothing is
//! global, nothing hangs on the current task: a tool finds what it needs in its
//! [`tool::ToolContext`].
//!
//! **The traits are small and object-safe; conveniences are in sealed extension traits**
//! ([`sandbox::SandboxExt`], [`llm::LlmClientExt`]), so that they behave the same for everyone.
//! [`tool::Tool`] alone has an associated type and is erased once, into [`tool::DynTool`].
//!
//! **`Err` means that something of ours failed.** A command that exits with 1 is a result, and so is
//! a tool that says no. Errors are structs with a `kind()`; what a model should do about one is in
//! its `advice()`.
//!
//! **Bytes move as streams**, at the reader's pace. Nothing here grows with its input without a
//! limit.
//!
//! **Options are `#[non_exhaustive]` structs with constructors**, so that they can grow, and
//! everything an implementor must return can be built from outside.

#![forbid(unsafe_code)]

pub mod content;
pub mod event;
pub mod ids;
pub mod ledger;
pub mod llm;
pub mod message;
pub mod metadata;
pub mod policy;
pub mod sandbox;
pub mod secret;
pub mod tool;
pub mod usage;

mod seconds;

/// Makes a tool of a function.
///
/// The function's arguments are what the model gives: each needs a type that is `Deserialize` and
/// `JsonSchema`, and its doc comment describes it to the model. An `Option` may be left out, and so
/// may an argument with `#[serde(default)]`; `#[serde(…)]` and `#[schemars(…)]` work as on a field.
/// One argument may be a [`ToolContext`](tool::ToolContext); the model knows nothing of it.
///
/// In place of the function there is then one of the same name without arguments, which returns
/// the [`DynTool`](tool::DynTool).
///
/// ```
/// use cantle_core::tool;
/// use cantle_core::tool::{ToolContext, ToolError};
///
/// /// Reads a text file of the workspace.
/// #[tool(concurrency_safe)]
/// async fn read_text(
///     /// The file, relative to the working directory.
///     path: String,
///     /// How many bytes it may have at most.
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
/// assert_eq!(tool.spec().description(), "Reads a text file of the workspace.");
/// assert_eq!(tool.spec().parameters()["required"], serde_json::json!(["path"]));
/// ```
///
/// An `async fn` runs on the runtime and must not block it. A plain `fn` may: each call gets a
/// thread of its own, as with [`DynTool::blocking`](tool::DynTool::blocking).
///
/// Either returns a `String`, a [`ToolOutput`](tool::ToolOutput) or whatever else is
/// [`IntoToolResult`](tool::IntoToolResult), a `Result` of such with
/// [`ToolError`](tool::ToolError) above all.
///
/// In the parentheses may stand:
///
/// - `name = "…"`: the tool's name instead of the function's;
/// - `description = "…"`: what the model reads instead of the function's doc comment;
/// - `concurrency_safe`: its calls may run side by side with other such calls of the same turn.
#[cfg(feature = "macros")]
pub use cantle_macros::tool;

/// What the `#[tool]` macro needs of other crates, so that its users need not depend on them.
#[doc(hidden)]
pub mod private {
    pub use schemars;
    pub use serde;
}
