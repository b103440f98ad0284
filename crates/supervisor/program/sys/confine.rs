//! Confinement: mounts, Landlock, system call filters, tracing.

use core::ffi::{CStr, c_char};
use core::mem::size_of_val;
use core::ptr::null;

use super::{AT_FDCWD, Fd, FromRegister, Result, SIGSTOP, close, getpid, kill, pad, syscall};

/// Mounts a file system; an empty string stands for null.
pub fn mount(source: &CStr, target: &CStr, kind: &CStr, flags: u64, data: &CStr) -> Result<()> {
    let given = |text: &CStr| {
        if text.is_empty() {
            null()
        } else {
            text.as_ptr()
        }
    };
    let (source, kind, data) = (given(source), given(kind), given(data));
    call!(165, source, target.as_ptr(), kind, flags, data).map(drop)
}

/// Sets attributes of a mount and of all mounts below it.
pub fn set_mount_attributes(target: &CStr, set: u64) -> Result<()> {
    const AT_RECURSIVE: usize = 0x8000;
    let attributes = [set, 0, 0, 0];
    let (target, set) = (target.as_ptr(), attributes.as_ptr());
    call!(
        442,
        AT_FDCWD.0,
        target,
        AT_RECURSIVE,
        set,
        size_of_val(&attributes)
    )
    .map(drop)
}

/// Clones the mount of a directory, and those below it.
pub fn clone_mounts(path: &CStr) -> Result<Fd> {
    const CLONE: usize = 1;
    const RECURSIVE: usize = 0x8000;
    const CLOSE_ON_EXEC: usize = 0o200_0000;
    let flags = CLONE | RECURSIVE | CLOSE_ON_EXEC;
    call!(428, AT_FDCWD.0, path.as_ptr(), flags).map(Fd::from_register)
}

/// Maps the owners of files in cloned mounts as a user namespace does.
pub fn map_owners(mounts: Fd, namespace: Fd) -> Result<()> {
    const EMPTY_PATH_RECURSIVE: usize = 0x1000 | 0x8000;
    const MAP: u64 = 0x10_0000;
    let attributes = [MAP, 0, 0, namespace.0 as u64];
    let (path, set) = (c"".as_ptr(), attributes.as_ptr());
    let size = size_of_val(&attributes);
    call!(442, mounts.0, path, EMPTY_PATH_RECURSIVE, set, size).map(drop)
}

/// Mounts the file system on a block device, on no directory yet. `options` are flags of the file system,
/// `attributes` `MOUNT_ATTR_…`.
pub fn mount_device(kind: &CStr, device: &CStr, options: &[&CStr], attributes: u64) -> Result<Fd> {
    const SET_FLAG: usize = 0;
    const SET_STRING: usize = 1;
    const CREATE: usize = 6;
    const CLOSE_ON_EXEC: usize = 1;
    let context = call!(430, kind.as_ptr(), CLOSE_ON_EXEC).map(Fd::from_register)?;
    let configure = |command, key: *const c_char, value: *const c_char| {
        call!(431, context.0, command, key, value, 0).map(drop)
    };
    let mounted = configure(SET_STRING, c"source".as_ptr(), device.as_ptr())
        .and_then(|()| {
            let mut options = options.iter();
            options.try_for_each(|option| configure(SET_FLAG, option.as_ptr(), null()))
        })
        .and_then(|()| configure(CREATE, null(), null()))
        .and_then(|()| call!(432, context.0, CLOSE_ON_EXEC, attributes));
    close(context);
    mounted.map(Fd::from_register)
}

/// Makes the current directory the root and detaches the old root.
pub fn pivot_to_current_directory() -> Result<()> {
    const MNT_DETACH: usize = 2;
    call!(155, c".".as_ptr(), c".".as_ptr())?;
    call!(166, c".".as_ptr(), MNT_DETACH).map(drop)
}

system_calls! {
    /// Attaches mounts that belong to no mount namespace to a directory.
    fn attach_mounts(mounts: Fd, target: &CStr) = 429(mounts.0, c"".as_ptr(), AT_FDCWD.0, target.as_ptr(),
        4 /* MOVE_MOUNT_F_EMPTY_PATH */);
    /// Returns the Landlock ABI version; fails if the kernel does not support or enable Landlock.
    fn landlock_version() -> usize = 444(0, 0, 1 /* LANDLOCK_CREATE_RULESET_VERSION */);
    fn landlock_ruleset(attributes: &[u64; 3], size: usize) -> Fd
        = 444(attributes.as_ptr(), size, 0);
    fn landlock_restrict(ruleset: Fd) = 446(ruleset.0, 0);
    /// Makes a traced child stop where its filter asks, and on exec.
    fn trace_start(child: i32) = 101(0x4200 /* PTRACE_SETOPTIONS */, child, 0, 0x10 | 0x80);
    fn trace_continue(child: i32) = 101(7, child, 0, 0);
    fn trace_end(child: i32) = 101(17, child, 0, 0);
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

/// Makes the parent the tracer and stops until it has noticed.
pub fn be_traced() -> Result<()> {
    call!(101, 0 /* PTRACE_TRACEME */)?;
    kill(getpid(), SIGSTOP)
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
