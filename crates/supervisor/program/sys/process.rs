//! Processes: fork, wait, signals, limits, capabilities and credentials.

use core::ffi::CStr;
use core::mem::size_of_val;

use super::{EINTR, EINVAL, Errno, Fd, FromRegister, Result, pad, syscall, uninterrupted};

/// Suspends the parent until the child executes a program or exits.
pub const CLONE_VFORK: u64 = 0x4000;

pub fn exit(code: i32) -> ! {
    loop {
        let _ = call!(231, code);
    }
}

/// The result of a fork.
pub enum Forked {
    Parent { child: i32 },
    Child,
}

impl Forked {
    fn of(child: usize) -> Self {
        match child {
            0 => Self::Child,
            child => Self::Parent {
                child: child as i32,
            },
        }
    }
}

/// Forks, creating the namespaces in `flags`.
pub fn fork(flags: u64) -> Result<Forked> {
    call!(56, flags | SIGCHLD as u64, 0, 0, 0, 0).map(Forked::of)
}

/// Forks like [`fork`], with the child in a control group of version 2, given by its directory. Fails on Linux
/// before 5.7.
pub fn fork_into(group: Fd, flags: u64) -> Result<Forked> {
    const CLONE_INTO_CGROUP: u64 = 1 << 33;
    // The kernel's `struct clone_args`.
    let mut arguments = [0_u64; 11];
    arguments[0] = flags | CLONE_INTO_CGROUP;
    arguments[4] = SIGCHLD as u64;
    arguments[10] = group.0 as u64;
    call!(435, arguments.as_ptr(), size_of_val(&arguments)).map(Forked::of)
}

/// Replaces the program; returns only on failure.
///
/// # Safety
/// `argv` and `envp` are null-terminated arrays of pointers to NUL-terminated strings.
pub unsafe fn execve(path: &CStr, argv: *const *const u8, envp: *const *const u8) -> Errno {
    call!(59, path.as_ptr(), argv, envp).err().unwrap_or(EINVAL)
}

/// A child's change of state, with its `wait4` status.
#[derive(Clone, Copy)]
pub struct Changed {
    pub pid: i32,
    pub status: i32,
}

impl Changed {
    /// Whether it stopped because it executed a program, as its tracer asked.
    pub fn has_executed(&self) -> bool {
        const EVENT_EXEC: i32 = 4;
        const SIGTRAP: i32 = 5;
        self.status >> 8 == SIGTRAP | EVENT_EXEC << 8
    }

    /// Whether it has ended; otherwise it was stopped.
    pub fn is_over(&self) -> bool {
        self.status & 0xff != 0x7f
    }

    /// Continues a stopped process.
    pub fn continue_if_stopped(&self) {
        if !self.is_over() {
            // It may have been killed meanwhile.
            let _ = kill(self.pid, SIGCONT);
        }
    }
}

/// Waits for a child that ends or, with `stopped_too`, stops. Returns `None` if `block` is false and no
/// child has changed.
pub fn wait(block: bool, stopped_too: bool) -> Result<Option<Changed>> {
    const WNOHANG: usize = 1;
    const WUNTRACED: usize = 2;
    let mut status = 0_i32;
    let flags = if block { 0 } else { WNOHANG } | if stopped_too { WUNTRACED } else { 0 };
    let pid = uninterrupted(|| call!(61, usize::MAX, &raw mut status, flags))? as i32;
    Ok((pid != 0).then_some(Changed { pid, status }))
}

pub const SIGKILL: i32 = 9;
pub const SIGPIPE: i32 = 13;
pub const SIGXFSZ: i32 = 25;
pub const SIGTERM: i32 = 15;
pub const SIGCHLD: i32 = 17;
pub const SIGCONT: i32 = 18;
pub const SIGSTOP: i32 = 19;

system_calls! {
    /// Sends a signal to a process, or to a group if `pid` is negative.
    fn kill(pid: i32, signal: i32) = 62(pid, signal);
    fn setsid() = 112();
    /// Opens a descriptor that is readable when the process has ended.
    fn pidfd_open(pid: i32) -> Fd = 434(pid, 0);
    fn die_with_parent() = 157(1, SIGKILL);
    fn set_dumpable(dumpable: bool) = 157(4, dumpable);
    fn adopt_orphans() = 157(36, 1);
    fn no_new_privileges() = 157(38, 1, 0, 0, 0);
    /// Drops a capability from the bounding set. Fails with `EINVAL` if the kernel has none of this number.
    fn drop_bounding_capability(capability: u32) = 157(24, capability);
    fn clear_ambient_capabilities() = 157(47, 4, 0, 0, 0);
    fn set_groups_empty() = 116(0, 0);
    fn set_gid(gid: u32) = 119(gid, gid, gid);
    fn set_uid(uid: u32) = 117(uid, uid, uid);
    /// Changes the user whose files are accessed. The kernel compares the others when another process sends a signal.
    fn set_effective_uid(uid: u32) = 117(u32::MAX, uid, u32::MAX);
    fn set_host_name(name: &CStr) = 170(name.as_ptr(), name.count_bytes());
}

/// Sets the name of the calling process.
pub fn set_name(name: &CStr) {
    let _ = call!(157, 15, name.as_ptr());
}

pub fn getpid() -> i32 {
    call!(39).unwrap_or(0) as i32
}

pub fn getppid() -> i32 {
    call!(110).unwrap_or(0) as i32
}

/// Resets all signals to their default action and unblocks them.
pub fn default_signals() {
    (1..=64).for_each(|signal| set_action(signal, 0));
    set_signal_mask(0);
}

/// Ignores SIGCHLD, so that children are reaped automatically.
pub fn ignore_sigchld() {
    set_action(SIGCHLD, 1);
}

/// Sets the action of a signal: 0 for the default, 1 to ignore it.
fn set_action(signal: i32, handler: u64) {
    // The kernel's `struct sigaction`.
    let action = [handler, 0, 0, 0];
    let _ = call!(13, signal, action.as_ptr(), 0, 8);
}

/// Sets the signal mask; bit 0 is signal 1.
pub fn set_signal_mask(mask: u64) {
    const SIG_SETMASK: usize = 2;
    let _ = call!(14, SIG_SETMASK, &raw const mask, 0, 8);
}

/// Creates a descriptor that is readable while one of these blocked signals is pending.
pub fn signal_fd(mask: u64) -> Result<Fd> {
    const SFD_CLOEXEC_NONBLOCK: usize = 0o200_4000;
    call!(289, usize::MAX, &raw const mask, 8, SFD_CLOEXEC_NONBLOCK).map(Fd::from_register)
}

#[repr(C)]
pub struct PollFd {
    fd: i32,
    events: i16,
    revents: i16,
}

impl PollFd {
    /// Waits until it is readable; a negative descriptor never is.
    pub const fn readable(fd: Fd) -> Self {
        Self::new(fd, 1)
    }

    /// Waits until it is writable.
    pub const fn writable(fd: Fd) -> Self {
        Self::new(fd, 4)
    }

    const fn new(Fd(fd): Fd, events: i16) -> Self {
        let revents = 0;
        Self {
            fd,
            events,
            revents,
        }
    }

    pub fn is_ready(&self) -> bool {
        self.revents != 0
    }
}

/// Waits for one of the descriptors; a negative timeout means forever.
pub fn poll(fds: &mut [PollFd], timeout_ms: i32) -> Result<usize> {
    match call!(7, fds.as_mut_ptr(), fds.len(), timeout_ms as isize) {
        Err(EINTR) => Ok(0),
        other => other,
    }
}

/// Sleeps.
pub fn pause_us(microseconds: u32) {
    let time = [0, i64::from(microseconds) * 1000];
    let _ = call!(35, time.as_ptr(), 0);
}

/// Sets a resource limit of the calling process; never raises the hard one.
pub fn set_limit(resource: u32, soft: u64, hard: u64) -> Result<()> {
    change_limit(resource, |[_, now_hard]| {
        [soft.min(now_hard), hard.min(now_hard)]
    })
}

/// Raises the descriptor limit to its maximum.
pub fn raise_descriptor_limit() {
    const RLIMIT_NOFILE: u32 = 7;
    let _ = change_limit(RLIMIT_NOFILE, |[_, hard]| [hard, hard]);
}

/// Changes a resource limit of the calling process, soft and hard.
fn change_limit(resource: u32, change: impl FnOnce([u64; 2]) -> [u64; 2]) -> Result<()> {
    let mut limit = [0_u64; 2];
    call!(302, 0, resource, 0, limit.as_mut_ptr())?;
    limit = change(limit);
    call!(302, 0, resource, limit.as_ptr(), 0).map(drop)
}

/// Drops all capabilities.
pub fn drop_capabilities() -> Result<()> {
    const VERSION_3: u32 = 0x2008_0522;
    let header = [VERSION_3, 0];
    let none = [0_u32; 6];
    call!(126, header.as_ptr(), none.as_ptr()).map(drop)
}
