//! Tools that a model can call.
//!
//! [`Tool`] is the trait for typed tools, `#[tool]` turns a function into one, and [`DynTool`] is the
//! type-erased handle that agents hold, which can also be made from a JSON schema. A tool is
//! configuration: it keeps no state between calls and gets everything from its [`ToolContext`]. A
//! tool that needs a resource is opened by a [`ToolProvider`].

mod arguments;
mod context;
mod decision;
mod dyn_tool;
mod error;
mod provider;
mod question;
mod requirements;
#[doc(hidden)]
pub mod returned;
mod schema;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use auto_impl::auto_impl;
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde_json::Value;

pub use self::arguments::{InvalidArguments, ParsedArguments, Repair, RepairKind};
pub use self::context::ToolContext;
pub use self::decision::{ApprovalScope, Decision};
pub use self::dyn_tool::{DynTool, on_thread};
pub use self::error::{ToolError, ToolErrorKind, panic_message};
pub use self::provider::{
    OpenContext, ProviderError, ProviderErrorKind, ToolProvider, ToolSet, tool_set,
};
pub use self::question::{
    Answer, AnswerError, AnswerHandle, AskUser, ChannelUser, InvalidAnswer, NoUser, Question,
    QuestionId, QuestionKind, QuestionReceiver, user_channel,
};
pub use self::requirements::Requirements;
use crate::content::Content;
use crate::metadata::Metadata;
use crate::principal::Level;
pub use crate::progress::{NoProgress, Progress};

/// A tool with typed parameters.
///
/// ```
/// use cantle_core::tool::{DynTool, Tool, ToolContext, ToolError, ToolOutput, ToolProperties};
///
/// #[derive(serde::Deserialize, schemars::JsonSchema)]
/// struct Greeting {
///     /// The person to greet.
///     name: String,
/// }
///
/// struct Greet;
///
/// impl Tool for Greet {
///     type Params = Greeting;
///
///     fn name(&self) -> &str {
///         "greet"
///     }
///
///     fn description(&self) -> &str {
///         "Greets a person by name."
///     }
///
///     fn properties(&self) -> ToolProperties {
///         ToolProperties::default()
///     }
///
///     async fn call(&self, params: Greeting, _: ToolContext) -> Result<ToolOutput, ToolError> {
///         Ok(ToolOutput::text(format!("Hello {}!", params.name)))
///     }
/// }
///
/// let tool = DynTool::new(Greet);
/// assert_eq!(tool.spec().parameters()["required"], serde_json::json!(["name"]));
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a tool",
    note = "implement `Tool` from `cantle_core::tool`, or put `#[tool]` on a function and call it: `my_tool()` is the tool"
)]
#[auto_impl(Arc, Box)]
pub trait Tool: Send + Sync + 'static {
    /// The parameters, an object. Its field docs become descriptions for the model.
    type Params: DeserializeOwned + JsonSchema + Send;

    /// The tool's name: 1 to 64 of `a-z A-Z 0-9 _ -`.
    fn name(&self) -> &str;

    /// The description for the model.
    fn description(&self) -> &str;

    /// Returns how the tool may be called. A wrapper returns those of the tool that it wraps.
    fn properties(&self) -> ToolProperties;

    /// Runs the tool. It must not block; see [`DynTool::blocking`].
    ///
    /// # Errors
    /// If the tool itself failed. An ordinary negative result (a command that exits with 1) is a
    /// [`ToolOutput`].
    fn call(
        &self,
        params: Self::Params,
        cx: ToolContext,
    ) -> impl Future<Output = Result<ToolOutput, ToolError>> + Send;
}

/// How a tool may be called.
///
/// Tools set the properties they need, and keep the defaults of the others:
///
/// ```
/// use cantle_core::tool::ToolProperties;
///
/// let properties = ToolProperties { repeatable: true, ..ToolProperties::default() };
/// assert!(!properties.concurrency_safe);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(
    clippy::exhaustive_structs,
    reason = "written with the rest of the default, so that a new property changes no tool"
)]
#[expect(clippy::struct_excessive_bools, reason = "independent properties")]
pub struct ToolProperties {
    /// Whether calls may run concurrently with other such calls of the same turn.
    pub concurrency_safe: bool,
    /// Whether repeating the same call with the same result is normal. For other tools, repetition
    /// means that the model is stuck, and ends the run.
    pub polls: bool,
    /// Whether an answer of the model in text may end the run in place of a call of this finish tool.
    pub accepts_text: bool,
    /// Whether a call whose result was lost may be repeated, because it is idempotent. A resumed run
    /// repeats such a call; other calls are answered as interrupted.
    pub repeatable: bool,
    /// The level that a principal needs to call the tool.
    pub level: Level,
    /// Time limit for one call; `None` for a tool with limits of its own.
    pub timeout: Option<Duration>,
}

impl Default for ToolProperties {
    /// For guests, one call at a time, with a limit of ten minutes.
    fn default() -> Self {
        Self {
            concurrency_safe: false,
            polls: false,
            accepts_text: false,
            repeatable: false,
            level: Level::Guest,
            timeout: Some(Duration::from_secs(600)),
        }
    }
}

/// A tool's name, description and parameters, as sent to the model.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolSpec {
    // Shared by all sessions.
    name: Arc<str>,
    description: Arc<str>,
    parameters: Arc<Value>,
}

impl ToolSpec {
    /// Creates a spec; `parameters` is a JSON schema of an object.
    pub fn new(name: impl Into<String>, description: impl Into<String>, parameters: Value) -> Self {
        Self {
            name: name.into().into(),
            description: description.into().into(),
            parameters: Arc::new(schema::normalize(parameters)),
        }
    }

    /// Returns the tool's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the description for the model.
    pub fn description(&self) -> &str {
        &self.description
    }

    /// Returns the JSON schema of the parameters.
    pub fn parameters(&self) -> &Value {
        &self.parameters
    }

    /// Returns whether the tool has parameters.
    pub fn has_parameters(&self) -> bool {
        let properties = self.parameters.get("properties").and_then(Value::as_object);
        properties.is_some_and(|properties| !properties.is_empty())
    }
}

/// The result of a tool call.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ToolOutput {
    /// The content for the model.
    pub content: Content,
    /// Whether the call succeeded. A finish tool ends the run only on success.
    pub success: bool,
    /// Metadata for the ledger.
    pub metadata: Option<Metadata>,
    /// Whether the call left processes running that end with this process. A resumed run informs the
    /// model that they are gone.
    pub left_running: bool,
}

impl ToolOutput {
    /// Creates a successful result.
    pub fn new(content: impl Into<Content>) -> Self {
        Self {
            content: content.into(),
            success: true,
            metadata: None,
            left_running: false,
        }
    }

    /// Creates a successful result with text.
    pub fn text(text: impl Into<String>) -> Self {
        Self::new(text.into())
    }

    /// Creates an unsuccessful result with an explanation.
    pub fn failure(text: impl Into<String>) -> Self {
        Self {
            success: false,
            ..Self::text(text)
        }
    }

    /// Sets the metadata.
    pub fn with_metadata(mut self, metadata: Metadata) -> Self {
        self.metadata = Some(metadata);
        self
    }
}

impl From<String> for ToolOutput {
    fn from(text: String) -> Self {
        Self::text(text)
    }
}

impl From<&str> for ToolOutput {
    fn from(text: &str) -> Self {
        Self::text(text)
    }
}
