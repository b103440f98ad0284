//! Runs commands in a private directory of this machine.
//!
//! [`LocalBackend`] opens sandboxes that are a directory and ordinary processes: nothing has to be
//! installed but bash, and a command starts as fast as the system can start it. What it gives is
//! order, not protection:
//!
//! - **No isolation.** A command can do what the user can, and [`SandboxInfo::isolation`] says so.
//!   Run only what you would run yourself.
//! - **A clean environment.** No variable is inherited but `PATH` and the user's name. A command has
//!   `PATH`, `HOME` and `PWD` (the working directory), `TMPDIR`, `USER`, `LOGNAME`, `SHELL`,
//!   `LANG=C.UTF-8`, `TERM=dumb`, and what the policy and the request add. It does inherit the umask,
//!   the resource limits, files that somebody opened without close-on-exec, and the session: a
//!   program that asks for a password at `/dev/tty` is stopped by the kernel until its time is over.
//! - **Nothing outlives its owner.** A command that is cut short is killed with everything it
//!   started, and so is what it leaves running, unless the request keeps it: then until the sandbox
//!   is closed. That covers process groups, sessions of their own, stopped processes and fork
//!   bombs. A process is known by its process group, by its ancestors, or by the variables
//!   `CANTLE_SANDBOX` and `CANTLE_COMMAND` in its first environment. One that left its session,
//!   whose ancestors have ended, *and* that has thrown away or overwritten its environment can't be
//!   found this way, and what runs as another user (`sudo`) can't be killed. Orphans are reaped by
//!   the system's init; in a container that has none, by nobody (`docker run --init` gives it one).
//! - **Memory within bounds.** Output flows at the reader's pace; there are never more than a few
//!   megabytes of it between a command and its reader.
//! - **Files below the directory only.** Paths are resolved by the kernel (`openat2`), so that no
//!   link leads a read or a write out, however it is raced.
//!
//! Of a policy it enforces the environment and the wall time; [`LocalBackend`] refuses to open
//! under a strict policy that sets anything else.
//!
//! Close a sandbox when you are done with it. Dropping it does the same and blocks meanwhile, for
//! some milliseconds and as long as it takes to remove the files.
//!
//! # Needs
//! Linux 5.6 or newer with `/proc`, bash, and a tokio runtime with I/O and time enabled. On other
//! systems opening a sandbox answers that it is unavailable.
//!
//! ```
//! # #[cfg(target_os = "linux")]
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use cantle_backends_local::LocalBackend;
//! use cantle_core::ids::RunId;
//! use cantle_core::policy::Policy;
//! use cantle_core::sandbox::{Backend as _, SandboxContext, SandboxExt as _, SpawnRequest};
//!
//! let backend = LocalBackend::new();
//! let sandbox = backend
//!     .open(SandboxContext::new(RunId::new(), Policy::unconfined()))
//!     .await?;
//! let output = sandbox.run(SpawnRequest::shell("echo $((6 * 7))")).await?;
//! assert_eq!(output.stdout.text(), "42\n");
//! sandbox.close().await?;
//! # Ok(())
//! # }
//! # #[cfg(not(target_os = "linux"))]
//! # fn main() {}
//! ```
//!
//! [`SandboxInfo::isolation`]: cantle_core::sandbox::SandboxInfo::isolation

#![forbid(unsafe_code)]

mod backend;
#[cfg(target_os = "linux")]
mod blocking;
#[cfg(target_os = "linux")]
mod command;
#[cfg(target_os = "linux")]
mod confinement;
#[cfg(target_os = "linux")]
mod environment;
#[cfg(target_os = "linux")]
mod files;
#[cfg(target_os = "linux")]
mod limits;
#[cfg(target_os = "linux")]
mod open;
#[cfg(target_os = "linux")]
mod proxy;
#[cfg(target_os = "linux")]
mod sandbox;
#[cfg(target_os = "linux")]
mod supervisor;

pub use self::backend::{LocalBackend, Wall};
