//! Checks of the kernel's mechanisms, from the sandboxes that were opened.

use cantle::backends::local::{ControlGroupSupport, Mechanism, Probe, ProbeFailure, Trial};
use cantle::core::policy::{PolicyField, Preset};
use cantle::core::sandbox::{EnforcedBy, Enforcement, SandboxInfo};

use super::report::{Check, CheckState, Finding, PolicyReport};
use crate::display::enforced_by;
use crate::text::size;

/// Versions of Landlock since which it restricts TCP, and signals and abstract sockets.
const WITH_TCP: u32 = 4;
const WITH_SCOPES: u32 = 6;

type KernelCheck = fn(&Probe, &SandboxInfo) -> Finding;

const CHECKS: [(&str, KernelCheck); 7] = [
    ("namespaces", namespaces),
    ("Landlock", landlock),
    ("seccomp", seccomp),
    ("identity", identity),
    ("control groups", control_groups),
    ("limits", limits),
    ("default limits", default_limits),
];

pub(super) fn checks(probe: &Probe) -> impl Iterator<Item = Check> {
    CHECKS.into_iter().map(move |(name, check)| {
        let finding = match &probe.whole.opened {
            Ok(info) => check(probe, info),
            // A best-effort sandbox opens on any kernel, so this failure says nothing about the mechanisms.
            Err(refusal) => {
                Finding::new(CheckState::Missing, format!("unknown: {}", refusal.reason))
            }
        };
        Check { name, finding }
    })
}

/// Returns which presets can be enforced.
pub(super) fn policies(probe: &Probe) -> Vec<PolicyReport> {
    let presets = probe.presets.iter();
    presets
        .map(|(preset, trial)| {
            let (enforcement, unenforced, reason) = match &trial.opened {
                Ok(info) if trial.works() => (info.enforcement.clone(), Vec::new(), None),
                Ok(_) => (Vec::new(), trial.broken.clone(), Some(broken(trial))),
                Err(refusal) => {
                    let reason = refused(refusal);
                    (Vec::new(), refusal.unenforced.clone(), Some(reason))
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
    match &*names(&refusal.unenforced) {
        "" => refusal.reason.clone(),
        fields => format!("can't be enforced: {fields} ({})", refusal.reason),
    }
}

fn broken(trial: &Trial) -> String {
    let fields = names(&trial.broken);
    format!("reported as enforced, but a command got past it: {fields}. Please report this bug")
}

fn names(fields: &[PolicyField]) -> String {
    let names: Vec<_> = fields.iter().map(|field| field.as_str()).collect();
    names.join(", ")
}

/// Returns why a mechanism is missing.
fn why_missing(trial: &Trial) -> String {
    match &trial.opened {
        Err(refusal) => refusal.reason.clone(),
        Ok(_) if !trial.broken.is_empty() => broken(trial),
        Ok(_) => "not in force".to_owned(),
    }
}

fn namespaces(probe: &Probe, _: &SandboxInfo) -> Finding {
    match probe.namespaces.mechanism(Mechanism::Namespaces) {
        Some(name) if probe.namespaces.works() => {
            let kinds = name
                .trim_start_matches("namespaces")
                .trim_matches([' ', '(', ')']);
            Finding::ok(if kinds.is_empty() { "in force" } else { kinds })
        }
        _ => Finding::missing(
            why_missing(&probe.namespaces),
            "commands see the names of other processes and files; single hosts can't be allowed, so the policy \
             `network` is refused",
        ),
    }
}

fn landlock(probe: &Probe, _: &SandboxInfo) -> Finding {
    let name = probe.without_namespaces.mechanism(Mechanism::Landlock);
    let version: Option<u32> = name.and_then(|name| name.rsplit(' ').next()?.parse().ok());
    let Some(version) = version else {
        return Finding::missing(
            why_missing(&probe.without_namespaces),
            "only namespaces restrict file access; without them, only the policy `unconfined` works",
        );
    };
    let lacks = match version {
        WITH_SCOPES.. => return Finding::ok(format!("version {version}, in force")),
        WITH_TCP.. => "signals and abstract sockets",
        _ => "TCP, signals and abstract sockets",
    };
    let found = format!("version {version}, in force, without {lacks}");
    let consequence = "without namespaces, only the system call filter restricts these";
    Finding::degraded(found, consequence)
}

fn seccomp(probe: &Probe, _: &SandboxInfo) -> Finding {
    if probe.filter.works() && probe.filter.mechanism(Mechanism::SystemCalls).is_some() {
        return Finding::ok("system call filter in force");
    }
    Finding::missing(
        why_missing(&probe.filter),
        "commands may use every system call, so policies need --best-effort; without namespaces, the network can't be \
         disabled",
    )
}

fn identity(probe: &Probe, _: &SandboxInfo) -> Finding {
    let uid = rustix::process::geteuid();
    if !uid.is_root() {
        return Finding::ok(format!("ordinary user ({})", uid.as_raw()))
            .with_consequence("commands run as this user, isolated");
    }
    match probe.whole.mechanism(Mechanism::Identity) {
        Some(other) => Finding::ok(format!("root; commands run as {other}")),
        None => Finding::degraded(
            "root; commands run as root too",
            "commands keep root's rights on what is not isolated: run cantle as an ordinary user",
        ),
    }
}

fn control_groups(probe: &Probe, info: &SandboxInfo) -> Finding {
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
    let found = match found.is_empty() {
        true => "none mounted".to_owned(),
        false => found.join("; "),
    };
    if info
        .enforcement
        .contains(&Enforcement::new(PolicyField::Memory, EnforcedBy::Kernel))
    {
        return Finding::ok(found)
            .with_consequence("a memory limit applies to all processes of a sandbox together");
    }
    let mut writable = probe.control_groups.iter().map(|groups| &groups.writable);
    let state = match writable.all(Vec::is_empty) {
        true => CheckState::Missing,
        false => CheckState::Degraded,
    };
    Finding::new(state, found).with_consequence(
        "a memory limit applies to each process separately: run cantle where it may create control groups with \
         `memory` (v1: as root; v2: in a systemd unit with Delegate=yes and DelegateSubgroup=)",
    )
}

/// Checks what enforces each limit, in a sandbox that has all of them.
fn limits(_: &Probe, info: &SandboxInfo) -> Finding {
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
    match by.iter().find(|(by, _)| *by == EnforcedBy::NotEnforced) {
        None => Finding::ok(found),
        Some((_, fields)) => {
            let fields = fields.join(", ");
            let consequence = format!("--limit with one of these needs --best-effort: {fields}");
            Finding::degraded(found, &consequence)
        }
    }
}

/// Reports the limits of a sandbox whose policy names none.
fn default_limits(probe: &Probe, _: &SandboxInfo) -> Finding {
    let mut presets = probe.presets.iter();
    let workspace = presets.find(|(preset, _)| *preset == Preset::Workspace);
    let report = workspace.and_then(|(_, trial)| Some(&trial.opened.as_ref().ok()?.enforcement));
    let defaults = report.into_iter().flatten().filter(|it| it.is_default);
    let limits = &probe.default_limits;
    let found = defaults.map(|it| {
        let value = match it.field {
            PolicyField::Memory => limits.memory_bytes.map(size),
            PolicyField::Disk => limits.disk_bytes.map(size),
            PolicyField::Inodes => limits.inodes.map(|number| number.to_string()),
            _ => limits.open_files.map(|number| number.to_string()),
        };
        let value = value.unwrap_or_default();
        format!("{} {value} ({})", it.field, enforced_by(it.by))
    });
    let found: Vec<String> = found.collect();
    if found.is_empty() {
        return Finding::degraded("none", "name the limits that this machine needs (--limit)");
    }
    Finding::ok(found.join(", ")).with_consequence("--limit NAME=none switches one off")
}
