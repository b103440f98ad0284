//! No call of a sandbox blocks the runtime, not even while the disk hangs.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::process::Command;
use std::sync::mpsc;
use std::time::Duration;

use cantle_backends_local::LocalBackend;
use cantle_core::ids::RunId;
use cantle_core::policy::Policy;
use cantle_core::sandbox::{
    Backend as _, Sandbox as _, SandboxContext, SandboxExt as _, SpawnRequest,
};
use cantle_testkit::lane;
use futures_util::future::join_all;
use rustix::process::geteuid;
use tokio::time::sleep;

use crate::support::{eventually, new_runtime, path, run, soon, write};

/// Set in the mount namespace of the test.
const INSIDE: &str = "CANTLE_TEST_STARVED";

/// Time in which a runtime that is not blocked gets through the test.
const WATCHDOG: Duration = Duration::from_secs(60);

fn succeeds(command: &mut Command) {
    assert!(command.status().unwrap().success(), "{command:?}");
}

fn thaw(disk: &Path) {
    let _ = Command::new("fsfreeze").arg("-u").arg(disk).status();
}

/// A file system on which every change waits.
struct FrozenDisk {
    disk: PathBuf,
    /// Ends the watchdog, which thaws the disk if this thread can't.
    thawed: mpsc::Sender<()>,
    watchdog: std::thread::JoinHandle<bool>,
}

impl FrozenDisk {
    fn new(disk: &Path) -> Self {
        succeeds(Command::new("fsfreeze").arg("-f").arg(disk));
        let (thawed, receiver) = mpsc::channel();
        let disk = disk.to_owned();
        let watched = disk.clone();
        let watchdog = std::thread::spawn(move || {
            let is_late = receiver.recv_timeout(WATCHDOG) == Err(mpsc::RecvTimeoutError::Timeout);
            if is_late {
                thaw(&watched);
            }
            is_late
        });
        Self {
            disk,
            thawed,
            watchdog,
        }
    }

    /// Thaws it; returns whether the watchdog had to.
    fn thaw(self) -> bool {
        thaw(&self.disk);
        let _ = self.thawed.send(());
        self.watchdog.join().unwrap()
    }
}

#[test]
fn no_call_blocks_the_runtime_while_the_disk_hangs() {
    if std::env::var_os(INSIDE).is_none() {
        if !geteuid().is_root() {
            return lane::skip("freezing a file system takes root");
        }
        let mut inside = Command::new("unshare");
        inside
            .args(["--mount", "--propagation", "private"])
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", "--nocapture"])
            .arg("starved::no_call_blocks_the_runtime_while_the_disk_hangs")
            .env(INSIDE, "1");
        return succeeds(&mut inside);
    }
    let place = tempfile::tempdir().unwrap();
    let (image, disk) = (place.path().join("image"), place.path().join("disk"));
    fs::create_dir(&disk).unwrap();
    fs::File::create(&image).unwrap().set_len(64 << 20).unwrap();
    succeeds(
        Command::new("mke2fs")
            .args(["-q", "-t", "ext4"])
            .arg(&image),
    );
    // Without loop devices there is nothing to freeze.
    let mut mount = Command::new("mount");
    if !mount
        .args(["-o", "loop"])
        .args([&image, &disk])
        .status()
        .unwrap()
        .success()
    {
        return lane::skip("there are no loop devices");
    }
    for directory in [place.path(), &disk] {
        fs::set_permissions(directory, fs::Permissions::from_mode(0o711)).unwrap();
    }
    // One thread, which also thaws the disk.
    let runtime = new_runtime();
    runtime.block_on(async {
        let backend = LocalBackend::new().in_directory(&disk);
        let cx = || SandboxContext::new(RunId::new(), Policy::workspace()).durable();
        let sandbox = backend.open(cx()).await.unwrap();
        let (closed, dropped) = (
            backend.open(cx()).await.unwrap(),
            backend.open(cx()).await.unwrap(),
        );
        for name in ["removed", "renamed"] {
            write(&*sandbox, name, "text").await;
        }
        let [made, written, removed] = ["made", "written", "removed"].map(path);
        let (from, to) = (path("renamed"), path("to"));
        let frozen = FrozenDisk::new(&disk);
        drop(dropped);
        let calls: Vec<Pin<Box<dyn Future<Output = bool> + '_>>> = vec![
            Box::pin(async { sandbox.mkdir(&made).await.is_ok() }),
            Box::pin(async { sandbox.write_bytes(&written, "new".into()).await.is_ok() }),
            Box::pin(async { sandbox.remove(&removed).await.is_ok() }),
            Box::pin(async { sandbox.rename(&from, &to).await.is_ok() }),
            Box::pin(async {
                let request = SpawnRequest::shell("echo made > by_command");
                let output = sandbox.run(request).await;
                output.is_ok_and(|output| output.exit.status.success())
            }),
            Box::pin(async { sandbox.persist().await.is_ok() }),
            Box::pin(async { closed.close().await.is_ok() }),
            Box::pin(async {
                let opened = backend.open(cx()).await;
                opened.unwrap().close().await.is_ok()
            }),
        ];
        let count = calls.len();
        let mut pending = std::pin::pin!(join_all(calls.into_iter().map(|call| async {
            let succeeded = call.await;
            (succeeded, std::time::Instant::now())
        })));
        // Timers fire while every call waits.
        for _ in 0..50 {
            tokio::select! {
                _ = &mut pending => panic!("the disk does not hang"),
                () = sleep(Duration::from_millis(5)) => {}
            }
        }
        let thawed_at = std::time::Instant::now();
        assert!(!frozen.thaw(), "a call blocked the runtime");
        let results = soon(pending).await;
        assert_eq!(results.len(), count);
        for (number, (succeeded, ended_at)) in results.into_iter().enumerate() {
            assert!(succeeded, "call {number}");
            assert!(
                ended_at >= thawed_at,
                "call {number} did not wait for the disk"
            );
        }
        assert_eq!(
            run(&*sandbox, "ls").await.stdout.text(),
            "by_command\nmade\nto\nwritten\n"
        );
        sandbox.close().await.unwrap();
    });
    let left = || fs::read_dir(&disk).unwrap().count();
    runtime.block_on(eventually("the dropped one is removed", || left() == 1));
    drop(runtime);
    succeeds(Command::new("umount").arg("-l").arg(&disk));
}
