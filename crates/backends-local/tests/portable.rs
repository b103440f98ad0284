//! Unconfined commands, as on systems other than Linux. On Linux, run
//! `CANTLE_PORTABLE=1 cargo test -p cantle-backends-local --test portable`.

#![cfg(not(confined))]
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "the lints know a test by its attribute, and what tests share has none"
)]

#[expect(dead_code, reason = "not all of it is needed here")]
#[path = "local/support.rs"]
mod support;

#[path = "local/commands.rs"]
mod commands;
#[path = "local/files.rs"]
mod files;
#[path = "local/output.rs"]
mod output;
#[path = "local/paths.rs"]
mod paths;
#[path = "local/walks.rs"]
mod walks;

use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::time::Duration;

use cantle_backends_local::LocalBackend;
use cantle_core::ids::RunId;
use cantle_core::policy::{Policy, PolicyField, Preset, Strictness};
use cantle_core::sandbox::{
    Backend as _, EnforcedBy, Enforcement, ExitStatus, Isolation, PtySize, SandboxContext,
    SandboxErrorKind, SandboxExt as _, SpawnRequest,
};
use rustix::process::{Pid, Signal, kill_process};

use crate::support::{Token, open, stdout};

#[tokio::test(flavor = "multi_thread")]
async fn portable_backend_conforms_except_known_limits() {
    let place = tempfile::tempdir().unwrap();
    let backend = LocalBackend::new().in_directory(place.path());
    let report = cantle_testkit::conformance::sandbox(&backend).await;
    end_all_of(place.path());
    let mut failures = report.failures().map(|case| &*case.name);
    let unexpected: Vec<&str> = failures
        .by_ref()
        .filter(|it| !LIMITS.contains(it))
        .collect();
    assert!(unexpected.is_empty(), "{report}");
}

/// Kills the processes started in sandboxes below `place`, which some cases leave behind.
fn end_all_of(place: &Path) {
    let place = place.canonicalize().unwrap();
    let marks = |environment: &[u8]| {
        let place = place.as_os_str().as_bytes();
        environment.windows(place.len()).any(|part| part == place)
    };
    for process in fs::read_dir("/proc").unwrap().flatten() {
        let pid = process.file_name().to_string_lossy().parse().ok();
        let is_ours = || fs::read(process.path().join("environ")).is_ok_and(|it| marks(&it));
        if let Some(pid) = pid.and_then(Pid::from_raw)
            && is_ours()
        {
            // It may have ended already.
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

/// Cases that fail because processes leave their group, or are listed only by it.
const LIMITS: [&str; 13] = [
    "a_background_daemon_is_killed",
    "timeout_kills_a_child_that_left_the_process_group",
    "timeout_kills_a_daemon",
    "timeout_kills_kept_background_processes",
    "timeout_leaves_other_commands_alone",
    "cancellation_kills_everything",
    "dropping_the_process_kills_everything",
    "dropping_a_run_kills_everything",
    "a_kept_child_runs_on_and_is_listed",
    "a_kept_daemon_is_listed",
    "a_kept_process_ends_with_the_sandbox",
    "closing_ends_a_running_command",
    "a_sandbox_that_is_dropped_ends_its_commands",
];

#[tokio::test]
async fn policy_that_needs_confinement_is_refused() {
    for preset in Preset::ALL {
        let cx = SandboxContext::new(RunId::new(), preset.policy());
        let opened = LocalBackend::new().open(cx).await;
        if *preset == Preset::Unconfined {
            opened.unwrap().close().await.unwrap();
            continue;
        }
        let refused = opened.unwrap_err();
        assert_eq!(refused.kind(), SandboxErrorKind::Unenforceable);
        assert_eq!(refused.unenforced(), preset.policy().fields());
        assert!(refused.advice().unwrap().contains("on Linux only"));
    }
    let mut policy = Policy::workspace();
    policy.environment.insert("GIVEN".into(), "x".into());
    policy.strictness = Strictness::BestEffort;
    let cx = SandboxContext::new(RunId::new(), policy);
    let sandbox = LocalBackend::new().open(cx).await.unwrap();
    let info = sandbox.info();
    assert_eq!(
        (info.isolation, info.mechanisms.len()),
        (Isolation::None, 0)
    );
    for enforcement in &info.enforcement {
        let by = match enforcement.field {
            PolicyField::Environment => EnforcedBy::Backend,
            _ => EnforcedBy::NotEnforced,
        };
        assert_eq!(*enforcement, Enforcement::new(enforcement.field, by));
    }
    assert_eq!(stdout(&*sandbox, "echo $GIVEN").await, "x\n");
    sandbox.close().await.unwrap();
}

#[tokio::test]
async fn stopped_command_ends_with_its_group() {
    let sandbox = open().await;
    let token = Token::new();
    let line = "trap '' TERM; sleep 600 & (sleep 600 &) ; sleep 600";
    let request = token.shell(line).with_timeout(Duration::from_millis(300));
    let output = sandbox.run(request).await.unwrap();
    assert!(matches!(output.exit.status, ExitStatus::TimedOut { .. }));
    token.all_dead().await;
    let process = sandbox.spawn(token.shell(line)).await.unwrap();
    token.at_least(3).await;
    drop(process);
    token.all_dead().await;
    let process = sandbox.spawn(token.shell(line)).await.unwrap();
    token.at_least(3).await;
    sandbox.close().await.unwrap();
    token.all_dead().await;
    drop(process);
}

#[tokio::test]
async fn terminals_are_unsupported() {
    let sandbox = open().await;
    let request = SpawnRequest::shell("tty").with_pty(PtySize {
        rows: 24,
        columns: 80,
    });
    let refused = sandbox.spawn(request).await.err().unwrap();
    assert_eq!(refused.kind(), SandboxErrorKind::Unsupported);
    sandbox.close().await.unwrap();
}
