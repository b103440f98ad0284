//! System calls of the relay: nonblocking descriptors, memory files, socket pairs, splicing.

use super::{Fd, O_CLOEXEC, Result, map_zeroed, pad, syscall};

/// Makes reads and writes return `EAGAIN` instead of blocking.
pub fn set_nonblocking(fd: Fd) -> Result<()> {
    const F_GETFL: usize = 3;
    const F_SETFL: usize = 4;
    const O_NONBLOCK: usize = 0o4000;
    let flags = call!(72, fd.0, F_GETFL)?;
    call!(72, fd.0, F_SETFL, flags | O_NONBLOCK).map(drop)
}

/// Creates a pair of connected sockets for messages.
pub fn message_sockets() -> Result<(Fd, Fd)> {
    const AF_UNIX: usize = 1;
    const SOCK_SEQPACKET_CLOEXEC: usize = 0o200_0005;
    let mut ends = [0_i32; 2];
    call!(53, AF_UNIX, SOCK_SEQPACKET_CLOEXEC, 0, ends.as_mut_ptr())?;
    Ok((Fd(ends[0]), Fd(ends[1])))
}

/// Creates a memory file.
pub fn memory_file() -> Result<Fd> {
    const MFD_CLOEXEC: usize = 1;
    call!(319, c"cantle".as_ptr(), MFD_CLOEXEC).map(|fd| Fd(fd as i32))
}

/// Returns how many bytes can be read without blocking.
pub fn unread_bytes(fd: Fd) -> Result<usize> {
    const FIONREAD: usize = 0x541B;
    let mut bytes = 0_i32;
    call!(16, fd.0, FIONREAD, &raw mut bytes)?;
    Ok(bytes.max(0) as usize)
}

/// Enlarges a pipe, if the kernel allows it.
pub fn enlarge_pipe(fd: Fd, bytes: usize) {
    const F_SETPIPE_SZ: usize = 1031;
    let _ = call!(72, fd.0, F_SETPIPE_SZ, bytes);
}

/// Moves bytes from or into a pipe without copying; returns the count, zero at the end. Fails with `EINVAL`
/// if one side can't splice. Blocks only if `waits` is set.
pub fn splice(from: Fd, to: Fd, count: usize, waits: bool) -> Result<usize> {
    const SPLICE_F_NONBLOCK: usize = 2;
    let flags = if waits { 0 } else { SPLICE_F_NONBLOCK };
    call!(275, from.0, 0, to.0, 0, count, flags)
}

/// Maps zeroed memory, to be freed by [`unmap_bytes`]. Pages are allocated on first use.
pub fn map_bytes(count: usize) -> Result<&'static mut [u8]> {
    let address = map_zeroed(count)?;
    // SAFETY: fresh memory of this length without another reference.
    Ok(unsafe { core::slice::from_raw_parts_mut(address as *mut u8, count) })
}

/// Frees memory.
pub fn unmap_bytes(bytes: &'static mut [u8]) {
    if !bytes.is_empty() {
        let _ = call!(11, bytes.as_mut_ptr(), bytes.len());
    }
}

/// Creates a pipe at its end; a substitute for `/dev/null` as stdin.
pub fn empty_pipe() -> Result<Fd> {
    let mut ends = [0_i32; 2];
    call!(293, ends.as_mut_ptr(), O_CLOEXEC)?;
    super::close(Fd(ends[1]));
    Ok(Fd(ends[0]))
}

/// Ignores SIGCHLD, so that children are reaped automatically.
pub fn ignore_sigchld() {
    const IGNORE: u64 = 1;
    let action = [IGNORE, 0, 0, 0];
    let _ = call!(13, super::SIGCHLD, action.as_ptr(), 0, 8);
}

/// Raises the descriptor limit to its maximum.
pub fn raise_descriptor_limit() {
    const RLIMIT_NOFILE: usize = 7;
    let mut limit = [0_u64; 2];
    if call!(302, 0, RLIMIT_NOFILE, 0, limit.as_mut_ptr()).is_ok() {
        limit[0] = limit[1];
        let _ = call!(302, 0, RLIMIT_NOFILE, limit.as_ptr(), 0);
    }
}
