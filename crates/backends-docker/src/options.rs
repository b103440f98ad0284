//! Settings of a backend.

use std::path::PathBuf;

use cantle_core::sandbox::SandboxPath;

/// The settings that all containers of a backend share.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) host: Option<String>,
    pub(crate) runtime: Option<String>,
    pub(crate) network: Option<String>,
    pub(crate) read_only_root: bool,
    /// User and group of commands.
    pub(crate) user: (u32, u32),
    /// The user as the engine takes it; for an existing container, its own.
    pub(crate) user_text: String,
    pub(crate) working_directory: SandboxPath,
    pub(crate) has_chosen_directory: bool,
    /// Names of environment variables that commands inherit.
    pub(crate) inherited: Vec<String>,
    pub(crate) environment_file: Option<PathBuf>,
    /// Whether to use the supervisor where it can run.
    pub(crate) supervised: bool,
}
