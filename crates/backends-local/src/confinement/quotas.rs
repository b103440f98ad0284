//! A sandbox's share of what the kernel counts for each user of the host.

use std::ffi::{CStr, CString};
use std::fs;

use cantle_supervisor::wire::Step;

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
