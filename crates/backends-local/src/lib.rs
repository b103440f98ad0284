//! Runs commands on this machine, confined by the kernel.
//!
//! [`LocalBackend`] opens a sandbox in a few milliseconds, as an ordinary user, without a daemon, an
//! image or a program to install but bash. The [`Policy`] states what code in it may do; a field that
//! can't be enforced here makes [`open`](LocalBackend) fail or, if the policy accepts that, is reported.
//!
//! # Confinement
//!
//! Each sandbox has a *supervisor* (the crate `cantle-supervisor`): a small static program, started
//! from memory, that is its init process. Confinement is set up once, in init, and inherited by every
//! command.
//!
//! - **Namespaces**: a file system that contains only what the policy names (read-only), the working
//!   directory as `/workspace` and private `/tmp`, `/dev/shm`, `/proc` and `/dev`; private processes, IPC
//!   and host name; a private network with nothing but a loopback interface and, if hosts are allowed, a
//!   proxy.
//! - **Landlock** restricts files, signals and abstract sockets once more.
//! - **A system call filter** (seccomp) refuses what ordinary programs don't need: other namespaces,
//!   mounts, tracing, `bpf`, `io_uring`, keyrings, raw sockets, other system call interfaces, and calls newer
//!   than this filter.
//! - **No privileges**: no capabilities, `no_new_privs`, and user 65534 instead of root.
//!
//! Where namespaces are forbidden (some containers and distributions), Landlock and a stricter filter
//! confine commands: files outside can't be read or written, and there is no network (and so no allow-list
//! of hosts). But commands see the names, sizes and owners of the host's files and its list of processes and
//! connections, can change modes, times and attributes of their user's files, and can slow down other
//! processes of their user or move them to another CPU. A kernel without Landlock can confine nothing: only
//! policies without confinement open. [`SandboxInfo::mechanisms`] lists the mechanisms of a sandbox,
//! [`SandboxInfo::enforcement`] the effect on each field. Nothing here protects from a vulnerability of
//! the kernel itself, or keeps data from an allowed host.
//!
//! # Further guarantees
//!
//! - **A clean environment.** Only the directories of `PATH` that exist inside and the user's name are inherited. A
//!   command has `PATH`, `HOME` and `PWD` (the working directory), `TMPDIR`, `USER`, `LOGNAME`, `SHELL`,
//!   `LANG=C.UTF-8`, `TERM`, variables by which pip, npm and caches use a directory below `TMPDIR`, the proxy's address and
//!   certificates if there is a proxy, and the variables of the policy and the request; no descriptor but its standard
//!   streams; a session of its own, and a terminal only on request.
//! - **Nothing outlives its owner.** A command's processes are the descendants of its keeper, a process
//!   that adopts orphans: no trick with sessions, parents or the environment hides one. A command that is
//!   stopped is killed with all of them, and so are those it leaves behind, unless the request keeps them
//!   until the sandbox is closed. The supervisor ends with this process, even if that is killed (SIGKILL),
//!   and everything in the sandbox with it; only the directory remains then, for
//!   [`LocalBackend::reclaim`] or, if it was [kept], for [`reattach`].
//! - **Bounded memory.** Output flows at the reader's pace; at most a few megabytes of it are buffered.
//! - **No access outside.** The kernel resolves paths (`openat2`), so that no symbolic link leads a read or
//!   a write out of the directory, whatever races with it. Files are always written atomically, whether
//!   [`WriteOptions::atomic`] asks for that or not.
//!
//! The kernel enforces limits for the whole sandbox (disk and inodes, by a file system of that size;
//! processes; memory, if control groups can be created), or for each process (CPU time, file size,
//! open files; memory without a control group: several processes together may use more, and shared memory is
//! not counted). The file system is in memory; as root, that of a sandbox that can be kept, or whose files may not
//! fit into memory, is in a file (*disk image*) in its directory. Otherwise, and without namespaces, disk and inodes are
//! measured: before, during and after each command, and whenever a file is written through the sandbox. Files then
//! exceed the limit at most for a moment, after which commands can only read and remove them. Processes are counted four
//! times a second where no namespace or control group limits them. Wall time and output are limited by the
//! backend.
//!
//! Close a sandbox after use. Dropping it does the same, on a thread of the runtime for blocking work, for which
//! the runtime waits when it shuts down.
//!
//! # Requirements
//! Linux 5.6 or newer on x86-64 with `/proc`, bash, and a tokio runtime with I/O and time enabled.
//!
//! On other Unix systems sandboxes are unconfined: commands run as ordinary programs of the user in a
//! private directory, and a strict policy that demands more is refused. Stopping a command kills its process
//! group; processes that have left it (`setsid`) survive. There are no terminals, and the processes that a
//! command leaves behind are identified by their group.
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
//! [`SandboxInfo::mechanisms`]: cantle_core::sandbox::SandboxInfo::mechanisms
//! [`WriteOptions::atomic`]: cantle_core::sandbox::WriteOptions::atomic
//! [kept]: cantle_core::sandbox::Sandbox::persist
//! [`reattach`]: cantle_core::sandbox::Backend::reattach

#![forbid(unsafe_code)]

#[cfg(not(unix))]
compile_error!(
    "cantle-backends-local needs a Unix system; build without the local backend \
     (feature `local` of `cantle`)"
);

mod backend;
mod blocking;
mod command;
#[cfg(confined)]
mod confinement;
mod engine;
mod environment;
mod files;
#[cfg(confined)]
mod groups;
mod handle;
#[cfg(confined)]
mod identity;
mod limits;
mod mechanism;
#[cfg(confined)]
mod mode;
#[cfg(confined)]
mod notices;
mod open;
mod probe;
mod readiness;
mod sandbox;
mod settings;
mod shared;
#[cfg(confined)]
mod storage;
#[cfg(confined)]
mod supervisor;

pub use self::backend::{LocalBackend, Reclaimed};
pub use self::mechanism::Mechanism;
pub use self::probe::{ControlGroupSupport, Probe, ProbeFailure, Trial};
