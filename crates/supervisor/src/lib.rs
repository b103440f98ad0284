//! The supervisor: a small static program that runs as a sandbox's init, and its control protocol.
//!
//! [`PROGRAM`] is a Linux executable without a C library, dependencies or a heap. The owner starts it with
//! one end of a socket pair (`SOCK_SEQPACKET`) as its stdin and sends [orders](wire::Order). The supervisor
//! creates namespaces, performs the [steps](wire::Step) that its owner has planned, starts commands, adopts
//! the processes they leave behind, kills process trees, and exits when the socket is closed, so that
//! nothing outlives the owner. Policy is decided by the owner: the program performs its orders in sequence
//! and reports the kernel's answers.
//!
//! In a container, to which no socket can be passed, it is started as `supervisor relay` and speaks the
//! same protocol over its stdin and stdout, in [frames] with credit for each channel. It needs nothing of
//! the container but its own executable and `/proc`. File operations are commands without a program:
//! [tasks](tasks::Task).
//!
//! The [filter] of system calls is the same in every sandbox that a supervisor sets up.
//!
//! Its source is in `program/`, which holds the project's only `unsafe` code. The modules shared with its
//! users ([`wire`], [`frames`], [`tasks`] and [`Writer`]) have none.

#![forbid(unsafe_code)]

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[expect(
    clippy::exhaustive_enums,
    clippy::exhaustive_structs,
    reason = "constructed by backends, which state everything that the filter depends on"
)]
pub mod filter;
#[expect(
    clippy::exhaustive_enums,
    reason = "both sides have the same version and must handle every variant"
)]
#[path = "../program/frames.rs"]
pub mod frames;
#[expect(
    clippy::exhaustive_enums,
    clippy::exhaustive_structs,
    reason = "both sides have the same version and must handle every variant"
)]
#[path = "../program/tasks.rs"]
pub mod tasks;
#[expect(
    clippy::exhaustive_enums,
    clippy::exhaustive_structs,
    reason = "both sides have the same version and must handle every variant"
)]
#[path = "../program/wire.rs"]
pub mod wire;

use std::ffi::CStr;

use self::wire::{PlannedStep, Step, Wire};

#[cfg(all(target_os = "linux", not(target_arch = "x86_64")))]
compile_error!(
    "cantle-supervisor calls the Linux kernel directly and supports x86-64 only; on this processor \
     build without the local backend (feature `local` of `cantle`)"
);

/// The program, as an executable file (ELF, x86-64, static).
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
pub const PROGRAM: &[u8] = include_bytes!(env!("CANTLE_SUPERVISOR"));

/// A body under construction; the counterpart of [`Reader`](wire::Reader).
#[derive(Clone, Debug, Default)]
pub struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    /// Creates an empty body.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the encoded body.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// Appends a value.
    pub fn write<'b>(&mut self, value: &impl Wire<'b>) -> &mut Self {
        value.write_to(&mut |piece| self.bytes.extend_from_slice(piece));
        self
    }

    /// Appends a string.
    pub fn string(&mut self, text: &CStr) -> &mut Self {
        self.write(&text)
    }

    /// Appends a step that must succeed.
    pub fn step(&mut self, step: &Step<'_>) -> &mut Self {
        let (optional, step) = (None, *step);
        self.write(&PlannedStep { optional, step })
    }

    /// Appends a step that may fail; `bit` (below 64) reports it.
    pub fn optional_step(&mut self, bit: u8, step: &Step<'_>) -> &mut Self {
        let (optional, step) = (Some(bit), *step);
        self.write(&PlannedStep { optional, step })
    }
}

#[cfg(test)]
mod tests;
