//! The settings of the local backend.

use std::ffi::OsString;
use std::path::PathBuf;

use crate::mechanism::Mechanisms;

/// The settings that sandboxes are opened with.
#[derive(Clone, Debug, Default)]
pub(crate) struct LocalSettings {
    /// The directory that contains the sandboxes' directories, if it was set.
    pub(crate) parent: Option<PathBuf>,
    pub(crate) shell: Option<PathBuf>,
    pub(crate) search_path: Option<OsString>,
    /// The path of the working directory inside sandboxes, if it was set.
    pub(crate) workspace: Option<PathBuf>,
    pub(crate) mechanisms: Mechanisms,
    #[cfg(confined)]
    pub(crate) defaults: std::sync::Arc<crate::groups::Defaults>,
    #[cfg(confined)]
    pub(crate) notices: std::sync::Arc<crate::notices::Notices>,
}

impl LocalSettings {
    /// Returns the directory that contains the sandboxes' directories.
    pub(crate) fn parent_directory(&self) -> PathBuf {
        self.parent.clone().unwrap_or_else(std::env::temp_dir)
    }

    pub(crate) fn search_path(&self) -> Option<OsString> {
        self.search_path
            .clone()
            .or_else(|| std::env::var_os("PATH"))
    }
}
