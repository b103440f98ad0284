use serde_json::json;

use super::*;

fn everything() -> Policy {
    Policy {
        read_roots: Some(vec!["/data".into()]),
        write_roots: Some(Vec::new()),
        network: Some(Network::Hosts(vec!["pypi.org".to_owned()])),
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
        },
        strictness: Strictness::BestEffort,
    }
}

#[test]
fn exactly_the_fields_that_are_set_are_named() {
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
fn a_field_has_one_name_everywhere() {
    for field in everything().fields() {
        let json = serde_json::to_value(field).expect("serializes");
        assert_eq!(json, field.to_string());
    }
}

#[test]
fn nothing_shows_a_secret() {
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
fn a_policy_is_written_as_far_as_it_says_something() {
    let policy: Policy = serde_json::from_value(json!({
        "network": "off",
        "limits": {"memory_bytes": 1024},
        "environment": {"LANG": "C"},
    }))
    .expect("reads");
    let expected = Policy {
        network: Some(Network::Off),
        limits: Limits {
            memory_bytes: Some(1024),
            ..Limits::default()
        },
        environment: BTreeMap::from([("LANG".to_owned(), "C".into())]),
        ..Policy::default()
    };
    assert_eq!(policy, expected);
}
