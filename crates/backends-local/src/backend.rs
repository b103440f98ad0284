//! The configuration from which sandboxes are opened.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use cantle_core::sandbox::{Backend, Sandbox, SandboxContext, SandboxError};

/// Opens sandboxes on this machine: a private directory and ordinary processes, without isolation.
///
/// See the [crate's documentation](crate) for what that means.
#[derive(Clone, Debug, Default)]
pub struct LocalBackend {
    parent: Option<PathBuf>,
    shell: Option<PathBuf>,
    search_path: Option<OsString>,
}

impl LocalBackend {
    /// Directories below the system's temporary directory (`$TMPDIR`), bash from the host's `PATH`.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The same with the sandboxes' directories below `parent`, which must exist.
    #[must_use]
    pub fn in_directory(mut self, parent: impl Into<PathBuf>) -> Self {
        self.parent = Some(parent.into());
        self
    }

    /// The same with this bash instead of the first one in `PATH`.
    #[must_use]
    pub fn with_shell(mut self, shell: impl Into<PathBuf>) -> Self {
        self.shell = Some(shell.into());
        self
    }

    /// The same with another `PATH` than the host's, to find bash and for commands.
    #[must_use]
    pub fn with_path(mut self, search_path: impl Into<OsString>) -> Self {
        self.search_path = Some(search_path.into());
        self
    }

    pub(crate) fn parent(&self) -> Option<&Path> {
        self.parent.as_deref()
    }

    pub(crate) fn shell(&self) -> Option<&Path> {
        self.shell.as_deref()
    }

    pub(crate) fn search_path(&self) -> Option<OsString> {
        self.search_path
            .clone()
            .or_else(|| std::env::var_os("PATH"))
    }
}

#[async_trait]
impl Backend for LocalBackend {
    fn name(&self) -> &str {
        "local"
    }

    #[cfg(target_os = "linux")]
    async fn open(&self, cx: SandboxContext) -> Result<Arc<dyn Sandbox>, SandboxError> {
        let backend = self.clone();
        let sandbox = crate::blocking::run(move || crate::sandbox::open(&backend, &cx)).await?;
        Ok(Arc::new(sandbox))
    }

    #[cfg(not(target_os = "linux"))]
    async fn open(&self, _: SandboxContext) -> Result<Arc<dyn Sandbox>, SandboxError> {
        use cantle_core::sandbox::SandboxErrorKind;

        let message = "the local backend works on Linux only";
        Err(SandboxError::new(SandboxErrorKind::Unavailable, message)
            .with_advice("Use a backend that runs commands in a container or on another machine."))
    }
}
