//! Running commands: a transport of the command driver over pipes, terminals and the supervisor's
//! sockets (`process::supervised`), or over process groups on systems without a supervisor (`process::grouped`).

mod channels;
mod output;
mod process;
#[cfg(confined)]
mod reports;
mod start;
mod stdin;
mod transport;

use std::io;
use std::os::fd::OwnedFd;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

pub(crate) use self::start::start;

/// Registers a non-blocking descriptor with the runtime.
pub(crate) fn register(descriptor: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    #[expect(
        deprecated,
        reason = "unsound only for types that change their descriptor, which `OwnedFd` doesn't; \
                  what replaces it is an unsafe function"
    )]
    AsyncFd::with_interest(descriptor, interest)
}
