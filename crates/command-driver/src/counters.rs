//! Byte counts of an output channel.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use cantle_core::sandbox::{Channel, ChannelReport, SandboxPath, SpillFile};

use crate::transport::Transport;

/// Byte counts of a channel, readable while its pump runs.
#[derive(Debug)]
pub(crate) struct ChannelCounters {
    pub(crate) channel: Channel,
    read_bytes: AtomicU64,
    /// The spill file, and the number of bytes after which it is written.
    spill: Option<(SandboxPath, u64)>,
    /// Bytes in the spill file.
    pub(crate) spilled_bytes: AtomicU64,
    is_complete: AtomicBool,
}

impl ChannelCounters {
    pub(crate) fn new(channel: Channel, spill: Option<(SandboxPath, u64)>) -> Self {
        Self {
            channel,
            read_bytes: AtomicU64::new(0),
            spill,
            spilled_bytes: AtomicU64::new(0),
            is_complete: AtomicBool::new(false),
        }
    }

    /// The channel's part of the [`Exit`](cantle_core::sandbox::Exit).
    pub(crate) fn report(&self, transport: &impl Transport) -> ChannelReport {
        let spilled_bytes = self.spilled_bytes.load(Ordering::Acquire);
        let spilled = self.spill.as_ref().filter(|_| spilled_bytes > 0);
        let spilled = spilled.map(|(path, _)| SpillFile::new(path.clone(), spilled_bytes));
        ChannelReport::new(self.written_bytes(transport), spilled)
    }

    /// Whether a spill file is to be written that is not complete.
    pub(crate) fn is_spilling(&self, transport: &impl Transport) -> bool {
        let limit = self.spill.as_ref().map(|(_, after_bytes)| *after_bytes);
        let is_long = limit.is_some_and(|limit| self.written_bytes(transport) > limit);
        is_long && !self.is_complete.load(Ordering::Acquire)
    }

    /// Records that nothing more is written to the spill file.
    pub(crate) fn set_complete(&self) {
        self.is_complete.store(true, Ordering::Release);
    }

    pub(crate) fn written_bytes(&self, transport: &impl Transport) -> u64 {
        let read_bytes = self.read_bytes();
        let written_bytes = transport.written_bytes(self.channel, read_bytes);
        written_bytes.max(read_bytes)
    }

    pub(crate) fn read_bytes(&self) -> u64 {
        self.read_bytes.load(Ordering::Acquire)
    }

    /// Counts a chunk; returns the new total.
    pub(crate) fn add_read(&self, bytes: &Bytes) -> u64 {
        let count = bytes.len() as u64;
        self.read_bytes.fetch_add(count, Ordering::AcqRel) + count
    }
}
