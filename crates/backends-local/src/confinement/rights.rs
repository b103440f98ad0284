//! File access rights, enforced by Landlock.
//!
//! In a private view they back up the mounts; among the host's files they are the only restriction.

use std::ffi::CString;
use std::fs;
use std::path::Path;

use cantle_core::policy::{Access, Policy};
use cantle_core::sandbox::SandboxError;

use super::steps::c_path;
use super::view::{TEMPORARY, canonical, system_roots, targets};
use crate::files::HostPaths;

const EXECUTE: u64 = 1;
const WRITE_FILE: u64 = 1 << 1;
const READ_FILE: u64 = 1 << 2;
const READ_DIRECTORY: u64 = 1 << 3;
const MAKE_CHARACTER_DEVICE: u64 = 1 << 6;
const MAKE_BLOCK_DEVICE: u64 = 1 << 11;
const TRUNCATE: u64 = 1 << 14;
const DEVICE_CONTROL: u64 = 1 << 15;
const ALL: u64 = (1 << 17) - 1;

const READ: u64 = EXECUTE | READ_FILE | READ_DIRECTORY;
const WRITE: u64 = ALL & !(MAKE_CHARACTER_DEVICE | MAKE_BLOCK_DEVICE);
const DEVICE: u64 = READ_FILE | WRITE_FILE | READ_DIRECTORY | TRUNCATE | DEVICE_CONTROL;
/// The rights that apply to a file that is not a directory.
const OF_FILES: u64 = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | DEVICE_CONTROL;

/// Paths and the rights below them.
pub(super) type AccessRules = Vec<(CString, u64)>;

/// Returns the rules inside a private view.
pub(super) fn in_view(policy: &Policy, workspace: &Path) -> Result<AccessRules, SandboxError> {
    let mut rules = vec![
        (c"/".to_owned(), READ),
        (c"/dev".to_owned(), DEVICE),
        (c"/dev/shm".to_owned(), WRITE),
    ];
    own_directories(&mut rules, policy, workspace, Path::new(TEMPORARY))?;
    // The name in the policy may be a link that is not in the view.
    for path in targets(policy.write_roots.as_deref().unwrap_or_default())? {
        rules.push(rule(&path, &path, WRITE)?);
    }
    Ok(rules)
}

/// Returns the rules for the host's files.
pub(super) fn on_host(policy: &Policy, paths: &HostPaths) -> Result<AccessRules, SandboxError> {
    let mut rules = Vec::new();
    match &policy.read_roots {
        None => rules.push((c"/".to_owned(), READ)),
        Some(roots) => {
            if roots.system {
                for path in system_roots() {
                    rules.push(rule(path, path, READ)?);
                }
            }
            for path in &roots.paths {
                rules.push(rule(&canonical(path)?, path, READ)?);
            }
            // For introspection. Landlock's ptrace rule protects the environment and the memory of
            // other processes.
            rules.push((c"/proc".to_owned(), READ_FILE | READ_DIRECTORY));
        }
    }
    match &policy.write_roots {
        // Write access includes read access: if reading is restricted, so is writing.
        None if policy.read_roots.is_some() => {}
        None => rules.push((c"/".to_owned(), WRITE)),
        Some(roots) => {
            for path in roots {
                rules.push(rule(&canonical(path)?, path, WRITE)?);
            }
        }
    }
    for device in [c"/dev/full", c"/dev/null", c"/dev/zero"] {
        rules.push((device.to_owned(), DEVICE & OF_FILES));
    }
    for device in [c"/dev/random", c"/dev/urandom"] {
        rules.push((device.to_owned(), READ_FILE | DEVICE_CONTROL));
    }
    // The terminal that the command was given.
    rules.push((c"/dev/tty".to_owned(), DEVICE & OF_FILES));
    own_directories(&mut rules, policy, &paths.work(), &paths.temporary())?;
    Ok(rules)
}

fn own_directories(
    rules: &mut AccessRules,
    policy: &Policy,
    work: &Path,
    temporary: &Path,
) -> Result<(), SandboxError> {
    let access = match policy.working_directory {
        Access::ReadOnly => READ,
        _ => WRITE,
    };
    rules.push((c_path(work)?, access));
    rules.push((c_path(temporary)?, WRITE));
    Ok(())
}

/// Allows `access` to the path `seen` of the view, which is `path` on the host.
fn rule(path: &Path, seen: &Path, access: u64) -> Result<(CString, u64), SandboxError> {
    let is_directory = fs::metadata(path).is_ok_and(|found| found.is_dir());
    let applicable = if is_directory { ALL } else { OF_FILES };
    Ok((c_path(seen)?, access & applicable))
}
