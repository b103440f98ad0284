//! Detection of commands killed at the memory limit.
//!
//! The kernel kills with SIGKILL and gives no reason; the container's control group counts these kills.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use cantle_core::policy::PolicyField;
use cantle_core::sandbox::{
    ByteRange, Exit, ExitStatus, OutputStream, Process, ProcessStdin, PtySize, SandboxError,
    SandboxPath, Signal,
};
use futures_util::StreamExt as _;

use crate::relay::Relay;

/// Files with the counter, in version 2 and version 1 of control groups.
const COUNTERS: [&str; 2] = [
    "/sys/fs/cgroup/memory.events",
    "/sys/fs/cgroup/memory/memory.oom_control",
];

const SIGKILL: i32 = 9;
/// Exit code of a shell whose command was killed.
const SIGKILL_IN_SHELL: i32 = 128 + SIGKILL;

/// The memory limit of a container.
#[derive(Debug)]
pub(crate) struct MemoryLimit {
    limit_bytes: u64,
    /// Latest known number of processes killed at the limit.
    killed: AtomicU64,
}

impl MemoryLimit {
    pub(crate) fn new(limit_bytes: u64) -> Self {
        Self {
            limit_bytes,
            killed: AtomicU64::new(0),
        }
    }

    /// Wraps a process so that its exit reports the limit if it was killed at it.
    pub(crate) fn watch(
        self: &Arc<Self>,
        relay: &Relay,
        process: Box<dyn Process>,
    ) -> Box<dyn Process> {
        Box::new(LimitedProcess {
            process,
            relay: relay.clone(),
            killed_before: self.killed.load(Ordering::Relaxed),
            limit: Arc::clone(self),
            exit: None,
        })
    }

    /// Explains an exit, given the number of kills when the command started.
    async fn explain_exit(&self, relay: &Relay, killed_before: u64, mut exit: Exit) -> Exit {
        if exit.status.success() {
            return exit;
        }
        let Some(killed) = self.count(relay).await else {
            return exit;
        };
        self.killed.fetch_max(killed, Ordering::Relaxed);
        if killed <= killed_before {
            return exit;
        }
        let limit = self.limit_bytes;
        match exit.status {
            ExitStatus::Signal(SIGKILL) | ExitStatus::Code(SIGKILL_IN_SHELL) => {
                let field = PolicyField::Memory;
                exit.status = ExitStatus::LimitReached { field, limit };
            }
            // The command survived: one of its processes was killed.
            _ => exit.notes.push(format!(
                "A process was killed at the memory limit of the sandbox ({limit} bytes): process the data in \
                 pieces, or run fewer processes at once."
            )),
        }
        exit
    }

    /// Reads the number of processes killed at the limit.
    async fn count(&self, relay: &Relay) -> Option<u64> {
        for counter in COUNTERS {
            let path = SandboxPath::new(counter).ok()?;
            let Ok(mut stream) = relay.read(&path, ByteRange::new(0, 1000)).await else {
                continue;
            };
            let mut text = Vec::new();
            while let Some(Ok(piece)) = stream.next().await {
                text.extend_from_slice(&piece);
            }
            let text = String::from_utf8_lossy(&text);
            let mut lines = text.lines().filter_map(|line| line.split_once(' '));
            let count = lines.find_map(|(name, count)| (name == "oom_kill").then_some(count))?;
            return count.parse().ok();
        }
        None
    }
}

/// A process that may be killed at the limit.
struct LimitedProcess {
    process: Box<dyn Process>,
    relay: Relay,
    limit: Arc<MemoryLimit>,
    killed_before: u64,
    exit: Option<Exit>,
}

#[async_trait]
impl Process for LimitedProcess {
    fn id(&self) -> Option<u32> {
        self.process.id()
    }

    fn take_output(&mut self) -> Option<OutputStream> {
        self.process.take_output()
    }

    fn take_stdin(&mut self) -> Option<Box<dyn ProcessStdin>> {
        self.process.take_stdin()
    }

    async fn signal(&mut self, signal: Signal) -> Result<(), SandboxError> {
        self.process.signal(signal).await
    }

    async fn resize(&mut self, size: PtySize) -> Result<(), SandboxError> {
        self.process.resize(size).await
    }

    async fn wait(&mut self) -> Result<Exit, SandboxError> {
        if let Some(exit) = &self.exit {
            return Ok(exit.clone());
        }
        let exit = self.process.wait().await?;
        let exit = self
            .limit
            .explain_exit(&self.relay, self.killed_before, exit)
            .await;
        self.exit = Some(exit.clone());
        Ok(exit)
    }
}
