//! The conformance suites.

use std::fs;
use std::io;
use std::sync::Arc;

use cantle_backends_local::LocalBackend;
use cantle_core::sandbox::Sandbox;
use cantle_testkit::conformance::{SandboxOptions, sandbox_with, transfers};
use cantle_testkit::lane;
use rustix::process::{Pid, Signal, kill_process};

use crate::support::{Token, eventually};

#[tokio::test(flavor = "multi_thread")]
async fn local_backend_conforms() {
    let backend = LocalBackend::new();
    let options = SandboxOptions::new().in_lane().killed_by(kill_guard);
    let report = sandbox_with(&backend, options).await;
    println!("{report}");
    report.assert();
    if lane::is_full() {
        let skipped: Vec<_> = report.skipped().collect();
        assert_eq!(skipped, [], "everything can be seen here");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn files_are_transferred_between_sandboxes() {
    let place = tempfile::tempdir().unwrap();
    let elsewhere = LocalBackend::new().in_directory(place.path());
    transfers(&LocalBackend::new(), &elsewhere).await.assert();
}

/// Kills the guard: the child of this process that the sandbox's commands descend from.
async fn kill_guard(sandbox: Arc<dyn Sandbox>) -> io::Result<()> {
    let token = Token::new();
    let started = sandbox.spawn(token.shell("sleep 60")).await;
    let _command = started.map_err(io::Error::other)?;
    let mut pid = 0;
    eventually("it runs", || {
        pid = token.alive().first().copied().unwrap_or(0);
        pid != 0
    })
    .await;
    loop {
        match parent(pid)? {
            ours if ours == std::process::id() => break,
            other => pid = other,
        }
    }
    let guard = Pid::from_raw(pid.cast_signed()).ok_or(io::ErrorKind::NotFound)?;
    Ok(kill_process(guard, Signal::KILL)?)
}

fn parent(pid: u32) -> io::Result<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // `PID (NAME) STATE PARENT …`; the name may contain anything.
    let fields = stat.rsplit_once(") ").map(|(_, rest)| rest.split(' '));
    let parent = fields.and_then(|mut fields| fields.nth(1)?.parse().ok());
    parent.ok_or_else(|| io::ErrorKind::InvalidData.into())
}
