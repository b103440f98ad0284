//! Disk images: file systems of limited size for files that can be kept, where this process is root's.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cantle_backends_local::{LocalBackend, Mechanism};
use cantle_core::ids::RunId;
use cantle_core::policy::{Policy, PolicyField};
use cantle_core::sandbox::{
    Backend as _, EnforcedBy, Sandbox, SandboxContext, SandboxErrorKind, SandboxExt as _,
    SandboxHandle, SpawnRequest,
};
use cantle_testkit::lane;
use tempfile::TempDir;

use crate::support::{Owner, eventually, path, read, rerun, run, say, soon, stdout, write};

const MIB: u64 = 1 << 20;

fn limited(limits: &[&str]) -> Policy {
    let mut policy = Policy::workspace();
    for limit in limits {
        policy.limits.set(limit).unwrap();
    }
    policy
}

fn context(limits: &[&str]) -> SandboxContext {
    SandboxContext::new(RunId::new(), limited(limits))
}

fn enforced_by(sandbox: &dyn Sandbox) -> Vec<(PolicyField, EnforcedBy)> {
    let report = sandbox.info().enforcement.iter();
    report
        .map(|it| (it.field, it.by))
        .filter(|(field, _)| matches!(field, PolicyField::Disk | PolicyField::Inodes))
        .collect()
}

fn has_image(sandbox: &dyn Sandbox) -> bool {
    let mut mechanisms = sandbox.info().mechanisms.iter();
    mechanisms.any(|name| name == "disk image")
}

/// Opens a durable sandbox with an image; `None` where there can be none.
async fn open(place: &TempDir, limits: &[&str]) -> Option<Arc<dyn Sandbox>> {
    let backend = LocalBackend::new().in_directory(place.path());
    let sandbox = backend.open(context(limits).durable()).await.unwrap();
    if has_image(&*sandbox) {
        return Some(sandbox);
    }
    lane::skip("disk images take root, loop devices and mke2fs");
    sandbox.close().await.unwrap();
    None
}

fn directory(handle: &SandboxHandle) -> PathBuf {
    let token: serde_json::Value = serde_json::from_str(&handle.token).unwrap();
    token.get("directory").unwrap().as_str().unwrap().into()
}

/// Returns the loop devices of files below a directory.
fn loop_devices(place: &Path) -> Vec<String> {
    let devices = fs::read_dir("/sys/block").unwrap().flatten();
    let backing = devices
        .filter_map(|device| fs::read_to_string(device.path().join("loop/backing_file")).ok());
    backing
        .filter(|file| Path::new(file.trim()).starts_with(place))
        .collect()
}

fn mounts(place: &Path) -> usize {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let place = place.to_str().unwrap();
    mounts.lines().filter(|line| line.contains(place)).count()
}

async fn nothing_left(place: &Path) {
    eventually("no loop device is left", || loop_devices(place).is_empty()).await;
    assert_eq!(mounts(place), 0);
}

#[tokio::test]
async fn disk_image_limits_a_sandbox_that_is_kept() {
    let place = tempfile::tempdir().unwrap();
    let Some(sandbox) = open(&place, &["disk=20M", "inodes=100"]).await else {
        return;
    };
    let sized = [
        (PolicyField::Disk, EnforcedBy::Kernel),
        (PolicyField::Inodes, EnforcedBy::Kernel),
    ];
    assert_eq!(enforced_by(&*sandbox), sized);
    assert_eq!(
        mounts(place.path()),
        0,
        "it is mounted for the sandbox alone"
    );
    // Commands that are shorter than any measurement.
    let line = "for i in $(seq 9); do head -c 3M /dev/zero > $i; done; du -sm . | cut -f1; rm [1-9]; \
                for i in $(seq 120); do : > f$i; done; ls | wc -l; rm f*; echo kept > kept; echo t > $TMPDIR/t; \
                echo shm > /dev/shm/shm";
    let output = run(&*sandbox, line).await;
    let numbers: Vec<u64> = output
        .stdout
        .text()
        .lines()
        .map(|line| line.parse().unwrap())
        .collect();
    let [used, files] = numbers[..] else {
        panic!("{output:?}")
    };
    assert!((18..=20).contains(&used), "{output:?}");
    assert!((80..=100).contains(&files), "{output:?}");
    assert!(output.stderr.text().contains("No space left on device"));
    let too_much = Bytes::from(vec![1; usize::try_from(21 * MIB).unwrap()]);
    let full = sandbox.write_bytes(&path("big"), too_much).await;
    assert_eq!(full.unwrap_err().kind(), SandboxErrorKind::StorageFull);
    write(&*sandbox, "given", "given").await;

    // A handle of a process does not keep it in use.
    let process = sandbox
        .spawn(SpawnRequest::shell("cd $TMPDIR; exec sleep 600"))
        .await
        .unwrap();
    let handle = sandbox.persist().await.unwrap();
    drop(sandbox);
    let image = directory(&handle).join("disk.ext4");
    let backend = LocalBackend::new().in_directory(place.path());
    let cx = context(&["disk=20M", "inodes=100"]);
    let sandbox = soon(backend.reattach(&handle, cx)).await.unwrap();
    drop(process);
    assert_eq!(enforced_by(&*sandbox), sized);
    let line = "cat kept given $TMPDIR/t; ls -A /dev/shm; echo more >> kept";
    assert_eq!(stdout(&*sandbox, line).await, "kept\ngivent\n");
    drop(sandbox);

    // Under a lower limit it is measured, and under none it stays as it is.
    let cx = context(&["disk=2M"]);
    let sandbox = soon(backend.reattach(&handle, cx)).await.unwrap();
    assert_eq!(
        enforced_by(&*sandbox),
        [(PolicyField::Disk, EnforcedBy::Polled)]
    );
    run(&*sandbox, "head -c 3M /dev/zero > big").await;
    let refused = run(&*sandbox, "echo more > other").await;
    assert!(!refused.exit.status.success(), "{refused:?}");
    drop(sandbox);
    let sandbox = soon(backend.reattach(&handle, context(&[]))).await.unwrap();
    assert_eq!(enforced_by(&*sandbox), sized);
    assert_eq!(read(&*sandbox, "kept").await, "kept\nmore\n");
    // Removed files take no space on this machine either, once the kernel has discarded their blocks.
    run(&*sandbox, "rm big; sync -f .").await;
    let allocated = || fs::metadata(&image).unwrap().blocks() * 512;
    eventually("the image is small", || allocated() < 4 * MIB).await;
    sandbox.close().await.unwrap();
    assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0);
    nothing_left(place.path()).await;
}

#[tokio::test]
async fn a_disk_that_does_not_fit_into_memory_is_a_file() {
    let place = tempfile::tempdir().unwrap();
    let backend = LocalBackend::new().in_directory(place.path());
    let cx = context(&["disk=256M", "memory=128M"]);
    let sandbox = backend.open(cx).await.unwrap();
    if !has_image(&*sandbox) {
        lane::skip("disk images take root, loop devices and mke2fs");
        assert_eq!(
            enforced_by(&*sandbox),
            [(PolicyField::Disk, EnforcedBy::Polled)]
        );
        return sandbox.close().await.unwrap();
    }
    let line = "head -c 200M /dev/zero > file; stat -c %s file";
    assert_eq!(stdout(&*sandbox, line).await, "209715200\n");
    // Closed while data are not written yet.
    sandbox.close().await.unwrap();
    assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0);
    nothing_left(place.path()).await;
}

#[tokio::test]
async fn a_disk_limit_leaves_the_files_of_a_kept_sandbox_where_they_are() {
    let place = tempfile::tempdir().unwrap();
    let backend = LocalBackend::new().in_directory(place.path());
    let sandbox = backend.open(context(&[]).durable()).await.unwrap();
    write(&*sandbox, "given", "given").await;
    let handle = sandbox.persist().await.unwrap();
    drop(sandbox);
    let cx = context(&["disk=20M"]);
    let sandbox = soon(backend.reattach(&handle, cx)).await.unwrap();
    assert_eq!(
        enforced_by(&*sandbox),
        [(PolicyField::Disk, EnforcedBy::Polled)]
    );
    assert_eq!(stdout(&*sandbox, "cat given").await, "given");
    assert_eq!(read(&*sandbox, "given").await, "given");
    sandbox.close().await.unwrap();
}

#[tokio::test]
async fn an_image_that_others_could_have_written_is_refused() {
    let place = tempfile::tempdir().unwrap();
    let Some(sandbox) = open(&place, &["disk=8M"]).await else {
        return;
    };
    let handle = sandbox.persist().await.unwrap();
    drop(sandbox);
    nothing_left(place.path()).await;
    let image = directory(&handle).join("disk.ext4");
    let found = fs::metadata(&image).unwrap();
    assert_eq!((found.uid(), found.mode() & 0o7777), (0, 0o600));
    let backend = LocalBackend::new().in_directory(place.path());
    let other = place.path().join("other");
    let refused = async || {
        let result = soon(backend.reattach(&handle, context(&["disk=8M"]))).await;
        result.map(drop).unwrap_err()
    };
    for (damage, mend) in [
        ("chown 1000 IMAGE", "chown 0 IMAGE"),
        ("chmod 620 IMAGE", "chmod 600 IMAGE"),
        ("ln IMAGE OTHER", "rm OTHER"),
        ("mv IMAGE OTHER; ln -s OTHER IMAGE", "mv OTHER IMAGE"),
        ("mv IMAGE OTHER; mkfifo -m 600 IMAGE", "mv OTHER IMAGE"),
    ] {
        let shell = |line: &str| {
            let line = line
                .replace("IMAGE", image.to_str().unwrap())
                .replace("OTHER", other.to_str().unwrap());
            assert!(
                Command::new("sh")
                    .args(["-c", &line])
                    .status()
                    .unwrap()
                    .success()
            );
        };
        shell(damage);
        let error = refused().await;
        assert_ne!(error.kind(), SandboxErrorKind::Gone, "{damage}: {error}");
        assert_eq!(loop_devices(place.path()), [""; 0], "{damage}");
        shell(mend);
    }
    // It takes namespaces.
    let without = backend.clone().without(Mechanism::Namespaces);
    let error = without.reattach(&handle, context(&[])).await.unwrap_err();
    assert!(error.to_string().contains("disk image"), "{error}");
    let sandbox = soon(backend.reattach(&handle, context(&[]))).await.unwrap();
    sandbox.close().await.unwrap();
}

/// Makes this program the owner to be killed; the value is the directory of its sandboxes.
const OWNER: &str = "CANTLE_TEST_IMAGE_OWNER";

/// Opens, keeps, reattaches and closes sandboxes until it is killed.
async fn own(place: &str) {
    let backend = LocalBackend::new().in_directory(place);
    let cx = || context(&["disk=16M"]).durable();
    loop {
        let sandbox = backend.open(cx()).await.unwrap();
        say("opened");
        stdout(&*sandbox, "head -c 1M /dev/zero > file").await;
        let handle = sandbox.persist().await.unwrap();
        drop(sandbox);
        let sandbox = backend.reattach(&handle, cx()).await.unwrap();
        stdout(&*sandbox, "cat file | wc -c").await;
        sandbox.close().await.unwrap();
    }
}

#[test]
fn killed_owner_leaves_no_loop_device_at_any_moment() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    if let Ok(place) = std::env::var(OWNER) {
        return runtime.block_on(own(&place));
    }
    let probe = tempfile::tempdir().unwrap();
    let probed = runtime.block_on(async {
        let sandbox = open(&probe, &["disk=8M"]).await?;
        sandbox.close().await.ok()
    });
    if probed.is_none() {
        return;
    }
    let moments = lane::choose("most moments of a kill", 12, 100);
    for moment in 0..moments {
        let place = tempfile::tempdir().unwrap();
        let mut command = rerun("images::killed_owner_leaves_no_loop_device_at_any_moment");
        let mut owner = Owner::start(command.env(OWNER, place.path()));
        // Spread over the time of one sandbox, which the test need not hit exactly.
        std::thread::sleep(Duration::from_millis(moment * 97 % 150));
        owner.kill();
        runtime.block_on(async {
            nothing_left(place.path()).await;
            let backend = LocalBackend::new().in_directory(place.path());
            // A program that the owner was just starting has its descriptors, and so the lock, until `execve`.
            soon(async {
                while fs::read_dir(place.path()).unwrap().count() > 0 {
                    let reclaimed = backend.reclaim_all_but(&[], Duration::ZERO).await;
                    assert_eq!(reclaimed.failed, []);
                }
            })
            .await;
        });
    }
}
