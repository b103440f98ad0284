//! System calls of the relay: nonblocking descriptors, memory files, socket pairs, splicing.

use super::{Fd, FromRegister, Result, close, pad, pipe, syscall};

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

system_calls! {
    /// Creates a memory file.
    fn memory_file() -> Fd = 319(c"cantle".as_ptr(), 1 /* MFD_CLOEXEC */);
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

/// Creates a pipe at its end; a substitute for `/dev/null` as stdin.
pub fn empty_pipe() -> Result<Fd> {
    let (reader, writer) = pipe()?;
    close(writer);
    Ok(reader)
}
