//! Runs commands on remote machines behind an API that speaks E2B's protocol: E2B's own service, or a
//! self-hosted server (`cantle serve`).
//!
//! [`RemoteBackend`] is a client of both parts of the protocol: the *API* creates sandboxes, extends their
//! lifetime and kills them; *envd*, the daemon inside a sandbox, runs processes and transfers files. The
//! template needs only bash and the usual small programs (coreutils or busybox).
//!
//! # Commands
//!
//! The protocol starts a process, transfers its channels and can kill it. A wrapper script around each
//! command, in bash with only builtins, provides the rest:
//!
//! - **A command ends when its own process ends**, with its exact code or signal, even if another process
//!   holds its output.
//! - **No process is left** after a timeout, a cancellation or a dropped handle, or after the command's own
//!   end unless the request keeps background processes. A command's processes are identified by an
//!   environment variable (`CANTLE_COMMAND`) and by their process group. A process that clears its
//!   environment *and* leaves the group *is not found*: it ends with the sandbox.
//! - **A lost sandbox is detected** within seconds: streams carry keep-alive messages, and a silent or broken
//!   stream triggers a health check.
//! - **A broken connection does not end a command**: if the sandbox is alive, the stream is reopened. Output
//!   written in between is lost, which the notes of the exit report.
//! - **Spilled output** is uploaded to the sandbox, because it has already been received here.
//!
//! # Enforcement
//!
//! Code runs on another machine ([`Isolation::Machine`]), which enforces read and write roots: no file of
//! this host is reachable. The network can be off or limited to host names if the service supports it; the
//! API has no ports. Memory, processes, processor time, open files and file size are limited by `ulimit` for
//! each process ([`PerProcess`]); a program that can become root can raise them. Wall time and output are
//! enforced here. Limits of disk and inodes, "no subprocesses" and a read-only working directory are not
//! enforced: a strict policy with one of them is refused.
//!
//! File operations are limited to the working directory and `/tmp`. Links are resolved first, and refused if
//! they lead elsewhere; a command that replaces a link between check and use can redirect an operation, but
//! only *on its own machine*.
//!
//! # Lifetime
//!
//! A sandbox's lifetime is extended while it is held. If this process is killed, the service ends the
//! sandbox when its lifetime is over, or pauses it if it was opened as durable;
//! [`Backend::reattach`](cantle_core::sandbox::Backend::reattach) resumes it. A sandbox dropped without
//! [`close`](cantle_core::sandbox::Sandbox::close) is killed in the background.
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
mod script;
mod service;
mod shared;
mod signals;

pub use self::api::ApiGeneration;
pub use self::backend::{RemoteBackend, RemoteBackendBuilder};

/// The backend's name in reports and handles.
pub(crate) const NAME: &str = "remote";
