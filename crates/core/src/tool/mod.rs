//! Tools: what a model can call.
//!
//! [`Tool`] is the typed way to write one, `#[tool]` the short way for a function, and
//! [`DynTool`] the erased handle that agents hold, also made from a bare JSON schema. A tool is
//! configuration: it keeps nothing between calls and gets what it needs in its [`ToolContext`]. A
//! tool that needs something opened comes from a [`ToolProvider`].

mod arguments;
mod context;
mod dyn_tool;
mod error;
mod provider;
mod question;
mod schema;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde_json::Value;

pub use self::arguments::{ArgumentError, Parsed, Repair, RepairKind};
pub(crate) use self::context::NoProgress;
pub use self::context::{Progress, ToolContext};
pub use self::dyn_tool::DynTool;
pub use self::error::{ToolError, ToolErrorKind, panic_message};
pub use self::provider::{OpenContext, ProviderError, ToolProvider, ToolSet};
pub use self::question::{
    Answer, AnswerError, Answers, AskUser, ChannelUser, InvalidAnswer, NoUser, Question,
    QuestionId, QuestionKind, Questions, user_channel,
};
use crate::content::Content;
use crate::metadata::Metadata;

/// How long a call of a tool may take that says nothing else.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(600);

/// A tool with typed parameters.
///
/// ```
/// use cantle_core::tool::{DynTool, Tool, ToolContext, ToolError, ToolOutput};
///
/// #[derive(serde::Deserialize, schemars::JsonSchema)]
/// struct Greeting {
///     /// Who is greeted.
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
///         "Greets somebody by name."
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
    note = "implement `Tool` from `cantle_core::tool`, or put `#[tool]` on a function"
)]
pub trait Tool: Send + Sync + 'static {
    /// What the model gives it: an object, described by its schema. Field docs are for the model.
    type Params: DeserializeOwned + JsonSchema + Send;

    /// Its name: 1 to 64 of `a-z A-Z 0-9 _ -`.
    fn name(&self) -> &str;

    /// What it does, for the model.
    fn description(&self) -> &str;

    /// Whether calls of one turn may run side by side with other such calls.
    fn concurrency_safe(&self) -> bool {
        false
    }

    /// Whether the same call with the same result, over and over, is its ordinary use. Of another
    /// tool that means that the model is stuck, and ends the run.
    fn polls(&self) -> bool {
        false
    }

    /// Whether a call may be made again where nobody knows what became of it: it changes nothing, or
    /// goes on where it was. In a run that is resumed, such a call is made again; the result of any
    /// other one says that it was interrupted.
    fn repeatable(&self) -> bool {
        false
    }

    /// How long one call may take; none for a tool that bounds itself, as one that runs commands.
    fn timeout(&self) -> Option<Duration> {
        Some(DEFAULT_TIMEOUT)
    }

    /// Does the work. Blocking work belongs in [`DynTool::blocking`], which keeps it off the
    /// runtime.
    ///
    /// # Errors
    /// Where the tool itself failed. A result the model should see as a failure, but which is the
    /// tool's ordinary answer (a command that exits with 1), is an [`ToolOutput`].
    fn call(
        &self,
        params: Self::Params,
        cx: ToolContext,
    ) -> impl Future<Output = Result<ToolOutput, ToolError>> + Send;
}

/// How a tool is described to the model.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolSpec {
    // Shared: every session has the specs of its tools.
    name: Arc<str>,
    description: Arc<str>,
    parameters: Arc<Value>,
}

impl ToolSpec {
    /// A spec; `parameters` is a JSON schema of an object.
    pub fn new(name: impl Into<String>, description: impl Into<String>, parameters: Value) -> Self {
        Self {
            name: name.into().into(),
            description: description.into().into(),
            parameters: Arc::new(schema::tidy(parameters)),
        }
    }

    /// The tool's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it does, for the model.
    #[must_use]
    pub fn description(&self) -> &str {
        &self.description
    }

    /// The JSON schema of its parameters.
    #[must_use]
    pub fn parameters(&self) -> &Value {
        &self.parameters
    }

    /// Whether it takes any parameters; without, some dialects send no schema at all.
    #[must_use]
    pub fn has_parameters(&self) -> bool {
        let properties = self.parameters.get("properties").and_then(Value::as_object);
        properties.is_some_and(|properties| !properties.is_empty())
    }
}

/// What a tool answers.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ToolOutput {
    /// What the model sees.
    pub content: Content,
    /// Whether it did what it was asked to. A finish tool ends the run only then.
    pub success: bool,
    /// What it reports about its work, for the ledger.
    pub metadata: Option<Metadata>,
    /// Whether it left something running that ends with our process. Where the run is resumed in
    /// another one, the model is told that it is gone.
    pub left_running: bool,
}

impl ToolOutput {
    /// A successful answer.
    pub fn new(content: impl Into<Content>) -> Self {
        Self {
            content: content.into(),
            success: true,
            metadata: None,
            left_running: false,
        }
    }

    /// A successful answer in text.
    pub fn text(text: impl Into<String>) -> Self {
        Self::new(text.into())
    }

    /// An answer that says it did not work, and why.
    pub fn failure(text: impl Into<String>) -> Self {
        Self {
            success: false,
            ..Self::text(text)
        }
    }

    /// The same with metadata.
    #[must_use]
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

/// What a function under `#[tool]` may return: anything that is `Into<ToolOutput>`, or a `Result`
/// of it with an error that is `Into<ToolError>`.
pub trait IntoToolResult {
    /// The result of the call.
    ///
    /// # Errors
    /// Where the function returned one.
    fn into_tool_result(self) -> Result<ToolOutput, ToolError>;
}

impl<T: Into<ToolOutput>> IntoToolResult for T {
    fn into_tool_result(self) -> Result<ToolOutput, ToolError> {
        Ok(self.into())
    }
}

impl<T: Into<ToolOutput>, E: Into<ToolError>> IntoToolResult for Result<T, E> {
    fn into_tool_result(self) -> Result<ToolOutput, ToolError> {
        self.map(Into::into).map_err(Into::into)
    }
}
