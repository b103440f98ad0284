//! The type-erased tool handle.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use futures_util::future::BoxFuture;
use serde_json::Value;
use tokio::sync::oneshot;

use super::arguments::{self, InvalidArguments, ParsedArguments};
use super::{Tool, ToolContext, ToolError, ToolOutput, ToolProperties, ToolSpec, schema};
use crate::principal::Level;

/// A type-erased tool. Cheap to clone and shared by all sessions.
#[must_use]
#[derive(Clone)]
pub struct DynTool {
    spec: Arc<ToolSpec>,
    properties: ToolProperties,
    forwarding: Option<Arc<Forwarding>>,
    body: Arc<Body>,
}

type Forwarding = dyn Fn(&Value) -> Option<(String, Value)> + Send + Sync;
type Body =
    dyn Fn(Value, ToolContext) -> BoxFuture<'static, Result<ToolOutput, ToolError>> + Send + Sync;

impl DynTool {
    /// Erases the type of a tool.
    pub fn new<T: Tool>(tool: T) -> Self {
        let tool = Arc::new(tool);
        let called = Arc::clone(&tool);
        let call = move |params: T::Params, cx| {
            let tool = Arc::clone(&called);
            async move { tool.call(params, cx).await }
        };
        Self {
            properties: tool.properties(),
            ..Self::from_fn(tool.name(), tool.description(), call)
        }
    }

    /// Creates a tool from a JSON schema. Arguments are checked for types, required and unknown
    /// properties and enumerations.
    ///
    /// ```
    /// use cantle_core::tool::{DynTool, ToolOutput, ToolSpec};
    /// use serde_json::json;
    ///
    /// let spec = ToolSpec::new(
    ///     "echo",
    ///     "Returns the text.",
    ///     json!({"type": "object", "properties": {"text": {"type": "string"}}}),
    /// );
    /// let tool = DynTool::from_schema(spec, |arguments, _cx| async move {
    ///     Ok(ToolOutput::text(arguments["text"].to_string()))
    /// });
    /// assert_eq!(tool.name(), "echo");
    /// ```
    pub fn from_schema<F, Fut>(spec: ToolSpec, call: F) -> Self
    where
        F: Fn(Value, ToolContext) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<ToolOutput, ToolError>> + Send + 'static,
    {
        Self {
            spec: Arc::new(spec),
            properties: ToolProperties::default(),
            forwarding: None,
            body: Arc::new(move |arguments, cx| Box::pin(call(arguments, cx))),
        }
    }

    /// Creates a typed tool from an asynchronous function.
    pub fn from_fn<P, F, Fut>(
        name: impl Into<String>,
        description: impl Into<String>,
        call: F,
    ) -> Self
    where
        P: serde::de::DeserializeOwned + schemars::JsonSchema + Send + 'static,
        F: Fn(P, ToolContext) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<ToolOutput, ToolError>> + Send + 'static,
    {
        let spec = ToolSpec::new(name, description, schema::of::<P>());
        let call = Arc::new(call);
        Self::from_schema(spec, move |arguments, cx| {
            let call = Arc::clone(&call);
            async move {
                let params = arguments::typed::<P>(&arguments)?;
                drop(arguments);
                call(params, cx).await
            }
        })
    }

    /// Creates a typed tool that may block: each call runs on its own thread.
    pub fn blocking<P, F>(name: impl Into<String>, description: impl Into<String>, call: F) -> Self
    where
        P: serde::de::DeserializeOwned + schemars::JsonSchema + Send + 'static,
        F: Fn(P, ToolContext) -> Result<ToolOutput, ToolError> + Send + Sync + 'static,
    {
        let call = Arc::new(call);
        Self::from_fn(name, description, move |params, cx| {
            let call = Arc::clone(&call);
            async move {
                let thread = thread::Builder::new().name("cantle-tool".to_owned());
                on_thread(thread, move || call(params, cx)).await?
            }
        })
    }

    /// Sets [`ToolProperties::concurrency_safe`].
    pub fn with_concurrency_safe(mut self, safe: bool) -> Self {
        self.properties.concurrency_safe = safe;
        self
    }

    /// Sets [`ToolProperties::polls`].
    pub fn with_polls(mut self, polls: bool) -> Self {
        self.properties.polls = polls;
        self
    }

    /// Sets [`ToolProperties::repeatable`].
    pub fn with_repeatable(mut self, repeatable: bool) -> Self {
        self.properties.repeatable = repeatable;
        self
    }

    /// Sets [`ToolProperties::level`].
    pub fn with_level(mut self, level: Level) -> Self {
        self.properties.level = level;
        self
    }

    /// Sets [`ToolProperties::timeout`].
    pub fn with_timeout(mut self, timeout: Option<Duration>) -> Self {
        self.properties.timeout = timeout;
        self
    }

    /// Sets which call of another tool, by name and arguments, a call of this one makes. Approvals of that tool apply to it.
    pub fn with_forwarding(
        mut self,
        forwarded: impl Fn(&Value) -> Option<(String, Value)> + Send + Sync + 'static,
    ) -> Self {
        self.forwarding = Some(Arc::new(forwarded));
        self
    }

    /// Returns whether calls of this tool may make [calls of others](Self::forwarded).
    pub fn is_forwarding(&self) -> bool {
        self.forwarding.is_some()
    }

    /// Returns the name and the arguments of the call of another tool that a call with these arguments makes.
    pub fn forwarded(&self, arguments: &Value) -> Option<(String, Value)> {
        self.forwarding.as_ref()?(arguments)
    }

    /// Returns the spec for the model.
    pub fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    /// Returns the tool's name.
    pub fn name(&self) -> &str {
        self.spec.name()
    }

    /// Returns how the tool may be called.
    pub fn properties(&self) -> &ToolProperties {
        &self.properties
    }

    /// Parses the model's arguments, repairs unambiguous mistakes and checks the result against the
    /// schema. Valid arguments are never changed.
    ///
    /// ```
    /// use cantle_core::tool::{DynTool, ToolSpec};
    /// use serde_json::json;
    ///
    /// let schema = json!({"properties": {"limit": {"type": "integer"}, "tags": {"type": "array"}}});
    /// let tool = DynTool::from_schema(ToolSpec::new("list", "Lists.", schema), |_, _| async {
    ///     Ok("done".into())
    /// });
    /// let parsed = tool.parse(r#"{"limit": "5", "tags": "new"}"#)?;
    /// assert_eq!(parsed.arguments, json!({"limit": 5, "tags": ["new"]}));
    /// assert_eq!(parsed.repairs[0].to_string(), "`limit`: a number in text");
    /// assert!(tool.parse(r#"{"limit": "few"}"#).is_err());
    /// # Ok::<(), cantle_core::tool::InvalidArguments>(())
    /// ```
    ///
    /// # Errors
    /// If the arguments are invalid; the message is for the model.
    pub fn parse(&self, arguments: &str) -> Result<ParsedArguments, InvalidArguments> {
        let mut repairs = Vec::new();
        let arguments = arguments::parse(arguments, &mut repairs)?;
        let arguments = schema::validate(self.spec.parameters(), arguments, &mut repairs)?;
        Ok(ParsedArguments { arguments, repairs })
    }

    /// Runs the tool with arguments from [`parse`](Self::parse). A panic of an async tool unwinds
    /// through the returned future.
    ///
    /// # Errors
    /// The tool's error; [`ToolErrorKind::InvalidArguments`](super::ToolErrorKind) if the arguments
    /// can't be deserialized.
    pub async fn call(&self, arguments: Value, cx: ToolContext) -> Result<ToolOutput, ToolError> {
        (self.body)(arguments, cx).await
    }
}

impl fmt::Debug for DynTool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("DynTool").field(&self.name()).finish()
    }
}

impl<T: Tool> From<T> for DynTool {
    fn from(tool: T) -> Self {
        Self::new(tool)
    }
}

/// Runs blocking work on a thread of its own, which continues if the returned future is dropped.
///
/// # Errors
/// If the thread can't be started, or the work panics.
pub async fn on_thread<T: Send + 'static>(
    thread: thread::Builder,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, ToolError> {
    let (done, result) = oneshot::channel();
    let thread = thread.spawn(move || {
        // The receiver is gone if the call was abandoned.
        let _ = done.send(work());
    });
    let thread = thread.map_err(|error| {
        ToolError::failed("No thread could be started for the tool").with_source(error)
    })?;
    // Without a result, the sender was dropped: the thread panicked.
    result.await.map_err(|_| match thread.join() {
        Err(payload) => ToolError::from_panic(payload.as_ref()),
        Ok(()) => ToolError::panicked("unknown"),
    })
}

#[cfg(test)]
mod tests;
