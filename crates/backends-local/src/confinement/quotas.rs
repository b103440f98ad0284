//! A sandbox's share of what the kernel counts for each user of the host, or for all of them together.

use std::ffi::{CStr, CString};
use std::fs;

use cantle_supervisor::wire::Step;
use rustix::process::{Resource, getrlimit};

use super::QUOTAS;
use super::steps::Steps;

/// Settings of a user namespace, see `namespaces(7)`, with those of the host that are shared by all of a
/// user's namespaces. Of the other resources there, commands can create none.
const SETTINGS: [(&CStr, &str); 2] = [
    (
        c"/proc/sys/user/max_inotify_instances",
        "/proc/sys/fs/inotify/max_user_instances",
    ),
    (
        c"/proc/sys/user/max_inotify_watches",
        "/proc/sys/fs/inotify/max_user_watches",
    ),
];

/// The number of sandboxes whose quotas together are what the user may have.
const SHARES: u64 = 8;

/// Adds the steps, which need the host's `/proc`. A container may have made it read-only.
pub(super) fn build(steps: &mut Steps) {
    for (path, shared) in SETTINGS {
        let shared = fs::read_to_string(shared).unwrap_or_default();
        if let Ok(shared) = shared.trim().parse::<u64>() {
            let content = CString::new((shared / SHARES).to_string()).unwrap_or_default();
            let step = Step::WriteFile {
                path,
                content: &content,
            };
            steps.add_optional(QUOTAS, &step);
        }
    }
}

/// Returns a sandbox's share of a resource of this process's user, which each process of the sandbox gets as its limit.
pub(super) fn share(resource: Resource) -> Option<u64> {
    let shared = getrlimit(resource).maximum;
    shared.map(|shared| shared / SHARES)
}

/// Returns the mount options of a sandbox's terminals. The kernel limits those of all mounts together, and reserves some
/// for the host.
pub(super) fn terminals() -> CString {
    let read = |path: &str| fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
    let all = read("/proc/sys/kernel/pty/max");
    let reserved = read("/proc/sys/kernel/pty/reserve");
    let mut options = "newinstance,ptmxmode=0666,mode=0620".to_owned();
    if let (Some(all), Some(reserved)) = (all, reserved) {
        let share = all.saturating_sub(reserved) / SHARES;
        options += &format!(",max={}", share.max(1));
    }
    CString::new(options).unwrap_or_default()
}
