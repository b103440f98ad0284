//! Name resolution.

use std::fmt;
use std::io;
use std::net::{IpAddr, ToSocketAddrs as _};
use std::sync::Arc;

use async_trait::async_trait;
use cantle_core::policy::HostName;
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore, SemaphorePermit};

/// Resolves host names.
#[async_trait]
pub(crate) trait Resolver: fmt::Debug + Send + Sync {
    /// Returns all addresses of `host`, in the order in which to try them.
    async fn resolve(&self, host: &HostName) -> io::Result<Vec<IpAddr>>;
}

/// Permits for the lookups of all proxies: each lookup blocks a thread of the runtime's blocking pool, which file access
/// and the opening of sandboxes need, too.
static LOOKUPS: Semaphore = Semaphore::const_new(32);
/// Permits for the lookups of one proxy, so that names without an answer do not stop those of the others.
const OWN_LOOKUPS: usize = 8;

/// The system's resolver (`getaddrinfo`): `/etc/hosts`, DNS and other configured sources.
#[derive(Debug)]
pub(crate) struct SystemResolver {
    own: Arc<Semaphore>,
}

impl SystemResolver {
    pub(crate) fn new() -> Self {
        let own = Arc::new(Semaphore::new(OWN_LOOKUPS));
        Self { own }
    }

    /// Waits until there is room for a lookup.
    async fn permits(
        &self,
    ) -> Result<(OwnedSemaphorePermit, SemaphorePermit<'static>), AcquireError> {
        let own = Arc::clone(&self.own).acquire_owned().await?;
        Ok((own, LOOKUPS.acquire().await?))
    }
}

#[async_trait]
impl Resolver for SystemResolver {
    async fn resolve(&self, host: &HostName) -> io::Result<Vec<IpAddr>> {
        let permits = self.permits().await.map_err(io::Error::other)?;
        let host = host.clone();
        let lookup = tokio::task::spawn_blocking(move || {
            // Held until the resolver returns, which no time limit ends.
            let _permits = permits;
            let found = (host.as_str(), 0).to_socket_addrs()?;
            Ok(found.map(|address| address.ip()).collect())
        });
        lookup.await?
    }
}

/// Resolves every name to one address.
#[derive(Debug)]
pub(crate) struct FixedResolver(pub(crate) IpAddr);

#[async_trait]
impl Resolver for FixedResolver {
    async fn resolve(&self, _: &HostName) -> io::Result<Vec<IpAddr>> {
        Ok(vec![self.0])
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[test]
    fn one_proxy_leaves_room_for_the_lookups_of_others() {
        let (busy, other) = (SystemResolver::new(), SystemResolver::new());
        let held: Vec<_> = std::iter::from_fn(|| busy.permits().now_or_never()).collect();
        assert_eq!(held.len(), OWN_LOOKUPS);
        assert!(other.permits().now_or_never().is_some());
    }
}
