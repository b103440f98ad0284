use super::*;

fn args(preset: Option<Preset>, hosts: &[&str], limits: &[&str]) -> PolicyArgs {
    PolicyArgs {
        policy: preset,
        allow_host: hosts.iter().map(|host| host.parse().unwrap()).collect(),
        limit: limits.iter().map(|limit| limit.parse().unwrap()).collect(),
        best_effort: None,
    }
}

fn nothing() -> PolicyArgs {
    PolicyArgs::default()
}

fn put_together(
    said: &PolicyArgs,
    directory: &PolicyArgs,
    user: &PolicyArgs,
) -> Result<Policy, String> {
    let places = Places {
        said,
        directory,
        user,
    };
    resolve(&places, None).map_err(|error| error.to_string())
}

fn reaching(policy: Policy, hosts: &[&str]) -> Policy {
    let hosts = hosts.iter().map(|host| host.parse().unwrap()).collect();
    let mut policy = policy;
    policy.network = Some(Network::Hosts(hosts));
    policy
}

#[test]
fn nothing_said_means_workspace_and_strict() {
    let policy = put_together(&nothing(), &nothing(), &nothing());
    assert_eq!(policy, Ok(Policy::workspace()));
}

#[test]
fn the_strongest_place_names_the_policy() {
    let [read_only, unconfined, workspace] =
        [Preset::ReadOnly, Preset::Unconfined, Preset::Workspace]
            .map(|preset| args(Some(preset), &[], &[]));
    for (said, directory, user, expected) in [
        (&read_only, &workspace, &unconfined, Policy::read_only()),
        (&unconfined, &read_only, &workspace, Policy::unconfined()),
        (&nothing(), &read_only, &unconfined, Policy::read_only()),
        (&nothing(), &nothing(), &unconfined, Policy::unconfined()),
    ] {
        assert_eq!(put_together(said, directory, user), Ok(expected));
    }
}

#[test]
fn allowed_hosts_are_the_network_of_any_policy_that_confines() {
    for (preset, base) in [
        (None, Policy::workspace()),
        (Some(Preset::Workspace), Policy::workspace()),
        (Some(Preset::Network), Policy::workspace()),
        (Some(Preset::ReadOnly), Policy::read_only()),
    ] {
        let said = args(preset, &["pypi.org", "*.debian.org"], &[]);
        let expected = reaching(base, &["pypi.org", "*.debian.org"]);
        assert_eq!(put_together(&said, &nothing(), &nothing()), Ok(expected));
    }
}

#[test]
fn a_policy_without_network_sets_aside_hosts_of_a_weaker_place() {
    let user = args(None, &["pypi.org"], &[]);
    for (preset, expected) in [
        (Some(Preset::Workspace), Policy::workspace()),
        (Some(Preset::Unconfined), Policy::unconfined()),
        (
            Some(Preset::Network),
            reaching(Policy::workspace(), &["pypi.org"]),
        ),
        (None, reaching(Policy::workspace(), &["pypi.org"])),
    ] {
        let said = args(preset, &[], &[]);
        assert_eq!(put_together(&said, &nothing(), &user), Ok(expected));
    }
}

#[test]
fn what_contradicts_itself_says_why() {
    let both = args(Some(Preset::Unconfined), &["pypi.org"], &[]);
    let refused = put_together(&both, &nothing(), &nothing()).unwrap_err();
    assert!(refused.contains("every host can be reached"), "{refused}");
    let none = args(Some(Preset::Network), &[], &[]);
    let refused = put_together(&none, &nothing(), &nothing()).unwrap_err();
    assert!(refused.contains("--allow-host pypi.org"), "{refused}");
}

#[test]
fn the_directory_restricts_and_does_not_free() {
    let mut best_effort = nothing();
    best_effort.best_effort = Some(true);
    for (directory, flag) in [
        (
            args(Some(Preset::Unconfined), &[], &[]),
            "--policy unconfined",
        ),
        (args(None, &["evil.example"], &[]), "--allow-host"),
        (best_effort, "--best-effort"),
    ] {
        let refused = put_together(&nothing(), &directory, &nothing()).unwrap_err();
        assert!(refused.contains(flag), "{refused}");
        // Said by the user it holds, whatever the directory says.
        assert!(put_together(&directory, &directory, &nothing()).is_ok());
    }
    let directory = args(Some(Preset::ReadOnly), &[], &["memory=2G", "processes=64"]);
    let user = args(None, &[], &["memory=1G", "processes=128"]);
    let mut expected = Policy::read_only();
    expected.limits.memory_bytes = Some(1 << 30);
    expected.limits.processes = Some(64);
    assert_eq!(put_together(&nothing(), &directory, &user), Ok(expected));
    // Nor what the policy itself limits.
    let directory = args(None, &[], &["processes=1000000"]);
    let policy = put_together(&nothing(), &directory, &nothing());
    assert_eq!(policy, Ok(Policy::workspace()));
}

#[test]
fn limits_add_up_by_name_and_the_strongest_word_on_each_holds() {
    let said = args(None, &[], &["memory=4G"]);
    let user = args(None, &[], &["memory=1G", "open_files=100", "inodes=10"]);
    let places = Places {
        said: &said,
        directory: &nothing(),
        user: &user,
    };
    let policy = resolve(&places, Some("memory=2G,inodes=20")).unwrap();
    let mut expected = Policy::workspace().limits;
    expected.memory_bytes = Some(4 << 30);
    expected.inodes = Some(20);
    expected.open_files = Some(100);
    assert_eq!(policy.limits, expected);
    assert!(resolve(&places, Some("memory")).is_err());
}

#[test]
fn best_effort_is_said_or_not() {
    let with = |wanted| PolicyArgs {
        best_effort: wanted,
        ..nothing()
    };
    for (said, user, expected) in [
        (Some(true), None, Strictness::BestEffort),
        (None, Some(true), Strictness::BestEffort),
        (Some(false), Some(true), Strictness::Strict),
    ] {
        let policy = put_together(&with(said), &nothing(), &with(user)).unwrap();
        assert_eq!(policy.strictness, expected);
    }
}
