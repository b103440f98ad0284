//! How names become addresses.

use std::fmt;
use std::io;
use std::net::IpAddr;

use async_trait::async_trait;
use cantle_core::policy::HostName;

/// Resolves names.
#[async_trait]
pub(crate) trait Resolver: fmt::Debug + Send + Sync {
    /// All addresses of `host`, in the order in which to try them.
    async fn resolve(&self, host: &HostName) -> io::Result<Vec<IpAddr>>;
}

/// The system's resolver: `/etc/hosts`, DNS and whatever else it is set up to ask.
#[derive(Debug)]
pub(crate) struct SystemResolver;

#[async_trait]
impl Resolver for SystemResolver {
    async fn resolve(&self, host: &HostName) -> io::Result<Vec<IpAddr>> {
        let found = tokio::net::lookup_host((host.as_str(), 0)).await?;
        Ok(found.map(|address| address.ip()).collect())
    }
}
