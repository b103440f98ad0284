//! The medium of a sandbox's files.

use cantle_core::policy::{Limits, Policy};

use crate::files::Root;
use crate::mechanism::{Mechanism, Mechanisms};
use crate::mode::Mode;

/// The medium of a sandbox's files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Storage {
    /// The directory on this machine; usage is measured.
    Directory,
    /// A file system in memory, of the limits' size.
    Memory,
    /// A file system in a [disk image](crate::files), of the limits' size.
    Image,
}

impl Storage {
    /// Returns the ways to open a sandbox that may suit a policy, the best one first. A file system takes namespaces.
    ///
    /// `memory_bytes` is the memory that sandboxes have by default. The files of a kept sandbox stay where they are.
    pub(crate) fn candidates(
        root: &Root,
        policy: &Policy,
        mechanisms: Mechanisms,
        is_durable: bool,
        is_kept: bool,
        memory_bytes: Option<u64>,
    ) -> Vec<(Mode, Self)> {
        let modes = Mode::candidates(policy, mechanisms).into_iter();
        if root.has_image() {
            let modes = modes.filter(|mode| *mode == Mode::Namespaces);
            return modes.map(|mode| (mode, Self::Image)).collect();
        }
        let limits = &policy.limits;
        let media: &[Self] = if !is_durable && fits_in_memory(limits, memory_bytes) {
            &[Self::Memory]
        } else if limits.disk_bytes.is_some()
            && !is_kept
            && rustix::process::geteuid().is_root()
            && mechanisms.include(Mechanism::DiskImages)
        {
            &[Self::Image, Self::Directory]
        } else {
            &[Self::Directory]
        };
        let in_mode = |mode| match mode {
            Mode::Namespaces => media,
            Mode::Landlock | Mode::Open => &[Self::Directory],
        };
        modes
            .flat_map(|mode| in_mode(mode).iter().map(move |storage| (mode, *storage)))
            .collect()
    }
}

/// Whether the policy limits the size or number of all files, and they would fit into the memory.
fn fits_in_memory(limits: &Limits, memory_bytes: Option<u64>) -> bool {
    let memory_bytes = limits.memory_bytes.or(memory_bytes).unwrap_or(u64::MAX);
    match limits.disk_bytes {
        Some(bytes) => bytes <= memory_bytes,
        None => limits.inodes.is_some(),
    }
}
