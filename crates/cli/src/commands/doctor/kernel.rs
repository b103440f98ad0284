//! Checks of the kernel's mechanisms, from the sandboxes that were opened.

use cantle::backends::local::{ControlGroupSupport, Mechanism, Probe, ProbeFailure, Trial};
use cantle::core::policy::{PolicyField, Preset};
use cantle::core::sandbox::{EnforcedBy, Enforcement, SandboxInfo};

use super::report::{Check, CheckState, PolicyReport};
use crate::display::enforced_by;
use crate::text::size;

/// Versions of Landlock since which it restricts TCP, and signals and abstract sockets.
const WITH_TCP: u32 = 4;
const WITH_SCOPES: u32 = 6;

const NAMESPACES: &str = "namespaces";
const LANDLOCK: &str = "Landlock";
const SECCOMP: &str = "seccomp";
const IDENTITY: &str = "identity";
const CONTROL_GROUPS: &str = "control groups";
const LIMITS: &str = "limits";
const DEFAULT_LIMITS: &str = "default limits";

pub(super) fn checks(probe: &Probe) -> Vec<Check> {
    match &probe.whole.opened {
        Ok(info) => vec![
            namespaces(probe),
            landlock(probe),
            seccomp(probe),
            identity(probe),
            control_groups(probe, info),
            limits(info),
            default_limits(probe),
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
                DEFAULT_LIMITS,
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
    match &*names(&refusal.unenforced).join(", ") {
        "" => refusal.reason.clone(),
        fields => format!("can't be enforced: {fields} ({})", refusal.reason),
    }
}

fn broken(trial: &Trial) -> String {
    let fields = names(&trial.broken).join(", ");
    format!("reported as enforced, but a command got past it: {fields}. Please report this bug")
}

fn names(fields: &[PolicyField]) -> Vec<&'static str> {
    fields.iter().map(|field| field.as_str()).collect()
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
            let kinds = name
                .trim_start_matches("namespaces")
                .trim_matches([' ', '(', ')']);
            Check::ok(
                NAMESPACES,
                if kinds.is_empty() { "in force" } else { kinds },
            )
        }
        _ => Check::missing(
            NAMESPACES,
            why_missing(&probe.namespaces),
            "commands see the names of other processes and files; single hosts can't be allowed, so the policy \
             `network` is refused",
        ),
    }
}

fn landlock(probe: &Probe) -> Check {
    let name = probe.without_namespaces.mechanism(Mechanism::Landlock);
    let version: Option<u32> = name.and_then(|name| name.rsplit(' ').next()?.parse().ok());
    let Some(version) = version else {
        return Check::missing(
            LANDLOCK,
            why_missing(&probe.without_namespaces),
            "only namespaces restrict file access; without them, only the policy `unconfined` works",
        );
    };
    let lacks = match version {
        WITH_SCOPES.. => return Check::ok(LANDLOCK, format!("version {version}, in force")),
        WITH_TCP.. => "signals and abstract sockets",
        _ => "TCP, signals and abstract sockets",
    };
    let found = format!("version {version}, in force, without {lacks}");
    let consequence = "without namespaces, only the system call filter restricts these";
    Check::degraded(LANDLOCK, found, consequence)
}

fn seccomp(probe: &Probe) -> Check {
    if probe.filter.works() && probe.filter.mechanism(Mechanism::SystemCalls).is_some() {
        return Check::ok(SECCOMP, "system call filter in force");
    }
    Check::missing(
        SECCOMP,
        why_missing(&probe.filter),
        "commands may use every system call, so policies need --best-effort; without namespaces, the network can't be \
         disabled",
    )
}

fn identity(probe: &Probe) -> Check {
    let uid = rustix::process::geteuid();
    if !uid.is_root() {
        return Check::ok(IDENTITY, format!("ordinary user ({})", uid.as_raw()))
            .with_consequence("commands run as this user, isolated");
    }
    match probe.whole.mechanism(Mechanism::Identity) {
        Some(other) => Check::ok(IDENTITY, format!("root; commands run as {other}")),
        None => Check::degraded(
            IDENTITY,
            "root; commands run as root too",
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
    let found = match found.is_empty() {
        true => "none mounted".to_owned(),
        false => found.join("; "),
    };
    if info
        .enforcement
        .contains(&Enforcement::new(PolicyField::Memory, EnforcedBy::Kernel))
    {
        return Check::ok(CONTROL_GROUPS, found)
            .with_consequence("a memory limit applies to all processes of a sandbox together");
    }
    let mut writable = probe.control_groups.iter().map(|groups| &groups.writable);
    let state = match writable.all(Vec::is_empty) {
        true => CheckState::Missing,
        false => CheckState::Degraded,
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
    match by.iter().find(|(by, _)| *by == EnforcedBy::NotEnforced) {
        None => Check::ok(LIMITS, found),
        Some((_, fields)) => {
            let fields = fields.join(", ");
            let consequence = format!("--limit with one of these needs --best-effort: {fields}");
            Check::degraded(LIMITS, found, &consequence)
        }
    }
}

/// Reports the limits of a sandbox whose policy names none.
fn default_limits(probe: &Probe) -> Check {
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
        return Check::degraded(
            DEFAULT_LIMITS,
            "none",
            "name the limits that this machine needs (--limit)",
        );
    }
    Check::ok(DEFAULT_LIMITS, found.join(", "))
        .with_consequence("--limit NAME=none switches one off")
}
