//! Limits that the kernel does not enforce: the backend measures while a command, or a process it left
//! behind, runs, and stops the command when one is exceeded.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cantle_core::policy::{Limits, PolicyField};
use cantle_core::sandbox::{EnforcedBy, Enforcement};
use tokio::time::sleep;

use crate::blocking;
use crate::files::{ExceededLimit, FileLimits, Root};

/// Longest pause between two measurements, unless measuring itself takes long.
const MAX_PAUSE: Duration = Duration::from_millis(250);
/// Shortest pause, close to the limit of disk usage.
const MIN_PAUSE: Duration = Duration::from_millis(20);
/// Bytes that a fast disk stores in a second. The next measurement is due before it could be full.
const FAST_DISK_BYTES: u64 = 2 << 30;

/// The limits that the backend enforces.
#[derive(Clone, Debug)]
pub(crate) struct BackendLimits {
    /// The policy's, of which the command driver enforces wall time and output.
    pub(crate) command: Limits,
    /// Those on files.
    pub(crate) files: FileLimits,
    processes: Option<u64>,
}

impl BackendLimits {
    /// Selects the policy's limits that the report leaves to the backend.
    pub(crate) fn new(limits: &Limits, report: &[Enforcement]) -> Self {
        let polled = |field| {
            let mut report = report.iter();
            report.find(|it| it.field == field && it.by == EnforcedBy::Polled)
        };
        let (disk, inodes) = (polled(PolicyField::Disk), polled(PolicyField::Inodes));
        Self {
            command: limits.clone(),
            files: FileLimits {
                disk_bytes: disk.and(limits.disk_bytes),
                inodes: inodes.and(limits.inodes),
                file_size_bytes: limits.file_size_bytes,
                is_default: [disk, inodes].into_iter().flatten().all(|it| it.is_default),
            },
            processes: polled(PolicyField::Processes).and(limits.processes),
        }
    }

    /// Whether any limit must be measured while commands run.
    pub(crate) fn are_polled(&self) -> bool {
        self.processes.is_some() || self.files.are_measured()
    }

    /// Waits until a limit is exceeded; returns the field and the limit. The files of `root` are measured,
    /// if it is given. `count_processes` returns the number of the sandbox's processes. What can't be measured
    /// exceeds its limit.
    pub(crate) async fn reached<F: Future<Output = Option<u64>>>(
        &self,
        root: Option<&Arc<Root>>,
        count_processes: impl Fn() -> F,
    ) -> ExceededLimit {
        let measured_root = root.filter(|_| self.files.are_measured());
        if self.processes.is_none() && measured_root.is_none() {
            std::future::pending::<()>().await;
        }
        let mut took = Duration::ZERO;
        loop {
            let free_bytes = measured_root.and_then(|root| root.free_bytes());
            sleep(pause(free_bytes).max(took * 4)).await;
            let began = Instant::now();
            if let Some(limit) = self.processes
                && count_processes().await.is_none_or(|count| count > limit)
            {
                return (PolicyField::Processes, limit);
            }
            if let Some(root) = measured_root {
                let root = Arc::clone(root);
                let measured = blocking::run(move || Ok(root.exceeded_limit())).await;
                if let Ok(Some(exceeded)) = measured {
                    return exceeded;
                }
            }
            took = began.elapsed();
        }
    }
}

/// Returns the pause until the next measurement.
fn pause(free_bytes: Option<u64>) -> Duration {
    let until_full = free_bytes.map_or(MAX_PAUSE, |bytes| {
        Duration::from_micros(bytes / (FAST_DISK_BYTES / 1_000_000))
    });
    until_full.clamp(MIN_PAUSE, MAX_PAUSE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pause_shrinks_towards_the_limit() {
        assert_eq!(pause(None), MAX_PAUSE);
        assert_eq!(pause(Some(u64::MAX)), MAX_PAUSE);
        assert_eq!(pause(Some(0)), MIN_PAUSE);
        let near = pause(Some(FAST_DISK_BYTES / 10));
        assert!(near > Duration::from_millis(99) && near < Duration::from_millis(101));
    }
}
