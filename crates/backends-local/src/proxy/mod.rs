//! The HTTP proxy through which a sandbox reaches allowed hosts.
//!
//! The sandbox's network contains only a listening socket, whose descriptor was passed to this process;
//! accepting from it works across network namespaces. A client may request a tunnel (`CONNECT`) or a plain
//! `http://` resource. The proxy alone resolves names, refuses hosts that are not on the policy's list and
//! names that resolve to addresses that are not public or this machine's, and connects to the very address it has checked. It
//! never resolves a name twice, so a second answer (DNS rebinding) has no effect, and never treats an address
//! as a name.
//!
//! It cannot inspect tunnels: an allowed host can pass data on to anyone.
//!
//! Dropping [`Proxy`] ends the listener and every connection.

mod activity;
mod connection;
mod denials;
mod request;
mod resolve;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use cantle_core::policy::HostPattern;
use http::Request;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_util::task::AbortOnDropHandle;

use self::connection::Gateway;
pub(crate) use self::denials::Denials;
pub(crate) use self::resolve::{Resolver, SystemResolver};

/// Pause after a failed accept, for example without free descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The configuration of a proxy.
#[derive(Clone, Debug)]
pub(crate) struct ProxySettings {
    /// The allowed hosts.
    pub(crate) hosts: Vec<HostPattern>,
    /// Resolves names.
    pub(crate) resolver: Arc<dyn Resolver>,
    /// Addresses that are allowed although they are not public; for tests with local servers.
    pub(crate) exempt: Vec<SocketAddr>,
    /// Maximum number of simultaneous connections; more wait to be accepted.
    pub(crate) connections: usize,
    /// Timeout of a request's head.
    pub(crate) head: Duration,
    /// Timeout of resolving a name, and of connecting to one address.
    pub(crate) connect: Duration,
    /// Timeout of a connection on which no byte moves.
    pub(crate) idle: Duration,
}

impl ProxySettings {
    /// Allows these hosts, resolved by the system.
    pub(crate) fn new(hosts: Vec<HostPattern>) -> Self {
        Self {
            hosts,
            resolver: Arc::new(SystemResolver),
            exempt: Vec::new(),
            connections: 256,
            head: Duration::from_secs(30),
            connect: Duration::from_secs(15),
            idle: Duration::from_secs(300),
        }
    }
}

/// Returns the requested host and, except for a tunnel, the request to forward; `None` if it is refused.
///
/// For fuzzing; not part of the API.
#[doc(hidden)]
pub fn proxied_request(request: Request<()>) -> Option<(String, Option<Request<()>>)> {
    let target = request::target(&request).ok()?;
    let host = target.host.as_str().to_owned();
    Some((host, request::forwarded(request, &target)))
}

/// A running proxy. Dropping it ends all its connections.
#[derive(Debug)]
pub(crate) struct Proxy {
    denials: Denials,
    _serving: AbortOnDropHandle<()>,
}

impl Proxy {
    /// Serves clients of `listener`. Needs a tokio runtime with I/O and time.
    ///
    /// # Errors
    /// If the runtime can't register the socket.
    pub(crate) fn start(
        listener: std::net::TcpListener,
        settings: ProxySettings,
    ) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        let listener = TcpListener::from_std(listener)?;
        let denials = Denials::default();
        let connections = settings.connections;
        let gateway = Arc::new(Gateway::new(settings, denials.clone()));
        let serving = tokio::spawn(serve(listener, gateway, connections));
        Ok(Self {
            denials,
            _serving: AbortOnDropHandle::new(serving),
        })
    }

    /// Returns the log of refused hosts.
    pub(crate) fn denials(&self) -> &Denials {
        &self.denials
    }
}

async fn serve(listener: TcpListener, gateway: Arc<Gateway>, connections: usize) {
    let room = Arc::new(Semaphore::new(connections));
    let mut served = JoinSet::new();
    while let Ok(permit) = Arc::clone(&room).acquire_owned().await {
        while served.try_join_next().is_some() {}
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        // Small writes of a tunnel must not be delayed.
        let _ = stream.set_nodelay(true);
        let gateway = Arc::clone(&gateway);
        served.spawn(async move {
            let _permit = permit;
            connection::serve(stream, gateway).await;
        });
    }
}

#[cfg(test)]
mod tests;
