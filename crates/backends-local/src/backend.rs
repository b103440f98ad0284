//! The configuration that opens sandboxes.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use cantle_core::sandbox::{Backend, Sandbox, SandboxContext, SandboxError, SandboxHandle};

use crate::handle::kept_directory;
use crate::mechanism::Mechanism;
use crate::settings::LocalSettings;

/// Opens sandboxes on this machine: a private directory, and processes confined by the kernel.
///
/// See the [crate's documentation](crate) for the guarantees.
#[must_use]
#[derive(Clone, Debug, Default)]
pub struct LocalBackend {
    pub(crate) settings: LocalSettings,
}

/// The result of [`LocalBackend::reclaim`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Reclaimed {
    /// Removed directories and control groups.
    pub removed: Vec<PathBuf>,
    /// Those that could not be removed completely, with the reason.
    pub failed: Vec<(PathBuf, String)>,
}

impl LocalBackend {
    /// Creates a backend with directories below `$TMPDIR` and the first bash in the host's `PATH`.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the limits of confined sandboxes whose policy names none.
    ///
    /// They protect this machine: they are enforced as far as that is possible, and listed as defaults in
    /// the sandbox's report. [`Limits::set`](cantle_core::policy::Limits::set) with `none` switches one off.
    pub fn default_limits(&self) -> cantle_core::policy::Limits {
        #[cfg(confined)]
        return self.settings.defaults.limits().clone();
        #[cfg(not(confined))]
        return cantle_core::policy::Limits::default();
    }

    /// Sets the directory that contains the sandboxes' directories; it must exist.
    pub fn in_directory(mut self, parent: impl Into<PathBuf>) -> Self {
        self.settings.parent = Some(parent.into());
        self
    }

    /// Sets the bash to use instead of the first one in `PATH`.
    pub fn with_shell(mut self, shell: impl Into<PathBuf>) -> Self {
        self.settings.shell = Some(shell.into());
        self
    }

    /// Sets the `PATH` in which bash is searched and which commands get, instead of the host's.
    pub fn with_path(mut self, search_path: impl Into<OsString>) -> Self {
        self.settings.search_path = Some(search_path.into());
        self
    }

    /// Sets the path of the working directory inside the sandbox, by default `/workspace`, or `/cantle-workspace` if
    /// the policy has a root there: absolute, without symbolic links and `..`, and neither below private directories
    /// (`/tmp`, `/dev`, `/proc`) nor below system directories (`/usr`). No root of the policy can take its place.
    ///
    /// Takes effect only with namespaces. Without them commands see the directory at its path on the host,
    /// as [`SandboxInfo::working_directory`] says.
    ///
    /// [`SandboxInfo::working_directory`]: cantle_core::sandbox::SandboxInfo::working_directory
    pub fn workspace_at(mut self, path: impl Into<PathBuf>) -> Self {
        self.settings.workspace = Some(path.into());
        self
    }

    /// Disables a mechanism, as on a machine that lacks it: to see what it contributes, and what is left
    /// without it. A field that it would have enforced is refused or reported like any other that can't be
    /// enforced.
    pub fn without(mut self, mechanism: Mechanism) -> Self {
        self.settings.mechanisms = self.settings.mechanisms.without(mechanism);
        self
    }

    /// Removes what killed owners left below this backend's directory: directories of sandboxes that are
    /// not in use, not [kept](Sandbox::persist) and have not changed for `grace` (a minute is plenty; it
    /// protects those just being created), and empty control groups. Directories of other users and with
    /// other names are left alone.
    ///
    /// Needs a tokio runtime.
    pub async fn reclaim(&self, grace: Duration) -> Reclaimed {
        self.reclaim_unless(None, grace).await
    }

    /// Like [`reclaim`](Self::reclaim), but also removes kept directories that none of these handles names.
    /// For a directory that this application alone uses: an owner killed right after keeping a sandbox may
    /// never have stored its handle.
    ///
    /// Needs a tokio runtime.
    pub async fn reclaim_all_but(&self, keep: &[SandboxHandle], grace: Duration) -> Reclaimed {
        let names = keep.iter().filter_map(|handle| {
            let directory = kept_directory(handle).ok()?;
            directory.file_name().map(OsStr::to_owned)
        });
        self.reclaim_unless(Some(names.collect()), grace).await
    }

    async fn reclaim_unless(&self, keep: Option<HashSet<OsString>>, grace: Duration) -> Reclaimed {
        let parent = self.settings.parent_directory();
        let work = move || {
            let mut reclaimed = Reclaimed {
                #[cfg(confined)]
                removed: crate::groups::reclaim(grace),
                #[cfg(not(confined))]
                removed: Vec::new(),
                failed: Vec::new(),
            };
            let Reclaimed { removed, failed } = &mut reclaimed;
            crate::files::reclaim(&parent, keep.as_ref(), grace, removed, failed);
            Ok(reclaimed)
        };
        crate::blocking::run(work).await.unwrap_or_default()
    }

    async fn open_at(
        &self,
        kept: Option<PathBuf>,
        cx: SandboxContext,
    ) -> Result<Arc<dyn Sandbox>, SandboxError> {
        let settings = self.settings.clone();
        let opened =
            crate::blocking::run(move || crate::open::open(&settings, &cx, kept.as_deref()));
        Ok(Arc::new(opened.await?))
    }
}

#[async_trait]
impl Backend for LocalBackend {
    fn name(&self) -> &str {
        "local"
    }

    async fn open(&self, cx: SandboxContext) -> Result<Arc<dyn Sandbox>, SandboxError> {
        self.open_at(None, cx).await
    }

    async fn reattach(
        &self,
        handle: &SandboxHandle,
        cx: SandboxContext,
    ) -> Result<Arc<dyn Sandbox>, SandboxError> {
        let directory = kept_directory(handle)?;
        self.open_at(Some(directory), cx).await
    }
}
