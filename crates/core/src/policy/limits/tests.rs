use proptest::prelude::*;

use super::*;

fn set(settings: &[&str]) -> Limits {
    let mut limits = Limits::default();
    for setting in settings {
        limits.set(setting).expect("a limit");
    }
    limits
}

#[test]
fn every_limit_can_be_set_by_name() {
    let limits = set(&[
        "wall_time=1.5m",
        "cpu_time=30",
        "memory=2G",
        "processes=64",
        "file_size=10m",
        "disk = 1g",
        "inodes=10000",
        "open_files=1024",
        "output=64K",
    ]);
    let expected = Limits {
        wall_time: Some(Duration::from_secs(90)),
        cpu_time: Some(Duration::from_secs(30)),
        memory_bytes: Some(2 << 30),
        processes: Some(64),
        file_size_bytes: Some(10 << 20),
        disk_bytes: Some(1 << 30),
        inodes: Some(10_000),
        open_files: Some(1024),
        output_bytes: Some(64 << 10),
        unlimited: BTreeSet::new(),
    };
    assert_eq!(limits, expected);
    // The last word counts.
    assert_eq!(set(&["memory=1", "memory=2"]).memory_bytes, Some(2));
    // All names, and none else, are those of the fields.
    let all: Vec<_> = limits.fields().map(PolicyField::as_str).collect();
    assert!(names().ends_with(&all.join(", ")));
}

#[test]
fn invalid_limits_are_rejected_with_advice() {
    let settings = [
        "",
        "memory",
        "memroy=2G",
        "memory=",
        "memory=0",
        "memory=2GB",
        "memory=-1",
        "memory=1.5G",
        "memory=lots",
        "memory=99999999999G",
        "processes=64K",
        "processes=0",
        "processes=+4",
        "wall_time=0",
        "wall_time=1d",
        "wall_time=-1",
        "wall_time=inf",
        "wall_time=1e9",
        "wall_time=.",
        "wall_time=0.0000000001",
    ];
    let refused = settings.map(|setting| match Limits::default().set(setting) {
        Ok(()) => panic!("`{setting}` was taken"),
        Err(error) => error.to_string(),
    });
    insta::assert_snapshot!(refused.join("\n"));
}

proptest! {
    #[test]
    fn no_setting_panics_or_is_ignored(
        name in "(memory|processes|wall_time|disk|[a-z_]{0,9})",
        value in ".{0,24}",
    ) {
        let mut limits = Limits::default();
        let read = limits.set(&format!("{name}={value}"));
        prop_assert_eq!(read.is_ok(), !limits.is_empty());
    }

    #[test]
    fn plain_numbers_round_trip(number in 1..u64::MAX, millis in 1..1_000_000_u64) {
        let seconds = Duration::from_millis(millis).as_secs_f64();
        let limits = set(&[
            &format!("memory={number}"),
            &format!("processes={number}"),
            &format!("cpu_time={seconds}s"),
        ]);
        prop_assert_eq!(limits.memory_bytes, Some(number));
        prop_assert_eq!(limits.processes, Some(number));
        prop_assert_eq!(limits.cpu_time, Some(Duration::from_millis(millis)));
    }
}

#[test]
fn defaults_apply_where_no_limit_is_named_or_switched_off() {
    let defaults = set(&["memory=9", "disk=9", "inodes=9"]);
    let mut named = set(&["memory=1", "disk=1", "disk=none"]);
    let expected = Limits {
        memory_bytes: Some(1),
        inodes: Some(9),
        unlimited: BTreeSet::from([PolicyField::Disk]),
        ..Limits::default()
    };
    assert_eq!(named.with_defaults(&defaults), expected);
    named.set("disk=2").unwrap();
    assert_eq!(named, set(&["memory=1", "disk=2"]));
}
