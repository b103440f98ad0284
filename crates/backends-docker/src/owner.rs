//! Ownership of containers, recorded in their labels and names.
//!
//! A running container ends with the stream of its owner, so no lease has to be renewed. Labels identify what can
//! remain nevertheless: containers that were created but not started, and durable ones, which stop but stay. That
//! a durable one is kept is recorded in its *name*, the only mutable property of a container; renaming also
//! decides which of several processes gets it.

use std::collections::HashMap;
use std::fmt;
use std::fs;
use std::io;

use sha2::{Digest as _, Sha256};

use crate::program;

/// Label with the id of the sandbox.
pub(crate) const SANDBOX: &str = "cantle.sandbox";
/// Label with the host that created it.
pub(crate) const HOST: &str = "cantle.host";
/// Label with the process that created it.
pub(crate) const OWNER: &str = "cantle.owner";
/// Label with the run.
pub(crate) const RUN: &str = "cantle.run";
/// Label with the purpose of what is not a sandbox.
pub(crate) const PURPOSE: &str = "cantle.purpose";

/// Returns these labels with those that identify this process as the owner.
pub(crate) fn labels<const N: usize>(labels: [(&str, String); N]) -> HashMap<String, String> {
    let owner = [(HOST, host_id()), (OWNER, Owner::own().to_string())];
    let all = owner.into_iter().chain(labels);
    all.map(|(label, value)| (label.to_owned(), value))
        .collect()
}

/// Returns an opaque id of this machine, to tell apart the hosts that use one engine.
pub(crate) fn host_id() -> String {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let mut digest = Sha256::new();
    digest.update(read("/etc/machine-id").trim());
    digest.update([0]);
    // Machines cloned from one image may share the machine id.
    digest.update(read("/proc/sys/kernel/hostname").trim());
    digest.update([0]);
    digest.update(std::env::var("COMPUTERNAME").unwrap_or_default());
    let mut id = format!("{:x}", digest.finalize());
    id.truncate(24);
    id
}

/// A process, uniquely identified across reboots and reuse of process ids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    boot: String,
    namespace: String,
    pid: u32,
    started: u64,
}

impl Owner {
    /// This process.
    pub(crate) fn own() -> Self {
        Self {
            boot: boot(),
            namespace: namespace(),
            pid: std::process::id(),
            started: read_stat("self")
                .ok()
                .and_then(|stat| start_time(&stat))
                .unwrap_or(0),
        }
    }

    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('.');
        let mut next = || parts.next();
        let owner = Self {
            boot: next()?.to_owned(),
            namespace: next()?.to_owned(),
            pid: next()?.parse().ok()?,
            started: next()?.parse().ok()?,
        };
        parts.next().is_none().then_some(owner)
    }

    /// Whether the process has certainly ended; one in another pid namespace counts as alive.
    pub(crate) fn is_dead(&self) -> bool {
        let boot = boot();
        if boot.is_empty() || self.boot.is_empty() {
            return false;
        }
        if self.boot != boot {
            return true;
        }
        if self.namespace != namespace() {
            return false;
        }
        self.has_ended(&read_stat(&self.pid.to_string()))
    }

    /// Whether the process with this `/proc/PID/stat` is not the owner any more.
    fn has_ended(&self, stat: &io::Result<String>) -> bool {
        match stat {
            Ok(stat) => start_time(stat) != Some(self.started),
            // `hidepid` hides the processes of other users.
            Err(_) => !exists(self.pid),
        }
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            boot,
            namespace,
            pid,
            started,
        } = self;
        write!(f, "{boot}.{namespace}.{pid}.{started}")
    }
}

/// Returns the kernel's boot id; empty if unavailable.
fn boot() -> String {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    id.trim().replace('-', "")
}

/// Returns the inode number of the pid namespace.
fn namespace() -> String {
    let link = fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    let text = link.to_string_lossy().into_owned();
    text.chars().filter(char::is_ascii_digit).collect()
}

fn read_stat(pid: &str) -> io::Result<String> {
    fs::read_to_string(format!("/proc/{pid}/stat"))
}

/// Whether a process exists, which may be another user's.
#[cfg(unix)]
fn exists(pid: u32) -> bool {
    use rustix::io::Errno;
    use rustix::process::{Pid, test_kill_process};

    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    pid.is_some_and(|pid| test_kill_process(pid) != Err(Errno::SRCH))
}

#[cfg(not(unix))]
fn exists(_: u32) -> bool {
    true
}

/// Returns the start time of a process in clock ticks, given its `/proc/PID/stat`.
fn start_time(stat: &str) -> Option<u64> {
    // `PID (NAME) STATE PARENT …`, where the name may contain anything; the start time is field 22.
    let (_, rest) = stat.rsplit_once(") ")?;
    let mut fields = rest.split(' ');
    // A zombie counts as ended.
    fields.next().filter(|state| *state != "Z")?;
    fields.nth(18)?.parse().ok()
}

/// The name of a container, which encodes its state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ContainerName {
    /// A sandbox that ends with its owner.
    Owned { id: String },
    /// A kept sandbox that is not in use.
    Kept { id: String },
    /// A kept sandbox that a process has reattached to, or is about to.
    Claimed { id: String, by: Owner, claim: Claim },
    /// The container that fills the supervisor's volume of this name.
    Filling { volume: String },
}

const FILL_SUFFIX: &str = "-fill";

impl ContainerName {
    /// Parses a name as the engine returns it, with or without a leading slash.
    pub(crate) fn parse(name: &str) -> Option<Self> {
        let name = name.trim_start_matches('/');
        if let Some(volume) = name.strip_suffix(FILL_SUFFIX) {
            return program::is_volume(volume).then(|| Self::Filling {
                volume: volume.to_owned(),
            });
        }
        let rest = name.strip_prefix("cantle-")?;
        let Some(rest) = rest.strip_prefix("kept-") else {
            return is_id(rest).then(|| Self::Owned {
                id: rest.to_owned(),
            });
        };
        match rest.split_once('-') {
            None => is_id(rest).then(|| Self::Kept {
                id: rest.to_owned(),
            }),
            Some((id, claim)) => {
                let (claim, by) = claim.split_once('-')?;
                is_id(id).then_some(())?;
                Some(Self::Claimed {
                    id: id.to_owned(),
                    by: Owner::parse(by)?,
                    claim: Claim::parse(claim)?,
                })
            }
        }
    }

    /// Whether a handle of it may exist.
    pub(crate) fn is_kept(&self) -> bool {
        matches!(self, Self::Kept { .. } | Self::Claimed { .. })
    }
}

impl fmt::Display for ContainerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Owned { id } => write!(f, "cantle-{id}"),
            Self::Kept { id } => write!(f, "cantle-kept-{id}"),
            Self::Filling { volume } => write!(f, "{volume}{FILL_SUFFIX}"),
            Self::Claimed {
                id,
                by,
                claim: Claim { after, nonce },
            } => write!(f, "cantle-kept-{id}-{after}.{nonce}-{by}"),
        }
    }
}

/// A unique claim on a kept container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Claim {
    /// Digest of the time when the container last stopped; the claim ends when it has run again.
    after: String,
    nonce: String,
}

impl Claim {
    /// Claims a container that stopped at this time, in the engine's format.
    pub(crate) fn new(ended_at: &str) -> Self {
        Self {
            after: Self::digest(ended_at),
            // The end of an id is its random part.
            nonce: cantle_core::ids::unique_id().split_off(20),
        }
    }

    /// Whether the container has run since.
    pub(crate) fn is_over(&self, ended_at: &str) -> bool {
        self.after != Self::digest(ended_at)
    }

    fn digest(ended_at: &str) -> String {
        let mut name = format!("{:x}", Sha256::digest(ended_at));
        name.truncate(12);
        name
    }

    fn parse(text: &str) -> Option<Self> {
        let (after, nonce) = text.split_once('.')?;
        Some(Self {
            after: after.to_owned(),
            nonce: nonce.to_owned(),
        })
    }
}

/// Whether the text has the form of a sandbox id: 32 hexadecimal digits.
pub(crate) fn is_id(text: &str) -> bool {
    text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "0123456789abcdef0123456789abcdef";

    #[test]
    fn names_round_trip() {
        let id = || ID.to_owned();
        let names = [
            ContainerName::Owned { id: id() },
            ContainerName::Kept { id: id() },
            ContainerName::Claimed {
                id: id(),
                by: Owner::own(),
                claim: Claim::new("2026-11-22T02:06:07Z"),
            },
            ContainerName::Filling {
                volume: program::volume_name(),
            },
        ];
        for name in names {
            assert_eq!(ContainerName::parse(&format!("/{name}")), Some(name));
        }
    }

    #[test]
    fn other_names_are_not_parsed() {
        let names = [
            "/postgres",
            "/cantle-postgres",
            "/cantle-kept-",
            "/cantle-supervisor-fill",
            "/cantle-kept-0123456789abcdef0123456789abcdef-x",
            "",
        ];
        for name in names {
            assert_eq!(ContainerName::parse(name), None, "{name}");
        }
    }

    #[test]
    fn claim_ends_when_the_container_has_run_again() {
        let claim = Claim::new("2026-11-22T02:06:07Z");
        assert!(!claim.is_over("2026-11-22T02:06:07Z"));
        assert!(claim.is_over("2026-11-22T02:06:08Z"));
        assert_ne!(claim, Claim::new("2026-11-22T02:06:07Z"));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn owner_is_dead_after_its_process_ended() {
        assert!(!Owner::own().is_dead());
        let mut child = std::process::Command::new("sleep")
            .arg("1000")
            .spawn()
            .unwrap();
        let owner = Owner {
            pid: child.id(),
            started: start_time(&read_stat(&child.id().to_string()).unwrap()).unwrap(),
            ..Owner::own()
        };
        assert!(!owner.is_dead());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(owner.is_dead());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn process_that_may_not_be_signalled_exists() {
        assert!(exists(1));
        let mut child = std::process::Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        assert!(!exists(child.id()));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn hidden_process_is_not_dead() {
        let hidden = Err(io::ErrorKind::NotFound.into());
        let other = |pid| Owner {
            pid,
            ..Owner::own()
        };
        assert!(!other(1).has_ended(&hidden));
        let mut child = std::process::Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        assert!(other(child.id()).has_ended(&hidden));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn owner_is_dead_after_a_reboot() {
        let boot = "0".repeat(32);
        assert!(
            Owner {
                boot,
                ..Owner::own()
            }
            .is_dead()
        );
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn owner_in_another_pid_namespace_is_not_dead() {
        let namespace = "1".to_owned();
        let elsewhere = Owner {
            namespace,
            started: 1,
            ..Owner::own()
        };
        assert!(!elsewhere.is_dead());
        assert_eq!(Owner::parse(&elsewhere.to_string()), Some(elsewhere));
        assert_eq!(Owner::parse("a.b.c.d"), None);
    }

    #[test]
    fn host_id_is_opaque_and_stable() {
        let id = host_id();
        assert_eq!((id.len(), id), (24, host_id()));
    }
}
