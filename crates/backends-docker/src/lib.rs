//! Runs commands in containers of a local or remote Docker or Podman engine.
//!
//! [`DockerBackend`] opens a sandbox in a container of an [image](DockerBackend::from_image), of an image
//! built from a [Dockerfile](DockerBackend::from_dockerfile), or in a
//! [running container](DockerBackend::attach). No host directory is mounted: files are transferred through
//! the engine, which may be on another machine. It is found as the Docker CLI finds it: `DOCKER_HOST`, the
//! current context, the usual sockets; with TLS if `DOCKER_TLS_VERIFY` or the context requires it.
//!
//! # Containers
//!
//! The container's first process is the *supervisor* (the crate `cantle-supervisor`), a small static program
//! controlled over one stream attached to its input and output. It starts commands, kills process trees and
//! transfers files as in a local sandbox, and needs no programs in the image; without a shell only shell
//! command lines are unavailable. It is mounted read-only from a volume of the engine
//! (`cantle-supervisor-…`), which is filled once.
//!
//! - **Hardened.** All capabilities are dropped, `no_new_privs` is set, the system call filter of local
//!   sandboxes applies besides the engine's, which stays enabled (also a customized one), logging is off, and
//!   the image's entry point and health check are not run. The supervisor is root with five capabilities
//!   (`CHOWN`, `KILL`, `SETGID`, `SETPCAP`, `SETUID`), so that commands can't kill or trace it; commands run
//!   as [another user](DockerBackend::with_user), by default 1000, without capabilities. The working
//!   directory, `/workspace`, belongs to that user. As user 0 they can install packages of a distribution; apt needs the
//!   setting `APT::Sandbox::User "root"`, since without capabilities it can't switch to its own user.
//! - **Limited.** The kernel enforces memory, processes and network, and disk and inodes by file systems in
//!   memory over a read-only image, in which volumes that it declares are empty and read-only. Processor
//!   time, file size and open files are limited per process; wall time and output are enforced by the
//!   backend. Read and write roots are enforced because no host file is visible. Allowed
//!   hosts are reached through a proxy in this process, whose connections the supervisor carries over its stream: the
//!   container has no network. Without the supervisor they can't be enforced, and in no container a read-only working
//!   directory and "no subprocesses": a strict policy with one of them is refused.
//!   Without a network policy the engine's default network is used. [Default
//!   limits](cantle_core::sandbox::Enforcement::is_default) of a new container are three quarters of the engine's memory
//!   and 4096 processes.
//!   A running container is used as it is: [`SandboxInfo::mechanisms`] lists what it mounts from outside, and its
//!   capabilities, devices, namespaces and security options beyond the engine's defaults. With one of these, a
//!   strict policy that they weaken is refused.
//! - **Owned.** When the stream ends, because the sandbox was closed or dropped or this process was killed,
//!   the supervisor exits, the kernel kills the remaining processes, and the engine removes the container.
//!   The stream replaces a lease. A durable sandbox is stopped instead; it is removed when it is dropped, or
//!   by [`DockerBackend::reclaim`] after the death of its owner, unless it was [kept], which its name
//!   records (`cantle-kept-…`). Labels identify a container's owner (host, boot, process, run), so that
//!   containers of others on a shared engine are not touched.
//! - **Secrets.** Variables of the policy and [passed variables](DockerBackend::pass_environment) are sent over
//!   the stream with each command; the container's configuration and labels do not contain them.
//!
//! If the supervisor can't run (another architecture, a container with a read-only root), each command is an
//! exec of the engine, and files are transferred by programs of the image. That is about ten times slower,
//! needs `/bin/sh`, lacks terminals, signals, spilled output and kept background processes, and identifies a
//! command's processes by a variable in their environment; only the engine's system call filter applies.
//! [`SandboxInfo::mechanisms`] reports it.
//!
//! # Limitations
//!
//! Missing images are pulled with the logins in Docker's `config.json`; credential helpers are not used.
//! Dockerfiles are built by the engine's classic builder. An engine at an `ssh://` address needs a forwarded
//! socket. Kept sandboxes can only be reattached by the version of this crate that created them.
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
//! [`SandboxInfo::mechanisms`]: cantle_core::sandbox::SandboxInfo#structfield.mechanisms

#![forbid(unsafe_code)]

mod attach;
mod backend;
mod container;
mod engine;
mod environment;
mod image;
mod open;
mod options;
mod owner;
mod plain;
mod program;
mod reclaim;
pub mod relay;
mod runner;
mod sandbox;
mod volume;

pub use self::backend::DockerBackend;
pub use self::engine::EngineReport;
pub use self::image::build_digest;
pub use self::reclaim::Reclaimed;
pub use self::volume::holds_program;
