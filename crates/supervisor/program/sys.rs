//! System calls, by number and register: the program has no C library.
//!
//! Everything here is a thin, typed wrapper; what a call may do is said in the manual page of the
//! same name. Functions are safe where no argument can break Rust's rules, whatever they do to the
//! process.

use core::arch::asm;
use core::ffi::CStr;
use core::mem::{MaybeUninit, size_of, size_of_val};
use core::ptr::null;

/// An error number of the kernel's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub i32);

pub const EPERM: Errno = Errno(1);
pub const ENOENT: Errno = Errno(2);
pub const EINTR: Errno = Errno(4);
pub const EAGAIN: Errno = Errno(11);
pub const EACCES: Errno = Errno(13);
pub const ENOTDIR: Errno = Errno(20);
pub const EINVAL: Errno = Errno(22);

pub type Result<T> = core::result::Result<T, Errno>;

/// Calls the kernel.
///
/// # Safety
/// The arguments must be what system call `number` asks for, with pointers to memory that lives
/// and, where the kernel writes, is ours to write.
#[inline(always)]
pub unsafe fn syscall(number: usize, args: [usize; 6]) -> Result<usize> {
    let [a, b, c, d, e, f] = args;
    let result: isize;
    // SAFETY: the kernel's calling convention; it changes rcx, r11 and memory that the caller
    // vouches for.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number => result,
            in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d, in("r8") e, in("r9") f,
            lateout("rcx") _, lateout("r11") _,
            options(nostack)
        );
    }
    if result < 0 {
        Err(Errno(-(result as i32)))
    } else {
        Ok(result as usize)
    }
}

/// A system call; arguments are numbers or pointers, and those left out are zero.
macro_rules! call {
    ($number:expr $(, $arg:expr)* $(,)?) => {
        // SAFETY: see the function that uses this macro: what it passes is a number, or points to
        // memory that it has borrowed for the call, as large as the kernel takes it to be.
        unsafe { syscall($number, pad([$($arg as usize),*])) }
    };
}

/// The arguments given, and zeros.
const fn pad<const N: usize>(given: [usize; N]) -> [usize; 6] {
    let mut all = [0; 6];
    let mut at = 0;
    while at < N {
        all[at] = given[at];
        at += 1;
    }
    all
}

/// A file descriptor. Not closed when dropped: the few there are have a plain life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fd(pub i32);

/// The directory that relative paths start at.
pub const AT_FDCWD: Fd = Fd(-100);

pub fn close(fd: Fd) {
    // The descriptor is gone whatever is answered.
    let _ = call!(3, fd.0);
}

/// Makes `to` mean what `from` means, and survive an exec.
pub fn dup_to(from: Fd, to: Fd) -> Result<()> {
    if from == to {
        return call!(72, from.0, 2 /* F_SETFD */, 0).map(drop);
    }
    call!(292, from.0, to.0, 0).map(drop)
}

/// A copy with a number of at least `least`, closed at an exec.
pub fn dup_above(fd: Fd, least: i32) -> Result<Fd> {
    call!(72, fd.0, 1030 /* F_DUPFD_CLOEXEC */, least).map(|fd| Fd(fd as i32))
}

/// A pipe: where it is read, and where it is written.
pub fn pipe() -> Result<(Fd, Fd)> {
    let mut ends = [0_i32; 2];
    call!(293, ends.as_mut_ptr(), O_CLOEXEC)?;
    Ok((Fd(ends[0]), Fd(ends[1])))
}

/// Closes all descriptors from `first` on, or marks them to be closed at an exec.
pub fn close_range(first: u32, last: u32, cloexec: bool) -> Result<()> {
    call!(436, first, last, if cloexec { 4 } else { 0 }).map(drop)
}

pub fn read(fd: Fd, buffer: &mut [u8]) -> Result<usize> {
    call!(0, fd.0, buffer.as_mut_ptr(), buffer.len())
}

pub fn write(fd: Fd, bytes: &[u8]) -> Result<usize> {
    call!(1, fd.0, bytes.as_ptr(), bytes.len())
}

pub const O_RDONLY: i32 = 0;
pub const O_WRONLY: i32 = 1;
pub const O_RDWR: i32 = 2;
pub const O_CREAT: i32 = 0o100;
pub const O_EXCL: i32 = 0o200;
pub const O_NOCTTY: i32 = 0o400;
pub const O_DIRECTORY: i32 = 0o20_0000;
pub const O_CLOEXEC: i32 = 0o200_0000;
pub const O_PATH: i32 = 0o1000_0000;

pub fn openat(at: Fd, path: &CStr, flags: i32, mode: u32) -> Result<Fd> {
    call!(257, at.0, path.as_ptr(), flags | O_CLOEXEC, mode).map(|fd| Fd(fd as i32))
}

pub fn mkdir(path: &CStr, mode: u32) -> Result<()> {
    call!(83, path.as_ptr(), mode).map(drop)
}

pub fn symlink(target: &CStr, path: &CStr) -> Result<()> {
    call!(88, target.as_ptr(), path.as_ptr()).map(drop)
}

pub fn chdir(path: &CStr) -> Result<()> {
    call!(80, path.as_ptr()).map(drop)
}

pub fn umask(mask: u32) {
    let _ = call!(95, mask);
}

/// The entries of an open directory, as the kernel packs them; see `getdents64`.
pub fn getdents(fd: Fd, buffer: &mut [u8]) -> Result<usize> {
    call!(217, fd.0, buffer.as_mut_ptr(), buffer.len())
}

pub fn rewind(fd: Fd) -> Result<()> {
    call!(8, fd.0, 0, 0).map(drop)
}

// --- Memory

/// Maps a file that nobody changes any more, to be read for as long as the process lives or until
/// [`unmap`].
pub fn map_file(fd: Fd, length: usize) -> Result<&'static [u8]> {
    const PROT_READ: usize = 1;
    const MAP_PRIVATE: usize = 2;
    if length == 0 {
        return Ok(&[]);
    }
    let address = call!(9, 0, length, PROT_READ, MAP_PRIVATE, fd.0, 0)?;
    // SAFETY: fresh, readable memory of this length; the sender has sealed the file, so that it
    // doesn't shrink or change.
    Ok(unsafe { core::slice::from_raw_parts(address as *const u8, length) })
}

/// Fresh memory, zeroed, of at least one byte.
fn map_zeroed(length: usize) -> Result<usize> {
    const PROT_READ_WRITE: usize = 3;
    const MAP_PRIVATE_ANONYMOUS_NORESERVE: usize = 0x4022;
    let flags = MAP_PRIVATE_ANONYMOUS_NORESERVE;
    call!(9, 0, length.max(1), PROT_READ_WRITE, flags, usize::MAX, 0)
}

/// Rows of four numbers, for as long as the process lives. A page is only taken when it is used.
pub fn map_rows(count: usize) -> Result<&'static mut [[i32; 4]]> {
    let address = map_zeroed(count * size_of::<[i32; 4]>())?;
    // SAFETY: fresh memory, aligned to a page, that nobody else knows; zeros are numbers.
    Ok(unsafe { core::slice::from_raw_parts_mut(address as *mut [i32; 4], count) })
}

/// Gives rows back.
pub fn unmap_rows(rows: &'static mut [[i32; 4]]) {
    let _ = call!(11, rows.as_mut_ptr(), size_of_val(rows));
}

/// Null pointers, for as long as the process lives.
pub fn map_pointers(count: usize) -> Result<&'static mut [*const u8]> {
    let address = map_zeroed(count * size_of::<*const u8>())?;
    // SAFETY: as above; zeros are null pointers.
    Ok(unsafe { core::slice::from_raw_parts_mut(address as *mut *const u8, count) })
}

/// How many bytes a file has.
pub fn file_length(fd: Fd) -> Result<usize> {
    const SEEK_END: usize = 2;
    call!(8, fd.0, 0, SEEK_END)
}

// --- Processes

/// The parent waits until the child executes a program or ends.
pub const CLONE_VFORK: u64 = 0x4000;

pub fn exit(code: i32) -> ! {
    loop {
        let _ = call!(231, code);
    }
}

/// What a `clone` without shared memory answers.
pub enum Forked {
    Parent { child: i32 },
    Child,
}

/// Forks, with new namespaces where `flags` says so.
pub fn fork(flags: u64) -> Result<Forked> {
    const SIGCHLD: u64 = 17;
    match call!(56, flags | SIGCHLD, 0, 0, 0, 0)? {
        0 => Ok(Forked::Child),
        child => Ok(Forked::Parent {
            child: child as i32,
        }),
    }
}

/// Replaces the program.
///
/// # Safety
/// `argv` and `envp` are arrays of pointers to strings that end with NUL, and end with null.
pub unsafe fn execve(path: &CStr, argv: *const *const u8, envp: *const *const u8) -> Errno {
    match call!(59, path.as_ptr(), argv, envp) {
        Ok(_) => EINVAL,
        Err(errno) => errno,
    }
}

/// How a child changed, as `wait4` packs it, and what it used.
#[derive(Clone, Copy)]
pub struct Changed {
    pub pid: i32,
    pub status: i32,
    pub usage: Usage,
}

impl Changed {
    /// Whether it was stopped because it has executed a program, as its tracer asked.
    pub fn has_executed(&self) -> bool {
        const EVENT_EXEC: i32 = 4;
        const SIGTRAP: i32 = 5;
        self.status >> 8 == SIGTRAP | EVENT_EXEC << 8
    }

    /// Whether it has ended; it was stopped otherwise.
    pub fn is_over(&self) -> bool {
        self.status & 0xff != 0x7f
    }

    /// Lets a process go on that should not have been stopped.
    pub fn go_on_if_stopped(&self) {
        if !self.is_over() {
            // It may be dead by now.
            let _ = kill(self.pid, SIGCONT);
        }
    }
}

/// The first fields of the kernel's `struct rusage`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Usage {
    pub user_s: i64,
    pub user_us: i64,
    pub system_s: i64,
    pub system_us: i64,
    pub max_rss_kib: i64,
    rest: [i64; 13],
}

/// Waits for any child's end, or its being stopped. `None` where `block` is false and none has
/// changed.
pub fn wait(block: bool, stopped_too: bool) -> Result<Option<Changed>> {
    const WNOHANG: usize = 1;
    const WUNTRACED: usize = 2;
    let mut status = 0_i32;
    let mut usage = MaybeUninit::<Usage>::zeroed();
    let flags = if block { 0 } else { WNOHANG } | if stopped_too { WUNTRACED } else { 0 };
    let pid = loop {
        match call!(61, usize::MAX, &raw mut status, flags, usage.as_mut_ptr()) {
            Err(EINTR) => {}
            other => break other?,
        }
    };
    if pid == 0 {
        return Ok(None);
    }
    // SAFETY: zeros and what the kernel wrote are both valid numbers.
    let usage = unsafe { usage.assume_init() };
    Ok(Some(Changed {
        pid: pid as i32,
        status,
        usage,
    }))
}

pub const SIGKILL: i32 = 9;
pub const SIGTERM: i32 = 15;
pub const SIGCHLD: i32 = 17;
pub const SIGCONT: i32 = 18;
pub const SIGSTOP: i32 = 19;

/// Sends a signal to a process, or to a group where `pid` is negative.
pub fn kill(pid: i32, signal: i32) -> Result<()> {
    call!(62, pid as isize, signal).map(drop)
}

pub fn setsid() -> Result<()> {
    call!(112).map(drop)
}

/// Makes the calling process the head of a process group of its own.
pub fn new_group() -> Result<()> {
    call!(109, 0, 0).map(drop)
}

pub fn getpid() -> i32 {
    call!(39).unwrap_or(0) as i32
}

pub fn getppid() -> i32 {
    call!(110).unwrap_or(0) as i32
}

/// Takes all signals back to what they mean by themselves, and lets them through.
pub fn default_signals() {
    for signal in 1..=64 {
        // The kernel's `struct sigaction`: handler 0 is the default.
        let action = [0_u64; 4];
        let _ = call!(13, signal, action.as_ptr(), 0, 8);
    }
    set_signal_mask(0);
}

/// Blocks exactly these signals; bit 0 is signal 1.
pub fn set_signal_mask(mask: u64) {
    const SIG_SETMASK: usize = 2;
    let _ = call!(14, SIG_SETMASK, &raw const mask, 0, 8);
}

/// A descriptor that is readable when one of these (blocked) signals came.
pub fn signal_fd(mask: u64) -> Result<Fd> {
    const SFD_CLOEXEC_NONBLOCK: usize = 0o200_4000;
    call!(289, usize::MAX, &raw const mask, 8, SFD_CLOEXEC_NONBLOCK).map(|fd| Fd(fd as i32))
}

/// A descriptor that is readable when the process has ended.
pub fn pidfd_open(pid: i32) -> Result<Fd> {
    call!(434, pid, 0).map(|fd| Fd(fd as i32))
}

#[repr(C)]
pub struct PollFd {
    fd: i32,
    events: i16,
    revents: i16,
}

impl PollFd {
    /// Waits until it can be read; a negative descriptor never can.
    pub fn readable(fd: Fd) -> Self {
        Self {
            fd: fd.0,
            events: 1,
            revents: 0,
        }
    }

    pub fn is_ready(&self) -> bool {
        self.revents != 0
    }
}

/// Waits for one of them, for so many milliseconds or, where negative, for ever.
pub fn poll(fds: &mut [PollFd], timeout_ms: i32) -> Result<usize> {
    match call!(7, fds.as_mut_ptr(), fds.len(), timeout_ms as isize) {
        Err(EINTR) => Ok(0),
        other => other,
    }
}

/// Does nothing for so many microseconds.
pub fn pause_us(microseconds: u32) {
    let time = [0, i64::from(microseconds) * 1000];
    let _ = call!(35, time.as_ptr(), 0);
}

/// Lowers a limit of the calling process; one that is lower already stays.
pub fn lower_limit(resource: u32, soft: u64, hard: u64) -> Result<()> {
    let mut now = [0_u64; 2];
    call!(302, 0, resource, 0, now.as_mut_ptr())?;
    let [now_soft, now_hard] = now;
    let limit = [soft.min(now_soft), hard.min(now_hard)];
    call!(302, 0, resource, limit.as_ptr(), 0).map(drop)
}

// --- prctl

pub fn die_with_parent() -> Result<()> {
    call!(157, 1, SIGKILL).map(drop)
}

pub fn set_dumpable(dumpable: bool) -> Result<()> {
    call!(157, 4, u8::from(dumpable)).map(drop)
}

pub fn adopt_orphans() -> Result<()> {
    call!(157, 36, 1).map(drop)
}

pub fn no_new_privileges() -> Result<()> {
    call!(157, 38, 1, 0, 0, 0).map(drop)
}

pub fn set_name(name: &CStr) {
    let _ = call!(157, 15, name.as_ptr());
}

/// Gives up a capability for good, for programs to come too. `EINVAL` where there is none of this
/// number.
pub fn drop_bounding_capability(capability: u32) -> Result<()> {
    call!(157, 24, capability).map(drop)
}

pub fn clear_ambient_capabilities() -> Result<()> {
    call!(157, 47, 4, 0, 0, 0).map(drop)
}

/// Gives up all capabilities.
pub fn drop_capabilities() -> Result<()> {
    const VERSION_3: u32 = 0x2008_0522;
    let header = [VERSION_3, 0];
    let none = [0_u32; 6];
    call!(126, header.as_ptr(), none.as_ptr()).map(drop)
}

// --- Identity

pub fn set_groups_empty() -> Result<()> {
    call!(116, 0, null::<u32>()).map(drop)
}

pub fn set_gid(gid: u32) -> Result<()> {
    call!(119, gid, gid, gid).map(drop)
}

pub fn set_uid(uid: u32) -> Result<()> {
    call!(117, uid, uid, uid).map(drop)
}

pub fn set_host_name(name: &CStr) -> Result<()> {
    call!(170, name.as_ptr(), name.count_bytes()).map(drop)
}

// --- Mounts

/// Mounts; an empty string stands for "not given".
pub fn mount(source: &CStr, target: &CStr, kind: &CStr, flags: u64, data: &CStr) -> Result<()> {
    let given = |text: &CStr| {
        if text.is_empty() {
            null()
        } else {
            text.as_ptr()
        }
    };
    let source = given(source);
    call!(
        165,
        source,
        target.as_ptr(),
        given(kind),
        flags,
        given(data)
    )
    .map(drop)
}

/// Sets attributes of a mount and of all below it.
pub fn set_mount_attributes(target: &CStr, set: u64) -> Result<()> {
    const AT_RECURSIVE: usize = 0x8000;
    let attributes = [set, 0, 0, 0];
    let size = size_of::<[u64; 4]>();
    call!(
        442,
        AT_FDCWD.0 as isize,
        target.as_ptr(),
        AT_RECURSIVE,
        attributes.as_ptr(),
        size
    )
    .map(drop)
}

/// Makes the current directory the root, and lets the old one go.
pub fn pivot_to_current_directory() -> Result<()> {
    const MNT_DETACH: usize = 2;
    call!(155, c".".as_ptr(), c".".as_ptr())?;
    call!(166, c".".as_ptr(), MNT_DETACH).map(drop)
}

// --- Walls

/// The version of Landlock's interface; an error where the kernel has none, or has it disabled.
pub fn landlock_version() -> Result<usize> {
    const CREATE_RULESET_VERSION: usize = 1;
    call!(444, 0, 0, CREATE_RULESET_VERSION)
}

pub fn landlock_ruleset(attributes: &[u64; 3], size: usize) -> Result<Fd> {
    call!(444, attributes.as_ptr(), size, 0).map(|fd| Fd(fd as i32))
}

/// Allows `access` to what is below an open path.
pub fn landlock_allow_path(ruleset: Fd, path: Fd, access: u64) -> Result<()> {
    #[repr(C, packed)]
    struct Rule {
        access: u64,
        path: i32,
    }
    let rule = Rule {
        access,
        path: path.0,
    };
    call!(445, ruleset.0, 1, &raw const rule, 0).map(drop)
}

pub fn landlock_restrict(ruleset: Fd) -> Result<()> {
    call!(446, ruleset.0, 0).map(drop)
}

/// Lets the parent trace the calling process, and stops it until the parent has seen that.
pub fn be_traced() -> Result<()> {
    call!(101, 0 /* PTRACE_TRACEME */)?;
    kill(getpid(), SIGSTOP)
}

/// Has a traced child stop where its filter asks, and where it executes a program.
pub fn trace_start(child: i32) -> Result<()> {
    const SETOPTIONS: usize = 0x4200;
    const EXEC_AND_FILTER: usize = 0x10 | 0x80;
    call!(101, SETOPTIONS, child, 0, EXEC_AND_FILTER).map(drop)
}

pub fn trace_continue(child: i32) -> Result<()> {
    call!(101, 7, child, 0, 0).map(drop)
}

pub fn trace_end(child: i32) -> Result<()> {
    call!(101, 17, child, 0, 0).map(drop)
}

/// Installs a filter: an array of the kernel's `struct sock_filter`, eight bytes each.
pub fn seccomp_filter(program: &[u8]) -> Result<()> {
    const SET_MODE_FILTER: usize = 1;
    #[repr(C)]
    struct Program {
        length: u16,
        filter: *const u8,
    }
    let program = Program {
        length: (program.len() / 8) as u16,
        filter: program.as_ptr(),
    };
    call!(317, SET_MODE_FILTER, 0, &raw const program).map(drop)
}

// --- Sockets and terminals

pub const AF_UNIX: i32 = 1;
pub const AF_INET: i32 = 2;
const SOCK_STREAM_CLOEXEC: usize = 0o200_0001;

/// Turns the loopback interface of the current network namespace on.
pub fn loopback_up() -> Result<()> {
    const SIOCSIFFLAGS: usize = 0x8914;
    const IFF_UP_RUNNING: u16 = 0x41;
    #[repr(C)]
    struct Request {
        name: [u8; 16],
        flags: u16,
        rest: [u8; 22],
    }
    let mut request = Request {
        name: [0; 16],
        flags: IFF_UP_RUNNING,
        rest: [0; 22],
    };
    request.name[..2].copy_from_slice(b"lo");
    let socket = call!(41, AF_INET, SOCK_STREAM_CLOEXEC, 0)?;
    let result = call!(16, socket, SIOCSIFFLAGS, &raw mut request).map(drop);
    close(Fd(socket as i32));
    result
}

/// A socket that listens on a port of 127.0.0.1.
pub fn listen_on_loopback(port: u16) -> Result<Fd> {
    const BACKLOG: usize = 128;
    let socket = call!(41, AF_INET, SOCK_STREAM_CLOEXEC, 0)?;
    let mut address = [0_u8; 16];
    address[0] = AF_INET as u8;
    address[2..4].copy_from_slice(&port.to_be_bytes());
    address[4..8].copy_from_slice(&[127, 0, 0, 1]);
    let result =
        call!(49, socket, address.as_ptr(), address.len()).and_then(|_| call!(50, socket, BACKLOG));
    if let Err(errno) = result {
        close(Fd(socket as i32));
        return Err(errno);
    }
    Ok(Fd(socket as i32))
}

/// Makes a terminal the controlling one of the calling session.
pub fn take_terminal(fd: Fd) -> Result<()> {
    call!(16, fd.0, 0x540E, 0).map(drop)
}

/// The other end of a terminal of which `fd` is the master.
pub fn terminal_peer(fd: Fd) -> Result<Fd> {
    const TIOCSPTLCK: usize = 0x4004_5431;
    const TIOCGPTPEER: usize = 0x5441;
    let unlocked = 0_i32;
    call!(16, fd.0, TIOCSPTLCK, &raw const unlocked)?;
    call!(16, fd.0, TIOCGPTPEER, O_RDWR | O_NOCTTY).map(|fd| Fd(fd as i32))
}

pub fn set_terminal_size(fd: Fd, rows: u16, columns: u16) -> Result<()> {
    let size = [rows, columns, 0, 0];
    call!(16, fd.0, 0x5414, size.as_ptr()).map(drop)
}

/// The most descriptors one message carries.
pub const MOST_FDS: usize = 8;

/// What a message brought.
pub struct Received {
    pub length: usize,
    pub fds: [Fd; MOST_FDS],
    pub fd_count: usize,
}

#[repr(C)]
struct MessageHeader {
    name: usize,
    name_length: usize,
    vectors: *const [usize; 2],
    vector_count: usize,
    control: *mut u8,
    control_length: usize,
    flags: usize,
}

/// Descriptors in a message: the kernel's `struct cmsghdr`, and room for them.
#[repr(C, align(8))]
struct Control {
    length: usize,
    level: i32,
    kind: i32,
    fds: [i32; MOST_FDS],
}

const CONTROL_HEADER: usize = 16;
const SOL_SOCKET: i32 = 1;
const SCM_RIGHTS: i32 = 1;

/// Takes the next message of a socket, and the descriptors that come with it. A length of zero
/// means that the other end is closed.
pub fn receive(socket: Fd, buffer: &mut [u8]) -> Result<Received> {
    const MSG_CMSG_CLOEXEC: usize = 0x4000_0000;
    let mut control = Control {
        length: 0,
        level: 0,
        kind: 0,
        fds: [-1; MOST_FDS],
    };
    let vector = [buffer.as_mut_ptr() as usize, buffer.len()];
    let mut header = MessageHeader {
        name: 0,
        name_length: 0,
        vectors: &raw const vector,
        vector_count: 1,
        control: (&raw mut control).cast(),
        control_length: size_of::<Control>(),
        flags: 0,
    };
    let length = loop {
        match call!(47, socket.0, &raw mut header, MSG_CMSG_CLOEXEC) {
            Err(EINTR) => {}
            other => break other?,
        }
    };
    let mut received = Received {
        length,
        fds: [Fd(-1); MOST_FDS],
        fd_count: 0,
    };
    let is_rights = control.level == SOL_SOCKET && control.kind == SCM_RIGHTS;
    if header.control_length >= CONTROL_HEADER && is_rights {
        let count = control.length.saturating_sub(CONTROL_HEADER) / 4;
        received.fd_count = count.min(MOST_FDS);
        for (slot, fd) in received.fds.iter_mut().zip(control.fds).take(count) {
            *slot = Fd(fd);
        }
    }
    Ok(received)
}

/// Sends a message, with descriptors.
pub fn send(socket: Fd, bytes: &[u8], fds: &[Fd]) -> Result<()> {
    const MSG_NOSIGNAL: usize = 0x4000;
    let count = fds.len().min(MOST_FDS);
    let mut control = Control {
        length: CONTROL_HEADER + 4 * count,
        level: SOL_SOCKET,
        kind: SCM_RIGHTS,
        fds: [-1; MOST_FDS],
    };
    for (slot, fd) in control.fds.iter_mut().zip(fds) {
        *slot = fd.0;
    }
    let vector = [bytes.as_ptr() as usize, bytes.len()];
    let header = MessageHeader {
        name: 0,
        name_length: 0,
        vectors: &raw const vector,
        vector_count: 1,
        control: if count == 0 {
            core::ptr::null_mut()
        } else {
            (&raw mut control).cast()
        },
        control_length: if count == 0 {
            0
        } else {
            // Padded to the size of a word.
            (control.length + 7) & !7
        },
        flags: 0,
    };
    loop {
        match call!(46, socket.0, &raw const header, MSG_NOSIGNAL) {
            Err(EINTR) => {}
            other => return other.map(drop),
        }
    }
}
