//! The limit of memory: the kernel kills at it and says nothing to whom it kills. The container's
//! control group counts, so that a command's end can be told for what it was.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use cantle_core::policy::PolicyField;
use cantle_core::sandbox::{
    ByteRange, Exit, ExitStatus, OutputStream, Process, ProcessStdin, PtySize, SandboxError,
    SandboxPath,
};
use futures_util::StreamExt as _;

use crate::relay::Relay;

/// Where the counter is, in the newer hierarchy and in the older one.
const COUNTERS: [&str; 2] = [
    "/sys/fs/cgroup/memory.events",
    "/sys/fs/cgroup/memory/memory.oom_control",
];

/// How a command ends that is killed, and how a shell that ran it.
const KILLED: i32 = 9;
const KILLED_IN_SHELL: i32 = 128 + KILLED;

/// A container's limit of memory.
#[derive(Debug)]
pub(crate) struct MemoryLimit {
    limit_bytes: u64,
    /// How many processes had been killed when somebody looked last.
    killed: AtomicU64,
}

impl MemoryLimit {
    pub(crate) fn new(limit_bytes: u64) -> Self {
        Self {
            limit_bytes,
            killed: AtomicU64::new(0),
        }
    }

    /// Has a process tell when the limit ended it.
    pub(crate) fn watch(
        self: &Arc<Self>,
        relay: &Relay,
        process: Box<dyn Process>,
    ) -> Box<dyn Process> {
        Box::new(Watched {
            process,
            relay: relay.clone(),
            killed_before: self.killed.load(Ordering::Relaxed),
            limit: Arc::clone(self),
            exit: None,
        })
    }

    /// How a command really ended before which so many processes had been killed.
    async fn told(&self, relay: &Relay, killed_before: u64, mut exit: Exit) -> Exit {
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
            ExitStatus::Signal(KILLED) | ExitStatus::Code(KILLED_IN_SHELL) => {
                let field = PolicyField::Memory;
                exit.status = ExitStatus::LimitReached { field, limit };
            }
            // It may be told already, or something else went on.
            _ => exit.notes.push(format!(
                "A process was killed at the limit of memory for everything that runs ({limit} bytes): work on \
                 the data in pieces, or run fewer processes at once."
            )),
        }
        exit
    }

    /// How many processes the kernel has killed at the limit.
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

/// A process whose end may be the limit's.
struct Watched {
    process: Box<dyn Process>,
    relay: Relay,
    limit: Arc<MemoryLimit>,
    killed_before: u64,
    exit: Option<Exit>,
}

#[async_trait]
impl Process for Watched {
    fn id(&self) -> Option<u32> {
        self.process.id()
    }

    fn take_output(&mut self) -> Option<OutputStream> {
        self.process.take_output()
    }

    fn take_stdin(&mut self) -> Option<Box<dyn ProcessStdin>> {
        self.process.take_stdin()
    }

    async fn signal(&mut self, signal: i32) -> Result<(), SandboxError> {
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
        let told = self.limit.told(&self.relay, self.killed_before, exit);
        let exit = told.await;
        self.exit = Some(exit.clone());
        Ok(exit)
    }
}
