//! Durable sandboxes, and the leftovers of killed owners.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use cantle_backends_local::{LocalBackend, Mechanism};
use cantle_core::ids::RunId;
use cantle_core::policy::{Policy, PolicyField};
use cantle_core::sandbox::{
    Backend as _, Background, EnforcedBy, ExitStatus, Sandbox, SandboxContext, SandboxErrorKind,
    SandboxExt as _, SandboxHandle, SpawnRequest, Spill, Survival,
};
use tempfile::TempDir;

use crate::support::{Owner, Token, eventually, new_runtime, read, rerun, run, say, stdout, write};

/// A backend and a policy for each mode of confinement.
fn kinds() -> [(LocalBackend, Policy); 3] {
    [
        (LocalBackend::new(), Policy::workspace()),
        (
            LocalBackend::new().without(Mechanism::Namespaces),
            Policy::workspace(),
        ),
        (LocalBackend::new(), Policy::unconfined()),
    ]
}

fn durable(policy: &Policy) -> SandboxContext {
    SandboxContext::new(RunId::new(), policy.clone()).durable()
}

/// A directory that every user may search, as commands of another user need.
fn place() -> TempDir {
    let place = tempfile::tempdir().unwrap();
    fs::set_permissions(place.path(), fs::Permissions::from_mode(0o711)).unwrap();
    place
}

fn below(place: &TempDir) -> Vec<PathBuf> {
    let entries = fs::read_dir(place.path()).unwrap();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths
}

fn directory(handle: &SandboxHandle) -> PathBuf {
    let token: serde_json::Value = serde_json::from_str(&handle.token).unwrap();
    token.get("directory").unwrap().as_str().unwrap().into()
}

#[tokio::test]
async fn kept_sandbox_is_reattached_with_its_files() {
    for (backend, policy) in kinds() {
        let place = place();
        let backend = backend.in_directory(place.path());
        let sandbox = backend.open(durable(&policy)).await.unwrap();
        assert_eq!(sandbox.info().survival, Survival::Workspace);
        let working_directory = sandbox.info().working_directory.clone();
        write(&*sandbox, "in/given", "given").await;
        let made = run(
            &*sandbox,
            "echo made > in/made; chmod 700 in/made; echo t > $TMPDIR/t",
        )
        .await;
        assert_eq!(made.exit.status, ExitStatus::Code(0), "{made:?}");
        let handle = sandbox.persist().await.unwrap();
        assert_eq!(handle.backend, "local");
        let token = Token::new();
        let request = token
            .shell("setsid sleep 600 & true")
            .with_background(Background::Keep);
        sandbox.run(request).await.unwrap();
        token.at_least(1).await;
        drop(sandbox);
        token.all_dead().await;
        assert_eq!(below(&place), [directory(&handle)]);

        let cx = SandboxContext::new(RunId::new(), policy.clone());
        let sandbox = backend.reattach(&handle, cx).await.unwrap();
        assert_eq!(sandbox.info().working_directory, working_directory);
        assert_eq!(sandbox.info().survival, Survival::Workspace);
        assert_eq!(read(&*sandbox, "in/made").await, "made\n");
        let line = "cat in/given in/made $TMPDIR/t; echo more >> in/given && echo more >> in/made && \
                    rm in/made && touch in/new && pwd";
        let said = format!("givenmade\nt\n{working_directory}\n");
        assert_eq!(stdout(&*sandbox, line).await, said);
        write(&*sandbox, "in/given", "again").await;
        // It stays kept until it is closed.
        drop(sandbox);
        assert_eq!(below(&place).len(), 1);
        let sandbox = backend.reattach(&handle, durable(&policy)).await.unwrap();
        assert_eq!(
            stdout(&*sandbox, "ls in; cat in/given").await,
            "given\nnew\nagain"
        );
        sandbox.close().await.unwrap();
        assert_eq!(below(&place), Vec::<PathBuf>::new());
    }
}

#[tokio::test]
async fn close_removes_kept_directory() {
    let place = place();
    let backend = LocalBackend::new().in_directory(place.path());
    let policy = Policy::workspace();
    let sandbox = backend.open(durable(&policy)).await.unwrap();
    let handle = sandbox.persist().await.unwrap();
    sandbox.close().await.unwrap();
    assert_eq!(below(&place), Vec::<PathBuf>::new());
    let closed = sandbox.persist().await.unwrap_err();
    assert_eq!(closed.kind(), SandboxErrorKind::Closed);
    let gone = backend.reattach(&handle, durable(&policy)).await;
    assert_eq!(gone.unwrap_err().kind(), SandboxErrorKind::Gone);

    // A sandbox that was not kept is removed.
    drop(backend.open(durable(&policy)).await.unwrap());
    eventually("it is removed", || below(&place).is_empty()).await;
}

#[tokio::test]
async fn sandbox_that_is_not_durable_cannot_be_kept() {
    let cx = SandboxContext::new(RunId::new(), Policy::workspace());
    let sandbox = LocalBackend::new().open(cx).await.unwrap();
    assert_eq!(sandbox.info().survival, Survival::Nothing);
    let refused = sandbox.persist().await.unwrap_err();
    assert_eq!(refused.kind(), SandboxErrorKind::Unsupported);
    sandbox.close().await.unwrap();
}

#[tokio::test]
async fn disk_usage_of_durable_sandbox_is_polled() {
    let mut policy = Policy::workspace();
    policy.limits.set("disk=1M").unwrap();
    let place = place();
    let backend = LocalBackend::new()
        .without(Mechanism::DiskImages)
        .in_directory(place.path());
    let sandbox = backend.open(durable(&policy)).await.unwrap();
    let report = &sandbox.info().enforcement;
    let disk = report.iter().find(|it| it.field == PolicyField::Disk);
    assert_eq!(disk.unwrap().by, EnforcedBy::Polled);
    let exit = run(&*sandbox, "head -c 5M /dev/zero > big; sleep 60")
        .await
        .exit;
    let field = PolicyField::Disk;
    let limit = 1 << 20;
    assert_eq!(exit.status, ExitStatus::LimitReached { field, limit });
    assert!(
        directory(&sandbox.persist().await.unwrap())
            .join("work/big")
            .exists()
    );
    sandbox.close().await.unwrap();
}

#[tokio::test]
async fn spill_files_of_previous_session_do_not_conflict() {
    let place = place();
    let backend = LocalBackend::new().in_directory(place.path());
    let policy = Policy::workspace();
    let spilled = async |sandbox: Arc<dyn Sandbox>| {
        let spill = Spill::after(10);
        let request = SpawnRequest::shell("seq 100").with_spill(spill);
        let output = sandbox.run(request).await.unwrap();
        output.exit.stdout.spilled.unwrap()
    };
    let sandbox = backend.open(durable(&policy)).await.unwrap();
    let handle = sandbox.persist().await.unwrap();
    let before = spilled(sandbox).await;
    let sandbox = backend.reattach(&handle, durable(&policy)).await.unwrap();
    let after = spilled(Arc::clone(&sandbox)).await;
    assert_eq!(after.size_bytes, before.size_bytes);
    assert_ne!(after.path, before.path);
    let both = format!("cmp {} {} && echo same", before.path, after.path);
    assert_eq!(stdout(&*sandbox, &both).await, "same\n");
    sandbox.close().await.unwrap();
}

#[tokio::test]
async fn directory_is_used_by_one_sandbox_at_a_time() {
    let place = place();
    let backend = LocalBackend::new().in_directory(place.path());
    let policy = Policy::workspace();
    let sandbox = backend.open(durable(&policy)).await.unwrap();
    let handle = sandbox.persist().await.unwrap();
    let used = backend
        .reattach(&handle, durable(&policy))
        .await
        .unwrap_err();
    assert_eq!(used.kind(), SandboxErrorKind::Unavailable);
    assert!(
        used.to_string().contains("another process uses it"),
        "{used}"
    );
    // A process handle that still exists does not lock the directory.
    let process = sandbox
        .spawn(SpawnRequest::shell("sleep 600"))
        .await
        .unwrap();
    drop(sandbox);
    drop(backend.reattach(&handle, durable(&policy)).await.unwrap());
    drop(process);
    assert_eq!(below(&place).len(), 1);
}

#[tokio::test]
async fn handle_not_kept_here_is_refused() {
    let place = place();
    let backend = LocalBackend::new().in_directory(place.path());
    let policy = Policy::workspace();
    let sandbox = backend.open(durable(&policy)).await.unwrap();
    let handle = sandbox.persist().await.unwrap();
    drop(sandbox);
    let kept = directory(&handle);
    let name = kept.file_name().unwrap().to_str().unwrap().to_owned();
    let refusal = async |directory: &Path| {
        let token = serde_json::json!({ "directory": directory }).to_string();
        let handle = SandboxHandle::new("local", token);
        let error = backend
            .reattach(&handle, durable(&policy))
            .await
            .unwrap_err();
        (error.kind(), error.to_string())
    };
    let unavailable = |(kind, text): (SandboxErrorKind, String), why: &str| {
        assert_eq!(kind, SandboxErrorKind::Unavailable);
        assert!(text.contains(why), "{text}");
    };
    unavailable(refusal(Path::new("/etc")).await, "not that of a sandbox");
    unavailable(refusal(Path::new(&name)).await, "not that of a sandbox");
    let other = tempfile::tempdir().unwrap();
    let link = other.path().join(&name);
    symlink(&kept, &link).unwrap();
    unavailable(refusal(&link).await, "symbolic link leads there");
    let above = other.path().join("above");
    symlink(place.path(), &above).unwrap();
    unavailable(
        refusal(&above.join(&name)).await,
        "symbolic link leads there",
    );
    fs::remove_file(kept.join("kept")).unwrap();
    unavailable(refusal(&kept).await, "it was not kept");
    symlink("/etc/passwd", kept.join("kept")).unwrap();
    unavailable(refusal(&kept).await, "it was not kept");
    let missing = refusal(&kept.with_file_name(name.replace("cantle-0", "cantle-1"))).await;
    assert_eq!(missing.0, SandboxErrorKind::Gone);

    let no_json = SandboxHandle::new("local", "/etc");
    let error = backend
        .reattach(&no_json, durable(&policy))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), SandboxErrorKind::Gone);
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(&kept, Some(12_345), None).unwrap();
        unavailable(refusal(&kept).await, "belongs to another user");
    }
}

/// Commands run as another user only if this process is root's.
#[tokio::test]
async fn commands_of_another_user_need_search_permission() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    fs::set_permissions(place.path(), fs::Permissions::from_mode(0o700)).unwrap();
    let policy = Policy::workspace();
    let [(in_view, _), (on_host, _), _] = kinds();
    let sandbox = in_view
        .in_directory(place.path())
        .open(durable(&policy))
        .await
        .unwrap();
    let handle = sandbox.persist().await.unwrap();
    assert_eq!(stdout(&*sandbox, "echo x > f; cat f").await, "x\n");
    drop(sandbox);
    let backend = on_host.in_directory(place.path());
    for refused in [
        backend.open(durable(&policy)).await.unwrap_err(),
        backend
            .reattach(&handle, durable(&policy))
            .await
            .unwrap_err(),
    ] {
        assert_eq!(refused.kind(), SandboxErrorKind::Unavailable, "{refused}");
        assert!(refused.to_string().contains("can't search"), "{refused}");
        assert!(refused.advice().unwrap().contains("TMPDIR"));
    }
    // Nor can a policy that runs commands as root reattach them.
    let refused = LocalBackend::new()
        .reattach(&handle, durable(&Policy::unconfined()))
        .await
        .unwrap_err();
    assert!(
        refused.to_string().contains("its files are user 65534's"),
        "{refused}"
    );
    assert_eq!(below(&place), [directory(&handle)]);
}

/// Selects the part of the next test that is killed.
const OWNER: &str = "CANTLE_TEST_DURABLE_OWNER";

/// `how` is `plain`, or `kept`.
fn start_owner(place: &TempDir, how: &str) -> Owner {
    let mut command = rerun("durable::leftovers_of_killed_owners_are_reclaimed");
    Owner::start(command.env(OWNER, format!("{how}:{}", place.path().display())))
}

async fn own(place: &str) {
    let (how, place) = place.split_once(':').unwrap();
    let backend = LocalBackend::new().in_directory(place);
    let sandbox = backend.open(durable(&Policy::workspace())).await.unwrap();
    write(&*sandbox, "f", "left\n").await;
    if how == "kept" {
        let handle = sandbox.persist().await.unwrap();
        say(&serde_json::to_string(&handle).unwrap());
    } else {
        say(&sandbox.info().id);
    }
    run(&*sandbox, "sleep 600").await;
}

#[test]
fn leftovers_of_killed_owners_are_reclaimed() {
    let runtime = new_runtime();
    if let Ok(place) = std::env::var(OWNER) {
        return runtime.block_on(own(&place));
    }
    runtime.block_on(async {
        let place = place();
        fs::create_dir(place.path().join("cantle-notes")).unwrap();
        let backend = LocalBackend::new().in_directory(place.path());
        // Control groups of other tests are reclaimed, too.
        let here = |mut removed: Vec<PathBuf>| {
            removed.retain(|path| path.starts_with(place.path()));
            removed
        };
        let mut killed = start_owner(&place, "plain");
        let mut kept = start_owner(&place, "kept");
        let handle: SandboxHandle = serde_json::from_str(&kept.said).unwrap();
        let alive = start_owner(&place, "plain");
        let own = backend.open(durable(&Policy::workspace())).await.unwrap();
        assert_eq!(below(&place).len(), 5);
        let nothing = backend.reclaim(Duration::ZERO).await;
        assert_eq!((here(nothing.removed), nothing.failed), (vec![], vec![]));
        let used = backend
            .reattach(&handle, durable(&Policy::workspace()))
            .await;
        assert_eq!(used.unwrap_err().kind(), SandboxErrorKind::Unavailable);

        killed.kill();
        kept.kill();
        // Within the grace, it may have just been created.
        let nothing = backend.reclaim(Duration::from_secs(600)).await;
        assert_eq!((here(nothing.removed), nothing.failed), (vec![], vec![]));
        let reclaimed = backend.reclaim(Duration::ZERO).await;
        let removed = place.path().join(&killed.said);
        assert_eq!(
            (here(reclaimed.removed), reclaimed.failed),
            (vec![removed], vec![])
        );
        let mut expected = vec![
            place.path().join("cantle-notes"),
            directory(&handle),
            place.path().join(&alive.said),
            place.path().join(&own.info().id),
        ];
        expected.sort();
        assert_eq!(below(&place), expected);

        let policy = Policy::workspace();
        let again = backend.reattach(&handle, durable(&policy)).await.unwrap();
        assert_eq!(stdout(&*again, "cat f").await, "left\n");
        again.close().await.unwrap();
        own.close().await.unwrap();
        let missing = LocalBackend::new().in_directory("/nonexistent/place");
        let nothing = missing.reclaim(Duration::ZERO).await;
        assert_eq!((here(nothing.removed), nothing.failed), (vec![], vec![]));
    });
}
