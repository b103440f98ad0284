//! Runs commands on this machine, behind walls that the kernel keeps.
//!
//! [`LocalBackend`] opens a sandbox in a few milliseconds, as an ordinary user, without a daemon, an
//! image or a program to install but bash. What code in it may do is the [`Policy`]'s to say; what
//! can't be enforced here makes [`open`](LocalBackend) fail, or is reported where that is asked for.
//!
//! # What stands between a command and the machine
//!
//! Each sandbox has a *supervisor* (the crate `cantle-supervisor`): a small static program, started
//! from memory, that is its first process. It builds the walls once and starts every command, so that
//! a command inherits them at no cost.
//!
//! - **Namespaces**: a file system in which there is nothing but what the policy names (read-only),
//!   the working directory as `/workspace` and a `/tmp`, `/dev/shm`, `/proc` and `/dev` of its own;
//!   its own processes, IPC and host name; its own network, in which there is only its own loopback
//!   and, where hosts are allowed, a proxy.
//! - **Landlock** restricts files, signals and abstract sockets once more.
//! - **A system call filter** (seccomp) closes what ordinary programs don't need: other namespaces,
//!   mounts, tracing, `bpf`, `io_uring`, keyrings, raw sockets, the other system call interfaces.
//! - **No privileges**: no capabilities, `no_new_privs`, and where we are root another user (65534).
//!
//! Where namespaces are forbidden (some containers and distributions), Landlock and a stricter filter
//! are the walls: files outside can't be read or written, there is no network (and so no allow-list of
//! hosts), but commands see the names, sizes and owners of the host's files and its list of processes
//! and connections, can change modes, times and attributes of what is theirs, and can slow down or move
//! to another processor what else their user runs. A kernel without Landlock as well can confine nothing: only what asks for no wall opens.
//! [`SandboxInfo::walls`] says what a sandbox has, [`SandboxInfo::enforcement`] what that means for
//! each field. Nothing here protects from a hole in the kernel itself, or keeps data from a host that is
//! allowed.
//!
//! # What else holds
//!
//! - **A clean environment.** Nothing is inherited. A command has `PATH`, `HOME` and `PWD` (the working
//!   directory), `TMPDIR`, `USER`, `LOGNAME`, `SHELL`, `LANG=C.UTF-8`, `TERM`, the proxy's address where
//!   there is one, and what the policy and the request add; no descriptor but its input, output and
//!   errors; a session of its own, and a terminal only where one was asked for.
//! - **Nothing outlives its owner.** What belongs to a command is what descends from its keeper, a
//!   process that adopts orphans: no trick with sessions, parents or the environment hides anything. A
//!   command that is cut short is killed with all of it, and so is what it leaves, unless the request
//!   keeps that until the sandbox is closed. The supervisor ends with our process, even where that one is
//!   killed (SIGKILL), and everything in the sandbox with it; only the directory is left then, for
//!   [`LocalBackend::reclaim`] or, where it was [kept], for [`reattach`].
//! - **Memory within bounds.** Output flows at the reader's pace; there are never more than a few
//!   megabytes of it between a command and its reader.
//! - **Files below the directory only.** Paths are resolved by the kernel (`openat2`), so that no
//!   link leads a read or a write out, however it is raced. A file is written whole or not at all,
//!   whether [`WriteOptions::atomic`] asks for that or not.
//!
//! Limits are kept by the kernel for the whole sandbox (disk and inodes, as a file system of that size
//! in memory; processes; memory, where we may make a control group), for each process (processor time,
//! file size, open files; memory without a control group: several processes together may use more, and
//! shared memory is not counted) or, without namespaces, measured four times a second (disk, inodes,
//! and processes without a control group); wall time and output are ours.
//!
//! Close a sandbox when you are done with it. Dropping it does the same and blocks meanwhile, for
//! some milliseconds and as long as it takes to remove the files.
//!
//! # Needs
//! Linux 5.6 or newer on x86-64 with `/proc`, bash, and a tokio runtime with I/O and time enabled.
//!
//! On other systems of Unix's kind there are unconfined sandboxes only: commands run as the user's own
//! programs in a private directory, and a strict policy that asks for anything else is refused. Ended
//! is the process group of a command; what has left it (`setsid`) goes on. There are no terminals, and
//! processes that a command leaves are named by their group.
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
//!     .open(SandboxContext::new(RunId::new(), Policy::workspace()))
//!     .await?;
//! let line = "echo $((6 * 7)) > result; cat result; ls /home";
//! let output = sandbox.run(SpawnRequest::shell(line)).await?;
//! assert_eq!(output.stdout.text(), "42\n");
//! sandbox.close().await?;
//! # Ok(())
//! # }
//! # #[cfg(not(target_os = "linux"))]
//! # fn main() {}
//! ```
//!
//! [`Policy`]: cantle_core::policy::Policy
//! [`SandboxInfo::enforcement`]: cantle_core::sandbox::SandboxInfo::enforcement
//! [`SandboxInfo::walls`]: cantle_core::sandbox::SandboxInfo::walls
//! [`WriteOptions::atomic`]: cantle_core::sandbox::WriteOptions::atomic
//! [kept]: cantle_core::sandbox::Sandbox::persist
//! [`reattach`]: cantle_core::sandbox::Backend::reattach

#![forbid(unsafe_code)]

#[cfg(not(unix))]
compile_error!(
    "cantle-backends-local runs commands by the means of Unix; build without the local backend \
     (feature `local` of `cantle`)"
);

mod backend;
mod blocking;
mod command;
#[cfg(confined)]
mod confined;
#[cfg(confined)]
mod confinement;
mod environment;
mod files;
#[cfg(confined)]
mod groups;
mod limits;
mod open;
#[cfg(not(confined))]
mod portable;
mod probe;
#[cfg(confined)]
mod proxy;
mod sandbox;
#[cfg(confined)]
mod supervisor;

pub use self::backend::{LocalBackend, Reclaimed, Wall};
#[cfg(confined)]
use self::confined as engine;
#[cfg(not(confined))]
use self::portable as engine;
pub use self::probe::{ControlGroups, Probe, Refusal, Trial};
