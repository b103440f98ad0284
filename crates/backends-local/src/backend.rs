//! The configuration from which sandboxes are opened.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use cantle_core::sandbox::{Backend, Sandbox, SandboxContext, SandboxError, SandboxHandle};

use crate::files::Wanted;
use crate::open::Place;
use crate::sandbox::kept_at;

/// Opens sandboxes on this machine: a private directory, and processes behind the kernel's walls.
///
/// See the [crate's documentation](crate) for what that means.
#[derive(Clone, Debug, Default)]
pub struct LocalBackend {
    parent: Option<PathBuf>,
    shell: Option<PathBuf>,
    search_path: Option<OsString>,
    workspace: Option<PathBuf>,
    walls: Walls,
}

/// What [`LocalBackend::reclaim`] has done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Reclaimed {
    /// What was removed: directories, and control groups.
    pub removed: Vec<PathBuf>,
    /// What could not be, or not whole, and why.
    pub failed: Vec<(PathBuf, String)>,
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

    #[cfg(confined)]
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

    /// The same with the working directory seen at `path` instead of `/workspace`: absolute, without
    /// links and `..`, and not below what the sandbox has of its own (`/tmp`, `/dev`, `/proc`) or shows of
    /// the host (`/usr`).
    ///
    /// Only where commands have a view of files of their own, which takes namespaces; elsewhere they see
    /// the directory where it is, as [`SandboxInfo::working_directory`] says.
    ///
    /// [`SandboxInfo::working_directory`]: cantle_core::sandbox::SandboxInfo::working_directory
    #[must_use]
    pub fn workspace_at(mut self, path: impl Into<PathBuf>) -> Self {
        self.workspace = Some(path.into());
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

    /// Removes what owners left below this backend's directory who were killed and so could not:
    /// sandboxes' directories that nobody uses, that are not [kept](Sandbox::persist) and that
    /// haven't changed for `grace` (a minute is plenty; it is for those just being made), and empty
    /// control groups. Others' are left alone, and so is whatever is not called like ours.
    ///
    /// Needs a tokio runtime.
    pub async fn reclaim(&self, grace: Duration) -> Reclaimed {
        self.reclaim_unless(Wanted::Kept, grace).await
    }

    /// The same, and removes of what is kept everything that none of these handles names. For a
    /// directory with nobody else's sandboxes in it: who was killed just when it had kept one may never
    /// have written down where.
    ///
    /// Needs a tokio runtime.
    pub async fn reclaim_all_but(&self, wanted: &[SandboxHandle], grace: Duration) -> Reclaimed {
        let names = wanted.iter().filter_map(|handle| {
            let directory = kept_at(handle).ok()?;
            directory.file_name().map(OsStr::to_owned)
        });
        let wanted = Wanted::Named(names.collect());
        self.reclaim_unless(wanted, grace).await
    }

    async fn reclaim_unless(&self, wanted: Wanted, grace: Duration) -> Reclaimed {
        let place = self.place();
        let work = move || {
            let mut reclaimed = Reclaimed {
                #[cfg(confined)]
                removed: crate::groups::reclaim(grace),
                #[cfg(not(confined))]
                removed: Vec::new(),
                failed: Vec::new(),
            };
            let Reclaimed { removed, failed } = &mut reclaimed;
            crate::files::reclaim(&place, &wanted, grace, removed, failed);
            Ok(reclaimed)
        };
        crate::blocking::run(work).await.unwrap_or_default()
    }

    async fn open_at(
        &self,
        place: Place,
        cx: SandboxContext,
    ) -> Result<Arc<dyn Sandbox>, SandboxError> {
        let backend = self.clone();
        let opened = crate::blocking::run(move || crate::open::open(&backend, &cx, &place));
        Ok(Arc::new(opened.await?))
    }

    #[cfg(confined)]
    pub(crate) fn walls(&self) -> Walls {
        self.walls
    }

    /// Below which sandboxes have their directories.
    pub(crate) fn place(&self) -> PathBuf {
        self.parent.clone().unwrap_or_else(std::env::temp_dir)
    }

    /// Where commands see their working directory, where that is to be another place than usual.
    #[cfg(confined)]
    pub(crate) fn workspace(&self) -> Option<&Path> {
        self.workspace.as_deref()
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

    async fn open(&self, cx: SandboxContext) -> Result<Arc<dyn Sandbox>, SandboxError> {
        self.open_at(Place::New, cx).await
    }

    async fn reattach(
        &self,
        handle: &SandboxHandle,
        cx: SandboxContext,
    ) -> Result<Arc<dyn Sandbox>, SandboxError> {
        let directory = kept_at(handle)?;
        self.open_at(Place::Kept(directory), cx).await
    }
}
