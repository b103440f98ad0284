//! The boundary of a sandbox in a line: what it is kept by, and what it reaches.

use cantle::core::policy::{Network, PolicyField};
use cantle::core::sandbox::{EnforcedBy, Isolation, SandboxInfo};

use super::text::one_line;

/// Hosts that are named.
const HOSTS: usize = 3;

/// Where commands run, what keeps them in, and what they reach: `local · namespaces, Landlock 7 · no
/// network`. `network` is the policy's.
pub(crate) fn boundary(info: &SandboxInfo, network: Option<&Network>) -> String {
    let mut walls: Vec<&str> = info.walls.iter().map(|wall| short(wall)).collect();
    match info.isolation {
        Isolation::None => walls.insert(0, "not isolated"),
        Isolation::Container => walls.insert(0, "in a container"),
        Isolation::Machine => walls.insert(0, "on another machine"),
        _ if walls.is_empty() => walls.push("isolated by the kernel"),
        _ => {}
    }
    let reached = match network {
        Some(network) if is_enforced(info, PolicyField::Network) => reach(network),
        _ => "network open".to_owned(),
    };
    one_line(&format!(
        "{} · {} · {reached}",
        info.backend,
        walls.join(", ")
    ))
}

/// What enforces each field of the policy: `read_roots kernel, memory per process`. `None` where the
/// policy asks for nothing.
pub(crate) fn enforcement(info: &SandboxInfo) -> Option<String> {
    let fields = info.enforcement.iter();
    let fields: Vec<String> = fields
        .map(|it| format!("{} {}", it.field, words(it.by)))
        .collect();
    (!fields.is_empty()).then(|| fields.join(", "))
}

/// The fields that nothing enforces.
pub(crate) fn unenforced(info: &SandboxInfo) -> Vec<&'static str> {
    let fields = info.enforcement.iter();
    fields
        .filter(|it| it.by == EnforcedBy::NotEnforced)
        .map(|it| it.field.as_str())
        .collect()
}

fn is_enforced(info: &SandboxInfo, field: PolicyField) -> bool {
    let mut fields = info.enforcement.iter();
    fields.any(|it| it.field == field && it.by != EnforcedBy::NotEnforced)
}

/// `namespaces (user, mount)` without what is in brackets.
fn short(wall: &str) -> &str {
    wall.split_once(" (").map_or(wall, |(name, _)| name)
}

fn reach(network: &Network) -> String {
    match network {
        Network::Hosts(hosts) if !hosts.is_empty() => {
            let named: Vec<String> = hosts.iter().take(HOSTS).map(ToString::to_string).collect();
            let more = match hosts.len().saturating_sub(HOSTS) {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            format!("network {}{more}", named.join(", "))
        }
        _ => "no network".to_owned(),
    }
}

/// As JSON has it, in words.
pub(crate) fn words(by: EnforcedBy) -> &'static str {
    match by {
        EnforcedBy::Kernel => "kernel",
        EnforcedBy::Backend => "backend",
        EnforcedBy::PerProcess => "per process",
        EnforcedBy::Polled => "polled",
        EnforcedBy::NotEnforced => "not enforced",
        _ => "enforced",
    }
}

#[cfg(test)]
mod tests {
    use cantle::core::sandbox::{Enforcement, SandboxPath};

    use super::*;

    fn info(walls: &[&str], by: EnforcedBy) -> SandboxInfo {
        let mut info = SandboxInfo::new("local", "x", SandboxPath::new("/workspace").unwrap());
        info.walls = walls.iter().map(|wall| (*wall).to_owned()).collect();
        if !walls.is_empty() {
            info.isolation = Isolation::Kernel;
        }
        info.enforcement = vec![
            Enforcement::new(PolicyField::Network, by),
            Enforcement::new(PolicyField::Memory, EnforcedBy::PerProcess),
        ];
        info
    }

    fn hosts(names: &[&str]) -> Network {
        Network::Hosts(names.iter().map(|name| name.parse().unwrap()).collect())
    }

    #[test]
    fn a_boundary_is_one_line() {
        let full = info(
            &[
                "namespaces (user, mount, network)",
                "Landlock 7",
                "user 65534",
            ],
            EnforcedBy::Kernel,
        );
        for (network, expected) in [
            (Some(Network::Off), "no network"),
            (Some(hosts(&[])), "no network"),
            (Some(hosts(&["a.org", "*.b.org"])), "network a.org, *.b.org"),
            (
                Some(hosts(&["a.org", "b.org", "c.org", "d.org", "e.org"])),
                "network a.org, b.org, c.org and 2 more",
            ),
            (None, "network open"),
        ] {
            assert_eq!(
                boundary(&full, network.as_ref()),
                format!("local · namespaces, Landlock 7, user 65534 · {expected}")
            );
        }
        let none = info(&[], EnforcedBy::NotEnforced);
        assert_eq!(
            boundary(&none, Some(&Network::Off)),
            "local · not isolated · network open"
        );
    }

    #[test]
    fn what_enforces_what_is_another() {
        let none = info(&[], EnforcedBy::NotEnforced);
        assert_eq!(
            enforcement(&none).as_deref(),
            Some("network not enforced, memory per process")
        );
        assert_eq!(unenforced(&none), ["network"]);
        assert_eq!(
            unenforced(&info(&["Landlock 7"], EnforcedBy::Kernel)),
            [""; 0]
        );
    }
}
