//! Code that keeps its variables from call to call, in a sandbox.
//!
//! A [`CodeInterpreter`] is configuration; it opens a [`CodeSession`] in a sandbox. Each context of a session has variables
//! of its own. A [`CodeObserver`] receives what a call writes and displays, at its own pace.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use auto_impl::auto_impl;
use bytes::Bytes;
use serde::Deserialize;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::sandbox::{Channel, Sandbox, SandboxError};

/// A displayed value in the formats that it has, by E2B's names: `text`, `html`, `markdown`, `svg`, `png`, `jpeg`, `pdf`,
/// `latex`, `json`, `javascript`, `data`, `chart`. Binary formats are in base64. Code can display anything, so the
/// formats are untrusted.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[non_exhaustive]
pub struct RichResult {
    /// Whether it is the value of the last expression.
    #[serde(default, rename = "main")]
    pub is_main: bool,
    /// The formats by name.
    #[serde(rename = "data")]
    pub formats: BTreeMap<String, Value>,
}

impl RichResult {
    /// Creates a result.
    pub fn new(is_main: bool, formats: BTreeMap<String, Value>) -> Self {
        Self { is_main, formats }
    }

    /// Returns the plain text.
    pub fn text(&self) -> Option<&str> {
        self.formats.get("text")?.as_str()
    }
}

/// An exception that ended a call.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct CodeError {
    /// The name of its class.
    pub name: String,
    /// Its message.
    pub value: String,
    /// The traceback, with frames of the user's code only.
    pub traceback: String,
}

impl CodeError {
    /// Creates an error without a traceback.
    pub fn new(name: impl Into<String>, value: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            value: value.into(),
            traceback: String::new(),
        }
    }
}

/// One call: code to execute in a context.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CodeRequest {
    /// Name of the context. The first call starts it.
    pub context: String,
    /// The code.
    pub code: String,
    /// Directory in which the context starts; the working directory by default.
    pub directory: Option<String>,
    /// Environment variables of this call alone.
    pub environment: BTreeMap<String, String>,
    /// Time limit.
    pub timeout: Duration,
    /// Interrupts the code when it is cancelled.
    pub cancellation: CancellationToken,
}

impl CodeRequest {
    /// Creates a call without further variables.
    pub fn new(
        context: impl Into<String>,
        code: impl Into<String>,
        timeout: Duration,
        cancellation: CancellationToken,
    ) -> Self {
        Self {
            context: context.into(),
            code: code.into(),
            directory: None,
            environment: BTreeMap::new(),
            timeout,
            cancellation,
        }
    }
}

/// The end of a call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CodeEnd {
    /// The reason why it failed: an exception, or the end of the interpreter.
    pub error: Option<CodeError>,
    /// Sentences for the reader, such as that variables are lost.
    pub notes: Vec<String>,
}

impl CodeEnd {
    /// Creates the end of a call.
    pub fn new(error: Option<CodeError>, notes: Vec<String>) -> Self {
        Self { error, notes }
    }
}

/// The receiver of a call's output. The code waits while a method does.
#[async_trait]
#[auto_impl(&mut, Box)]
pub trait CodeObserver: Send {
    /// Receives a piece of output.
    async fn output(&mut self, channel: Channel, bytes: Bytes);

    /// Receives a displayed value.
    async fn result(&mut self, result: RichResult);

    /// Returns whether the session may buffer `bytes` of an event. Otherwise the interpreter is ended.
    fn may_buffer(&mut self, bytes: usize) -> bool;
}

/// Configuration of an interpreter.
#[auto_impl(Arc, Box)]
pub trait CodeInterpreter: fmt::Debug + Send + Sync {
    /// Opens a session in a sandbox, which stays its owner's to close. Dropping the session ends its interpreters.
    fn open_session(&self, sandbox: Arc<dyn Sandbox>) -> Arc<dyn CodeSession>;
}

/// Contexts in one sandbox.
#[async_trait]
#[auto_impl(Arc, Box)]
pub trait CodeSession: Send + Sync {
    /// Executes code. Calls in one context wait for each other, and one that is cancelled by then does not begin. Dropping
    /// the future ends the context's interpreter.
    ///
    /// # Errors
    /// If the sandbox fails. Code that fails is a result.
    async fn execute(
        &self,
        request: CodeRequest,
        observer: &mut dyn CodeObserver,
    ) -> Result<CodeEnd, SandboxError>;

    /// Ends a context's interpreter, after a call that is running, and forgets its variables. The next call starts it anew.
    async fn end(&self, context: &str);
}
