//! Limits that no wall keeps: they are measured while a command runs, or what it left, and beyond them
//! that is stopped.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cantle_core::policy::{Limits, PolicyField};
use cantle_core::sandbox::{EnforcedBy, Enforcement};
use tokio::time::sleep;

use crate::blocking;
use crate::command::Command;

/// How often something is measured; less often where measuring takes long.
const INTERVAL: Duration = Duration::from_millis(250);

/// The limits of a sandbox that we keep ourselves.
#[derive(Clone, Debug)]
pub(crate) struct OwnLimits {
    /// The longest time a command may have.
    pub(crate) wall_time: Option<Duration>,
    /// The most bytes of one channel.
    pub(crate) output_bytes: Option<u64>,
    processes: Option<u64>,
    disk_bytes: Option<u64>,
    inodes: Option<u64>,
}

impl OwnLimits {
    /// Those of the policy's limits that the report leaves to us.
    pub(crate) fn new(limits: &Limits, report: &[Enforcement]) -> Self {
        let is_polled = |field| report.contains(&Enforcement::new(field, EnforcedBy::Polled));
        let polled = |field, limit: Option<u64>| limit.filter(|_| is_polled(field));
        Self {
            wall_time: limits.wall_time,
            output_bytes: limits.output_bytes,
            processes: polled(PolicyField::Processes, limits.processes),
            disk_bytes: polled(PolicyField::Disk, limits.disk_bytes),
            inodes: polled(PolicyField::Inodes, limits.inodes),
        }
    }

    /// Whether any of them has to be measured.
    pub(crate) fn are_polled(&self) -> bool {
        self.processes.or(self.disk_bytes).or(self.inodes).is_some()
    }

    /// Waits until a limit is passed; says which, and what it is.
    pub(crate) async fn reached(&self, command: &Command) -> (PolicyField, u64) {
        if !self.are_polled() {
            std::future::pending::<()>().await;
        }
        let mut pause = INTERVAL;
        loop {
            sleep(pause).await;
            let began = Instant::now();
            if let Some(limit) = self.processes
                && running(command).await > limit
            {
                return (PolicyField::Processes, limit);
            }
            let root = Arc::clone(&command.shared.root);
            if (self.disk_bytes.is_some() || self.inodes.is_some())
                && let Ok(used) = blocking::run(move || root.used()).await
            {
                let measured = [
                    (PolicyField::Disk, self.disk_bytes, used.bytes),
                    (PolicyField::Inodes, self.inodes, used.inodes),
                ];
                for (field, limit, used) in measured {
                    if let Some(limit) = limit
                        && used > limit
                    {
                        return (field, limit);
                    }
                }
            }
            pause = INTERVAL.max(began.elapsed() * 4);
        }
    }
}

/// The processes of a command.
async fn running(command: &Command) -> u64 {
    let listed = command.list().await.unwrap_or_default();
    listed.iter().filter(|byte| **byte == 0).count() as u64
}
