//! Files that others have written: journals and build contexts.

use std::fs;

use cantle_agent::RunStore;
use cantle_backends_docker::build_digest;
use cantle_core::ids::RunId;

/// A journal in the directory of a run.
pub(crate) fn journal(data: &[u8]) {
    let directory = tempfile::tempdir().unwrap();
    let store = RunStore::new(directory.path());
    let run = RunId::new();
    fs::create_dir_all(store.run_directory(run)).unwrap();
    fs::write(store.run_directory(run).join("journal.jsonl"), data).unwrap();
    let _ = store.list();
    if let Ok(kept) = store.get(run) {
        let _ = kept.status.is_resumable();
    }
}

/// A `.dockerignore` and a Dockerfile, separated by NUL, over some files.
pub(crate) fn build_context(data: &[u8]) {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let (ignore, dockerfile) = match data.iter().position(|byte| *byte == 0) {
        Some(at) => (&data[..at], &data[at + 1..]),
        None => (data, &b"FROM scratch\n"[..]),
    };
    fs::create_dir_all(path("a/b")).unwrap();
    for name in ["a/b/c.txt", "a/[x]", ".env"] {
        fs::write(path(name), name).unwrap();
    }
    fs::write(path(".dockerignore"), ignore).unwrap();
    fs::write(path("Dockerfile"), dockerfile).unwrap();
    let digest = || build_digest(&path("Dockerfile"), directory.path(), |_, _| {});
    if let Ok(one) = digest() {
        assert_eq!(digest().ok(), Some(one));
    }
}
