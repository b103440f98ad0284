//! Running commands as the user's own programs, on systems whose walls are not used here.
//!
//! A command is a process group. What leaves its group (`setsid`) is neither found nor ended, and
//! nothing of a policy is enforced but its environment: that is what such a sandbox says of itself.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::Child;
use std::sync::mpsc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use cantle_core::policy::{Policy, PolicyField};
use cantle_core::sandbox::{EnforcedBy, Enforcement, ExitStatus, Isolation, SandboxError};
use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, kill_process_group, test_kill_process_group, waitid,
};
use tokio::sync::oneshot;

use crate::backend::LocalBackend;
use crate::files::Root;
use crate::open::{self, Built};

/// How often to look whether something has ended.
const PAUSE: Duration = Duration::from_millis(1);

/// Whether policies can be enforced, and why not.
const REASON: &str = "commands are confined on Linux only";

/// Opens the one kind of sandbox that there is.
pub(crate) fn build(
    root: &mut Root,
    _: &LocalBackend,
    policy: &Policy,
    _: bool,
    is_kept: bool,
) -> Result<Built, SandboxError> {
    if is_kept {
        open::check_owner(root, rustix::process::geteuid().as_raw())?;
    }
    let report = Enforcement::report(policy, |field| match field {
        PolicyField::Environment => EnforcedBy::Backend,
        _ => EnforcedBy::NotEnforced,
    });
    Ok(Built {
        engine: Engine::default(),
        isolation: Isolation::None,
        walls: Vec::new(),
        enforcement: open::check_enforced(policy, report, &[REASON.to_owned()])?,
        user: None,
        proxy_port: None,
    })
}

/// The commands of a sandbox.
#[derive(Debug, Default)]
pub(crate) struct Engine {
    groups: Mutex<BTreeMap<u32, Arc<Group>>>,
}

/// There is nothing to be marked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mark;

impl Engine {
    fn groups(&self) -> MutexGuard<'_, BTreeMap<u32, Arc<Group>>> {
        self.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the first process of a command, in a group of its own.
    pub(crate) fn start(
        &self,
        id: u32,
        command: &mut std::process::Command,
    ) -> io::Result<(Arc<Group>, oneshot::Receiver<ExitStatus>)> {
        let started = Group::start(command)?;
        let mut groups = self.groups();
        groups.retain(|_, group| !group.is_over());
        groups.insert(id, Arc::clone(&started.0));
        Ok(started)
    }

    /// A sandbox has no process of its own that could be gone.
    #[expect(clippy::unused_self, reason = "elsewhere there is one")]
    pub(crate) fn is_gone(&self) -> bool {
        false
    }

    /// Kills all groups, and waits for the end of their first processes; whether they have ended.
    /// Blocks.
    pub(crate) fn end(&self, deadline: Instant) -> bool {
        let groups: Vec<_> = self.groups().values().cloned().collect();
        for group in &groups {
            group.signal(Signal::KILL);
            group.release();
        }
        while groups.iter().any(|group| !group.is_reaped()) {
            if Instant::now() >= deadline {
                return false;
            }
            thread::sleep(PAUSE);
        }
        true
    }

    /// There is nothing left to wait for.
    #[expect(clippy::unused_self, reason = "elsewhere there is something")]
    pub(crate) fn reap(&self) {}

    #[expect(clippy::unused_self, reason = "elsewhere there is something")]
    pub(crate) fn mark(&self) -> Mark {
        Mark
    }

    /// Nothing is to be said that the command doesn't.
    #[expect(clippy::unused_self, reason = "elsewhere there is something")]
    pub(crate) fn told(&self, _: Mark, status: ExitStatus) -> (ExitStatus, Vec<String>) {
        (status, Vec::new())
    }
}

/// The processes of a command, as long as they stay together.
#[derive(Debug)]
pub(crate) struct Group {
    /// The id of the first process, which names the group.
    id: Pid,
    /// Whether the first process is let go, from when on its id may be somebody else's.
    reaped: Mutex<bool>,
    /// Closed to let it go.
    hold: Mutex<Option<mpsc::Sender<()>>>,
}

impl Group {
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
        // One for each: there is no way to wait for an end on a runtime without taking it.
        thread::Builder::new()
            .name("cantle-command".to_owned())
            .spawn(move || watched.watch(child, ended, &held))
            .inspect_err(|_| group.signal(Signal::KILL))?;
        Ok((group, end))
    }

    /// Tells the end of the first process, and lets it go when that is asked for.
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
            // Where nobody waits, nobody needs it.
            let _ = ended.send(code.or(signal).unwrap_or(ExitStatus::Code(-1)));
        }
        // It ends when the other side is closed.
        let _ = held.recv();
        let mut reaped = self.reaped();
        let _ = child.wait();
        *reaped = true;
    }

    fn reaped(&self) -> MutexGuard<'_, bool> {
        self.reaped.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn id(&self) -> Pid {
        self.id
    }

    pub(crate) fn is_reaped(&self) -> bool {
        *self.reaped()
    }

    /// Lets the first process go, once it has ended.
    pub(crate) fn release(&self) {
        let mut hold = self.hold.lock().unwrap_or_else(PoisonError::into_inner);
        hold.take();
    }

    /// Lets the first process go and waits until it is, which is soon where it has ended.
    pub(crate) async fn let_go(&self) {
        self.release();
        while !self.is_reaped() {
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Whether there is nothing in it any more.
    pub(crate) fn is_over(&self) -> bool {
        self.is_reaped() && test_kill_process_group(self.id).is_err()
    }

    /// Sends a signal to all that is in it.
    pub(crate) fn signal(&self, signal: Signal) {
        // It may be empty.
        let _ = kill_process_group(self.id, signal);
    }
}
