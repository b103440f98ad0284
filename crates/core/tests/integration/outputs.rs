//! Saving what a run names as its results.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use cantle_core::sandbox::{OutputOptions, SandboxErrorKind, SandboxExt as _, SavedOutputs};

use crate::memory_sandbox::{MemorySandbox, Node};
use crate::transfers::{directory, file, host_file, host_tree, mode, refusals};

async fn save(sandbox: &MemorySandbox, paths: &[&str], to: &Path) -> SavedOutputs {
    let paths: Vec<String> = paths.iter().map(ToString::to_string).collect();
    sandbox
        .save_outputs(&paths, to, OutputOptions::default())
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
    assert_eq!(outputs.refused, []);
    assert!(outputs.saved.iter().all(|file| file.renamed));
    // A link that has the name of an output is not written through.
    assert_eq!(fs::read_to_string(&kept).expect("it is there"), "kept");
    assert!(out.join("file-link").is_symlink());
    assert_eq!(
        host_tree(out)
            .into_iter()
            .filter(|(name, _)| name != "link" && name != "file-link")
            .collect::<Vec<_>>(),
        [
            ("file".to_owned(), "in the way".to_owned()),
            ("file-link.1".to_owned(), "new".to_owned()),
            ("file.1/x".to_owned(), "new".to_owned()),
            ("full.1".to_owned(), "new".to_owned()),
            ("full/file".to_owned(), "in the way".to_owned()),
            ("link.1/kept".to_owned(), "new".to_owned()),
            ("old".to_owned(), "old".to_owned()),
            ("old.1".to_owned(), "new".to_owned()),
        ]
    );

    let overwrite = OutputOptions::default().with_overwrite();
    let paths = ["old", "file-link"].map(str::to_owned);
    let outputs = sandbox.save_outputs(&paths, out, overwrite).await;
    assert!(
        outputs
            .expect("saved")
            .saved
            .iter()
            .all(|file| !file.renamed)
    );
    assert_eq!(fs::read_to_string(out.join("old")).expect("there"), "new");
    assert!(!out.join("file-link").is_symlink());
    assert_eq!(fs::read_to_string(kept).expect("it is there"), "kept");
}

/// Root can read it, and finds that it is another one.
#[tokio::test]
async fn an_unreadable_file_is_no_obstacle() {
    let host = directory();
    host_file(host.path(), "a", "closed", 0o000);
    let sandbox = MemorySandbox::new().with_file("a", "new");
    let outputs = save(&sandbox, &["a"], host.path()).await;
    let place = host.path().join("a.1");
    assert_eq!(saved(&outputs), [("a", place.as_path(), 3)]);
}

#[tokio::test]
async fn only_unchanged_files_of_an_earlier_run_are_replaced() {
    let host = directory();
    let out = host.path();
    let save_with = async |earlier: &SavedOutputs, content: &'static str| {
        let names = ["a", "b/c"];
        let sandbox = names
            .into_iter()
            .fold(MemorySandbox::new(), |sandbox, name| {
                sandbox.with_file(name, content)
            });
        let earlier = earlier.saved.iter().map(|file| {
            let path = file.path.strip_prefix(out).expect("below").to_owned();
            (path, file.sha256.clone().expect("a digest"))
        });
        let options = OutputOptions::default().with_earlier(earlier);
        let names = names.map(str::to_owned);
        let saved = sandbox.save_outputs(&names, out, options).await;
        saved.expect("saved")
    };
    let first = save_with(&SavedOutputs::default(), "1").await;
    let digest = first.saved.first().and_then(|file| file.sha256.as_deref());
    assert_eq!(
        digest,
        Some("6b86b273ff34fce19d6b804eff5a3f5747ada4eaa22f1d49c01e52ddb7875b4b")
    );
    let second = save_with(&first, "2").await;
    assert_eq!(
        host_tree(out),
        [
            ("a".to_owned(), "2".to_owned()),
            ("b/c".to_owned(), "2".to_owned())
        ]
    );
    // The same content is the same file.
    assert_eq!(save_with(&SavedOutputs::default(), "2").await, second);

    fs::write(out.join("a"), "edited").expect("written");
    let third = save_with(&second, "3").await;
    let renamed: Vec<_> = third.saved.iter().map(|file| file.renamed).collect();
    assert_eq!(renamed, [true, false]);
    assert_eq!(
        host_tree(out),
        [
            ("a".to_owned(), "edited".to_owned()),
            ("a.1".to_owned(), "3".to_owned()),
            ("b/c".to_owned(), "3".to_owned())
        ]
    );
}

#[tokio::test]
async fn reserved_names_are_not_saved() {
    let host = directory();
    let sandbox = MemorySandbox::new()
        .with_file(".git/hooks/pre-commit", "x")
        .with_file("cantle.toml", "x");
    let outputs = save(
        &sandbox,
        &[".git/hooks/pre-commit", "/sandbox/cantle.toml"],
        host.path(),
    )
    .await;
    assert_eq!(outputs.refused.len(), 2);
    assert_eq!(host_tree(host.path()), []);
}

#[tokio::test]
async fn large_files_are_refused_and_holes_are_kept() {
    use std::os::unix::fs::MetadataExt as _;

    let host = directory();
    let content = "\0".repeat(3 << 20) + "end";
    let sandbox = MemorySandbox::new().with_file("sparse", content.clone().leak());
    let paths = ["sparse".to_owned()];
    let limited = |bytes| {
        let options = OutputOptions::default().with_max_file_bytes(bytes);
        sandbox.save_outputs(&paths, host.path(), options)
    };
    let size = content.len() as u64;
    let refused = limited(size - 1)
        .await
        .expect("the others are saved")
        .refused;
    let reason = format!("it has {size} bytes, and {} are allowed", size - 1);
    assert_eq!(refusals(&refused), [("sparse", reason.as_str())]);
    let outputs = limited(size).await.expect("saved");
    let path = &outputs.saved.first().expect("one").path;
    assert_eq!(fs::read(path).expect("there"), content.as_bytes());
    let stored = fs::metadata(path).expect("there").blocks() * 512;
    assert!(stored < size / 2, "{stored} bytes are stored");
}

#[tokio::test]
async fn staging_of_a_killed_process_is_removed() {
    let host = directory();
    let staged = |name: &str| {
        host_file(host.path(), &format!("{name}/x"), "half", 0o644);
        let directory = fs::File::open(host.path().join(name)).expect("there");
        let long_ago = std::time::SystemTime::now() - std::time::Duration::from_secs(3600);
        directory.set_modified(long_ago).expect("set");
        directory
    };
    drop(staged(".cantle-killed"));
    let running = staged(".cantle-running");
    running.try_lock().expect("locked");
    host_file(host.path(), ".cantle-new/x", "half", 0o644);
    let sandbox = MemorySandbox::new().with_file("report", "x");
    save(&sandbox, &["report"], host.path()).await;
    let names: Vec<_> = host_tree(host.path())
        .into_iter()
        .map(|(name, _)| name)
        .collect();
    assert_eq!(names, [".cantle-new/x", ".cantle-running/x", "report"]);
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
        .save_outputs(&["report".to_owned()], &out, OutputOptions::default())
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
    let error = sandbox
        .save_outputs(&paths, host.path(), OutputOptions::default())
        .await
        .unwrap_err();
    assert_eq!(error.kind(), SandboxErrorKind::Gone);
    assert_eq!(host_tree(host.path()), []);
}
