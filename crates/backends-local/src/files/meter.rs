//! Limits of disk usage that no file system enforces: usage is measured, and what this process writes is
//! counted in between.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cantle_core::policy::PolicyField;
use cantle_core::sandbox::{SandboxError, SandboxErrorKind, SandboxPath};
use parking_lot::Mutex;

use super::Root;
use super::usage::{DiskUsage, Unreadable};

/// How long usage is estimated while a command runs: space that others free hides what the sandbox takes.
const MAX_ESTIMATES: Duration = Duration::from_secs(10);

/// A field and its limit.
pub(crate) type ExceededLimit = (PolicyField, u64);

/// The limits on the files of a sandbox that this process enforces.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FileLimits {
    pub(crate) disk_bytes: Option<u64>,
    pub(crate) inodes: Option<u64>,
    /// Size of each file that is written through the file API.
    pub(crate) file_size_bytes: Option<u64>,
    /// Whether usage may be estimated by the growth of the file system, as long as it is within the limits.
    pub(crate) is_default: bool,
}

impl FileLimits {
    /// Whether usage is measured.
    pub(crate) fn are_measured(&self) -> bool {
        self.disk_bytes.or(self.inodes).is_some()
    }

    fn exceeded(&self, used: DiskUsage) -> Option<ExceededLimit> {
        let all = [
            (PolicyField::Disk, self.disk_bytes, used.bytes),
            (PolicyField::Inodes, self.inodes, used.inodes),
        ];
        all.into_iter().find_map(|(field, limit, used)| {
            let limit = limit?;
            (used > limit).then_some((field, limit))
        })
    }
}

/// The measured limits, and the usage as far as it is known.
#[derive(Debug, Default)]
pub(super) struct Meter {
    limits: FileLimits,
    state: Mutex<MeterState>,
    /// Held while measuring.
    measuring: Mutex<()>,
}

#[derive(Debug, Default)]
struct MeterState {
    /// The last measurement.
    measured: Option<DiskUsage>,
    /// Usage of the file system then.
    file_system: Option<DiskUsage>,
    /// The beginning of the last measurement that was no estimate.
    walked: Option<Instant>,
    /// Usage of files that this process has written since.
    finished: DiskUsage,
    /// Usage of files that it is writing.
    unfinished: DiskUsage,
}

impl MeterState {
    fn used(&self) -> Option<DiskUsage> {
        Some(self.measured? + self.finished + self.unfinished)
    }
}

impl Root {
    /// Sets the limits that are enforced here.
    pub(crate) fn set_limits(&mut self, limits: FileLimits, is_empty: bool) {
        self.meter.limits = limits;
        if is_empty && limits.is_default {
            let mut state = self.meter.state.lock();
            state.measured = Some(DiskUsage::default());
            state.file_system = self.used_in_file_system();
            state.walked = Some(Instant::now());
        }
    }

    /// Measures and returns the limit that is exceeded. Directories that can't be read exceed it.
    pub(crate) fn exceeded_limit(&self) -> Option<ExceededLimit> {
        self.measure(Unreadable::Reported)
    }

    /// Like [`exceeded_limit`](Self::exceeded_limit) before or after a command: directories that can't be read
    /// are made readable, or else they would exceed the limit for good.
    pub(crate) fn exceeded_limit_at_rest(&self) -> Option<ExceededLimit> {
        self.measure(Unreadable::MadeReadable)
    }

    /// Whether no limit is exceeded, as far as is known without measuring.
    pub(crate) fn is_known_within_limits(&self) -> bool {
        let limits = &self.meter.limits;
        let is_within = |used| limits.exceeded(used).is_none();
        !limits.are_measured() || self.meter.state.lock().used().is_some_and(is_within)
    }

    /// Returns the bytes until the limit of disk usage, as last measured.
    pub(crate) fn free_bytes(&self) -> Option<u64> {
        let used = self.meter.state.lock().used()?;
        Some(self.meter.limits.disk_bytes?.saturating_sub(used.bytes))
    }

    fn measure(&self, unreadable: Unreadable) -> Option<ExceededLimit> {
        let Meter {
            limits, measuring, ..
        } = &self.meter;
        let asked = Instant::now();
        let _measuring = measuring.lock();
        let began = Instant::now();
        let file_system = limits
            .is_default
            .then(|| self.used_in_file_system())
            .flatten();
        let (finished_before, estimated) = {
            let state = self.meter.state.lock();
            // Of many calls that wait here, each on a thread, only two measure.
            if unreadable == Unreadable::Reported
                && state.walked.is_some_and(|it| it >= asked)
                && let Some(used) = state.measured
            {
                return limits.exceeded(used);
            }
            // Nothing in the sandbox has grown by more, unless others have freed space.
            let grown = file_system
                .zip(state.file_system)
                .map(|(now, then)| now - then);
            let estimated = state.measured.zip(grown).map(|(used, grown)| used + grown);
            // Before and after a command, a walk would delay it.
            let is_recent = unreadable == Unreadable::MadeReadable
                || state.walked.is_some_and(|it| it.elapsed() < MAX_ESTIMATES);
            (state.finished, estimated.filter(|_| is_recent))
        };
        let estimated = estimated.filter(|used| limits.exceeded(*used).is_none());
        let used = estimated
            .unwrap_or_else(|| self.used(unreadable, &|used| limits.exceeded(used).is_some()));
        let mut state = self.meter.state.lock();
        if estimated.is_none() {
            state.walked = Some(began);
        }
        state.measured = Some(used);
        state.file_system = file_system;
        // What was written meanwhile may be counted twice, until the next measurement.
        state.finished = state.finished - finished_before;
        limits.exceeded(used)
    }

    /// Reserves disk usage for what is about to be written at `path`. Blocks.
    ///
    /// # Errors
    /// `StorageFull` if a limit would be exceeded.
    pub(super) fn reserve(
        self: &Arc<Self>,
        path: &SandboxPath,
        usage: DiskUsage,
    ) -> Result<Reservation, SandboxError> {
        let mut reservation = Reservation {
            root: Arc::clone(self),
            usage: DiskUsage::default(),
        };
        reservation.extend(path, usage)?;
        Ok(reservation)
    }

    /// Counts what is about to be written at `path` for good. Blocks.
    ///
    /// # Errors
    /// `StorageFull` if a limit would be exceeded.
    pub(crate) fn charge(&self, path: &SandboxPath, usage: DiskUsage) -> Result<(), SandboxError> {
        self.check_room(path, usage, |state| {
            state.finished = state.finished + usage;
        })
    }

    /// Fails if `usage` more would exceed a limit, and otherwise has `count` record it.
    fn check_room(
        &self,
        path: &SandboxPath,
        usage: DiskUsage,
        count: impl Fn(&mut MeterState),
    ) -> Result<(), SandboxError> {
        if !self.meter.limits.are_measured() {
            return Ok(());
        }
        let limits = &self.meter.limits;
        let try_count = || {
            let mut state = self.meter.state.lock();
            // Nothing is known before the first measurement.
            let used = state.used().unwrap_or(DiskUsage::UNKNOWN);
            match limits.exceeded(used + usage) {
                None => {
                    count(&mut state);
                    Ok(())
                }
                Some(exceeded) => Err(exceeded),
            }
        };
        // Files may have been removed since the last measurement.
        let counted = try_count().or_else(|_| {
            self.measure(Unreadable::Reported);
            try_count()
        });
        counted.map_err(|(field, limit)| {
            let message = format!(
                "failed to write `{path}`: the sandbox's files would exceed the limit `{field}` of {limit}"
            );
            SandboxError::new(SandboxErrorKind::StorageFull, message)
                .with_advice("Remove files that are no longer needed first.")
        })
    }

    /// Fails if a file of this size exceeds the limit of file sizes.
    pub(super) fn check_file_size(
        &self,
        path: &SandboxPath,
        size_bytes: u64,
    ) -> Result<(), SandboxError> {
        match self.meter.limits.file_size_bytes {
            Some(limit) if size_bytes > limit => {
                let field = PolicyField::FileSize;
                let message = format!(
                    "failed to write `{path}`: it would exceed the limit `{field}` of {limit} bytes"
                );
                Err(SandboxError::new(SandboxErrorKind::StorageFull, message)
                    .with_advice("Write several smaller files, or compress the content."))
            }
            _ => Ok(()),
        }
    }
}

/// Disk usage of a file that is being written. Dropping it says that nothing of the file is left.
#[derive(Debug)]
pub(super) struct Reservation {
    root: Arc<Root>,
    usage: DiskUsage,
}

impl Reservation {
    /// Reserves more. Blocks.
    pub(super) fn extend(
        &mut self,
        path: &SandboxPath,
        usage: DiskUsage,
    ) -> Result<(), SandboxError> {
        self.root.check_room(path, usage, |state| {
            state.unfinished = state.unfinished + usage;
        })?;
        self.usage = self.usage + usage;
        Ok(())
    }

    /// The file is complete.
    pub(super) fn complete(&mut self) {
        let usage = std::mem::take(&mut self.usage);
        let mut state = self.root.meter.state.lock();
        state.unfinished = state.unfinished - usage;
        state.finished = state.finished + usage;
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let mut state = self.root.meter.state.lock();
        state.unfinished = state.unfinished - self.usage;
    }
}

#[cfg(test)]
mod tests {
    use cantle_core::ids::RunId;

    use super::*;

    const LIMIT: u64 = 1 << 20;

    /// Returns a root with more than its limit, and the directory that it is in.
    fn full_root(is_default: bool) -> (Root, tempfile::TempDir) {
        let parent = tempfile::tempdir().expect("a directory");
        let mut root = Root::create(parent.path(), RunId::new(), false).expect("a root");
        let limits = FileLimits {
            disk_bytes: Some(LIMIT),
            is_default,
            ..FileLimits::default()
        };
        root.set_limits(limits, true);
        let file = root.host_paths().work().join("file");
        std::fs::write(file, vec![1; 2 << 20]).expect("it is written");
        (root, parent)
    }

    #[test]
    fn calls_that_wait_for_a_measurement_share_the_next_one() {
        let (root, _parent) = full_root(false);
        let exceeded = Some((PolicyField::Disk, LIMIT));
        assert_eq!(root.exceeded_limit(), exceeded);
        // As if another call had begun to measure while the next one waited, and found less.
        let mut state = root.meter.state.lock();
        state.measured = Some(DiskUsage::default());
        state.walked = Some(Instant::now() + MAX_ESTIMATES);
        drop(state);
        assert_eq!(root.exceeded_limit(), None);
        assert_eq!(root.exceeded_limit_at_rest(), exceeded);
        assert_eq!(root.exceeded_limit(), exceeded);
    }

    #[test]
    fn space_that_others_free_hides_growth_only_for_a_while() {
        let (root, _parent) = full_root(true);
        // As if others had freed much since the last measurement.
        let freed = DiskUsage {
            bytes: 1 << 40,
            inodes: 0,
        };
        let mut state = root.meter.state.lock();
        state.file_system = state.file_system.map(|then| then + freed);
        drop(state);
        assert_eq!(root.exceeded_limit(), None);
        root.meter.state.lock().walked = Instant::now().checked_sub(MAX_ESTIMATES);
        assert_eq!(root.exceeded_limit(), Some((PolicyField::Disk, LIMIT)));
    }
}
