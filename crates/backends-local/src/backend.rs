//! The configuration from which sandboxes are opened.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
#[cfg(target_os = "linux")]
use cantle_core::policy::Network;
use cantle_core::sandbox::{Backend, Sandbox, SandboxContext, SandboxError};

#[cfg(target_os = "linux")]
use crate::proxy::{Proxy, Settings};

/// Opens sandboxes on this machine: a private directory, and processes behind the kernel's walls.
///
/// See the [crate's documentation](crate) for what that means.
#[derive(Clone, Debug, Default)]
pub struct LocalBackend {
    parent: Option<PathBuf>,
    shell: Option<PathBuf>,
    search_path: Option<OsString>,
    walls: Walls,
}

/// One of the kernel's means to confine code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Wall {
    /// Namespaces: files, processes, network and users of the sandbox's own.
    Namespaces,
    /// Landlock: rules for files, signals and sockets.
    Landlock,
    /// A filter for system calls (seccomp).
    SystemCalls,
    /// Another user than root, where our process is root's.
    Identity,
    /// Control groups: limits for all processes together, where our process may make them.
    ControlGroups,
}

/// The walls that may be used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Walls {
    without: u8,
}

impl Walls {
    fn without(self, wall: Wall) -> Self {
        Self {
            without: self.without | 1 << wall as u8,
        }
    }

    pub(crate) fn include(self, wall: Wall) -> bool {
        self.without & 1 << wall as u8 == 0
    }
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

    /// The same without one of the walls, as on a machine that doesn't have it: to see what it
    /// contributes, and what is left where it is missing. What it would have enforced is refused or
    /// reported like anything else that can't be enforced.
    #[must_use]
    pub fn without(mut self, wall: Wall) -> Self {
        self.walls = self.walls.without(wall);
        self
    }

    pub(crate) fn walls(&self) -> Walls {
        self.walls
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
        let hosts = match &cx.policy.network {
            Some(Network::Hosts(hosts)) => hosts.clone(),
            _ => Vec::new(),
        };
        let opened = crate::blocking::run(move || crate::open::open(&backend, &cx));
        let (sandbox, listener) = opened.await?;
        if let Some(listener) = listener {
            let proxy = Proxy::start(listener, Settings::new(hosts))
                .map_err(|error| SandboxError::io("failed to start the proxy", error))?;
            sandbox.serve(proxy);
        }
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
