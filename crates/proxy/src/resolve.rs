//! Name resolution.

use std::fmt;
use std::io;
use std::net::IpAddr;

use async_trait::async_trait;
use cantle_core::policy::HostName;

/// Resolves host names.
#[async_trait]
pub(crate) trait Resolver: fmt::Debug + Send + Sync {
    /// Returns all addresses of `host`, in the order in which to try them.
    async fn resolve(&self, host: &HostName) -> io::Result<Vec<IpAddr>>;
}

/// The system's resolver (`getaddrinfo`): `/etc/hosts`, DNS and other configured sources.
#[derive(Debug)]
pub(crate) struct SystemResolver;

#[async_trait]
impl Resolver for SystemResolver {
    async fn resolve(&self, host: &HostName) -> io::Result<Vec<IpAddr>> {
        let found = tokio::net::lookup_host((host.as_str(), 0)).await?;
        Ok(found.map(|address| address.ip()).collect())
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
