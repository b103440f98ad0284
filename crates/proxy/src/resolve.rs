//! Name resolution.

use std::fmt;
use std::io;
use std::net::{IpAddr, ToSocketAddrs as _};

use async_trait::async_trait;
use cantle_core::policy::HostName;
use tokio::sync::Semaphore;

/// Resolves host names.
#[async_trait]
pub(crate) trait Resolver: fmt::Debug + Send + Sync {
    /// Returns all addresses of `host`, in the order in which to try them.
    async fn resolve(&self, host: &HostName) -> io::Result<Vec<IpAddr>>;
}

/// Permits for the lookups of all proxies: each lookup blocks a thread of the runtime's blocking pool, which file access
/// and the opening of sandboxes need, too.
static LOOKUPS: Semaphore = Semaphore::const_new(32);

/// The system's resolver (`getaddrinfo`): `/etc/hosts`, DNS and other configured sources.
#[derive(Debug)]
pub(crate) struct SystemResolver;

#[async_trait]
impl Resolver for SystemResolver {
    async fn resolve(&self, host: &HostName) -> io::Result<Vec<IpAddr>> {
        let permit = LOOKUPS.acquire().await.map_err(io::Error::other)?;
        let host = host.clone();
        let lookup = tokio::task::spawn_blocking(move || {
            // Held until the resolver returns, which no time limit ends.
            let _permit = permit;
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
