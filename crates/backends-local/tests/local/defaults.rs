//! Default limits: they protect the machine and are never a reason why something does not work.

use std::path::PathBuf;

use cantle_backends_local::{LocalBackend, Mechanism};
use cantle_core::ids::RunId;
use cantle_core::policy::{Policy, PolicyField, Strictness};
use cantle_core::sandbox::{
    Backend as _, EnforcedBy, ExitStatus, Sandbox, SandboxContext, SandboxHandle, SandboxInfo,
};
use cantle_testkit::lane;

use super::groups::groups_of;
use super::support::{Owner, eventually, ran_as_ordinary_user, rerun, run, say, stdout};

fn context(policy: Policy) -> SandboxContext {
    SandboxContext::new(RunId::new(), policy)
}

fn by_default(info: &SandboxInfo) -> Vec<(PolicyField, EnforcedBy)> {
    let report = info.enforcement.iter().filter(|it| it.is_default);
    report.map(|it| (it.field, it.by)).collect()
}

/// Returns the control group for all sandboxes of the backend.
async fn shared_group(sandbox: &dyn Sandbox) -> Option<PathBuf> {
    // With version 2, the sandbox's own group is below it.
    let own = groups_of(&sandbox.info().id).into_iter().next();
    if let Some(own) = own {
        return Some(own.parent().unwrap().to_owned());
    }
    let groups = stdout(sandbox, "cat /proc/self/cgroup").await;
    let mut parts = groups.split(['/', '\n']);
    let name = parts.find(|part| part.starts_with("cantle-") && part.ends_with("-shared"))?;
    let found = groups_of(name);
    assert_eq!(found.len(), 1, "{found:?}");
    found.into_iter().next()
}

#[tokio::test]
async fn defaults_are_reported_and_switched_off_by_name() {
    let backend = LocalBackend::new();
    let sandbox = backend.open(context(Policy::workspace())).await.unwrap();
    let memory = match shared_group(&*sandbox).await {
        None => EnforcedBy::NotEnforced,
        Some(_) => EnforcedBy::Kernel,
    };
    assert_eq!(
        by_default(sandbox.info()),
        [
            (PolicyField::Memory, memory),
            (PolicyField::Disk, EnforcedBy::Polled),
            (PolicyField::Inodes, EnforcedBy::Polled),
            (PolicyField::OpenFiles, EnforcedBy::Kernel),
        ]
    );
    sandbox.close().await.unwrap();

    let mut policy = Policy::workspace();
    for name in ["memory", "disk", "inodes", "open_files"] {
        policy.limits.set(&format!("{name}=none")).unwrap();
    }
    let sandbox = backend.open(context(policy)).await.unwrap();
    assert_eq!(by_default(sandbox.info()), []);
    sandbox.close().await.unwrap();

    let sandbox = backend.open(context(Policy::unconfined())).await.unwrap();
    assert_eq!(sandbox.info().enforcement, []);
    sandbox.close().await.unwrap();
}

/// A default moves no files into memory.
#[tokio::test]
async fn build_of_gigabytes_stays_on_the_disk() {
    let backend = LocalBackend::new();
    let sandbox = backend.open(context(Policy::workspace())).await.unwrap();
    let line = "fallocate -l 4G object && stat -f -c %T . && rm object";
    let output = run(&*sandbox, line).await;
    assert!(output.exit.status.success(), "{output:?}");
    assert_ne!(output.stdout.text().trim(), "tmpfs");
    let output = run(&*sandbox, "fallocate -l 11G object && sleep 60").await;
    let limit = 10 << 30;
    let field = PolicyField::Disk;
    let expected = ExitStatus::LimitReached { field, limit };
    // A smaller disk is full before.
    if !output.stderr.text().contains("No space left") {
        assert_eq!(output.exit.status, expected);
    }
    sandbox.close().await.unwrap();
}

#[tokio::test]
async fn ordinary_user_without_control_groups_needs_no_flag() {
    if ran_as_ordinary_user("defaults::ordinary_user_without_control_groups_needs_no_flag") {
        return;
    }
    let backend = LocalBackend::new().without(Mechanism::ControlGroups);
    let policy = Policy::workspace();
    assert_eq!(policy.strictness, Strictness::Strict);
    let sandbox = backend.open(context(policy)).await.unwrap();
    let memory = (PolicyField::Memory, EnforcedBy::NotEnforced);
    assert!(by_default(sandbox.info()).contains(&memory));
    // As an address space limit would not allow.
    let line = "python3 -c 'import mmap; mmap.mmap(-1, 1 << 40, flags=mmap.MAP_PRIVATE | 0x4000)' && echo ran";
    assert_eq!(stdout(&*sandbox, line).await, "ran\n");
    sandbox.close().await.unwrap();
}

#[tokio::test]
async fn kept_sandbox_needs_no_flag() {
    let backend = LocalBackend::new();
    let cx = context(Policy::workspace()).durable();
    let sandbox = backend.open(cx).await.unwrap();
    let written = stdout(&*sandbox, "fallocate -l 2G kept; seq 9 > text; echo ran").await;
    assert_eq!(written, "ran\n");
    let handle: SandboxHandle = sandbox.persist().await.unwrap();
    drop(sandbox);
    let cx = context(Policy::workspace()).durable();
    let sandbox = backend.reattach(&handle, cx).await.unwrap();
    assert_eq!(by_default(sandbox.info()).len(), 4);
    assert_eq!(
        stdout(&*sandbox, "stat -c %s kept; tail -1 text").await,
        "2147483648\n9\n"
    );
    sandbox.close().await.unwrap();
}

/// The other part of the next test.
#[tokio::test]
async fn shared_group_owner() {
    if std::env::var_os("CANTLE_TEST_SHARED_GROUP").is_none() {
        return;
    }
    let backend = LocalBackend::new();
    let sandbox = backend.open(context(Policy::workspace())).await.unwrap();
    let group = shared_group(&*sandbox).await.unwrap_or_default();
    say(&group.to_string_lossy());
    std::future::pending::<()>().await;
}

#[tokio::test]
async fn shared_group_ends_with_its_killed_owner() {
    let mut command = rerun("defaults::shared_group_owner");
    let mut owner = Owner::start(command.env("CANTLE_TEST_SHARED_GROUP", "1"));
    owner.kill();
    if owner.said.is_empty() {
        return lane::skip("this process may not create control groups with a memory limit");
    }
    let group = PathBuf::from(&owner.said);
    eventually("the group is removed", || !group.exists()).await;
}
