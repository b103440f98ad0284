//! What a backend was told about the containers it makes.

use std::path::PathBuf;

use cantle_core::sandbox::SandboxPath;

/// The settings of a backend, the same for all its containers.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) host: Option<String>,
    pub(crate) runtime: Option<String>,
    pub(crate) network: Option<String>,
    pub(crate) cpus: Option<f64>,
    pub(crate) read_only_root: bool,
    /// As whom commands run.
    pub(crate) user: (u32, u32),
    /// The same for the engine, or what a container that exists has.
    pub(crate) user_text: String,
    pub(crate) working_directory: SandboxPath,
    pub(crate) has_chosen_directory: bool,
    /// Names of variables that are passed on.
    pub(crate) passed: Vec<String>,
    pub(crate) environment_file: Option<PathBuf>,
    pub(crate) supervised: bool,
}
