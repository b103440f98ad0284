//! Opening a sandbox, and its description.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::Duration;

use cantle_backends_local::{LocalBackend, Mechanism};
use cantle_core::ids::RunId;
use cantle_core::policy::{Network, Policy, PolicyField, Strictness};
use cantle_core::sandbox::{
    Backend as _, EnforcedBy, Enforcement, Isolation, SandboxContext, SandboxErrorKind, SandboxExt,
    SpawnRequest, Survival,
};

use crate::support::{on_host, open, say, stdout};

fn context(policy: Policy) -> SandboxContext {
    SandboxContext::new(RunId::new(), policy)
}

#[tokio::test]
async fn unconfined_sandbox_reports_no_isolation() {
    let sandbox = open().await;
    let info = sandbox.info();
    assert_eq!(info.backend, "local");
    assert_eq!(info.isolation, Isolation::None);
    assert_eq!(info.survival, Survival::Nothing);
    assert_eq!(info.enforcement, []);
    sandbox.close().await.unwrap();
}

#[tokio::test]
async fn directory_is_private_and_named_after_the_run() {
    let cx = context(Policy::unconfined());
    let sandbox = LocalBackend::new().open(cx.clone()).await.unwrap();
    let root = on_host(&*sandbox, "").join("..").canonicalize().unwrap();
    assert_eq!(
        fs::metadata(&root).unwrap().permissions().mode() & 0o777,
        0o700
    );
    assert!(sandbox.info().id.contains(&cx.run.to_string()));
    assert!(root.ends_with(&sandbox.info().id));
    sandbox.close().await.unwrap();
}

#[tokio::test]
async fn directory_is_created_below_the_configured_parent() {
    let parent = tempfile::tempdir().unwrap();
    let backend = LocalBackend::new().in_directory(parent.path());
    let sandbox = backend.open(context(Policy::unconfined())).await.unwrap();
    let parent_path = parent.path().canonicalize().unwrap();
    assert!(on_host(&*sandbox, "").starts_with(parent_path));
    sandbox.close().await.unwrap();
    assert_eq!(fs::read_dir(parent.path()).unwrap().count(), 0);
}

#[tokio::test]
async fn commands_find_directories_whose_names_are_no_text() {
    let place = tempfile::tempdir().unwrap();
    let parent = place.path().join(OsStr::from_bytes(b"\xff"));
    fs::create_dir(&parent).unwrap();
    let backend = LocalBackend::new().in_directory(&parent);
    let sandbox = backend.open(context(Policy::unconfined())).await.unwrap();
    let line = r#"test -d "$HOME" && test -d "$TMPDIR" && echo there"#;
    assert_eq!(stdout(&*sandbox, line).await, "there\n");
    sandbox.close().await.unwrap();
}

#[tokio::test]
async fn missing_parent_error_has_advice() {
    let backend = LocalBackend::new().in_directory("/nonexistent/place");
    let error = backend
        .open(context(Policy::unconfined()))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), SandboxErrorKind::NotFound);
    assert!(error.to_string().contains("/nonexistent/place"), "{error}");
    assert!(error.advice().unwrap().contains("TMPDIR"));
}

#[tokio::test]
async fn missing_bash_error_has_advice() {
    let empty = tempfile::tempdir().unwrap();
    let backend = LocalBackend::new().with_path(empty.path());
    let error = backend
        .open(context(Policy::unconfined()))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), SandboxErrorKind::Unavailable);
    assert!(
        error.to_string().contains(&*empty.path().to_string_lossy()),
        "{error}"
    );
    assert!(error.advice().unwrap().contains("Install bash"));

    let backend = LocalBackend::new().with_shell("/nonexistent/bash");
    let error = backend
        .open(context(Policy::unconfined()))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), SandboxErrorKind::Unavailable);
}

#[tokio::test]
async fn configured_shell_and_path_are_used() {
    let tools = tempfile::tempdir().unwrap();
    let absolute = format!("{}:/usr/bin:/bin", tools.path().display());
    let tool = tools.path().join("only-here");
    fs::write(&tool, "#!/bin/sh\necho found\n").unwrap();
    fs::set_permissions(&tool, fs::Permissions::from_mode(0o755)).unwrap();
    let backend = LocalBackend::new()
        .with_path(format!("relative:{absolute}"))
        .with_shell("/bin/sh");
    let sandbox = backend.open(context(Policy::unconfined())).await.unwrap();
    // A relative directory in PATH would depend on the command's directory.
    let expected = format!("found\n{absolute}\n");
    assert_eq!(stdout(&*sandbox, "only-here; echo $PATH").await, expected);
    let argv = SpawnRequest::argv(["only-here"]);
    assert_eq!(sandbox.run(argv).await.unwrap().stdout.text(), "found\n");
    sandbox.close().await.unwrap();
}

#[tokio::test]
async fn unenforceable_strict_policy_is_refused() {
    let mut policy = Policy::unconfined();
    policy.network = Some(Network::Off);
    policy.limits.wall_time = Some(Duration::from_secs(1));
    // As on a machine without either.
    let backend = LocalBackend::new()
        .without(Mechanism::Namespaces)
        .without(Mechanism::SystemCalls);
    let error = backend.open(context(policy.clone())).await.unwrap_err();
    assert_eq!(error.kind(), SandboxErrorKind::Unenforceable);
    assert_eq!(error.unenforced(), [PolicyField::Network]);
    assert!(error.to_string().contains("network"), "{error}");

    policy.strictness = Strictness::BestEffort;
    let sandbox = backend.open(context(policy)).await.unwrap();
    let expected = [
        Enforcement::new(PolicyField::Network, EnforcedBy::NotEnforced),
        Enforcement::new(PolicyField::WallTime, EnforcedBy::Backend),
    ];
    let info = sandbox.info();
    assert!(info.demanded().eq(&expected), "{info:?}");
    sandbox.close().await.unwrap();
}

#[tokio::test]
async fn refused_sandbox_leaves_no_directory() {
    let parent = tempfile::tempdir().unwrap();
    let backend = LocalBackend::new().in_directory(parent.path());
    let mut policy = Policy::unconfined();
    policy.environment.insert("A=B".into(), "x".into());
    let error = backend.open(context(policy)).await.unwrap_err();
    assert_eq!(error.kind(), SandboxErrorKind::InvalidInput);
    assert_eq!(fs::read_dir(parent.path()).unwrap().count(), 0);
}

#[tokio::test]
async fn sandboxes_cannot_access_each_others_files() {
    let (one, other) = (open().await, open().await);
    assert_ne!(one.info().id, other.info().id);
    stdout(&*one, "echo mine > f").await;
    assert!(!Path::new(&on_host(&*other, "f")).exists());
    one.close().await.unwrap();
    other.close().await.unwrap();
}

#[tokio::test]
async fn working_directory_is_mounted_at_configured_path() {
    let backend = LocalBackend::new().workspace_at("/home/user");
    let cx = context(Policy::workspace());
    let Ok(sandbox) = backend.open(cx).await else {
        return say("SKIPPED: nothing confines here");
    };
    if !sandbox
        .info()
        .mechanisms
        .iter()
        .any(|wall| wall.contains("namespaces"))
    {
        say("SKIPPED: no namespaces here");
        return sandbox.close().await.unwrap();
    }
    assert_eq!(sandbox.info().working_directory.to_string(), "/home/user");
    let line =
        "pwd; echo ~ $HOME ~user; echo x > y; ls /home/user; ls -d /workspace 2>&1 | grep -c No";
    assert_eq!(
        stdout(&*sandbox, line).await,
        "/home/user\n/home/user /home/user /home/user\ny\n1\n"
    );
    sandbox.close().await.unwrap();
}

#[tokio::test]
async fn working_directory_below_system_directories_is_refused() {
    for place in [
        "/",
        "work",
        "/tmp/work",
        "/usr/work",
        "/home/../work",
        "/home/",
    ] {
        let backend = LocalBackend::new().workspace_at(place);
        let error = backend
            .open(context(Policy::workspace()))
            .await
            .unwrap_err();
        assert_eq!(error.kind(), SandboxErrorKind::InvalidInput, "{place}");
    }
}

#[tokio::test]
async fn strict_policy_needs_the_system_call_filter() {
    let backend = LocalBackend::new().without(Mechanism::SystemCalls);
    let mut policy = Policy::workspace();
    let error = backend.open(context(policy.clone())).await.unwrap_err();
    assert_eq!(error.kind(), SandboxErrorKind::Unavailable);
    assert!(error.to_string().contains("system call filter"), "{error}");

    policy.strictness = Strictness::BestEffort;
    let sandbox = backend.open(context(policy)).await.unwrap();
    let mechanisms = &sandbox.info().mechanisms;
    assert!(
        !mechanisms.iter().any(|it| it == "system call filter"),
        "{mechanisms:?}"
    );
    sandbox.close().await.unwrap();
}

#[tokio::test]
async fn commands_are_killed_before_the_owner_when_memory_is_short() {
    let own = fs::read_to_string("/proc/self/oom_score_adj").unwrap();
    for (backend, policy) in [
        (LocalBackend::new(), Policy::workspace()),
        (
            LocalBackend::new().without(Mechanism::Namespaces),
            Policy::workspace(),
        ),
        (LocalBackend::new(), Policy::unconfined()),
    ] {
        let sandbox = backend.open(context(policy)).await.unwrap();
        let line = "cat /proc/self/oom_score_adj";
        assert_eq!(stdout(&*sandbox, line).await, "1000\n");
        sandbox.close().await.unwrap();
    }
    let after = fs::read_to_string("/proc/self/oom_score_adj").unwrap();
    assert_eq!(after, own);
}
