//! Limits that protect this machine from a confined sandbox whose policy names none.
//!
//! The memory limit holds for all sandboxes of a backend together, in a control group that they share.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use cantle_core::ids::RunId;
use cantle_core::policy::{Limits, Policy};
use parking_lot::Mutex;

use super::{Group, Hierarchy, Version, hierarchies, value};
use crate::mode::is_confined;

const DISK_BYTES: u64 = 10 << 30;
const INODES: u64 = 1_000_000;
const OPEN_FILES: u64 = 65_536;

/// The defaults of a backend.
#[derive(Debug, Default)]
pub(crate) struct Defaults {
    limits: OnceLock<Limits>,
    pub(super) group: OnceLock<Option<(Hierarchy, Group)>>,
    /// Held while the group is created.
    pub(super) creating: Mutex<()>,
}

impl Defaults {
    pub(crate) fn limits(&self) -> &Limits {
        self.limits.get_or_init(|| {
            let mut limits = Limits::default();
            limits.memory_bytes = available_memory_bytes().map(|bytes| bytes / 4 * 3);
            limits.disk_bytes = Some(DISK_BYTES);
            limits.inodes = Some(INODES);
            limits.open_files = Some(OPEN_FILES);
            limits
        })
    }

    /// Returns the defaults that a policy leaves in force.
    pub(crate) fn under(&self, policy: &Policy) -> Limits {
        if !is_confined(policy) {
            return Limits::default();
        }
        let mut limits = self.limits().clone();
        if policy.limits.disk_bytes.or(policy.limits.inodes).is_some() {
            // The named one may have moved the files into memory, which has its own bounds.
            (limits.disk_bytes, limits.inodes) = (None, None);
        }
        limits
    }

    /// Returns the control group with the memory limit, or `None` if there can't be one.
    pub(crate) fn group(self: &Arc<Self>) -> Option<SharedGroup> {
        let group = self.group.get_or_init(|| {
            let bytes = self.limits().memory_bytes?;
            let mut all = hierarchies().into_iter();
            let hierarchy = all.find(|it| it.controllers.iter().any(|name| name == "memory"))?;
            // A name that `reclaim` recognizes.
            let name = format!("cantle-{}-shared", RunId::new());
            let group = Group::shared(&hierarchy, &name, bytes);
            Some((hierarchy, group))
        });
        let (hierarchy, group) = group.clone()?;
        // Another thread must not take a group without its limits, or one that is removed because they were refused.
        let _creating = self.creating.lock();
        match group.create() {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return None,
            _ => {}
        }
        Some(SharedGroup {
            hierarchy,
            group,
            defaults: Arc::clone(self),
        })
    }
}

impl Drop for Defaults {
    fn drop(&mut self) {
        if let Some(Some((_, group))) = self.group.get() {
            group.remove();
        }
    }
}

/// The control group of all sandboxes of a backend.
#[derive(Debug)]
pub(crate) struct SharedGroup {
    pub(crate) hierarchy: Hierarchy,
    pub(crate) group: Group,
    /// Removes the group when the last sandbox and the backend are gone.
    pub(super) defaults: Arc<Defaults>,
}

/// Returns the memory that this process may use.
fn available_memory_bytes() -> Option<u64> {
    let info = fs::read_to_string("/proc/meminfo").ok()?;
    let total = info.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kibibytes: u64 = total?.split_whitespace().next()?.parse().ok()?;
    let all = hierarchies();
    let limits = all.iter().filter_map(|hierarchy| {
        let read = |group: &Path, file| fs::read_to_string(group.join(file)).ok();
        match hierarchy.version {
            Version::One => {
                let text = read(&hierarchy.parent, "memory.stat")?;
                value(&text, "hierarchical_memory_limit")
            }
            Version::Two => {
                let groups = hierarchy.parent.ancestors();
                let groups = groups.take_while(|group| group.starts_with(&hierarchy.mount));
                groups
                    .filter_map(|group| read(group, "memory.max")?.trim().parse().ok())
                    .min()
            }
        }
    });
    limits.chain([kibibytes * 1024]).min()
}
