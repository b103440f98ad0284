//! Limits that the kernel does not enforce: the backend polls them while a command, or a process it left
//! behind, runs, and stops the command when one is exceeded.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cantle_command_driver::CommandLimits;
use cantle_core::policy::{Limits, PolicyField};
use cantle_core::sandbox::{EnforcedBy, Enforcement};
use tokio::time::sleep;

use crate::blocking;
use crate::files::Root;

/// Polling interval; longer if measuring takes long.
const INTERVAL: Duration = Duration::from_millis(250);

/// The limits that the backend enforces.
#[derive(Clone, Debug)]
pub(crate) struct BackendLimits {
    /// Those that the command driver enforces.
    pub(crate) command: CommandLimits,
    processes: Option<u64>,
    disk_bytes: Option<u64>,
    inodes: Option<u64>,
}

impl BackendLimits {
    /// Selects the policy's limits that the report leaves to the backend.
    pub(crate) fn new(limits: &Limits, report: &[Enforcement]) -> Self {
        let is_polled = |field| report.contains(&Enforcement::new(field, EnforcedBy::Polled));
        let polled = |field, limit: Option<u64>| limit.filter(|_| is_polled(field));
        Self {
            command: CommandLimits::new(limits),
            processes: polled(PolicyField::Processes, limits.processes),
            disk_bytes: polled(PolicyField::Disk, limits.disk_bytes),
            inodes: polled(PolicyField::Inodes, limits.inodes),
        }
    }

    /// Whether any limit must be polled.
    pub(crate) fn are_polled(&self) -> bool {
        self.processes.or(self.disk_bytes).or(self.inodes).is_some()
    }

    /// Waits until a limit is exceeded; returns the field and the limit. `count_processes` returns the
    /// number of the command's processes.
    pub(crate) async fn reached<F: Future<Output = u64>>(
        &self,
        root: &Arc<Root>,
        count_processes: impl Fn() -> F,
    ) -> (PolicyField, u64) {
        if !self.are_polled() {
            std::future::pending::<()>().await;
        }
        let mut pause = INTERVAL;
        loop {
            sleep(pause).await;
            let began = Instant::now();
            if let Some(limit) = self.processes
                && count_processes().await > limit
            {
                return (PolicyField::Processes, limit);
            }
            let root = Arc::clone(root);
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
