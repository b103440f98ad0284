use super::*;
use crate::settings::file::{Layer, parse};

fn layer(toml: &str) -> Layer {
    parse(toml).unwrap()
}

/// Resolves the policy of flags, the directory's file and the user's file.
fn resolved(flags: &str, directory: &str, user: &str) -> Result<Policy, String> {
    let layers = Layers::new([
        (Origin::Flag, layer(flags)),
        (Origin::Directory, layer(directory)),
        (Origin::User, layer(user)),
    ]);
    resolve(&layers).map_err(|error| error.to_string())
}

fn with_hosts(mut policy: Policy, hosts: &[&str]) -> Policy {
    let hosts = hosts.iter().map(|host| host.parse().unwrap()).collect();
    policy.network = Some(Network::Hosts(hosts));
    policy
}

const READ_ONLY: &str = "policy = 'read_only'";
const UNCONFINED: &str = "policy = 'unconfined'";
const WORKSPACE: &str = "policy = 'workspace'";
const HOSTS: &str = "allow_host = ['api.example.com', '*.example.org']";

#[test]
fn default_is_strict_workspace() {
    assert_eq!(resolved("", "", ""), Ok(Policy::workspace()));
}

#[test]
fn strongest_layer_names_the_preset() {
    for (flags, directory, user, expected) in [
        (READ_ONLY, WORKSPACE, UNCONFINED, Policy::read_only()),
        (UNCONFINED, READ_ONLY, WORKSPACE, Policy::unconfined()),
        ("", READ_ONLY, UNCONFINED, Policy::read_only()),
        ("", "", UNCONFINED, Policy::unconfined()),
    ] {
        assert_eq!(resolved(flags, directory, user), Ok(expected));
    }
}

#[test]
fn hosts_extend_every_confined_preset() {
    for (preset, base) in [
        ("", Policy::workspace()),
        (WORKSPACE, Policy::workspace()),
        ("policy = 'network'", Policy::workspace()),
        (READ_ONLY, Policy::read_only()),
    ] {
        let expected = with_hosts(base, &["api.example.com", "*.example.org"]);
        assert_eq!(
            resolved(&format!("{preset}\n{HOSTS}"), "", ""),
            Ok(expected)
        );
    }
}

#[test]
fn preset_without_network_sets_aside_weaker_hosts() {
    let user = "allow_host = ['api.example.com']";
    let reachable = with_hosts(Policy::workspace(), &["api.example.com"]);
    for (flags, expected) in [
        (WORKSPACE, Policy::workspace()),
        (UNCONFINED, Policy::unconfined()),
        ("policy = 'network'", reachable.clone()),
        ("", reachable),
    ] {
        assert_eq!(resolved(flags, "", user), Ok(expected));
    }
}

#[test]
fn denied_hosts_bind_commands_if_hosts_are_allowed() {
    let denying = "deny_host = ['ads.example.org']";
    assert_eq!(resolved(denying, "", ""), Ok(Policy::workspace()));
    let hosts = ["api.example.com", "*.example.org", "!ads.example.org"];
    assert_eq!(
        resolved(denying, "", HOSTS),
        Ok(with_hosts(Policy::workspace(), &hosts))
    );
}

#[test]
fn contradictions_are_explained() {
    let refused = resolved(&format!("{UNCONFINED}\n{HOSTS}"), "", "").unwrap_err();
    assert!(refused.contains("every host can be reached"), "{refused}");
    let denying = "deny_host = ['ads.example.org']";
    let refused = resolved(&format!("{UNCONFINED}\n{denying}"), "", "").unwrap_err();
    assert!(refused.contains("--deny-host"), "{refused}");
    let refused = resolved("policy = 'network'", "", "").unwrap_err();
    assert!(
        refused.contains("--allow-host api.example.com"),
        "{refused}"
    );
}

#[test]
fn untrusted_directory_only_lowers_limits() {
    let layers = |directory| {
        Layers::new([
            (Origin::UntrustedDirectory, layer(directory)),
            (
                Origin::User,
                layer("limit = ['memory=1G', 'processes=128']"),
            ),
        ])
    };
    // Defaults can't be raised or switched off, either.
    let lowered = layers(
        "limit = ['memory=2G', 'processes=64', 'open_files=99', 'disk=9000G', 'inodes=none', 'memory=none']",
    );
    let mut expected = Policy::workspace();
    expected.limits.memory_bytes = Some(1 << 30);
    expected.limits.processes = Some(64);
    expected.limits.open_files = Some(99);
    assert_eq!(resolve(&lowered).unwrap(), expected);
}

#[test]
fn limits_add_up_by_name() {
    let layers = Layers::new([
        (Origin::Flag, layer("limit = ['memory=4G']")),
        (
            Origin::Environment,
            layer("limit = ['memory=2G', 'inodes=20']"),
        ),
        (
            Origin::User,
            layer("limit = ['memory=1G', 'open_files=100', 'inodes=10']"),
        ),
    ]);
    let mut expected = Policy::workspace().limits;
    expected.memory_bytes = Some(4 << 30);
    expected.inodes = Some(20);
    expected.open_files = Some(100);
    assert_eq!(resolve(&layers).unwrap().limits, expected);
}

#[test]
fn best_effort_can_be_overridden() {
    let (on, off) = ("best_effort = true", "best_effort = false");
    for (flags, user, expected) in [
        (on, "", Strictness::BestEffort),
        ("", on, Strictness::BestEffort),
        (off, on, Strictness::Strict),
    ] {
        let policy = resolved(flags, "", user).unwrap();
        assert_eq!(policy.strictness, expected);
    }
}

#[test]
fn private_hosts_are_marked_by_the_user_alone() {
    let marked = "allow_host = ['mirror.example.org', 'private', '*.example.com,private', 'api.example.com']";
    let expected = with_hosts(
        Policy::workspace(),
        &[
            "mirror.example.org,private",
            "*.example.com,private",
            "api.example.com",
        ],
    );
    for (flags, user) in [(marked, ""), ("", marked)] {
        assert_eq!(resolved(flags, "", user), Ok(expected.clone()));
    }
    let refused = resolved("", marked, "").unwrap_err();
    assert!(refused.contains("can allow private addresses"), "{refused}");
    let lone = resolved("allow_host = ['private']", "", "").unwrap_err();
    assert!(lone.contains("after the host"), "{lone}");
}

#[test]
fn paths_to_read_are_those_of_this_machine() {
    let policy = resolved("read = ['/usr/share', '.']", "", "").unwrap();
    let here = std::env::current_dir().unwrap();
    let roots = policy.read_roots.unwrap();
    assert_eq!(
        (roots.system, roots.paths),
        (true, vec!["/usr/share".into(), here])
    );
    for (flags, part) in [
        ("read = ['/no/such/path']", "does not exist"),
        (
            "read = ['/usr']\npolicy = 'unconfined'",
            "every file can be read",
        ),
        (
            "read = ['/usr']\nbackend = 'docker:x'",
            "for the local backend",
        ),
    ] {
        let error = resolved(flags, "", "").unwrap_err();
        assert!(error.contains(part), "{error}");
    }
    // Those of a command that does not use the backend of the settings.
    let flags = layer("read = ['/usr']\nbackend = 'docker:x'");
    let layers = Layers::new([(Origin::Flag, flags)]);
    assert!(resolve_for(&layers, true).is_ok());
    assert!(resolve_for(&layers, false).is_err());
}
