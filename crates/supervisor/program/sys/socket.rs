//! Sockets, messages with descriptors, and terminals.

use core::mem::size_of;

use super::List;
use super::{
    Errno, Fd, FromRegister, O_CLOEXEC, O_NOCTTY, O_RDWR, Result, close, pad, syscall,
    uninterrupted,
};

const AF_INET: i32 = 2;
const SOCK_STREAM_CLOEXEC: usize = 0o200_0001;

/// Brings up the loopback interface of the current network namespace.
pub fn loopback_up() -> Result<()> {
    const SIOCSIFFLAGS: usize = 0x8914;
    const IFF_UP_RUNNING: u16 = 0x41;
    #[repr(C)]
    struct InterfaceRequest {
        name: [u8; 16],
        flags: u16,
        rest: [u8; 22],
    }
    let mut request = InterfaceRequest {
        name: [0; 16],
        flags: IFF_UP_RUNNING,
        rest: [0; 22],
    };
    request.name[..2].copy_from_slice(b"lo");
    let socket = call!(41, AF_INET, SOCK_STREAM_CLOEXEC, 0).map(Fd::from_register)?;
    let result = call!(16, socket.0, SIOCSIFFLAGS, &raw mut request).map(drop);
    close(socket);
    result
}

/// Returns the address of a port of 127.0.0.1 or `::1`, and its length. The first byte is the family.
fn loopback(port: u16, v6: bool) -> ([u8; 28], usize) {
    const AF_INET6: u8 = 10;
    let mut address = [0; 28];
    address[2..4].copy_from_slice(&port.to_be_bytes());
    if v6 {
        (address[0], address[23]) = (AF_INET6, 1);
        return (address, 28);
    }
    address[0] = AF_INET as u8;
    address[4..8].copy_from_slice(&[127, 0, 0, 1]);
    (address, 16)
}

/// Creates a socket that listens on a port of 127.0.0.1.
pub fn listen_on_loopback(port: u16) -> Result<Fd> {
    const BACKLOG: usize = 128;
    let socket = call!(41, AF_INET, SOCK_STREAM_CLOEXEC, 0).map(Fd::from_register)?;
    let (address, length) = loopback(port, false);
    call!(49, socket.0, address.as_ptr(), length)
        .and_then(|_| call!(50, socket.0, BACKLOG))
        .inspect_err(|_| close(socket))?;
    Ok(socket)
}

/// Creates a socket that is connected to a port of 127.0.0.1 or `::1`; without `blocks`, it may still be connecting.
pub fn connect_to_loopback(port: u16, v6: bool, blocks: bool) -> Result<Fd> {
    const SOCK_NONBLOCK: usize = 0o4000;
    const EINPROGRESS: Errno = Errno(115);
    let (address, length) = loopback(port, v6);
    let flags = if blocks { 0 } else { SOCK_NONBLOCK };
    let socket = call!(41, address[0], SOCK_STREAM_CLOEXEC | flags, 0).map(Fd::from_register)?;
    match call!(42, socket.0, address.as_ptr(), length) {
        Ok(_) | Err(EINPROGRESS) => Ok(socket),
        Err(errno) => {
            close(socket);
            Err(errno)
        }
    }
}

/// Accepts a connection, whose reads and writes don't block and whose short writes are not delayed.
pub fn accept(listener: Fd) -> Result<Fd> {
    const SOCK_NONBLOCK_CLOEXEC: usize = 0o200_4000;
    const TCP: usize = 6;
    const TCP_NODELAY: usize = 1;
    let socket = call!(288, listener.0, 0, 0, SOCK_NONBLOCK_CLOEXEC)?;
    let enabled = 1_i32;
    let _ = call!(54, socket, TCP, TCP_NODELAY, &raw const enabled, 4);
    Ok(Fd(socket as i32))
}

system_calls! {
    /// Ends the sending direction of a connection.
    fn shutdown_sending(socket: Fd) = 48(socket.0, 1 /* SHUT_WR */);
    /// Makes a terminal the controlling one of the calling session.
    fn take_terminal(fd: Fd) = 16(fd.0, 0x540E /* TIOCSCTTY */, 0);
}

/// Opens the slave of a pseudo-terminal.
pub fn terminal_peer(fd: Fd) -> Result<Fd> {
    const TIOCSPTLCK: usize = 0x4004_5431;
    const TIOCGPTPEER: usize = 0x5441;
    let unlocked = 0_i32;
    call!(16, fd.0, TIOCSPTLCK, &raw const unlocked)?;
    call!(16, fd.0, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC).map(Fd::from_register)
}

pub fn set_terminal_size(fd: Fd, rows: u16, columns: u16) -> Result<()> {
    let size = [rows, columns, 0, 0];
    call!(16, fd.0, 0x5414, size.as_ptr()).map(drop)
}

/// Maximum number of descriptors in a message.
pub const MAX_FDS: usize = 8;

/// A received message.
pub struct Received {
    /// Its length; zero if the peer has closed the socket.
    pub length: usize,
    pub fds: List<Fd, MAX_FDS>,
}

/// The kernel's `struct msghdr`.
#[repr(C)]
struct MessageHeader {
    name: usize,
    name_length: usize,
    vectors: *const [usize; 2],
    vector_count: usize,
    control: *mut Control,
    control_length: usize,
    flags: usize,
}

impl MessageHeader {
    fn new(vector: &[usize; 2], control: &mut Control, control_length: usize) -> Self {
        Self {
            name: 0,
            name_length: 0,
            vectors: vector,
            vector_count: 1,
            control,
            control_length,
            flags: 0,
        }
    }
}

/// The kernel's `struct cmsghdr` and room for descriptors.
#[derive(Default)]
#[repr(C, align(8))]
struct Control {
    length: usize,
    level: i32,
    kind: i32,
    fds: [i32; MAX_FDS],
}

const CONTROL_HEADER: usize = 16;
const SOL_SOCKET: i32 = 1;
const SCM_RIGHTS: i32 = 1;

/// Receives the next message and its descriptors.
pub fn receive(socket: Fd, buffer: &mut [u8]) -> Result<Received> {
    const MSG_CMSG_CLOEXEC: usize = 0x4000_0000;
    let mut control = Control::default();
    let vector = [buffer.as_mut_ptr() as usize, buffer.len()];
    let mut header = MessageHeader::new(&vector, &mut control, size_of::<Control>());
    let length = uninterrupted(|| call!(47, socket.0, &raw mut header, MSG_CMSG_CLOEXEC))?;
    let mut fds = List::new();
    let is_rights = control.level == SOL_SOCKET && control.kind == SCM_RIGHTS;
    if header.control_length >= CONTROL_HEADER && is_rights {
        let count = control.length.saturating_sub(CONTROL_HEADER) / 4;
        for fd in control.fds.into_iter().take(count) {
            fds.push(Fd(fd))?;
        }
    }
    Ok(Received { length, fds })
}

/// Sends a message with descriptors.
pub fn send(socket: Fd, bytes: &[u8], fds: &[Fd]) -> Result<()> {
    const MSG_NOSIGNAL: usize = 0x4000;
    let length = CONTROL_HEADER + 4 * fds.len().min(MAX_FDS);
    let mut control = Control {
        length,
        level: SOL_SOCKET,
        kind: SCM_RIGHTS,
        ..Control::default()
    };
    for (slot, fd) in control.fds.iter_mut().zip(fds) {
        *slot = fd.0;
    }
    let vector = [bytes.as_ptr() as usize, bytes.len()];
    // Padded to a multiple of eight.
    let control_length = if fds.is_empty() {
        0
    } else {
        length.next_multiple_of(8)
    };
    let header = MessageHeader::new(&vector, &mut control, control_length);
    uninterrupted(|| call!(46, socket.0, &raw const header, MSG_NOSIGNAL)).map(drop)
}
