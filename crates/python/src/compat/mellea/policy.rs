//! Mellea's policies, and their translation.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use cantle_core::policy::{Network, Policy, ReadRoots};
use cantle_core::secret::SecretText;

use super::MelleaError;

/// The permissions and limits of code: Mellea's fields, all of which are enforced on the tier `local`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is an independent field of Mellea's"
)]
#[expect(
    clippy::exhaustive_structs,
    reason = "callers set fields over a default, as Mellea's do with keyword arguments"
)]
pub struct CapabilityPolicy {
    /// Paths of the host that code may read besides the system's; `None` for the system's alone.
    pub filesystem_read_roots: Option<Vec<PathBuf>>,
    /// Paths of the host that code may write besides its working directory.
    pub filesystem_write_roots: Option<Vec<PathBuf>>,
    /// Whether code has a network.
    pub network_access: bool,
    /// Whether packages may be provisioned.
    pub package_installation: bool,
    /// Whether code may start programs.
    pub subprocess_execution: bool,
    /// Whether code gets the variables in [`environment`](Self::environment).
    pub env_var_access: bool,
    /// The variables that code may get; nothing is inherited.
    pub environment: BTreeMap<String, SecretText>,
    /// The time limit of a call.
    pub timeout: Duration,
    /// Maximum bytes of standard output in a result.
    pub stdout_max_bytes: Option<usize>,
    /// Maximum bytes of standard error in a result.
    pub stderr_max_bytes: Option<usize>,
    /// Paths in a container that are copied out after a successful call.
    pub artifact_export_paths: Vec<String>,
    /// Specifiers of packages.
    pub packages: Vec<String>,
}

impl Default for CapabilityPolicy {
    fn default() -> Self {
        Self {
            filesystem_read_roots: None,
            filesystem_write_roots: None,
            network_access: false,
            package_installation: false,
            subprocess_execution: false,
            env_var_access: true,
            environment: BTreeMap::new(),
            timeout: Duration::from_secs(30),
            stdout_max_bytes: None,
            stderr_max_bytes: None,
            artifact_export_paths: Vec::new(),
            packages: Vec::new(),
        }
    }
}

impl CapabilityPolicy {
    /// The fields, by name.
    const FIELDS: [&'static str; 11] = [
        "filesystem_read_roots",
        "filesystem_write_roots",
        "network_access",
        "package_installation",
        "subprocess_execution",
        "env_var_access",
        "timeout",
        "stdout_max_bytes",
        "stderr_max_bytes",
        "artifact_export_paths",
        "packages",
    ];

    /// Returns `LOCAL_POLICY`.
    pub fn local() -> Self {
        Self {
            subprocess_execution: true,
            ..Self::default()
        }
    }

    /// Returns `DOCKER_POLICY`.
    pub fn docker() -> Self {
        Self {
            package_installation: true,
            subprocess_execution: true,
            timeout: Duration::from_secs(60),
            ..Self::default()
        }
    }

    /// Returns the fields that are enforced on the tier `local`: all of them.
    pub fn enforced_capabilities() -> &'static [&'static str] {
        &Self::FIELDS
    }

    /// Returns the fields that are not enforced on the tier `local`: none.
    pub fn unenforced_capabilities() -> &'static [&'static str] {
        &[]
    }

    /// Returns the flags that are off, as Mellea's warning lists them.
    pub(super) fn denied(&self) -> Vec<String> {
        let flags = [
            ("network_access", self.network_access),
            ("package_installation", self.package_installation),
            ("subprocess_execution", self.subprocess_execution),
            ("env_var_access", self.env_var_access),
        ];
        let denied = flags.into_iter().filter(|(_, allowed)| !allowed);
        denied.map(|(name, _)| format!("{name}=False")).collect()
    }

    /// Returns the policy for a sandbox whose code also works in `directory` of the host.
    pub(super) fn for_sandbox(&self, directory: Option<&PathBuf>) -> Policy {
        let mut policy = Policy::workspace();
        let read = self.filesystem_read_roots.clone().unwrap_or_default();
        policy.read_roots = Some(ReadRoots::system().with_paths(read));
        let mut write = self.filesystem_write_roots.clone().unwrap_or_default();
        write.extend(directory.cloned());
        policy.write_roots = Some(write);
        policy.network = (!self.network_access).then_some(Network::Off);
        policy.subprocesses = (!self.subprocess_execution).then_some(false);
        if self.env_var_access {
            policy.environment.clone_from(&self.environment);
        }
        policy
    }
}

/// Checks specifiers of packages.
///
/// # Errors
/// If one is empty or looks like a flag of the installer.
pub fn validate_package_names(packages: &[String]) -> Result<(), MelleaError> {
    for package in packages {
        if package.trim().is_empty() {
            return Err(MelleaError::Value(
                "Package specifiers must be non-empty strings.".to_owned(),
            ));
        }
        if package.trim_start().starts_with('-') {
            return Err(MelleaError::Value(format!(
                "Package specifiers must not be flag-style arguments: '{package}'."
            )));
        }
    }
    Ok(())
}
