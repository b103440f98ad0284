//! Files on their way between the host and a sandbox.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use cantle_core::sandbox::{
    HostTree, OutputOptions, SandboxErrorKind, SandboxExt as _, UploadedFile, UploadedFiles,
};
use tempfile::TempDir;

use crate::memory_sandbox::{MemorySandbox, Node, path};

pub(crate) fn directory() -> TempDir {
    tempfile::tempdir().expect("a directory")
}

/// A file of the host with this content and mode, and the directories above it.
pub(crate) fn host_file(root: &Path, name: &str, data: impl AsRef<[u8]>, mode: u32) -> PathBuf {
    let file = root.join(name);
    fs::create_dir_all(file.parent().expect("a parent")).expect("a directory");
    fs::write(&file, data).expect("a file");
    fs::set_permissions(&file, fs::Permissions::from_mode(mode)).expect("a mode");
    file
}

pub(crate) fn file(data: impl Into<Bytes>, mode: u32) -> Node {
    Node::File {
        data: data.into(),
        mode,
    }
}

pub(crate) fn mode(path: &Path) -> u32 {
    fs::metadata(path)
        .expect("it is there")
        .permissions()
        .mode()
        & 0o777
}

/// All files below a directory of the host and what is in them, in order.
pub(crate) fn host_tree(root: &Path) -> Vec<(String, String)> {
    fn visit(root: &Path, directory: &Path, found: &mut Vec<(String, String)>) {
        for entry in fs::read_dir(directory).expect("a directory") {
            let path = entry.expect("an entry").path();
            if path.is_dir() && !path.is_symlink() {
                visit(root, &path, found);
            } else {
                let name = path
                    .strip_prefix(root)
                    .expect("below")
                    .display()
                    .to_string();
                found.push((name, fs::read_to_string(&path).unwrap_or_default()));
            }
        }
    }
    let mut found = Vec::new();
    visit(root, root, &mut found);
    found.sort();
    found
}

pub(crate) fn refusals(refused: &[cantle_core::sandbox::RefusedFile]) -> Vec<(&str, &str)> {
    refused
        .iter()
        .map(|refusal| (refusal.source.as_str(), refusal.reason.as_str()))
        .collect()
}

fn uploads(uploaded: &UploadedFiles) -> Vec<(&Path, String, u64)> {
    uploaded
        .files
        .iter()
        .map(
            |UploadedFile {
                 from,
                 to,
                 size_bytes,
                 ..
             }| (from.as_path(), to.to_string(), *size_bytes),
        )
        .collect()
}

#[tokio::test]
async fn a_file_is_uploaded_with_its_mode() {
    let host = directory();
    let script = host_file(host.path(), "run.sh", "#!/bin/sh\n", 0o750);
    let sandbox = MemorySandbox::new();
    let uploaded = sandbox
        .upload(&script, &path("bin/run"))
        .await
        .expect("it is copied");
    assert_eq!(
        uploads(&uploaded),
        [(script.as_path(), "bin/run".to_owned(), 10)]
    );
    assert_eq!(
        sandbox.tree(),
        [
            ("bin".to_owned(), Node::Directory),
            ("bin/run".to_owned(), file("#!/bin/sh\n", 0o750)),
        ]
    );
}

#[tokio::test]
async fn large_files_are_uploaded_completely() {
    let host = directory();
    let data: Vec<u8> = (0..1_000_003_u32).map(|n| (n % 251) as u8).collect();
    let large = host_file(host.path(), "large", &data, 0o644);
    let sandbox = MemorySandbox::new();
    sandbox
        .upload(&large, &path("large"))
        .await
        .expect("it is copied");
    assert_eq!(sandbox.tree(), [("large".to_owned(), file(data, 0o644))]);
}

#[tokio::test]
async fn directories_are_uploaded_recursively() {
    let host = directory();
    let root = host.path();
    host_file(root, "b.txt", "b", 0o644);
    host_file(root, "a/deep/c.txt", "", 0o600);
    fs::create_dir(root.join("empty")).expect("a directory");
    let sandbox = MemorySandbox::new();
    let uploaded = sandbox
        .upload(root, &path("in"))
        .await
        .expect("it is copied");
    assert_eq!(
        uploads(&uploaded),
        [
            (
                root.join("a/deep/c.txt").as_path(),
                "in/a/deep/c.txt".to_owned(),
                0
            ),
            (root.join("b.txt").as_path(), "in/b.txt".to_owned(), 1),
        ]
    );
    assert_eq!(
        sandbox.tree(),
        [
            ("in".to_owned(), Node::Directory),
            ("in/a".to_owned(), Node::Directory),
            ("in/a/deep".to_owned(), Node::Directory),
            ("in/a/deep/c.txt".to_owned(), file("", 0o600)),
            ("in/b.txt".to_owned(), file("b", 0o644)),
            ("in/empty".to_owned(), Node::Directory),
        ]
    );
}

#[tokio::test]
async fn uncopyable_entries_are_skipped_and_reported() {
    let host = directory();
    let outside = directory();
    host_file(outside.path(), "secret", "secret", 0o644);
    let root = host.path();
    host_file(root, "file", "x", 0o644);
    host_file(root, "sub/file", "y", 0o644);
    symlink("file", root.join("link")).expect("a link");
    symlink("nowhere", root.join("dangling")).expect("a link");
    symlink(outside.path().join("secret"), root.join("escape")).expect("a link");
    symlink("sub", root.join("sub-link")).expect("a link");
    symlink(".", root.join("loop")).expect("a link");
    let _socket = UnixListener::bind(root.join("socket")).expect("a socket");

    let sandbox = MemorySandbox::new();
    let uploaded = sandbox
        .upload(root, &path("in"))
        .await
        .expect("the rest is copied");
    let names = |at: &str| root.join(at).display().to_string();
    assert_eq!(
        refusals(&uploaded.refused),
        [
            (
                names("dangling").as_str(),
                "the target of the link does not exist"
            ),
            (
                names("escape").as_str(),
                "the link leads out of the directory"
            ),
            (
                names("loop").as_str(),
                "a link to a directory is not followed"
            ),
            (
                names("socket").as_str(),
                "it is neither a file nor a directory"
            ),
            (
                names("sub-link").as_str(),
                "a link to a directory is not followed"
            ),
        ]
    );
    assert_eq!(
        sandbox.tree(),
        [
            ("in".to_owned(), Node::Directory),
            ("in/file".to_owned(), file("x", 0o644)),
            ("in/link".to_owned(), file("x", 0o644)),
            ("in/sub".to_owned(), Node::Directory),
            ("in/sub/file".to_owned(), file("y", 0o644)),
        ]
    );
}

#[tokio::test]
async fn a_link_given_as_the_root_is_followed() {
    let host = directory();
    let root = host.path();
    host_file(root, "real/file", "x", 0o644);
    symlink("real", root.join("link")).expect("a link");
    symlink("real/file", root.join("file-link")).expect("a link");
    let sandbox = MemorySandbox::new();
    for (from, to) in [("link", "a"), ("file-link", "b")] {
        let uploaded = sandbox
            .upload(&root.join(from), &path(to))
            .await
            .expect("it is copied");
        assert_eq!(uploaded.refused, []);
    }
    assert_eq!(
        sandbox.tree(),
        [
            ("a".to_owned(), Node::Directory),
            ("a/file".to_owned(), file("x", 0o644)),
            ("b".to_owned(), file("x", 0o644)),
        ]
    );
}

#[tokio::test]
async fn a_file_that_becomes_a_link_leads_nowhere() {
    let host = directory();
    let outside = directory();
    let secret = host_file(outside.path(), "secret", "secret", 0o644);
    host_file(host.path(), "d/file", "x", 0o644);
    host_file(outside.path(), "d/file", "secret", 0o644);
    host_file(host.path(), "file", "x", 0o644);
    let (root, target) = (host.path().to_owned(), outside.path().join("d"));
    // Between listing and opening.
    let swap = move |below: &Path, is_directory: bool| {
        let path = root.join(below);
        if below == Path::new("file") {
            fs::remove_file(&path).expect("removed");
            symlink(&secret, path).expect("a link");
        } else if !is_directory {
            fs::remove_dir_all(root.join("d")).expect("removed");
            symlink(&target, root.join("d")).expect("a link");
        }
        true
    };
    let sandbox = MemorySandbox::new();
    let tree = HostTree::new(host.path()).with_filter(swap);
    let uploaded = sandbox
        .upload_tree(tree, &path("to"))
        .await
        .expect("the rest is copied");
    let reasons: Vec<_> = uploaded
        .refused
        .iter()
        .map(|refused| &*refused.reason)
        .collect();
    assert_eq!(reasons, ["the link leads out of the directory"; 2]);
    assert_eq!(uploaded.files, []);
}

/// Files of `/proc` say that they are empty, and are not.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn files_that_change_size_are_reported() {
    let sandbox = MemorySandbox::new();
    let status = Path::new("/proc/self/status");
    let uploaded = sandbox
        .upload(status, &path("status"))
        .await
        .expect("no failure");
    assert_eq!(
        refusals(&uploaded.refused),
        [("/proc/self/status", "it is not as long as was said")]
    );
    assert_eq!(sandbox.tree(), []);
}

#[tokio::test]
async fn uploading_a_missing_file_fails() {
    let host = directory();
    let missing = host.path().join("missing");
    let error = MemorySandbox::new()
        .upload(&missing, &path("x"))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), SandboxErrorKind::NotFound);
    let message = format!("failed to read `{}`: ", missing.display());
    assert!(error.to_string().starts_with(&message), "{error}");
}

#[tokio::test]
async fn uploads_fail_if_the_sandbox_is_gone() {
    let host = directory();
    host_file(host.path(), "a", vec![0; 1 << 20], 0o644);
    host_file(host.path(), "b", "b", 0o644);
    let sandbox = MemorySandbox::new();
    sandbox.lose();
    let error = sandbox.upload(host.path(), &path("in")).await.unwrap_err();
    assert_eq!(error.kind(), SandboxErrorKind::Gone);
}

#[tokio::test]
async fn downloads_replace_files_atomically_and_keep_the_mode() {
    let host = directory();
    let to = host_file(host.path(), "report", "the old report", 0o644);
    let sandbox = MemorySandbox::new().with("out/report", file("new", 0o640));
    let size = sandbox
        .download(&path("out/report"), &to)
        .await
        .expect("it is copied");
    assert_eq!(size, 3);
    assert_eq!(
        host_tree(host.path()),
        [("report".to_owned(), "new".to_owned())]
    );
    assert_eq!(mode(&to), 0o640);
}

#[tokio::test]
async fn failed_downloads_leave_the_old_file() {
    let host = directory();
    let to = host_file(host.path(), "report", "the old report", 0o644);
    let sandbox = MemorySandbox::new()
        .with("broken", Node::Broken(SandboxErrorKind::Io))
        .with("pipe", Node::Pipe);
    let cases = [
        ("broken", SandboxErrorKind::Io),
        ("pipe", SandboxErrorKind::NotAFile),
        ("missing", SandboxErrorKind::NotFound),
    ];
    for (from, kind) in cases {
        let error = sandbox.download(&path(from), &to).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{from}");
    }
    let unchanged = [("report".to_owned(), "the old report".to_owned())];
    assert_eq!(host_tree(host.path()), unchanged);

    let nowhere = host.path().join("no/such/directory/report");
    let sandbox = MemorySandbox::new().with_file("report", "new");
    let error = sandbox
        .download(&path("report"), &nowhere)
        .await
        .unwrap_err();
    assert_eq!(error.kind(), SandboxErrorKind::NotFound);
    assert_eq!(host_tree(host.path()), unchanged);
}

/// A link's own mode allows everything to everybody; that of the file it leads to is not known.
#[tokio::test]
async fn the_mode_of_a_link_is_not_copied() {
    let host = directory();
    let sandbox = MemorySandbox::new()
        .with("real", file("x", 0o644))
        .with("link", Node::Link(path("real")));
    let to = host.path().join("copy");
    sandbox
        .download(&path("link"), &to)
        .await
        .expect("it is copied");
    assert_eq!(mode(&to) & 0o111, 0);
    let outputs = host.path().join("outputs");
    let saved = sandbox
        .save_outputs(&["link".to_owned()], &outputs, OutputOptions::default())
        .await;
    assert_eq!(saved.expect("it is saved").refused, []);
    assert_eq!(mode(&outputs.join("link")) & 0o111, 0);
}

#[tokio::test]
async fn a_file_is_copied_from_one_sandbox_to_another() {
    let from = MemorySandbox::new()
        .with("a", file("data", 0o700))
        .with("link", Node::Link(path("a")));
    let to = MemorySandbox::new();
    from.copy_to(&path("a"), &to, &path("b/c"))
        .await
        .expect("it is copied");
    from.copy_to(&path("link"), &to, &path("d"))
        .await
        .expect("it is copied");
    assert_eq!(
        to.tree(),
        [
            ("b".to_owned(), Node::Directory),
            ("b/c".to_owned(), file("data", 0o700)),
            ("d".to_owned(), file("data", 0o644)),
        ]
    );
    let error = from
        .copy_to(&path("missing"), &to, &path("e"))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), SandboxErrorKind::NotFound);
}

#[tokio::test]
async fn small_files_are_read_and_written_in_memory() {
    let sandbox = MemorySandbox::new();
    let at = path("notes/a.txt");
    let data = Bytes::from_static(b"0123456789");
    sandbox
        .write_bytes(&at, data.clone())
        .await
        .expect("it is written");
    assert_eq!(sandbox.read_bytes(&at, 10).await.expect("it fits"), data);
    let error = sandbox.read_bytes(&at, 9).await.unwrap_err();
    assert_eq!(error.kind(), SandboxErrorKind::InvalidInput);
    assert_eq!(error.to_string(), "`notes/a.txt` has more than 9 bytes");
}

#[tokio::test]
async fn only_a_regular_file_is_a_file() {
    let sandbox = MemorySandbox::new()
        .with_file("file", "x")
        .with("directory", Node::Directory)
        .with("pipe", Node::Pipe)
        .with("link", Node::Link(path("file")))
        .with("dangling", Node::Link(path("missing")))
        .with("escape", Node::Escape);
    let cases = [
        ("file", true),
        ("/sandbox/file", true),
        ("link", true),
        ("directory", false),
        ("pipe", false),
        ("dangling", false),
        ("escape", false),
        ("missing", false),
        ("/etc/passwd", false),
    ];
    for (at, expected) in cases {
        assert_eq!(
            sandbox.is_file(&path(at)).await.expect("it can be told"),
            expected,
            "{at}"
        );
    }
    sandbox.lose();
    let error = sandbox.is_file(&path("file")).await.unwrap_err();
    assert_eq!(error.kind(), SandboxErrorKind::Gone);
}
