//! The supervisor: a small static program that is the first process of a sandbox, and what is said
//! to it.
//!
//! [`PROGRAM`] is an executable file for Linux without a C library, dependencies or a heap. Our
//! process starts it with one end of a socket pair (`SOCK_SEQPACKET`) as its input; over it go the
//! [orders](wire::Order). The supervisor makes namespaces, builds the walls step by step as
//! [planned](wire::Step) by its owner, starts commands, adopts what they leave behind, kills trees,
//! and ends with its socket, so that nothing outlives the owner, however that one ends. Setting
//! up, policy and everything that can be decided outside is decided outside: the program does what
//! it is told, in order, and says what the kernel answered.
//!
//! In a container nobody can pass it sockets. There it is started as `supervisor relay`, and says
//! the same over its input and output, in [frames] with credit for each channel; it needs no file of
//! the container's but itself, and `/proc`. What is done with files there is a command
//! without a program: a [task](tasks::Task).
//!
//! Its source is in `program/`, and is where the `unsafe` code of the project is; the crates that
//! use it ([`wire`], [`frames`], [`tasks`] and [`Writer`]) have none.

#![forbid(unsafe_code)]

mod encode;
#[expect(
    clippy::exhaustive_enums,
    reason = "both sides are of the same version, and each must know all that the other says"
)]
#[path = "../program/frames.rs"]
pub mod frames;
#[expect(
    clippy::exhaustive_enums,
    clippy::exhaustive_structs,
    reason = "both sides are of the same version, and each must know all that the other says"
)]
#[path = "../program/tasks.rs"]
pub mod tasks;
#[expect(
    clippy::exhaustive_enums,
    clippy::exhaustive_structs,
    reason = "both sides are of the same version, and each must know all that the other says"
)]
#[path = "../program/wire.rs"]
pub mod wire;

pub use self::encode::Writer;

#[cfg(all(target_os = "linux", not(target_arch = "x86_64")))]
compile_error!(
    "cantle-supervisor calls the Linux kernel directly and is written for x86-64 only; on this \
     processor build without the local backend (feature `local` of `cantle`)"
);

/// The program, as an executable file (ELF, x86-64, static).
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
pub const PROGRAM: &[u8] = include_bytes!(env!("CANTLE_SUPERVISOR"));

#[cfg(test)]
mod tests;
