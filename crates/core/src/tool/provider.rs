//! Tools that need something opened: configuration in, live tools out.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::{DynTool, NoProgress, Progress};
use crate::ids::RunId;
use crate::sandbox::{Sandbox, SandboxError, SandboxHandle};

/// Reusable configuration that a session opens tools from. Immutable and shared; everything that
/// changes lives in the [`ToolSet`].
#[async_trait]
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a tool provider",
    note = "implement `ToolProvider` from `cantle_core::tool`; a single tool needs none, see `DynTool`"
)]
pub trait ToolProvider: fmt::Debug + Send + Sync {
    /// Names it in errors and warnings.
    fn name(&self) -> &str;

    /// Whether its tool set will have a sandbox. A session opens that provider first, so that the
    /// others find the sandbox in their [`OpenContext`], and has at most one.
    fn provides_sandbox(&self) -> bool {
        false
    }

    /// What of its configuration decides what its tools do, without secrets. A run is resumed only
    /// with providers that say the same as when it began.
    fn identity(&self) -> Value {
        Value::Null
    }

    /// Opens the resources and makes the tools. The caller allows it a deadline: whatever is half
    /// open when the future is dropped must clean itself up.
    ///
    /// # Errors
    /// Where a resource can't be opened.
    async fn open(&self, cx: OpenContext) -> Result<Box<dyn ToolSet>, ProviderError>;
}

/// What one session opened from a [`ToolProvider`].
#[async_trait]
pub trait ToolSet: Send + Sync {
    /// The tools.
    fn tools(&self) -> Vec<DynTool>;

    /// The sandbox, where this set brings one.
    fn sandbox(&self) -> Option<Arc<dyn Sandbox>> {
        None
    }

    /// Releases everything. Called once, after the last call of a tool ended.
    ///
    /// # Errors
    /// Where something could not be released; it says what may be left behind.
    async fn close(self: Box<Self>) -> Result<(), ProviderError>;

    /// The same where the run is to be resumed later: what outlives this process stays (a sandbox
    /// that was [persisted](Sandbox::persist)), and everything else is released.
    ///
    /// # Errors
    /// As [`close`](Self::close).
    async fn suspend(self: Box<Self>) -> Result<(), ProviderError> {
        self.close().await
    }
}

/// What a provider knows when it opens.
#[derive(Clone)]
#[non_exhaustive]
pub struct OpenContext {
    /// Names the opened resources (labels, directories), so that they can be told apart.
    pub run: RunId,
    /// Cancelled when the session is given up.
    pub cancellation: CancellationToken,
    /// The session's sandbox, where one is open already.
    pub sandbox: Option<Arc<dyn Sandbox>>,
    /// Whether runs of this session may be resumed by another process, so that a sandbox's files
    /// must be able to outlive this one.
    pub durable: bool,
    /// The sandbox to open again instead of a new one, where an earlier process left it.
    pub reattach: Option<SandboxHandle>,
    /// Where to tell people what takes long: an image that is pulled, a line each.
    pub progress: Arc<dyn Progress>,
}

impl OpenContext {
    /// A context without a sandbox.
    #[must_use]
    pub fn new(run: RunId) -> Self {
        Self {
            run,
            cancellation: CancellationToken::new(),
            sandbox: None,
            durable: false,
            reattach: None,
            progress: Arc::new(NoProgress),
        }
    }
}

impl fmt::Debug for OpenContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenContext")
            .field("run", &self.run)
            .field("sandbox", &self.sandbox.is_some())
            .finish_non_exhaustive()
    }
}

/// A provider that could not open or close.
#[derive(Debug)]
pub struct ProviderError {
    message: String,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

impl ProviderError {
    /// A failure; `message` says what and what to do.
    pub fn new(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            source: None,
        }
    }

    /// The same with the error that caused it.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// The sandbox's error behind it, where it is one.
    #[must_use]
    pub fn sandbox_error(&self) -> Option<&SandboxError> {
        self.source.as_deref()?.downcast_ref()
    }
}

impl fmt::Display for ProviderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl StdError for ProviderError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}

impl From<SandboxError> for ProviderError {
    fn from(error: SandboxError) -> Self {
        Self {
            message: error.to_string(),
            source: Some(Box::new(error)),
        }
    }
}
