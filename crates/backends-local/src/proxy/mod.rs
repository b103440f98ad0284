//! The way out of a sandbox that may reach some hosts: an HTTP proxy outside of it.
//!
//! The sandbox has no network but one listening socket, whose descriptor was handed to us: accepting
//! from it works across network namespaces. What connects there may ask for a tunnel (`CONNECT`) or
//! for a plain `http://` resource. The proxy alone resolves names, refuses what is not on the policy's
//! list of hosts, refuses a name that leads anywhere but to public addresses, and connects to the
//! very address it checked. It never looks a name up twice, so that a second answer (DNS rebinding)
//! changes nothing, and never takes an address for a name.
//!
//! What it can't know: a tunnel's contents. A host that is allowed can pass data on to anybody.
//!
//! Everything belongs to [`Proxy`]: dropped, it ends the listening and every connection.

mod activity;
mod address;
mod connection;
mod denials;
mod request;
mod resolve;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use cantle_core::policy::HostPattern;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_util::task::AbortOnDropHandle;

use self::connection::Outside;
pub(crate) use self::denials::Denials;
pub(crate) use self::resolve::{Resolver, SystemResolver};

/// After an accept that failed (no descriptors left), before the next.
const PAUSE: Duration = Duration::from_millis(100);

/// What the proxy allows, and how long it waits.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// The hosts that may be reached.
    pub(crate) hosts: Vec<HostPattern>,
    /// How names become addresses.
    pub(crate) resolver: Arc<dyn Resolver>,
    /// Addresses that may be reached although they are not public. For tests, whose servers are on
    /// this machine.
    pub(crate) exempt: Vec<SocketAddr>,
    /// Connections at once; more wait to be accepted.
    pub(crate) connections: usize,
    /// Time for the head of a request.
    pub(crate) head: Duration,
    /// Time to resolve a name, and time to connect to one address.
    pub(crate) connect: Duration,
    /// Time in which some byte must move.
    pub(crate) idle: Duration,
}

impl Settings {
    /// These hosts, by the system's resolver.
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

/// A proxy at work. Dropped, it ends with all its connections.
#[derive(Debug)]
pub(crate) struct Proxy {
    denials: Denials,
    _serving: AbortOnDropHandle<()>,
}

impl Proxy {
    /// Serves what connects to `listener`, the socket that the sandbox sees. Needs a tokio runtime
    /// with I/O and time.
    ///
    /// # Errors
    /// Where the runtime can't watch the socket.
    pub(crate) fn start(listener: std::net::TcpListener, settings: Settings) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        let listener = TcpListener::from_std(listener)?;
        let denials = Denials::default();
        let connections = settings.connections;
        let outside = Arc::new(Outside::new(settings, denials.clone()));
        let serving = tokio::spawn(serve(listener, outside, connections));
        Ok(Self {
            denials,
            _serving: AbortOnDropHandle::new(serving),
        })
    }

    /// What was refused so far.
    pub(crate) fn denials(&self) -> &Denials {
        &self.denials
    }
}

async fn serve(listener: TcpListener, outside: Arc<Outside>, connections: usize) {
    let room = Arc::new(Semaphore::new(connections));
    let mut served = JoinSet::new();
    while let Ok(permit) = Arc::clone(&room).acquire_owned().await {
        while served.try_join_next().is_some() {}
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(PAUSE).await;
            continue;
        };
        // Small writes of a tunnel must not wait for each other; without it, it is slower.
        let _ = stream.set_nodelay(true);
        let outside = Arc::clone(&outside);
        served.spawn(async move {
            let _permit = permit;
            connection::serve(stream, outside).await;
        });
    }
}

#[cfg(test)]
mod tests;
