//! The engine for unconfined commands, on systems without a supervisor.
//!
//! A command is a process group. A process that leaves its group (`setsid`) is neither listed nor killed, and
//! of a policy only the environment is enforced, which the sandbox reports.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::Child;
use std::sync::Arc;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use cantle_core::policy::{Policy, PolicyField};
use cantle_core::sandbox::{EnforcedBy, Enforcement, Exit, ExitStatus, Isolation, SandboxError};
use parking_lot::Mutex;
use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, kill_process_group, test_kill_process_group, waitid,
};
use tokio::sync::oneshot;

use super::{BuiltEngine, check_enforced, check_owner};
use crate::files::Root;
use crate::settings::LocalSettings;

/// Interval of polling for the end of a process.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// The reason why policies can't be enforced.
const REASON: &str = "commands are confined on Linux only";

/// Builds the engine.
pub(crate) fn build(
    root: &mut Root,
    _: &LocalSettings,
    policy: &Policy,
    _: bool,
    is_kept: bool,
) -> Result<BuiltEngine, SandboxError> {
    if is_kept {
        check_owner(root, rustix::process::geteuid().as_raw())?;
    }
    let report = Enforcement::report(policy, |field| match field {
        PolicyField::Environment => EnforcedBy::Backend,
        _ => EnforcedBy::NotEnforced,
    });
    Ok(BuiltEngine {
        engine: Engine::default(),
        isolation: Isolation::None,
        mechanisms: Vec::new(),
        enforcement: check_enforced(policy, report, &[REASON.to_owned()])?,
        limits: policy.limits.clone(),
        user: None,
        proxy_variables: Vec::new(),
    })
}

/// The commands of a sandbox.
#[derive(Debug, Default)]
pub(crate) struct Engine {
    groups: Mutex<BTreeMap<u32, Arc<ProcessGroup>>>,
}

/// The counterpart of the confined engine's counters.
#[derive(Debug)]
pub(crate) struct StartMark;

impl Engine {
    /// Starts the first process of a command in a new process group.
    pub(crate) fn start(
        &self,
        id: u32,
        command: &mut std::process::Command,
    ) -> io::Result<(Arc<ProcessGroup>, oneshot::Receiver<ExitStatus>)> {
        let started = ProcessGroup::start(command)?;
        let mut groups = self.groups.lock();
        groups.retain(|_, group| !group.is_over());
        groups.insert(id, Arc::clone(&started.0));
        Ok(started)
    }

    /// A sandbox has no process of its own that could end.
    #[expect(clippy::unused_self, reason = "shared with the confined engine")]
    pub(crate) fn is_gone(&self) -> bool {
        false
    }

    /// Kills all groups and waits for the end of their first processes; returns whether they have ended.
    /// Blocks.
    pub(crate) fn end(&self, deadline: Instant) -> bool {
        let groups: Vec<_> = self.groups.lock().values().cloned().collect();
        for group in &groups {
            group.signal(Signal::KILL);
            group.release();
        }
        while groups.iter().any(|group| !group.is_reaped()) {
            if Instant::now() >= deadline {
                return false;
            }
            thread::sleep(POLL_INTERVAL);
        }
        true
    }

    /// Kills all groups, without waiting.
    pub(crate) fn begin_end(&self) {
        for group in self.groups.lock().values() {
            group.signal(Signal::KILL);
        }
    }

    #[expect(clippy::unused_self, reason = "shared with the confined engine")]
    pub(crate) fn reap(&self) {}

    #[expect(clippy::unused_self, reason = "shared with the confined engine")]
    pub(crate) fn mark(&self) -> StartMark {
        StartMark
    }

    #[expect(clippy::unused_self, reason = "shared with the confined engine")]
    pub(crate) fn take_refusals(&self, _: &StartMark) -> Vec<String> {
        Vec::new()
    }

    #[expect(clippy::unused_self, reason = "shared with the confined engine")]
    pub(crate) fn explain_exit(&self, _: &StartMark, _: &mut Exit) {}
}

/// The process group of a command.
#[derive(Debug)]
pub(crate) struct ProcessGroup {
    /// The id of the first process, and of the group.
    id: Pid,
    /// Whether the first process is reaped, after which its id may be reused.
    reaped: Mutex<bool>,
    /// Dropped to have the first process reaped.
    hold: Mutex<Option<mpsc::Sender<()>>>,
}

impl ProcessGroup {
    fn start(
        command: &mut std::process::Command,
    ) -> io::Result<(Arc<Self>, oneshot::Receiver<ExitStatus>)> {
        let child = command.process_group(0).spawn()?;
        let (hold, held) = mpsc::channel();
        let (ended, end) = oneshot::channel();
        let group = Arc::new(Self {
            id: Pid::from_child(&child),
            reaped: Mutex::new(false),
            hold: Mutex::new(Some(hold)),
        });
        let watched = Arc::clone(&group);
        // A thread per command: tokio can't wait for a process without reaping it.
        thread::Builder::new()
            .name("cantle-command".to_owned())
            .spawn(move || watched.watch(child, ended, &held))
            .inspect_err(|_| group.signal(Signal::KILL))?;
        Ok((group, end))
    }

    /// Reports the end of the first process, and reaps it once the hold is released.
    fn watch(
        &self,
        mut child: Child,
        ended: oneshot::Sender<ExitStatus>,
        held: &mpsc::Receiver<()>,
    ) {
        let flags = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        let status = loop {
            match waitid(WaitId::Pid(self.id), flags) {
                Err(Errno::INTR) | Ok(None) => {}
                Ok(Some(status)) => break Some(status),
                Err(_) => break None,
            }
        };
        if let Some(status) = status {
            let code = status.exit_status().map(ExitStatus::Code);
            let signal = status.terminating_signal().map(ExitStatus::Signal);
            // The receiver may be gone.
            let _ = ended.send(code.or(signal).unwrap_or(ExitStatus::Code(-1)));
        }
        // Returns when the sender is dropped.
        let _ = held.recv();
        let mut reaped = self.reaped.lock();
        let _ = child.wait();
        *reaped = true;
    }

    pub(crate) fn id(&self) -> Pid {
        self.id
    }

    pub(crate) fn is_reaped(&self) -> bool {
        *self.reaped.lock()
    }

    /// Releases the hold on the first process, to be reaped once it has ended.
    pub(crate) fn release(&self) {
        let mut hold = self.hold.lock();
        hold.take();
    }

    /// Releases the first process and waits until it is reaped.
    pub(crate) async fn wait_reaped(&self) {
        self.release();
        while !self.is_reaped() {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Whether the group is empty.
    pub(crate) fn is_over(&self) -> bool {
        self.is_reaped() && test_kill_process_group(self.id).is_err()
    }

    /// Sends a signal to all processes of the group.
    pub(crate) fn signal(&self, signal: Signal) {
        // The group may be empty.
        let _ = kill_process_group(self.id, signal);
    }
}
