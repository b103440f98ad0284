use std::collections::BTreeSet;
use std::time::Duration;

use proptest::option;
use proptest::prelude::*;
use serde_json::json;

use super::*;

fn host(pattern: &str) -> HostPattern {
    pattern.parse().expect("a pattern")
}

fn everything() -> Policy {
    Policy {
        read_roots: Some(ReadRoots::system().with_paths(["/data".into()])),
        write_roots: Some(Vec::new()),
        hidden_paths: vec!["/srv/.env".into()],
        working_directory: Access::ReadOnly,
        network: Some(Network::Hosts(vec![host("*.example.org:443")])),
        subprocesses: Some(false),
        environment: BTreeMap::from([("TOKEN".to_owned(), "hunter2".into())]),
        limits: Limits {
            wall_time: Some(Duration::from_secs(60)),
            cpu_time: Some(Duration::from_secs(30)),
            memory_bytes: Some(1),
            processes: Some(2),
            file_size_bytes: Some(3),
            disk_bytes: Some(4),
            inodes: Some(5),
            open_files: Some(6),
            output_bytes: Some(7),
            unlimited: BTreeSet::new(),
        },
        strictness: Strictness::BestEffort,
    }
}

#[test]
fn a_private_host_is_marked() {
    let pattern: HostPattern = "*.example.org:8443,private".parse().unwrap();
    assert!(pattern.allows_private_addresses());
    assert_eq!(pattern.to_string(), "*.example.org:8443,private");
    assert!(pattern.matches(&"a.example.org".parse().unwrap(), 8443));
    let plain: HostPattern = "a.example.org".parse().unwrap();
    assert!(!plain.allows_private_addresses());
    assert_eq!(
        plain.with_private_addresses().to_string(),
        "a.example.org,private"
    );
    for text in [
        ",private",
        "10.0.0.1,private",
        "a.example.org,public",
        "a.example.org,private,private",
    ] {
        assert!(text.parse::<HostPattern>().is_err(), "{text}");
    }
}

#[test]
fn fields_lists_exactly_the_set_fields() {
    assert_eq!(Policy::unconfined().fields(), []);
    let names: Vec<String> = everything()
        .fields()
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(
        names,
        [
            "read_roots",
            "write_roots",
            "hidden_paths",
            "working_directory",
            "network",
            "subprocesses",
            "environment",
            "wall_time",
            "cpu_time",
            "memory",
            "processes",
            "file_size",
            "disk",
            "inodes",
            "open_files",
            "output",
        ]
    );
}

#[test]
fn field_names_match_their_json() {
    for field in everything().fields() {
        let json = serde_json::to_value(field).expect("serializes");
        assert_eq!(json, field.to_string());
    }
}

#[test]
fn secrets_are_never_displayed() {
    let policy = everything();
    assert_eq!(policy.environment["TOKEN"].expose(), "hunter2");
    let json = serde_json::to_string(&policy).expect("serializes");
    for shown in [format!("{policy:?}"), json] {
        assert!(
            shown.contains("TOKEN") && shown.contains("[hidden]"),
            "{shown}"
        );
        assert!(!shown.contains("hunter2"), "{shown}");
    }
}

#[test]
fn unset_fields_are_omitted_from_json() {
    insta::assert_json_snapshot!(json!({
        "unconfined": Policy::unconfined(),
        "workspace": Policy::workspace(),
        "everything": everything(),
    }));

    let policy: Policy = serde_json::from_value(json!({
        "network": "off",
        "limits": {"memory_bytes": 1024, "wall_time_s": 0.5},
        "environment": {"LANG": "C"},
    }))
    .expect("reads");
    let expected = Policy {
        network: Some(Network::Off),
        limits: Limits {
            memory_bytes: Some(1024),
            wall_time: Some(Duration::from_millis(500)),
            ..Limits::default()
        },
        environment: BTreeMap::from([("LANG".to_owned(), "C".into())]),
        ..Policy::default()
    };
    assert_eq!(policy, expected);
}

#[test]
fn unknown_fields_are_rejected() {
    for json in [
        json!({"netwrok": "off"}),
        json!({"network": "of"}),
        json!({"network": {"hosts": ["127.0.0.1"]}}),
        json!({"limits": {"memory": 1}}),
        json!({"limits": {"wall_time_s": -1}}),
        json!({"read_roots": {"paths": [], "sytem": true}}),
        json!({"working_directory": "none"}),
    ] {
        let read = serde_json::from_value::<Policy>(json.clone());
        assert!(read.is_err(), "{json}");
    }
}

#[test]
fn presets_are_parsed_by_name() {
    for preset in Preset::ALL {
        assert_eq!(preset.to_string().parse(), Ok(*preset));
    }
    assert_eq!(Preset::Network.policy(), Policy::network([]));
    let error = "read-only".parse::<Preset>().expect_err("no such preset");
    assert_eq!(
        error.to_string(),
        "`read-only` is not the name of a policy: use one of workspace, network, read_only, unconfined"
    );
}

#[test]
fn every_preset_but_unconfined_protects_the_host() {
    let common = [
        PolicyField::ReadRoots,
        PolicyField::WriteRoots,
        PolicyField::Network,
        PolicyField::Processes,
    ];
    assert_eq!(Policy::workspace().fields(), common);
    assert_eq!(Policy::network([host("example.com")]).fields(), common);
    let [read, write, network, processes] = common;
    let read_only = [
        read,
        write,
        PolicyField::WorkingDirectory,
        network,
        processes,
    ];
    assert_eq!(Policy::read_only().fields(), read_only);
    assert_eq!(Policy::unconfined().fields(), []);
}

#[test]
fn system_paths_exclude_user_data() {
    let own = ["/home", "/root", "/run", "/var", "/sys", "/tmp", "/proc"];
    for root in ReadRoots::SYSTEM {
        assert!(own.iter().all(|own| !root.starts_with(own)), "{root}");
        assert!(
            !["/", "/etc", "/etc/ssl", "/etc/pki"].contains(root),
            "{root}"
        );
        assert!(root.starts_with('/') && !root.ends_with('/'), "{root}");
    }
}

fn limits() -> impl Strategy<Value = Limits> {
    // A day, to the nanosecond: what JSON's numbers carry.
    let time = || option::of((0..86_400_000_000_000_u64).prop_map(Duration::from_nanos));
    let number = || option::of(any::<u64>());
    let times = (time(), time());
    let sizes = (number(), number(), number(), number());
    let numbers = (number(), number(), number());
    (times, sizes, numbers).prop_map(|(times, sizes, numbers)| Limits {
        wall_time: times.0,
        cpu_time: times.1,
        memory_bytes: sizes.0,
        file_size_bytes: sizes.1,
        disk_bytes: sizes.2,
        output_bytes: sizes.3,
        processes: numbers.0,
        inodes: numbers.1,
        open_files: numbers.2,
        unlimited: BTreeSet::new(),
    })
}

prop_compose! {
    fn policies()(
        system in any::<bool>(),
        read in option::of(prop::collection::vec("/[^\0]{0,20}", 0..3)),
        write in option::of(prop::collection::vec("/[^\0]{0,20}", 0..3)),
        hidden in prop::collection::vec("/[^\0]{0,20}", 0..3),
        read_only in any::<bool>(),
        hosts in option::of(prop::collection::vec("(\\*\\.)?[a-z]{1,9}\\.example(:[1-9]{1,4})?", 0..3)),
        off in any::<bool>(),
        subprocesses in option::of(any::<bool>()),
        limits in limits(),
        best_effort in any::<bool>(),
    ) -> Policy {
        let paths = |paths: Vec<String>| paths.into_iter().map(PathBuf::from).collect::<Vec<_>>();
        let hosts = hosts.map(|hosts| hosts.iter().map(|pattern| host(pattern)).collect());
        Policy {
            read_roots: read.map(|read| ReadRoots { system, paths: paths(read) }),
            write_roots: write.map(paths),
            hidden_paths: paths(hidden),
            working_directory: if read_only { Access::ReadOnly } else { Access::ReadWrite },
            network: if off { Some(Network::Off) } else { hosts.map(Network::Hosts) },
            subprocesses,
            // Secrets are written hidden and can't be read back.
            environment: BTreeMap::new(),
            limits,
            strictness: if best_effort { Strictness::BestEffort } else { Strictness::Strict },
        }
    }
}

proptest! {
    #[test]
    fn policies_round_trip_through_json(policy in policies()) {
        let json = serde_json::to_string(&policy).expect("serializes");
        let back: Policy = serde_json::from_str(&json).expect("reads");
        prop_assert_eq!(serde_json::to_string(&back).expect("serializes"), json);
        prop_assert_eq!(back, policy);
    }

    #[test]
    fn no_json_causes_a_panic(
        text in r#"[{}\[\]",:a-z0-9._ -]{0,60}"#,
        field in "(read_roots|write_roots|network|limits|working_directory|strictness)",
    ) {
        let _ = serde_json::from_str::<Policy>(&text);
        let _ = serde_json::from_str::<Policy>(&format!(r#"{{"{field}": {text}}}"#));
    }
}
