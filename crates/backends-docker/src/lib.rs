//! Runs commands in containers of a Docker or Podman engine, on this machine or another one.
//!
//! [`DockerBackend`] opens a sandbox in a container of an [image](DockerBackend::from_image), of what a
//! [Dockerfile](DockerBackend::from_dockerfile) makes, or in [one that runs already](DockerBackend::attach).
//! Nothing of the host is mounted: files go through the engine, so it may be anywhere. It is found as
//! Docker's own program finds it: `DOCKER_HOST`, the context in use, the usual sockets; with TLS where
//! `DOCKER_TLS_VERIFY` or the context says so.
//!
//! # What a container is
//!
//! Its first process is our *supervisor* (the crate `cantle-supervisor`), a small static program, which
//! speaks to us over one stream attached to its input and output. It starts commands, kills trees and
//! serves files as in a local sandbox, in an image that has nothing but what the commands need: without
//! a shell, command lines don't work, and everything else does. It reaches the container on a volume of
//! the engine's (`cantle-supervisor-…`), which is filled once and mounted read-only.
//!
//! - **Hardened.** All capabilities are dropped, `no_new_privs` is set, the engine's system call filter
//!   stays on, nothing is logged, and the image's entry point and health check are not run. The supervisor
//!   is root with five capabilities (`CHOWN`, `KILL`, `SETGID`, `SETPCAP`, `SETUID`), because a user of its
//!   own is what keeps commands from killing or tracing it; commands run as another user
//!   ([1000](DockerBackend::with_user)) and have none. The working directory, `/workspace`, is theirs.
//! - **Limited.** Memory, processes and the network are the kernel's to enforce; disk and inodes too, as
//!   file systems in memory beside a read-only image; processor time, file size and open files are limits
//!   of each process; wall time and output are ours. Roots protect the host, of which nothing can be seen.
//!   An allow-list of hosts, a working directory that can't be written and "no subprocesses" can't be
//!   enforced: a strict policy with one of them is refused. A policy that says nothing of the network
//!   leaves the engine's default one, and one that says nothing of processes 4096 of them.
//! - **Owned.** When our stream ends, because the sandbox is closed or dropped or our process was killed,
//!   the supervisor ends, the kernel kills what runs, and the engine removes the container. There is no
//!   lease to be renewed: the stream is the lease. A durable sandbox stops and stays; it is removed
//!   with its sandbox, or by [`DockerBackend::reclaim`] when its owner has died, unless it was [kept], which
//!   its name says (`cantle-kept-…`). Labels say whose a container is (the host, the boot, the process, the
//!   run), so that on a shared engine nobody's else is touched.
//! - **Quiet about secrets.** Variables of the policy and those [passed on](DockerBackend::pass_environment)
//!   go over the stream with each command; the container's configuration and labels hold none.
//!
//! Where the supervisor can't run (another processor, a container whose root can't be written), each
//! command is an exec of the engine's, and files go through the image's own small programs. That is some
//! ten times slower, needs `/bin/sh`, has no terminals, signals, spilled output or kept background
//! processes, and tells what belongs to a command by a mark in its environment.
//! [`SandboxInfo::walls`] says so.
//!
//! # Limits of it
//!
//! Images are pulled when the engine doesn't have them, with the logins of Docker's `config.json`;
//! credential helpers are not asked. Dockerfiles are built by the engine's classic builder. An engine
//! behind `ssh://` needs its socket forwarded. Sandboxes that were kept can be had again by the version of
//! this crate that made them.
//!
//! ```no_run
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use cantle_backends_docker::DockerBackend;
//! use cantle_core::ids::RunId;
//! use cantle_core::policy::Policy;
//! use cantle_core::sandbox::{Backend as _, SandboxContext, SandboxExt as _, SpawnRequest};
//!
//! let backend = DockerBackend::from_image("python:3.12-slim").with_read_only_root();
//! let sandbox = backend
//!     .open(SandboxContext::new(RunId::new(), Policy::workspace()))
//!     .await?;
//! let output = sandbox.run(SpawnRequest::shell("python3 -c 'print(6 * 7)'")).await?;
//! assert_eq!(output.stdout.text(), "42\n");
//! sandbox.close().await?;
//! # Ok(())
//! # }
//! ```
//!
//! [kept]: cantle_core::sandbox::Sandbox::persist
//! [`SandboxInfo::walls`]: cantle_core::sandbox::SandboxInfo::walls

#![forbid(unsafe_code)]

mod attach;
mod backend;
mod clock;
mod container;
mod engine;
mod environment;
mod image;
mod memory;
mod open;
mod options;
mod owner;
mod plain;
mod program;
mod reclaim;
pub mod relay;
mod sandbox;

pub use self::backend::DockerBackend;
pub use self::engine::EngineReport;
pub use self::reclaim::Reclaimed;
