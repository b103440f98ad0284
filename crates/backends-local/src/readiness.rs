//! Descriptors of the runtime.

use std::io;
use std::os::fd::OwnedFd;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Registers a non-blocking descriptor with the runtime.
pub(crate) fn register(descriptor: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    #[expect(
        deprecated,
        reason = "unsound only for types that change their descriptor, which `OwnedFd` doesn't; \
                  what replaces it is an unsafe function"
    )]
    AsyncFd::with_interest(descriptor, interest)
}
