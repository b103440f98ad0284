//! A relay in a minimal container: no other program, no `/dev`, no `/tmp`, and a read-only root.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::process::Stdio;

use bytes::Bytes;
use cantle_backends_docker::relay::RelayOptions;
use cantle_core::sandbox::{
    ByteRange, ExitStatus, FileKind, PtySize, SandboxErrorKind, SandboxPath, SpawnRequest,
    WriteOptions,
};
use futures_util::{TryStreamExt as _, stream};
use tempfile::TempDir;
use tokio::process::Command;

use crate::support::{self, connect, is_root, soon};

const NOBODY: u32 = 65_534;

/// Runs the relay in a directory as a container, in namespaces that end with their first process.
const CONTAINER: &str = "mount --bind \"$1\" \"$1\" && mount -t proc proc \"$1/proc\" \
     && mount --bind \"$1/work\" \"$1/work\" && mount -o remount,bind,ro \"$1\" \
     && exec chroot \"$1\" /supervisor relay";

fn path(text: &str) -> SandboxPath {
    text.parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn minimal_container_supports_files_and_commands() {
    if !is_root() {
        return;
    }
    let root = TempDir::new().unwrap();
    fs::set_permissions(root.path(), Permissions::from_mode(0o755)).unwrap();
    for name in ["proc", "work"] {
        fs::create_dir(root.path().join(name)).unwrap();
    }
    chown(root.path().join("work"), Some(NOBODY), Some(NOBODY)).unwrap();
    let program = root.path().join("supervisor");
    // Copied by another process: a file open for writing in a process just forked by another test can't be
    // executed.
    let copied = Command::new("cp")
        .args([support::program(), program.as_path()])
        .status();
    assert!(copied.await.unwrap().success());
    let mut child = Command::new("unshare")
        .args([
            "--mount",
            "--pid",
            "--fork",
            "--kill-child",
            "sh",
            "-c",
            CONTAINER,
            "sh",
        ])
        .arg(root.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut options = RelayOptions::new(path("/work"));
    options.identity = Some((NOBODY, NOBODY));
    let relay = connect(&mut child, options).await;
    assert_eq!(relay.shell(), None);

    let file = path("below/file");
    let data = Bytes::from_static(b"text");
    let pieces = Box::pin(stream::iter([Ok(data.clone())]));
    relay
        .write(&file, WriteOptions::default(), pieces)
        .await
        .unwrap();
    let read = relay.read(&file, ByteRange::all()).await.unwrap();
    assert_eq!(read.try_collect::<Vec<_>>().await.unwrap().concat(), data);
    let found = relay.stat(&path("/work/below")).await.unwrap();
    assert_eq!(found.kind, FileKind::Directory);
    relay.rename(&file, &path("moved")).await.unwrap();
    relay.remove(&path("below")).await.unwrap();
    let names = |listed: Vec<cantle_core::sandbox::FileInfo>| -> Vec<String> {
        listed.iter().map(|it| it.path.to_string()).collect()
    };
    assert_eq!(names(relay.list(&path(".")).await.unwrap()), ["moved"]);
    // All visible files belong to the sandbox.
    let all = names(relay.list(&path("/")).await.unwrap());
    assert_eq!(all, ["proc", "supervisor", "work"]);
    let refused = relay.mkdir(&path("/new")).await.unwrap_err();
    assert_eq!(refused.kind(), SandboxErrorKind::PermissionDenied);

    // The only program, without arguments.
    let mut process = relay
        .spawn(SpawnRequest::argv(["/supervisor"]))
        .await
        .unwrap();
    let exit = soon(process.wait()).await.unwrap();
    assert_eq!(exit.status, ExitStatus::Code(1));
    let size = PtySize {
        rows: 24,
        columns: 80,
    };
    let request = SpawnRequest::argv(["/supervisor"]).with_pty(size);
    let refused = relay.spawn(request).await.map(drop).unwrap_err();
    assert_eq!(refused.kind(), SandboxErrorKind::NotFound);

    relay.close().await.unwrap();
    assert!(soon(child.wait()).await.unwrap().success());
}
