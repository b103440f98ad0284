//! What commands may do with files, as Landlock enforces it.
//!
//! Where they have a view of their own this is a second wall; where they see the host's files it is
//! the only one.

use std::ffi::CString;
use std::fs;
use std::path::Path;

use cantle_core::policy::{Access, Policy};
use cantle_core::sandbox::SandboxError;

use super::steps::c_path;
use super::view::{TEMPORARY, canonical, system_roots};
use crate::files::Places;

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
/// What means something for a file that is no directory.
const OF_FILES: u64 = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | DEVICE_CONTROL;

/// What is allowed, path by path.
pub(super) type Rules = Vec<(CString, u64)>;

/// The rules inside a view: the mounts say what can be written, this says it again.
pub(super) fn in_view(policy: &Policy, workspace: &Path) -> Result<Rules, SandboxError> {
    let mut rules = vec![
        (c"/".to_owned(), READ),
        (c"/dev".to_owned(), DEVICE),
        (c"/dev/shm".to_owned(), WRITE),
    ];
    own_directories(&mut rules, policy, workspace, Path::new(TEMPORARY))?;
    for path in policy.write_roots.iter().flatten() {
        rules.push(rule(path, path, WRITE)?);
    }
    Ok(rules)
}

/// The rules on the host's own files.
pub(super) fn on_host(policy: &Policy, places: &Places) -> Result<Rules, SandboxError> {
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
            // What programs ask about themselves; the environment and the memory of others'
            // processes Landlock keeps from them.
            rules.push((c"/proc".to_owned(), READ_FILE | READ_DIRECTORY));
        }
    }
    match &policy.write_roots {
        // Who may write may read: where reading is restricted, writing is.
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
    // A terminal that the command was given, and no other one.
    rules.push((c"/dev/tty".to_owned(), DEVICE & OF_FILES));
    own_directories(&mut rules, policy, &places.work(), &places.temporary())?;
    Ok(rules)
}

fn own_directories(
    rules: &mut Rules,
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

/// Allows `access` to `seen`, which on the host is `path`.
fn rule(path: &Path, seen: &Path, access: u64) -> Result<(CString, u64), SandboxError> {
    let is_directory = fs::metadata(path).is_ok_and(|found| found.is_dir());
    let meant = if is_directory { ALL } else { OF_FILES };
    Ok((c_path(seen)?, access & meant))
}
