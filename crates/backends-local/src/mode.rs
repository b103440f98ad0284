//! How the commands of a sandbox are confined.

use cantle_core::policy::{Access, Policy};

use crate::mechanism::{Mechanism, Mechanisms};

/// How commands are confined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// By namespaces.
    Namespaces,
    /// By Landlock, among the host's files and processes.
    Landlock,
    /// Not at all.
    Open,
}

impl Mode {
    /// Returns the modes that may suit a policy, the best one first.
    pub(crate) fn candidates(policy: &Policy, mechanisms: Mechanisms) -> Vec<Self> {
        if !is_confined(policy) {
            return vec![Self::Open];
        }
        let mut modes = Vec::new();
        if has_view(policy) && mechanisms.include(Mechanism::Namespaces) {
            modes.push(Self::Namespaces);
        }
        if mechanisms.include(Mechanism::Landlock) {
            modes.push(Self::Landlock);
        }
        modes.push(Self::Open);
        modes
    }
}

/// Whether a policy demands confinement.
pub(crate) fn is_confined(policy: &Policy) -> bool {
    policy.read_roots.is_some()
        || policy.write_roots.is_some()
        || !policy.hidden_paths.is_empty()
        || policy.network.is_some()
        || policy.working_directory != Access::ReadWrite
        || policy.subprocesses == Some(false)
}

/// Whether a private view of the file system is possible. It is composed of the read and write roots, so not
/// if one of them is `/`.
fn has_view(policy: &Policy) -> bool {
    let read = policy.read_roots.iter().flat_map(|roots| &roots.paths);
    let written = policy.write_roots.iter().flatten();
    policy.read_roots.is_some() && read.chain(written).all(|path| path.parent().is_some())
}
