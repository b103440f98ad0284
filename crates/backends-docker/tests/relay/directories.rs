//! The directories of a sandbox in which nothing has run yet.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;

use cantle_backends_docker::relay::{Relay, RelayOptions};
use cantle_core::sandbox::{ExitStatus, SandboxErrorKind, SandboxPath, SpawnRequest};
use tempfile::TempDir;

use crate::support::{is_root, soon, start};

const NOBODY: u32 = 65_534;

/// A place for sandboxes that everyone may enter, and a relay's options that make theirs there.
fn place() -> (TempDir, RelayOptions) {
    let base = TempDir::new().unwrap();
    fs::set_permissions(base.path(), Permissions::from_mode(0o755)).unwrap();
    let inside = |name: &str| SandboxPath::from_os(base.path().join(name)).unwrap();
    let mut options = RelayOptions::new(inside("work"));
    options.temporary_directory = inside("tmp");
    options.identity = is_root().then_some((NOBODY, NOBODY));
    options.makes_directories = true;
    (base, options)
}

/// The owner's user and group, and the mode.
fn seen(base: &Path, name: &str) -> (u32, u32, u32) {
    let metadata = fs::metadata(base.join(name)).unwrap();
    (metadata.uid(), metadata.gid(), metadata.mode() & 0o7777)
}

async fn check(base: &Path, options: RelayOptions) {
    let own = fs::metadata("/proc/self").unwrap();
    let (uid, gid) = options.identity.unwrap_or((own.uid(), own.gid()));
    let mut child = start(None).await;
    let (reader, writer) = (child.stdout.take().unwrap(), child.stdin.take().unwrap());
    let relay = Relay::connect(reader, writer, options).await.unwrap();
    assert_eq!(seen(base, "work"), (uid, gid, 0o755));
    assert_eq!(seen(base, "tmp"), (own.uid(), own.gid(), 0o1777));

    let line = "touch made $TMPDIR/made && mkdir below && stat -c %a made below";
    let mut process = relay.spawn(SpawnRequest::shell(line)).await.unwrap();
    let exit = soon(process.wait()).await.unwrap();
    assert_eq!(exit.status, ExitStatus::Code(0));
    // That the relay makes directories as it is told changes nothing for commands.
    assert_eq!(seen(base, "work/made"), (uid, gid, 0o644));
    assert_eq!(seen(base, "work/below"), (uid, gid, 0o755));
    relay.close().await.unwrap();
    assert!(soon(child.wait()).await.unwrap().success());
}

#[tokio::test(flavor = "multi_thread")]
async fn those_that_are_missing_are_made() {
    let (base, options) = place();
    check(base.path(), options).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn those_that_are_there_become_the_users_and_everyones() {
    let (base, options) = place();
    for name in ["work", "tmp"] {
        fs::create_dir(base.path().join(name)).unwrap();
        fs::set_permissions(base.path().join(name), Permissions::from_mode(0o700)).unwrap();
    }
    check(base.path(), options).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_place_for_temporary_files_may_be_missing_the_working_directory_not() {
    let (base, options) = place();
    let nowhere = SandboxPath::from_os(base.path().join("no/such")).unwrap();
    let mut child = start(None).await;
    let (reader, writer) = (child.stdout.take().unwrap(), child.stdin.take().unwrap());
    let mut without = options.clone();
    without.temporary_directory = nowhere.clone();
    let relay = Relay::connect(reader, writer, without).await.unwrap();
    relay.close().await.unwrap();
    assert!(soon(child.wait()).await.unwrap().success());

    let mut child = start(None).await;
    let (reader, writer) = (child.stdout.take().unwrap(), child.stdin.take().unwrap());
    let mut without = options;
    without.working_directory = nowhere;
    let refused = Relay::connect(reader, writer, without).await.unwrap_err();
    assert_eq!(refused.kind(), SandboxErrorKind::Unavailable);
    assert!(refused.to_string().contains("os error 2"), "{refused}");
    soon(child.wait()).await.unwrap();
}
