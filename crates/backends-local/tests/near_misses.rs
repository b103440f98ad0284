//! Mutated inputs: parsers do not panic, and parsed values round-trip. A bounded walk around valid
//! inputs, in every run of the tests.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;

use cantle_core::policy::{HostPattern, Limits, Policy};
use cantle_core::sandbox::SandboxPath;
use proptest::prelude::*;
use proptest::sample::{Index, select};

/// Policies as in files, journals or requests.
const POLICIES: &[&str] = &[
    r#"{"read_roots":{"system":true,"paths":["/data"]},"write_roots":[],"network":"off"}"#,
    r#"{"network":{"hosts":["*.mirror.example.org:443","index.example.org"]},"subprocesses":false}"#,
    // Only the names of environment variables are serialized.
    r#"{"working_directory":"read_only","environment":{},"strictness":"best_effort"}"#,
    r#"{"limits":{"wall_time_s":1.5,"memory_bytes":1024,"processes":64,"output_bytes":1}}"#,
    "{}",
];
const HOSTS: &[&str] = &[
    "index.example.org",
    "*.mirror.example.org:443",
    "xn--bcher-kva.example.com:8080",
    "a.b-c.d1",
];
const LIMITS: &[&str] = &["memory=2G", "wall_time=1.5m", "processes=64", " disk = 1k "];
const PATHS: &[&str] = &["a/b/../c", "/workspace/x y", "./..//z", "\u{fc}/-rf", "a/"];

/// One mutation: its kind, position and byte.
type Edit = (u8, Index, u8);

/// Bytes that are special to some parser, and any others.
fn edits() -> impl Strategy<Value = Vec<Edit>> {
    let marks = select(&b"\"\\{}[]:,./*-=0918eE+ \0\n\xff\xc3"[..]);
    let byte = prop_oneof![marks, any::<u8>()];
    proptest::collection::vec((0..4_u8, any::<Index>(), byte), 0..6)
}

fn edited(seed: &str, edits: &[Edit]) -> Vec<u8> {
    let mut bytes = seed.as_bytes().to_vec();
    for (what, at, byte) in edits {
        let at = at.index(bytes.len() + 1);
        match what {
            0 => bytes.insert(at, *byte),
            1 => bytes.truncate(at),
            // Duplicates the input.
            2 => bytes.extend_from_within(at..),
            _ => {
                if let Some(changed) = bytes.get_mut(at) {
                    *changed = *byte;
                }
            }
        }
    }
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn parsed_policy_round_trips(seed in select(POLICIES), edits in edits()) {
        let read = serde_json::from_slice::<Policy>(&edited(seed, &edits));
        if let Ok(policy) = read && policy.environment.is_empty() {
            let json = serde_json::to_string(&policy)?;
            prop_assert_eq!(serde_json::from_str::<Policy>(&json)?, policy);
        }
    }

    #[test]
    fn parsed_host_round_trips(seed in select(HOSTS), edits in edits()) {
        let text = String::from_utf8_lossy(&edited(seed, &edits)).into_owned();
        if let Ok(pattern) = text.parse::<HostPattern>() {
            prop_assert_eq!(pattern.to_string().parse(), Ok(pattern));
        }
    }

    #[test]
    fn invalid_limit_changes_nothing(seed in select(LIMITS), edits in edits()) {
        let text = String::from_utf8_lossy(&edited(seed, &edits)).into_owned();
        let mut limits = Limits::default();
        prop_assert_eq!(limits.set(&text).is_ok(), !limits.is_empty());
    }

    #[test]
    fn path_never_climbs(seed in select(PATHS), edits in edits()) {
        let bytes = edited(seed, &edits);
        if let Ok(path) = SandboxPath::from_os(OsStr::from_bytes(&bytes)) {
            let fine = |part: &[u8]| !matches!(part, b"" | b"." | b"..") && !part.contains(&0);
            prop_assert!(path.components().all(fine));
            prop_assert_eq!(path.is_absolute(), bytes.starts_with(b"/"));
        }
    }
}
