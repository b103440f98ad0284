//! Write roots whose files belong to another user than the one that runs commands.

use std::ffi::CString;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;

use cantle_core::sandbox::SandboxError;
use cantle_supervisor::wire::{MAX_MAPPED, MappedDirectory};

use super::steps::c_path;
use crate::identity::Identity;

/// A write root whose owner is, to commands, the user that runs them: it can change its files, and new files are its
/// owner's.
#[derive(Debug)]
pub(super) struct MappedRoot {
    pub(super) path: PathBuf,
    host_path: CString,
    uid_map: CString,
    gid_map: CString,
}

impl MappedRoot {
    /// Returns those of the canonical write roots to map: those of other users, where root runs commands as another user.
    pub(super) fn of(
        write_roots: Vec<PathBuf>,
        identity: Identity,
    ) -> Result<Vec<Self>, SandboxError> {
        let mut mapped = Vec::new();
        if !identity.is_other {
            return Ok(mapped);
        }
        for path in write_roots {
            let owner = fs::metadata(&path).map_err(|error| {
                SandboxError::io(format!("failed to look at {}", path.display()), error)
            })?;
            if owner.uid() == identity.uid || mapped.len() == MAX_MAPPED {
                continue;
            }
            let map = |of_files: u32, seen: u32| {
                CString::new(format!("{of_files} {seen} 1\n")).unwrap_or_default()
            };
            mapped.push(Self {
                host_path: c_path(&path)?,
                uid_map: map(owner.uid(), identity.uid),
                gid_map: map(owner.gid(), identity.gid),
                path,
            });
        }
        Ok(mapped)
    }

    /// Returns it for the supervisor.
    pub(super) fn for_guard(&self) -> MappedDirectory<'_> {
        MappedDirectory {
            path: &self.host_path,
            uid_map: &self.uid_map,
            gid_map: &self.gid_map,
        }
    }
}
