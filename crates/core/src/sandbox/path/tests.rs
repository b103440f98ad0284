use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::sandbox::{SandboxError, SandboxErrorKind};

fn path(text: &str) -> SandboxPath {
    text.parse().expect("a path")
}

#[test]
fn paths_are_normalized() {
    let cases = [
        ("", "."),
        (".", "."),
        ("./", "."),
        ("a", "a"),
        ("a/", "a"),
        ("./a//b/./c/", "a/b/c"),
        ("a/../b", "b"),
        ("a/b/../../c", "c"),
        ("a/..", "."),
        ("/", "/"),
        ("//", "/"),
        ("/a//b/", "/a/b"),
        ("/a/../b", "/b"),
        ("...", "..."),
        ("a b/ü\n", "a b/ü\n"),
    ];
    for (text, normalised) in cases {
        let path = path(text);
        assert_eq!(path.to_string(), normalised, "{text:?}");
        assert_eq!(path.is_absolute(), text.starts_with('/'), "{text:?}");
    }
}

#[test]
fn escaping_paths_and_nul_are_rejected() {
    let cases = [
        ("..", SandboxErrorKind::OutsideSandbox),
        ("../a", SandboxErrorKind::OutsideSandbox),
        ("a/../..", SandboxErrorKind::OutsideSandbox),
        ("/..", SandboxErrorKind::OutsideSandbox),
        ("/a/../../etc/passwd", SandboxErrorKind::OutsideSandbox),
        ("a\0b", SandboxErrorKind::InvalidInput),
        ("\0", SandboxErrorKind::InvalidInput),
    ];
    for (text, kind) in cases {
        let error = SandboxError::from(SandboxPath::new(text).expect_err(text));
        assert_eq!(error.kind(), kind, "{text:?}");
    }
    assert_eq!(
        SandboxPath::new("../a").unwrap_err().to_string(),
        "`../a` is not a valid path in the sandbox: it leads above the directory it starts from"
    );
    assert_eq!(
        path("a").join("/b").unwrap_err().to_string(),
        "`/b` is not a valid path in the sandbox: it must be relative"
    );
}

#[test]
fn names_that_are_not_utf8_are_paths_too() {
    let path = SandboxPath::new(b"data/\xff.csv").expect("a path");
    assert_eq!(path.relative_bytes(), b"data/\xff.csv");
    assert_eq!(path.file_name(), Some(b"\xff.csv".as_slice()));
    assert_eq!(path.to_string(), "data/\u{fffd}.csv");
}

#[test]
fn parents_end_at_the_base() {
    let parents = |text: &str| {
        std::iter::successors(Some(path(text)), SandboxPath::parent)
            .map(|path| path.to_string())
            .collect::<Vec<_>>()
    };
    assert_eq!(parents("a/b/c"), ["a/b/c", "a/b", "a", "."]);
    assert_eq!(parents("/a/b"), ["/a/b", "/a", "/"]);
    assert_eq!(path("/").file_name(), None);
}

#[test]
fn prefixes_are_stripped_by_component() {
    let stripped = |text: &str, root: &str| path(text).strip_prefix(&path(root));
    assert_eq!(stripped("/work/a", "/work"), Some(path("a")));
    assert_eq!(stripped("/work", "/work"), Some(path(".")));
    assert_eq!(stripped("/work/a", "/"), Some(path("work/a")));
    assert_eq!(stripped("/workshop/a", "/work"), None);
    assert_eq!(stripped("/wor", "/work"), None);
    assert_eq!(stripped("work/a", "/work"), None);
}

#[test]
fn json_is_validated() {
    let json = serde_json::to_string(&path("./a//b")).expect("serializes");
    assert_eq!(json, r#""a/b""#);
    assert_eq!(
        serde_json::from_str::<SandboxPath>(&json).expect("reads"),
        path("a/b")
    );
    assert!(serde_json::from_str::<SandboxPath>(r#""../a""#).is_err());
}

/// Bytes that make interesting paths: many dots and slashes, now and then something else.
fn bytes() -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![
        4 => Just(b'/'),
        4 => Just(b'.'),
        4 => proptest::sample::select(b"ab \xff\n".as_slice()),
        1 => any::<u8>(),
    ];
    vec(byte, 0..24)
}

fn some_path() -> impl Strategy<Value = SandboxPath> {
    bytes().prop_filter_map("not a path", |bytes| SandboxPath::new(bytes).ok())
}

fn whole(path: &SandboxPath) -> Vec<u8> {
    let slash: &[u8] = if path.is_absolute() { b"/" } else { b"" };
    [slash, path.relative_bytes()].concat()
}

proptest! {
    #[test]
    fn paths_never_contain_parent_components(bytes in bytes()) {
        if let Ok(path) = SandboxPath::new(&bytes) {
            prop_assert!(!bytes.contains(&0));
            for component in path.components() {
                prop_assert!(!component.is_empty());
                prop_assert!(component != b"." && component != b"..");
                prop_assert!(!component.contains(&b'/') && !component.contains(&0));
            }
            prop_assert_eq!(path.components().collect::<Vec<_>>().join(&b'/'), path.relative_bytes());
        }
    }

    #[test]
    fn only_escapes_and_nul_are_rejected(bytes in bytes()) {
        if SandboxPath::new(&bytes).is_err() {
            let climbs = bytes
                .split(|byte| *byte == b'/')
                .filter(|component| !component.is_empty() && *component != b".")
                .scan(0_i32, |depth, component| {
                    *depth += if component == b".." { -1 } else { 1 };
                    Some(*depth)
                })
                .any(|depth| depth < 0);
            prop_assert!(climbs || bytes.contains(&0));
        }
    }

    #[test]
    fn normalization_is_idempotent(path in some_path()) {
        prop_assert_eq!(SandboxPath::new(whole(&path)), Ok(path));
    }

    #[test]
    fn joined_paths_can_be_stripped(root in some_path(), below in some_path()) {
        match root.join(whole(&below)) {
            Ok(joined) => {
                prop_assert!(!below.is_absolute());
                prop_assert_eq!(joined.strip_prefix(&root), Some(below));
            }
            Err(_) => prop_assert!(below.is_absolute()),
        }
    }

    #[test]
    fn stripped_paths_can_be_joined(path in some_path(), root in some_path()) {
        if let Some(below) = path.strip_prefix(&root) {
            prop_assert!(!below.is_absolute());
            prop_assert_eq!(root.join(below.relative_bytes()), Ok(path));
        }
    }

    #[test]
    fn parent_and_file_name_join_to_the_path(path in some_path()) {
        match (path.parent(), path.file_name()) {
            (Some(parent), Some(name)) => prop_assert_eq!(parent.join(name), Ok(path)),
            (None, None) => prop_assert!(path.is_base()),
            other => prop_assert!(false, "{other:?}"),
        }
    }
}
