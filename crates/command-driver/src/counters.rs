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
    spill_path: Option<SandboxPath>,
    /// Bytes in the spill file.
    pub(crate) spilled_bytes: AtomicU64,
    is_completing: AtomicBool,
}

impl ChannelCounters {
    pub(crate) fn new(channel: Channel, spill_path: Option<SandboxPath>) -> Self {
        Self {
            channel,
            read_bytes: AtomicU64::new(0),
            spill_path,
            spilled_bytes: AtomicU64::new(0),
            is_completing: AtomicBool::new(false),
        }
    }

    /// The channel's part of the [`Exit`](cantle_core::sandbox::Exit).
    pub(crate) fn report(&self, transport: &impl Transport) -> ChannelReport {
        let spilled_bytes = self.spilled_bytes.load(Ordering::Acquire);
        let spilled = self.spill_path.as_ref().filter(|_| spilled_bytes > 0);
        let spilled = spilled.map(|path| SpillFile::new(path.clone(), spilled_bytes));
        ChannelReport::new(self.written_bytes(transport), spilled)
    }

    /// Bytes read so far, if the channel is spilled.
    pub(crate) fn spill_progress(&self) -> Option<u64> {
        self.spill_path.as_ref().map(|_| self.read_bytes())
    }

    /// Whether the pump waits for the end of the spill file.
    pub(crate) fn is_completing(&self) -> bool {
        self.is_completing.load(Ordering::Acquire)
    }

    pub(crate) fn set_completing(&self, is_completing: bool) {
        self.is_completing.store(is_completing, Ordering::Release);
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
