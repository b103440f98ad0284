//! A connection to a port of the loopback interface.

use super::{Failure, INPUT, OUTPUT};
use crate::sys::{self, Errno, Fd, Forked};

const BUFFER_BYTES: usize = 64 * 1024;

const ECONNREFUSED: Errno = Errno(111);

/// Connects stdin and stdout to a port, after a zero on stdout.
pub fn connect(port: u16) -> Result<(), Failure> {
    let socket = match sys::connect_to_loopback(port, false, true) {
        // The interface may have no such address.
        Err(ECONNREFUSED) => sys::connect_to_loopback(port, true, true).map_err(|_| ECONNREFUSED),
        connected => connected,
    }?;
    // The peer of either direction may end it.
    sys::set_signal_mask(1 << (sys::SIGPIPE - 1));
    sys::write_all(OUTPUT, &[0])?;
    match sys::fork(0)? {
        Forked::Child => {
            sys::close(INPUT);
            copy(socket, OUTPUT);
            sys::exit(0)
        }
        Forked::Parent { .. } => {
            sys::close(OUTPUT);
            copy(INPUT, socket);
            let _ = sys::shutdown_sending(socket);
            sys::close(INPUT);
            // The other direction goes on.
            let _ = sys::wait(true, false);
            Ok(())
        }
    }
}

/// Copies bytes until the end of either descriptor. Not by splicing, which holds the pipe's lock while it waits for the
/// socket, so that the relay would wait, too.
fn copy(from: Fd, to: Fd) {
    let mut buffer = [0; BUFFER_BYTES];
    while let Ok(count @ 1..) = sys::uninterrupted(|| sys::read(from, &mut buffer)) {
        if sys::write_all(to, &buffer[..count]).is_err() {
            return;
        }
    }
}
