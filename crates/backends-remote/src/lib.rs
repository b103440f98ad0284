//! Runs commands on machines of somebody else's, behind an API that speaks E2B's protocol: E2B's own
//! service, or a server of one's own (`cantle serve`).
//!
//! [`RemoteBackend`] is a client of both of its planes: the *API* makes sandboxes, prolongs their lives
//! and ends them; what runs *in* a sandbox starts commands and takes and gives files. Nothing has to be
//! installed there but bash and the usual small programs (coreutils or busybox).
//!
//! # What a command is here
//!
//! The protocol starts a process, hands on its channels and can kill it. The rest is a script around
//! each command, which is bash with no more than builtins:
//!
//! - **A command ends when its own process does**, with its exact code or signal, whatever still holds
//!   its output.
//! - **Nothing of it is left**, after its time, a cancellation or a dropped handle, or where it ends by
//!   itself and the request does not keep what it leaves. What belongs to a command is found by a
//!   variable in its environment (`CANTLE_COMMAND`) and by its process group. What clears its
//!   environment *and* leaves its group *is not found*: it ends with the sandbox.
//! - **A sandbox that vanishes is noticed** within seconds: streams are never silent for long, and one
//!   that is, or breaks, makes us ask whether the sandbox is there.
//! - **A connection that breaks ends no command**: where the sandbox is there, we listen again. What the
//!   command wrote in between is lost, and the notes of its exit say so.
//! - **Spilled output** has come here when that is known, and goes back as an upload.
//!
//! # What holds
//!
//! Code runs on another machine ([`Isolation::Machine`]), so that nothing of this host is in reach: roots
//! are enforced by that. The network is off, or names of hosts are allowed, where the service does that as
//! its API says; a host with a port can't be told. Limits of memory, processes, processor time, open
//! files and file size are what `ulimit` makes of them, for each process by itself ([`PerProcess`]), and a
//! program that may become root there can raise them. Time and output are kept here. Disk, inodes,
//! subprocesses and a working directory that can't be written are not enforced: a strict policy that asks
//! for them is refused.
//!
//! Files are those below the working directory, and below `/tmp`. Links are followed before anything is
//! done, and one that leads out is refused; a command that changes links at the right moment can lead a
//! read or a write elsewhere *on its own machine*.
//!
//! # How long a sandbox lives
//!
//! So long as it is held: its life is prolonged before its end. Where our process is killed, the service
//! ends it when its lifetime is over. One that is opened as durable is paused instead, and
//! [`Backend::reattach`](cantle_core::sandbox::Backend::reattach) wakes it. Dropped without
//! [`close`](cantle_core::sandbox::Sandbox::close), it is ended as soon as the runtime gets to it.
//!
//! ```no_run
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use cantle_backends_remote::RemoteBackend;
//! use cantle_core::ids::RunId;
//! use cantle_core::policy::Policy;
//! use cantle_core::sandbox::{Backend as _, SandboxContext, SandboxExt as _, SpawnRequest};
//!
//! let backend = RemoteBackend::builder()
//!     .api_key("e2b_…")
//!     .api_url("http://127.0.0.1:3010")
//!     .sandbox_url("http://127.0.0.1:3010")
//!     .build()?;
//! let sandbox = backend
//!     .open(SandboxContext::new(RunId::new(), Policy::workspace()))
//!     .await?;
//! let output = sandbox.run(SpawnRequest::shell("echo $((6 * 7))")).await?;
//! assert_eq!(output.stdout.text(), "42\n");
//! sandbox.close().await?;
//! # Ok(())
//! # }
//! ```
//!
//! [`Isolation::Machine`]: cantle_core::sandbox::Isolation::Machine
//! [`PerProcess`]: cantle_core::sandbox::EnforcedBy::PerProcess

#![forbid(unsafe_code)]

mod api;
mod backend;
mod command;
mod envd;
mod files;
mod gate;
mod http;
mod policy;
mod quote;
mod sandbox;
mod signals;
mod tls;

pub use self::backend::{ApiGeneration, RemoteBackend, RemoteBackendBuilder};

/// Names something that nobody else names so: 32 hexadecimal digits.
pub(crate) fn random_token() -> String {
    format!("{:032x}", fastrand::u128(..))
}
