//! A sandbox's isolation, network and enforcement as text.

use cantle::core::escape::join_up_to;
use cantle::core::policy::Network;
use cantle::core::sandbox::{EnforcedBy, Isolation, SandboxInfo};

use crate::text::one_line;

/// Maximum number of hosts that are listed.
const MAX_HOSTS: usize = 3;

/// Formats backend, mechanisms and network: `local · namespaces, Landlock 7 · no network`.
pub(crate) fn isolation(info: &SandboxInfo) -> String {
    let mut mechanisms: Vec<&str> = info
        .mechanisms
        .iter()
        .map(|mechanism| short(mechanism))
        .collect();
    match info.isolation {
        Isolation::None => mechanisms.insert(0, "not isolated"),
        Isolation::Container => mechanisms.insert(0, "in a container"),
        Isolation::Machine => mechanisms.insert(0, "on another machine"),
        _ if mechanisms.is_empty() => mechanisms.push("isolated by the kernel"),
        _ => {}
    }
    let network = info.enforced_network();
    let network = network.map_or("network open".to_owned(), network_text);
    one_line(&format!(
        "{} · {} · {network}",
        info.backend,
        mechanisms.join(", ")
    ))
}

/// Formats what enforces each policy field: `read_roots kernel, memory per process`.
///
/// Returns `None` if the policy restricts nothing.
pub(crate) fn enforcement(info: &SandboxInfo) -> Option<String> {
    let fields = info.enforcement.iter();
    let fields: Vec<String> = fields
        .map(|it| format!("{} {}", it.field, enforced_by(it.by)))
        .collect();
    (!fields.is_empty()).then(|| fields.join(", "))
}

/// Returns the names of demanded fields that are not enforced.
pub(crate) fn unenforced(info: &SandboxInfo) -> Vec<&'static str> {
    let fields = info.enforcement.iter();
    fields
        .filter(|it| it.is_missing())
        .map(|it| it.field.as_str())
        .collect()
}

/// Returns `namespaces (user, mount)` without the parentheses.
fn short(mechanism: &str) -> &str {
    mechanism
        .split_once(" (")
        .map_or(mechanism, |(name, _)| name)
}

fn network_text(network: &Network) -> String {
    match network {
        Network::Hosts(hosts) if !hosts.is_empty() => {
            format!("network {}", join_up_to(MAX_HOSTS, hosts))
        }
        _ => "no network".to_owned(),
    }
}

/// Formats what enforces a policy field.
pub(crate) fn enforced_by(by: EnforcedBy) -> &'static str {
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

    use cantle::core::policy::PolicyField;

    use super::*;

    fn info(mechanisms: &[&str], by: EnforcedBy) -> SandboxInfo {
        let mut info = SandboxInfo::new("local", "x", SandboxPath::new("/workspace").unwrap());
        info.mechanisms = mechanisms.iter().map(|it| (*it).to_owned()).collect();
        if !mechanisms.is_empty() {
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
    fn isolation_is_one_line() {
        let mut full = info(
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
            (
                Some(hosts(&["a.example.org", "*.b.example.org"])),
                "network a.example.org, *.b.example.org",
            ),
            (
                Some(hosts(&[
                    "a.example.org",
                    "b.example.org",
                    "c.example.org",
                    "d.example.org",
                    "e.example.org",
                ])),
                "network a.example.org, b.example.org, c.example.org and 2 more",
            ),
            (None, "network open"),
        ] {
            full.network = network;
            assert_eq!(
                isolation(&full),
                format!("local · namespaces, Landlock 7, user 65534 · {expected}")
            );
        }
        let mut none = info(&[], EnforcedBy::NotEnforced);
        none.network = Some(Network::Off);
        assert_eq!(isolation(&none), "local · not isolated · network open");
    }

    #[test]
    fn enforcement_lists_each_field() {
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
