//! The surroundings of servers: what the program that starts them has for them.

use std::path::PathBuf;
use std::sync::Arc;

use cantle_core::policy::{Access, Policy};
use cantle_core::sandbox::Backend;

use crate::package::PackageInstaller;

/// The program that starts servers, as far as it matters to them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Surroundings {
    pub(crate) sandboxes: Option<Arc<dyn Backend>>,
    pub(crate) host: Option<Arc<dyn Backend>>,
    /// Installs the packages of servers in sandboxes.
    pub(crate) packages: Option<Arc<dyn PackageInstaller>>,
    pub(crate) workspace: Option<Workspace>,
    /// Whether the model is shown images.
    pub(crate) images: bool,
    /// Whether no tool is called.
    pub(crate) offline: bool,
}

/// The directory of the host that servers may see, and what is protected in it.
#[derive(Clone, Debug)]
pub(crate) struct Workspace {
    pub(crate) directory: PathBuf,
    pub(crate) read_only: Vec<PathBuf>,
    pub(crate) hidden: Vec<PathBuf>,
}

impl Workspace {
    /// Gives the policy of a server this access to it.
    pub(crate) fn add_to(&self, policy: &mut Policy, access: Access) {
        let read = policy.read_roots.get_or_insert_default();
        match access {
            Access::ReadWrite => {
                read.paths.extend_from_slice(&self.read_only);
                let written = policy.write_roots.get_or_insert_default();
                written.push(self.directory.clone());
            }
            _ => read.paths.push(self.directory.clone()),
        }
        policy.hidden_paths.extend_from_slice(&self.hidden);
    }
}
