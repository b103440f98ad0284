//! Providers of tools that need resources.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use auto_impl::auto_impl;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::{DynTool, Requirements};
use crate::ids::RunId;
use crate::principal::Principal;
use crate::progress::{NoProgress, Progress};
use crate::sandbox::{Sandbox, SandboxError, SandboxHandle};

/// Immutable, shared configuration that opens a [`ToolSet`] for each session.
#[async_trait]
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a tool provider",
    note = "implement `ToolProvider` from `cantle_core::tool`; a single tool needs none, see `DynTool`"
)]
#[auto_impl(Arc, Box)]
pub trait ToolProvider: fmt::Debug + Send + Sync {
    /// The provider's name in errors and warnings.
    fn name(&self) -> &str;

    /// Whether its tool sets have a [sandbox](ToolSet::sandbox). A session has at most one such
    /// provider and opens it first, so that the sandbox is in the [`OpenContext`] of the others.
    fn provides_sandbox(&self) -> bool;

    /// The configuration that determines what its tools do, without secrets; `null` if there is none.
    /// A run can only be resumed with providers of the same identity.
    fn identity(&self) -> Value;

    /// Returns the needs of its tools, for the session's sandbox, which opens later. A session passes those of all its
    /// providers to the one that opens the sandbox.
    fn requirements(&self) -> Requirements;

    /// Opens the resources and creates the tools. Dropping the future, e.g. at a deadline, must release
    /// what is already open.
    ///
    /// # Errors
    /// If a resource can't be opened.
    async fn open(&self, cx: OpenContext) -> Result<Box<dyn ToolSet>, ProviderError>;
}

/// The tools of one session and the resources they need.
#[async_trait]
pub trait ToolSet: Send + Sync {
    /// The tools.
    fn tools(&self) -> Vec<DynTool>;

    /// The sandbox, if this set opened one.
    fn sandbox(&self) -> Option<Arc<dyn Sandbox>>;

    /// Releases all resources. Called once, after the last tool call ended.
    ///
    /// # Errors
    /// If a resource could not be released; the message names what may be left behind.
    async fn close(self: Box<Self>) -> Result<(), ProviderError>;

    /// Releases the resources of a run that will be resumed, except those that outlive this process,
    /// such as a [persisted](Sandbox::persist) sandbox.
    ///
    /// # Errors
    /// As [`close`](Self::close).
    async fn suspend(self: Box<Self>) -> Result<(), ProviderError>;
}

/// By hand: `auto_impl` does not forward methods that consume.
#[async_trait]
impl<T: ToolSet + ?Sized> ToolSet for Box<T> {
    fn tools(&self) -> Vec<DynTool> {
        (**self).tools()
    }

    fn sandbox(&self) -> Option<Arc<dyn Sandbox>> {
        (**self).sandbox()
    }

    async fn close(self: Box<Self>) -> Result<(), ProviderError> {
        (*self).close().await
    }

    async fn suspend(self: Box<Self>) -> Result<(), ProviderError> {
        (*self).suspend().await
    }
}

/// Returns a set of tools without a sandbox. `close` releases their resources, also those of a run that will be resumed.
pub fn tool_set<C, F>(tools: Vec<DynTool>, close: C) -> Box<dyn ToolSet>
where
    C: FnOnce() -> F + Send + Sync + 'static,
    F: Future<Output = Result<(), ProviderError>> + Send + 'static,
{
    Box::new(PlainToolSet { tools, close })
}

struct PlainToolSet<C> {
    tools: Vec<DynTool>,
    close: C,
}

#[async_trait]
impl<C, F> ToolSet for PlainToolSet<C>
where
    C: FnOnce() -> F + Send + Sync + 'static,
    F: Future<Output = Result<(), ProviderError>> + Send + 'static,
{
    fn tools(&self) -> Vec<DynTool> {
        self.tools.clone()
    }

    fn sandbox(&self) -> Option<Arc<dyn Sandbox>> {
        None
    }

    async fn close(self: Box<Self>) -> Result<(), ProviderError> {
        (self.close)().await
    }

    async fn suspend(self: Box<Self>) -> Result<(), ProviderError> {
        self.close().await
    }
}

/// Arguments of [`ToolProvider::open`].
#[derive(Clone)]
#[non_exhaustive]
pub struct OpenContext {
    /// The run that the resources belong to; used in labels and directory names.
    pub run: RunId,
    /// The principal on whose behalf the session is opened, if the program has set one.
    pub principal: Option<Principal>,
    /// Cancelled when the session is abandoned.
    pub cancellation: CancellationToken,
    /// The session's sandbox, if one is open already.
    pub sandbox: Option<Arc<dyn Sandbox>>,
    /// The needs of all providers of the session, for its sandbox. A provider that opens one
    /// [adds](Requirements::add_to) them to its policy.
    pub requirements: Requirements,
    /// Whether runs of this session may be resumed by another process, so that sandboxes must be
    /// [durable](crate::sandbox::SandboxContext::durable).
    pub durable: bool,
    /// A persisted sandbox to reopen instead of opening a new one.
    pub reattach: Option<SandboxHandle>,
    /// Receives a line for each slow step, such as pulling an image.
    pub progress: Arc<dyn Progress>,
}

impl OpenContext {
    /// Creates a context without a sandbox.
    pub fn new(run: RunId) -> Self {
        Self {
            run,
            principal: None,
            cancellation: CancellationToken::new(),
            sandbox: None,
            requirements: Requirements::new(),
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

/// An error while a provider opened or closed.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct ProviderError(ProviderFailure);

#[derive(Debug, thiserror::Error)]
enum ProviderFailure {
    #[error(transparent)]
    Sandbox(SandboxError),
    #[error("{message}")]
    Provider {
        message: String,
        source: Option<Box<dyn StdError + Send + Sync>>,
    },
}

/// The kind of a [`ProviderError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ProviderErrorKind {
    /// A sandbox failed; [`ProviderError::sandbox_error`] returns its error.
    Sandbox,
    /// The provider itself, or what it opens, failed.
    Provider,
}

impl ProviderError {
    /// Creates an error; `message` states the failure and what to do.
    pub fn new(message: impl Into<String>) -> Self {
        Self(ProviderFailure::Provider {
            message: message.into(),
            source: None,
        })
    }

    /// Sets the cause.
    pub fn with_source(self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self(ProviderFailure::Provider {
            message: self.to_string(),
            source: Some(source.into()),
        })
    }

    /// Returns the kind of error.
    pub fn kind(&self) -> ProviderErrorKind {
        match self.sandbox_error() {
            Some(_) => ProviderErrorKind::Sandbox,
            None => ProviderErrorKind::Provider,
        }
    }

    /// Returns the sandbox's error, if it is this error or its cause.
    pub fn sandbox_error(&self) -> Option<&SandboxError> {
        match &self.0 {
            ProviderFailure::Sandbox(error) => Some(error),
            ProviderFailure::Provider { source, .. } => source.as_deref()?.downcast_ref(),
        }
    }
}

impl From<SandboxError> for ProviderError {
    fn from(error: SandboxError) -> Self {
        Self(ProviderFailure::Sandbox(error))
    }
}
