//! Confinement: mounts, Landlock, system call filters, tracing.

use core::ffi::CStr;
use core::mem::size_of;
use core::ptr::null;

use super::{AT_FDCWD, Fd, Result, SIGSTOP, getpid, kill, pad, syscall};

/// Mounts a file system; an empty string stands for null.
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

/// Sets attributes of a mount and of all mounts below it.
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

/// Makes the current directory the root and detaches the old root.
pub fn pivot_to_current_directory() -> Result<()> {
    const MNT_DETACH: usize = 2;
    call!(155, c".".as_ptr(), c".".as_ptr())?;
    call!(166, c".".as_ptr(), MNT_DETACH).map(drop)
}

/// Returns the Landlock ABI version; fails if the kernel does not support or enable Landlock.
pub fn landlock_version() -> Result<usize> {
    const CREATE_RULESET_VERSION: usize = 1;
    call!(444, 0, 0, CREATE_RULESET_VERSION)
}

pub fn landlock_ruleset(attributes: &[u64; 3], size: usize) -> Result<Fd> {
    call!(444, attributes.as_ptr(), size, 0).map(|fd| Fd(fd as i32))
}

/// Allows `access` below an open path.
pub fn landlock_allow_path(ruleset: Fd, path: Fd, access: u64) -> Result<()> {
    #[repr(C, packed)]
    struct PathBeneath {
        access: u64,
        path: i32,
    }
    let rule = PathBeneath {
        access,
        path: path.0,
    };
    call!(445, ruleset.0, 1, &raw const rule, 0).map(drop)
}

pub fn landlock_restrict(ruleset: Fd) -> Result<()> {
    call!(446, ruleset.0, 0).map(drop)
}

/// Makes the parent the tracer and stops until it has noticed.
pub fn be_traced() -> Result<()> {
    call!(101, 0 /* PTRACE_TRACEME */)?;
    kill(getpid(), SIGSTOP)
}

/// Makes a traced child stop where its filter asks, and on exec.
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

/// Installs a system call filter: an array of the kernel's `struct sock_filter`, eight bytes each.
pub fn seccomp_filter(program: &[u8]) -> Result<()> {
    const SET_MODE_FILTER: usize = 1;
    #[repr(C)]
    struct FilterProgram {
        length: u16,
        filter: *const u8,
    }
    let program = FilterProgram {
        length: (program.len() / 8) as u16,
        filter: program.as_ptr(),
    };
    call!(317, SET_MODE_FILTER, 0, &raw const program).map(drop)
}
