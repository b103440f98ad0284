//! Whose a container is: what its labels and its name say, and whether that process still lives.
//!
//! A container whose owner lives hangs on a stream of its owner's, and ends with it. So there is no
//! lease that would have to be renewed: the stream is the lease. The labels are for what even that
//! leaves: containers that were made and not yet started, and durable ones, which stop but stay. A
//! durable one that somebody has a handle of says so in its *name*, the only thing of a container
//! that can be changed; renaming is also what decides between two who want it at the same time.

use std::collections::HashMap;
use std::fmt;
use std::fs;

use sha2::{Digest as _, Sha256};

use crate::engine::address::hex;
use crate::program;

/// The label that every container of ours has: which sandbox it is.
pub(crate) const SANDBOX: &str = "cantle.sandbox";
/// The host whose process made it.
pub(crate) const HOST: &str = "cantle.host";
/// That process.
pub(crate) const OWNER: &str = "cantle.owner";
/// The run it was made for.
pub(crate) const RUN: &str = "cantle.run";
/// The label of what isn't a sandbox: what it is for.
pub(crate) const PURPOSE: &str = "cantle.purpose";

/// The labels of a container that this process makes: whose it is, and these.
pub(crate) fn labels<const N: usize>(labels: [(&str, String); N]) -> HashMap<String, String> {
    let owner = [(HOST, host_id()), (OWNER, Owner::own().to_string())];
    let all = owner.into_iter().chain(labels);
    all.map(|(label, value)| (label.to_owned(), value))
        .collect()
}

/// This machine, in words that say nothing about it: the same for all its processes, different on
/// another one that uses the same engine.
pub(crate) fn host_id() -> String {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let mut digest = Sha256::new();
    digest.update(read("/etc/machine-id").trim());
    digest.update([0]);
    // Machines made from one image may have one id.
    digest.update(read("/proc/sys/kernel/hostname").trim());
    digest.update([0]);
    digest.update(std::env::var("COMPUTERNAME").unwrap_or_default());
    let mut id = hex(&digest.finalize());
    id.truncate(24);
    id
}

/// A process of some machine, told apart from every other one there ever was on it.
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
            started: started("self").unwrap_or(0),
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

    /// Whether it has ended for sure. A process that can't be seen from here counts as living.
    pub(crate) fn is_dead(&self) -> bool {
        let boot = boot();
        if boot.is_empty() || self.boot.is_empty() {
            return false;
        }
        if self.boot != boot {
            return true;
        }
        self.namespace == namespace() && started(&self.pid.to_string()) != Some(self.started)
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

/// Names this run of the kernel; empty where it doesn't say.
fn boot() -> String {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    id.trim().replace('-', "")
}

/// In which process ids mean the same as in ours.
fn namespace() -> String {
    let link = fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    let text = link.to_string_lossy().into_owned();
    text.chars().filter(char::is_ascii_digit).collect()
}

/// When a process started, in the kernel's ticks.
fn started(pid: &str) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // `PID (NAME) STATE PARENT …`, where the name may hold anything; it is the 22nd field.
    let (_, rest) = stat.rsplit_once(") ")?;
    let mut fields = rest.split(' ');
    // A process that has ended and that nobody has waited for is as good as gone.
    let state = fields.next().filter(|state| *state != "Z")?;
    debug_assert!(!state.is_empty());
    fields.nth(18)?.parse().ok()
}

/// What a container of ours is called, and what that says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Name {
    /// It goes with its owner.
    Owned { id: String },
    /// It is kept for whoever has the handle.
    Kept { id: String },
    /// It is kept, and somebody has started it again or is about to.
    Claimed { id: String, by: Owner, claim: Claim },
    /// It is no sandbox: it fills the supervisor's volume of this name.
    Filling { volume: String },
}

const FILLING: &str = "-fill";

impl Name {
    /// Reads a name as the engine gives it, with or without its slash.
    pub(crate) fn parse(name: &str) -> Option<Self> {
        let name = name.trim_start_matches('/');
        if let Some(volume) = name.strip_suffix(FILLING) {
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

    /// Whether a handle of it may be somewhere.
    pub(crate) fn is_kept(&self) -> bool {
        matches!(self, Self::Kept { .. } | Self::Claimed { .. })
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Owned { id } => write!(f, "cantle-{id}"),
            Self::Kept { id } => write!(f, "cantle-kept-{id}"),
            Self::Filling { volume } => write!(f, "{volume}{FILLING}"),
            Self::Claimed {
                id,
                by,
                claim: Claim { after, nonce },
            } => write!(f, "cantle-kept-{id}-{after}.{nonce}-{by}"),
        }
    }
}

/// One claim, told apart from all others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Claim {
    /// Names the end of its last life: when it has had another one, the claim is over.
    after: String,
    nonce: String,
}

impl Claim {
    /// A new claim on a container that ended at this time, as the engine writes it.
    pub(crate) fn new(ended_at: &str) -> Self {
        Self {
            after: Self::name(ended_at),
            // The end of an id is what is random in it.
            nonce: cantle_core::ids::fresh_id().split_off(20),
        }
    }

    /// Whether the container has lived since.
    pub(crate) fn is_over(&self, ended_at: &str) -> bool {
        self.after != Self::name(ended_at)
    }

    fn name(ended_at: &str) -> String {
        let mut name = hex(&Sha256::digest(ended_at));
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

/// Whether it can be a sandbox's id: 32 hexadecimal digits.
pub(crate) fn is_id(text: &str) -> bool {
    text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "0123456789abcdef0123456789abcdef";

    #[test]
    fn a_name_is_read_as_it_was_written() {
        let id = || ID.to_owned();
        let names = [
            Name::Owned { id: id() },
            Name::Kept { id: id() },
            Name::Claimed {
                id: id(),
                by: Owner::own(),
                claim: Claim::new("2026-11-22T02:06:07Z"),
            },
            Name::Filling {
                volume: program::volume_name(),
            },
        ];
        for name in names {
            assert_eq!(Name::parse(&format!("/{name}")), Some(name));
        }
    }

    #[test]
    fn what_is_not_called_like_ours_is_not_ours() {
        let names = [
            "/postgres",
            "/cantle-postgres",
            "/cantle-kept-",
            "/cantle-supervisor-fill",
            "/cantle-kept-0123456789abcdef0123456789abcdef-x",
            "",
        ];
        for name in names {
            assert_eq!(Name::parse(name), None, "{name}");
        }
    }

    #[test]
    fn a_claim_is_over_when_the_container_has_lived_since() {
        let claim = Claim::new("2026-11-22T02:06:07Z");
        assert!(!claim.is_over("2026-11-22T02:06:07Z"));
        assert!(claim.is_over("2026-11-22T02:06:08Z"));
        assert_ne!(claim, Claim::new("2026-11-22T02:06:07Z"));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn an_owner_is_dead_when_its_process_has_ended() {
        assert!(!Owner::own().is_dead());
        let mut child = std::process::Command::new("sleep")
            .arg("1000")
            .spawn()
            .unwrap();
        let owner = Owner {
            pid: child.id(),
            started: started(&child.id().to_string()).unwrap(),
            ..Owner::own()
        };
        assert!(!owner.is_dead());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(owner.is_dead());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn an_owner_is_dead_when_its_machine_was_started_again() {
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
    fn an_owner_that_cant_be_seen_is_not_taken_for_dead() {
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
    fn a_host_is_named_without_a_word_about_it() {
        let id = host_id();
        assert_eq!((id.len(), id), (24, host_id()));
    }
}
