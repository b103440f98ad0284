//! What the kernel gives a sandbox, as the sandboxes that were opened tell it.

use cantle::backends::local::{ControlGroups, Probe, Refusal, Trial, Wall};
use cantle::core::policy::PolicyField;
use cantle::core::sandbox::{EnforcedBy, SandboxInfo};

use super::report::{Check, Preset, State};
use crate::display::words;

/// From here on Landlock knows TCP, and signals with abstract sockets.
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
        // As far as it goes there is always a sandbox: that there is none has nothing to do with walls.
        Err(refusal) => {
            let names = [
                NAMESPACES,
                LANDLOCK,
                SECCOMP,
                IDENTITY,
                CONTROL_GROUPS,
                LIMITS,
            ];
            let found = format!("not found out: {}", refusal.reason);
            let check = |name| Check::new(name, State::Missing, &*found);
            names.map(check).into()
        }
    }
}

/// What each preset comes to when it is meant.
pub(super) fn policies(probe: &Probe) -> Vec<Preset> {
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
            Preset {
                policy: preset.as_str(),
                works: trial.works(),
                enforcement,
                unenforced,
                reason,
            }
        })
        .collect()
}

fn refused(refusal: &Refusal) -> String {
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
        "said to be enforced, but a command got past it: {}. Please report that",
        fields.join(", ")
    )
}

/// Why a sandbox is not what was wanted.
fn why_not(trial: &Trial) -> String {
    match &trial.opened {
        Err(refusal) => refusal.reason.clone(),
        Ok(_) if !trial.broken.is_empty() => broken(trial),
        Ok(_) => "not in force".to_owned(),
    }
}

fn namespaces(probe: &Probe) -> Check {
    match probe.namespaces.wall(Wall::Namespaces) {
        Some(wall) if probe.namespaces.works() => {
            let kinds = wall.trim_start_matches("namespaces").trim_matches([' ', '(', ')']);
            let kinds = if kinds.is_empty() { "in force" } else { kinds };
            Check::new(NAMESPACES, State::Ok, kinds)
        }
        _ => Check::new(NAMESPACES, State::Missing, why_not(&probe.namespaces)).so(
            "commands run without a view of their own: they see the names of other processes and files; hosts \
             can't be allowed, so the policy `network` is refused",
        ),
    }
}

fn landlock(probe: &Probe) -> Check {
    let wall = probe.without_namespaces.wall(Wall::Landlock);
    let version: Option<u32> = wall.and_then(|wall| wall.rsplit(' ').next()?.parse().ok());
    match version {
        Some(version @ WITH_SCOPES..) => {
            Check::new(LANDLOCK, State::Ok, format!("version {version}, in force"))
        }
        Some(version) => {
            let lacks = if version < WITH_TCP {
                "TCP, signals and abstract sockets"
            } else {
                "signals and abstract sockets"
            };
            let found = format!("version {version}, in force, without {lacks}");
            Check::new(LANDLOCK, State::Degraded, found)
                .so("where there are no namespaces either, these are left to the system call filter")
        }
        None => Check::new(LANDLOCK, State::Missing, why_not(&probe.without_namespaces)).so(
            "namespaces are the only wall around files; where they are forbidden too, only `unconfined` works",
        ),
    }
}

fn seccomp(probe: &Probe) -> Check {
    if probe.filter.works() && probe.filter.wall(Wall::SystemCalls).is_some() {
        return Check::new(SECCOMP, State::Ok, "system call filter in force");
    }
    Check::new(SECCOMP, State::Missing, why_not(&probe.filter)).so(
        "commands may use every system call of the kernel; without namespaces the network can't be taken away",
    )
}

fn identity(probe: &Probe) -> Check {
    let uid = rustix::process::geteuid();
    if !uid.is_root() {
        let found = format!("ordinary user ({})", uid.as_raw());
        return Check::new(IDENTITY, State::Ok, found).so("commands run as you, behind the walls");
    }
    match probe.whole.wall(Wall::Identity) {
        Some(other) => Check::new(
            IDENTITY,
            State::Ok,
            format!("root; commands run as {other}"),
        ),
        None => Check::new(IDENTITY, State::Degraded, "root; commands run as root too")
            .so("what the walls leave open is open to root: run cantle as an ordinary user"),
    }
}

fn control_groups(probe: &Probe, info: &SandboxInfo) -> Check {
    let words = |groups: &ControlGroups| {
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
        return Check::new(CONTROL_GROUPS, State::Ok, found)
            .so("a memory limit holds for everything in a sandbox together");
    }
    let none = probe
        .control_groups
        .iter()
        .all(|groups| groups.writable.is_empty());
    let state = if none {
        State::Missing
    } else {
        State::Degraded
    };
    Check::new(CONTROL_GROUPS, state, found).so(
        "a memory limit holds for each process by itself, not for all of them together: run cantle where it may \
         make groups with `memory` (as root with v1; with v2 in a systemd unit with Delegate=yes and \
         DelegateSubgroup=)",
    )
}

/// What keeps each limit, in a sandbox that has all of them.
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
        .map(|(by, fields)| format!("{}: {}", words(*by), fields.join(", ")));
    let found = found.collect::<Vec<_>>().join("; ");
    let missing = by.iter().find(|(by, _)| *by == EnforcedBy::NotEnforced);
    match missing {
        None => Check::new(LIMITS, State::Ok, found),
        Some((_, fields)) => Check::new(LIMITS, State::Degraded, found).so(format!(
            "--limit with one of these is refused, unless with --best-effort: {}",
            fields.join(", ")
        )),
    }
}
