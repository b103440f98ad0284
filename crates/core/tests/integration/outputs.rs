//! Saving what a run names as its results.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use cantle_core::sandbox::{SandboxErrorKind, SandboxExt as _, SavedOutputs};

use crate::memory_sandbox::{MemorySandbox, Node};
use crate::transfers::{directory, file, host_file, host_tree, mode, refusals};

async fn save(sandbox: &MemorySandbox, paths: &[&str], to: &Path) -> SavedOutputs {
    let paths: Vec<String> = paths.iter().map(ToString::to_string).collect();
    sandbox
        .save_outputs(&paths, to)
        .await
        .expect("the outputs are saved")
}

fn saved(outputs: &SavedOutputs) -> Vec<(&str, &Path, u64)> {
    outputs
        .saved
        .iter()
        .map(|file| (file.source.as_str(), file.path.as_path(), file.size_bytes))
        .collect()
}

#[tokio::test]
async fn outputs_keep_their_relative_paths_and_modes() {
    let host = directory();
    let out = host.path().join("new/out");
    let sandbox = MemorySandbox::new()
        .with_file("report.md", "report")
        .with("a/b/run.sh", file("run", 0o755))
        .with_file("c.txt", "c");
    let outputs = save(
        &sandbox,
        &["a/b/run.sh", "/sandbox/c.txt", "report.md", "report.md"],
        &out,
    )
    .await;
    assert_eq!(
        saved(&outputs),
        [
            ("a/b/run.sh", out.join("a/b/run.sh").as_path(), 3),
            ("/sandbox/c.txt", out.join("c.txt").as_path(), 1),
            ("report.md", out.join("report.md").as_path(), 6),
        ]
    );
    assert_eq!(outputs.refused, []);
    assert_eq!(
        host_tree(&out),
        [
            ("a/b/run.sh".to_owned(), "run".to_owned()),
            ("c.txt".to_owned(), "c".to_owned()),
            ("report.md".to_owned(), "report".to_owned()),
        ]
    );
    assert_eq!(mode(&out.join("a/b/run.sh")), 0o755);
    assert_eq!(sandbox.tree().len(), 5, "sources stay");
}

#[tokio::test]
async fn invalid_outputs_are_refused_individually() {
    let host = directory();
    let sandbox = MemorySandbox::new()
        .with_file("good", "good")
        .with("directory", Node::Directory)
        .with("pipe", Node::Pipe)
        .with("escape", Node::Escape)
        .with("broken", Node::Broken(SandboxErrorKind::Io));
    let paths = [
        "",
        "a\0b",
        "../good",
        "directory/../good",
        ".",
        "/sandbox",
        "directory",
        "pipe",
        "escape",
        "/etc/passwd",
        "missing",
        "broken",
        "good",
        "./good",
    ];
    let outputs = save(&sandbox, &paths, host.path()).await;
    assert_eq!(
        refusals(&outputs.refused),
        [
            ("", "the path is empty"),
            (
                "a\0b",
                "`a\0b` is not a valid path in the sandbox: it contains a NUL byte"
            ),
            ("../good", "the path contains `..`"),
            ("directory/../good", "the path contains `..`"),
            (".", "the path names a directory, not a file"),
            ("/sandbox", "the path names a directory, not a file"),
            ("directory", "it is no file"),
            ("pipe", "it is no file"),
            ("escape", "it leads out"),
            ("/etc/passwd", "the path is outside the working directory"),
            ("missing", "there is no `missing`"),
            ("broken", "the disk broke"),
            (
                "./good",
                "it would replace `good`, another output of this run"
            ),
        ]
    );
    assert_eq!(
        saved(&outputs),
        [("good", host.path().join("good").as_path(), 4)]
    );
    assert_eq!(
        host_tree(host.path()),
        [("good".to_owned(), "good".to_owned())]
    );
}

#[tokio::test]
async fn obstacles_on_the_host_are_respected() {
    let host = directory();
    let outside = directory();
    let kept = host_file(outside.path(), "kept", "kept", 0o644);
    let out = host.path();
    host_file(out, "old", "old", 0o600);
    host_file(out, "file", "in the way", 0o644);
    host_file(out, "full/file", "in the way", 0o644);
    symlink(outside.path(), out.join("link")).expect("a link");
    symlink(&kept, out.join("file-link")).expect("a link");

    let sandbox = ["old", "file/x", "full", "link/kept", "file-link"]
        .into_iter()
        .fold(MemorySandbox::new(), |sandbox, at| {
            sandbox.with_file(at, "new")
        });
    let paths = ["old", "file/x", "full", "link/kept", "file-link"];
    let outputs = save(&sandbox, &paths, out).await;
    let in_the_way = |at: &str| format!("`{}` is in the way", out.join(at).display());
    assert_eq!(
        refusals(&outputs.refused),
        [
            ("file/x", in_the_way("file").as_str()),
            ("full", "Is a directory (os error 21)"),
            ("link/kept", in_the_way("link").as_str()),
        ]
    );
    // A link that has the name of an output is replaced, not written through.
    assert_eq!(fs::read_to_string(kept).expect("it is there"), "kept");
    assert!(!out.join("file-link").is_symlink());
    assert_eq!(
        host_tree(out)
            .into_iter()
            .filter(|(name, _)| name != "link")
            .collect::<Vec<_>>(),
        [
            ("file".to_owned(), "in the way".to_owned()),
            ("file-link".to_owned(), "new".to_owned()),
            ("full/file".to_owned(), "in the way".to_owned()),
            ("old".to_owned(), "new".to_owned()),
        ]
    );
}

#[tokio::test]
async fn without_outputs_no_directory_is_created() {
    let host = directory();
    let out = host.path().join("out");
    assert_eq!(
        save(&MemorySandbox::new(), &[], &out).await,
        SavedOutputs::default()
    );
    assert!(!out.exists());
}

#[tokio::test]
async fn an_output_directory_that_cannot_be_created_is_named() {
    let host = directory();
    let out = host_file(host.path(), "out", "a file", 0o644);
    let sandbox = MemorySandbox::new().with_file("report", "x");
    let error = sandbox
        .save_outputs(&["report".to_owned()], &out)
        .await
        .unwrap_err();
    assert_eq!(error.kind(), SandboxErrorKind::NotADirectory);
    let message = format!(
        "failed to write in the output directory `{}`",
        out.display()
    );
    assert!(error.to_string().starts_with(&message), "{error}");
}

#[tokio::test]
async fn a_gone_sandbox_leaves_no_partial_outputs() {
    let host = directory();
    let sandbox = MemorySandbox::new()
        .with_file("a", "a")
        .with("b", Node::Broken(SandboxErrorKind::Gone));
    let paths = ["a".to_owned(), "b".to_owned()];
    let error = sandbox.save_outputs(&paths, host.path()).await.unwrap_err();
    assert_eq!(error.kind(), SandboxErrorKind::Gone);
    assert_eq!(host_tree(host.path()), []);
}
