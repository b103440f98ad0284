//! Creation of a new sandbox's directories.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;

use cantle_backends_docker::relay::{Relay, RelayOptions};
use cantle_core::sandbox::{
    ExitStatus, MAX_LIST_ENTRIES, Sandbox as _, SandboxErrorKind, SandboxExt as _, SandboxPath,
    SpawnRequest,
};
use cantle_testkit::lane;
use tempfile::TempDir;

use crate::support::{RelayBackend, is_root, soon, start};

const NOBODY: u32 = 65_534;

/// Returns a base directory, and options of a relay that creates its directories in it.
fn base_directory() -> (TempDir, RelayOptions) {
    let base = TempDir::new().unwrap();
    fs::set_permissions(base.path(), Permissions::from_mode(0o755)).unwrap();
    let inside = |name: &str| SandboxPath::from_os(base.path().join(name)).unwrap();
    let mut options = RelayOptions::new(inside("work"));
    options.temporary_directory = inside("tmp");
    options.identity = is_root().then_some((NOBODY, NOBODY));
    options.makes_directories = true;
    (base, options)
}

/// Returns user, group and mode.
fn ownership(base: &Path, name: &str) -> (u32, u32, u32) {
    let metadata = fs::metadata(base.join(name)).unwrap();
    (metadata.uid(), metadata.gid(), metadata.mode() & 0o7777)
}

async fn check(base: &Path, options: RelayOptions) {
    let own = fs::metadata("/proc/self").unwrap();
    let (uid, gid) = options.identity.unwrap_or((own.uid(), own.gid()));
    let mut child = start(None).await;
    let (reader, writer) = (child.stdout.take().unwrap(), child.stdin.take().unwrap());
    let relay = Relay::connect(reader, writer, options).await.unwrap();
    assert_eq!(ownership(base, "work"), (uid, gid, 0o755));
    assert_eq!(ownership(base, "tmp"), (own.uid(), own.gid(), 0o1777));

    let line = "touch made $TMPDIR/made && mkdir below && stat -c %a made below";
    let mut process = relay.spawn(SpawnRequest::shell(line)).await.unwrap();
    let exit = soon(process.wait()).await.unwrap();
    assert_eq!(exit.status, ExitStatus::Code(0));
    // Creating the directories does not change the umask of commands.
    assert_eq!(ownership(base, "work/made"), (uid, gid, 0o644));
    assert_eq!(ownership(base, "work/below"), (uid, gid, 0o755));
    relay.close().await.unwrap();
    assert!(soon(child.wait()).await.unwrap().success());
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_directories_are_created() {
    let (base, options) = base_directory();
    check(base.path(), options).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn existing_directories_get_owner_and_mode() {
    let (base, options) = base_directory();
    for name in ["work", "tmp"] {
        fs::create_dir(base.path().join(name)).unwrap();
        fs::set_permissions(base.path().join(name), Permissions::from_mode(0o700)).unwrap();
    }
    check(base.path(), options).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn temporary_directory_is_optional_unlike_the_working_directory() {
    let (base, options) = base_directory();
    let missing = SandboxPath::from_os(base.path().join("no/such")).unwrap();
    let mut child = start(None).await;
    let (reader, writer) = (child.stdout.take().unwrap(), child.stdin.take().unwrap());
    let mut without = options.clone();
    without.temporary_directory = missing.clone();
    let relay = Relay::connect(reader, writer, without).await.unwrap();
    relay.close().await.unwrap();
    assert!(soon(child.wait()).await.unwrap().success());

    let mut child = start(None).await;
    let (reader, writer) = (child.stdout.take().unwrap(), child.stdin.take().unwrap());
    let mut without = options;
    without.working_directory = missing;
    let refused = Relay::connect(reader, writer, without).await.unwrap_err();
    assert_eq!(refused.kind(), SandboxErrorKind::Unavailable);
    assert!(refused.to_string().contains("os error 2"), "{refused}");
    soon(child.wait()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn listings_are_bounded() {
    if !lane::is_full() {
        return lane::skip("the full lane makes more files than a listing may have");
    }
    let sandbox = RelayBackend::own_user().sandbox().await;
    let line = format!("mkdir many && cd many && seq 0 {MAX_LIST_ENTRIES} | xargs touch");
    let output = soon(sandbox.run(SpawnRequest::shell(line))).await.unwrap();
    assert_eq!(output.exit.status, ExitStatus::Code(0));
    let many = SandboxPath::new("many").unwrap();
    let refused = soon(sandbox.list(&many)).await.unwrap_err();
    assert_eq!(refused.kind(), SandboxErrorKind::Unsupported, "{refused}");
    sandbox.run(SpawnRequest::shell("rm many/0")).await.unwrap();
    let listed = soon(sandbox.list(&many)).await.unwrap();
    assert_eq!(listed.len(), MAX_LIST_ENTRIES);
    sandbox.close().await.unwrap();
}
