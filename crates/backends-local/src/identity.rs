//! The user that runs commands.

use cantle_core::policy::Policy;

use crate::files::NOBODY;
use crate::mechanism::{Mechanism, Mechanisms};
use crate::mode::is_confined;

/// The user that runs a sandbox's commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// Whether that differs from this process's user.
    pub(crate) is_other: bool,
}

impl Identity {
    /// Returns this process's user, or the account `nobody` if that is root.
    pub(crate) fn for_commands(policy: &Policy, mechanisms: Mechanisms) -> Self {
        let (own_uid, own_gid) = Self::current();
        let is_root = own_uid == 0 && is_confined(policy);
        let is_other =
            is_root && mechanisms.include(Mechanism::Identity) && Self::nobody_is_mapped();
        let (uid, gid) = match is_other {
            true => (NOBODY, NOBODY),
            false => (own_uid, own_gid),
        };
        Self { uid, gid, is_other }
    }

    /// Whether this process's user namespace maps the account `nobody`; it may map root alone.
    fn nobody_is_mapped() -> bool {
        let includes = |map: &str| {
            // Each line: the first id inside, the first id outside, the count.
            map.lines().any(|line| {
                let mut numbers = line.split_whitespace().map(str::parse::<u64>);
                match (numbers.next(), numbers.nth(1)) {
                    (Some(Ok(first)), Some(Ok(count))) => {
                        (first..first + count).contains(&NOBODY.into())
                    }
                    _ => false,
                }
            })
        };
        ["/proc/self/uid_map", "/proc/self/gid_map"]
            .into_iter()
            .all(|map| std::fs::read_to_string(map).is_ok_and(|map| includes(&map)))
    }

    /// Returns the user and the group of this process.
    pub(crate) fn current() -> (u32, u32) {
        let uid = rustix::process::geteuid();
        let gid = rustix::process::getegid();
        (uid.as_raw(), gid.as_raw())
    }
}
