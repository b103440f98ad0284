//! Checks of the kernel's mechanisms, from the sandboxes that were opened.

use cantle::backends::local::{ControlGroupSupport, Mechanism, Probe, ProbeFailure, Trial};
use cantle::core::policy::PolicyField;
use cantle::core::sandbox::{EnforcedBy, SandboxInfo};

use super::report::{Check, CheckState, PolicyReport};
use crate::display::enforced_by;

/// Versions of Landlock since which it restricts TCP, and signals and abstract sockets.
const WITH_TCP: u32 = 4;
const WITH_SCOPES: u32 = 6;

const NAMESPACES: &str = "namespaces";
const LANDLOCK: &str = "Landlock";
const SECCOMP: &str = "seccomp";
const IDENTITY: &str = "identity";
const CONTROL_GROUPS: &str = "control groups";
const LIMITS: &str = "limits";

pub(super) fn checks(probe: &Probe) -> Vec<Check> {
    match &probe.whole.opened {
        Ok(info) => vec![
            namespaces(probe),
            landlock(probe),
            seccomp(probe),
            identity(probe),
            control_groups(probe, info),
            limits(info),
        ],
        // A best-effort sandbox opens on any kernel, so this failure says nothing about the mechanisms.
        Err(refusal) => {
            let names = [
                NAMESPACES,
                LANDLOCK,
                SECCOMP,
                IDENTITY,
                CONTROL_GROUPS,
                LIMITS,
            ];
            let found = format!("unknown: {}", refusal.reason);
            let check = |name| Check::new(name, CheckState::Missing, &*found);
            names.map(check).into()
        }
    }
}

/// Returns which presets can be enforced.
pub(super) fn policies(probe: &Probe) -> Vec<PolicyReport> {
    let presets = probe.presets.iter();
    presets
        .map(|(preset, trial)| {
            let names =
                |fields: &[PolicyField]| fields.iter().map(|field| field.as_str()).collect();
            let (enforcement, unenforced, reason) = match &trial.opened {
                Ok(info) if trial.works() => (info.enforcement.clone(), Vec::new(), None),
                Ok(_) => (Vec::new(), names(&trial.broken), Some(broken(trial))),
                Err(refusal) => {
                    let reason = refused(refusal);
                    (Vec::new(), names(&refusal.unenforced), Some(reason))
                }
            };
            PolicyReport {
                policy: preset.as_str(),
                works: trial.works(),
                enforcement,
                unenforced,
                reason,
            }
        })
        .collect()
}

fn refused(refusal: &ProbeFailure) -> String {
    let fields: Vec<&str> = refusal
        .unenforced
        .iter()
        .map(|field| field.as_str())
        .collect();
    if fields.is_empty() {
        refusal.reason.clone()
    } else {
        format!(
            "can't be enforced: {} ({})",
            fields.join(", "),
            refusal.reason
        )
    }
}

fn broken(trial: &Trial) -> String {
    let fields: Vec<&str> = trial.broken.iter().map(|field| field.as_str()).collect();
    format!(
        "reported as enforced, but a command got past it: {}. Please report this bug",
        fields.join(", ")
    )
}

/// Returns why a mechanism is missing.
fn why_missing(trial: &Trial) -> String {
    match &trial.opened {
        Err(refusal) => refusal.reason.clone(),
        Ok(_) if !trial.broken.is_empty() => broken(trial),
        Ok(_) => "not in force".to_owned(),
    }
}

fn namespaces(probe: &Probe) -> Check {
    match probe.namespaces.mechanism(Mechanism::Namespaces) {
        Some(name) if probe.namespaces.works() => {
            let kinds = name.trim_start_matches("namespaces").trim_matches([' ', '(', ')']);
            let kinds = if kinds.is_empty() { "in force" } else { kinds };
            Check::new(NAMESPACES, CheckState::Ok, kinds)
        }
        _ => Check::new(NAMESPACES, CheckState::Missing, why_missing(&probe.namespaces)).with_consequence(
            "commands see the names of other processes and files; single hosts can't be allowed, so the policy \
             `network` is refused",
        ),
    }
}

fn landlock(probe: &Probe) -> Check {
    let name = probe.without_namespaces.mechanism(Mechanism::Landlock);
    let version: Option<u32> = name.and_then(|name| name.rsplit(' ').next()?.parse().ok());
    match version {
        Some(version @ WITH_SCOPES..) => {
            Check::new(LANDLOCK, CheckState::Ok, format!("version {version}, in force"))
        }
        Some(version) => {
            let lacks = if version < WITH_TCP {
                "TCP, signals and abstract sockets"
            } else {
                "signals and abstract sockets"
            };
            let found = format!("version {version}, in force, without {lacks}");
            Check::new(LANDLOCK, CheckState::Degraded, found)
                .with_consequence("without namespaces, only the system call filter restricts these")
        }
        None => Check::new(LANDLOCK, CheckState::Missing, why_missing(&probe.without_namespaces)).with_consequence(
            "only namespaces restrict file access; without them, only the policy `unconfined` works",
        ),
    }
}

fn seccomp(probe: &Probe) -> Check {
    if probe.filter.works() && probe.filter.mechanism(Mechanism::SystemCalls).is_some() {
        return Check::new(SECCOMP, CheckState::Ok, "system call filter in force");
    }
    Check::new(SECCOMP, CheckState::Missing, why_missing(&probe.filter)).with_consequence(
        "commands may use every system call; without namespaces, the network can't be disabled",
    )
}

fn identity(probe: &Probe) -> Check {
    let uid = rustix::process::geteuid();
    if !uid.is_root() {
        let found = format!("ordinary user ({})", uid.as_raw());
        return Check::new(IDENTITY, CheckState::Ok, found)
            .with_consequence("commands run as this user, isolated");
    }
    match probe.whole.mechanism(Mechanism::Identity) {
        Some(other) => Check::new(
            IDENTITY,
            CheckState::Ok,
            format!("root; commands run as {other}"),
        ),
        None => Check::new(
            IDENTITY,
            CheckState::Degraded,
            "root; commands run as root too",
        )
        .with_consequence(
            "commands keep root's rights on what is not isolated: run cantle as an ordinary user",
        ),
    }
}

fn control_groups(probe: &Probe, info: &SandboxInfo) -> Check {
    let words = |groups: &ControlGroupSupport| {
        let (all, writable) = (&groups.controllers, &groups.writable);
        let access = match writable.len() {
            0 => " (not writable)",
            some if some < all.len() => " (some writable)",
            _ => " (writable)",
        };
        let version = groups.version;
        if all.is_empty() {
            format!("v{version} without cpu, memory, pids")
        } else {
            format!("v{version} {}{access}", all.join(", "))
        }
    };
    let found: Vec<String> = probe.control_groups.iter().map(words).collect();
    let found = if found.is_empty() {
        "none mounted".to_owned()
    } else {
        found.join("; ")
    };
    let mut report = info.enforcement.iter();
    let memory = report.find(|it| it.field == PolicyField::Memory);
    if memory.is_some_and(|it| it.by == EnforcedBy::Kernel) {
        return Check::new(CONTROL_GROUPS, CheckState::Ok, found)
            .with_consequence("a memory limit applies to all processes of a sandbox together");
    }
    let none = probe
        .control_groups
        .iter()
        .all(|groups| groups.writable.is_empty());
    let state = if none {
        CheckState::Missing
    } else {
        CheckState::Degraded
    };
    Check::new(CONTROL_GROUPS, state, found).with_consequence(
        "a memory limit applies to each process separately: run cantle where it may create control groups with \
         `memory` (v1: as root; v2: in a systemd unit with Delegate=yes and DelegateSubgroup=)",
    )
}

/// Checks what enforces each limit, in a sandbox that has all of them.
fn limits(info: &SandboxInfo) -> Check {
    let not_limits = [
        PolicyField::ReadRoots,
        PolicyField::WriteRoots,
        PolicyField::Network,
    ];
    let limits = info
        .enforcement
        .iter()
        .filter(|it| !not_limits.contains(&it.field));
    let mut by: Vec<(EnforcedBy, Vec<&str>)> = Vec::new();
    for it in limits {
        match by.iter_mut().find(|(by, _)| *by == it.by) {
            Some((_, fields)) => fields.push(it.field.as_str()),
            None => by.push((it.by, vec![it.field.as_str()])),
        }
    }
    let found = by
        .iter()
        .map(|(by, fields)| format!("{}: {}", enforced_by(*by), fields.join(", ")));
    let found = found.collect::<Vec<_>>().join("; ");
    let missing = by.iter().find(|(by, _)| *by == EnforcedBy::NotEnforced);
    match missing {
        None => Check::new(LIMITS, CheckState::Ok, found),
        Some((_, fields)) => {
            Check::new(LIMITS, CheckState::Degraded, found).with_consequence(format!(
                "--limit with one of these needs --best-effort: {}",
                fields.join(", ")
            ))
        }
    }
}
