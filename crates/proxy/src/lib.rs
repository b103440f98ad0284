//! The HTTP proxy through which a sandbox reaches allowed hosts.
//!
//! The sandbox's network contains only a listening socket on [`PORT`] of 127.0.0.1. On this machine its
//! descriptor was passed to this process, because accepting works across network namespaces; from a container,
//! the supervisor carries each connection over its stream. A client may request a tunnel (`CONNECT`) or a plain
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
use futures_util::{Stream, StreamExt as _, stream};
use http::Request;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_util::task::AbortOnDropHandle;

use self::connection::Gateway;
pub use self::denials::Denials;
use self::resolve::{FixedResolver, Resolver, SystemResolver};

/// The port of 127.0.0.1 on which a sandbox reaches its proxy.
pub const PORT: u16 = 3128;

/// Pause after a failed accept, for example without free descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The configuration of a proxy.
#[derive(Clone, Debug)]
pub struct ProxySettings {
    /// The allowed hosts.
    hosts: Vec<HostPattern>,
    /// Resolves names.
    resolver: Arc<dyn Resolver>,
    /// Addresses that are allowed although they are not public; for tests with local servers.
    exempt: Vec<SocketAddr>,
    /// Maximum number of simultaneous connections; more wait to be accepted.
    connections: usize,
    /// Timeout of a request's head.
    head: Duration,
    /// Timeout of resolving a name, and of connecting to one address.
    connect: Duration,
    /// Timeout of a connection on which no byte moves.
    idle: Duration,
}

impl ProxySettings {
    /// Allows these hosts, resolved by the system.
    #[must_use]
    pub fn new(hosts: Vec<HostPattern>) -> Self {
        Self {
            hosts,
            resolver: Arc::new(SystemResolver::new()),
            exempt: Vec::new(),
            connections: 256,
            head: Duration::from_secs(30),
            connect: Duration::from_secs(15),
            idle: Duration::from_secs(300),
        }
    }

    /// Resolves every name to the address of this server, which is allowed although it is not public; for tests.
    #[doc(hidden)]
    #[must_use]
    pub fn reaching(mut self, server: SocketAddr) -> Self {
        self.resolver = Arc::new(FixedResolver(server.ip()));
        self.exempt.push(server);
        self
    }
}

/// Returns the variables by which programs in a sandbox find its proxy on this port.
#[must_use]
pub fn variables(port: u16) -> Vec<(&'static str, String)> {
    let proxy = |name| (name, format!("http://127.0.0.1:{port}"));
    // Servers inside the sandbox.
    let own = |name| (name, "localhost,127.0.0.1,::1".to_owned());
    let proxies = ["HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"].map(proxy);
    proxies
        .into_iter()
        .chain(["NO_PROXY", "no_proxy"].map(own))
        .collect()
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
pub struct Proxy {
    denials: Denials,
    _serving: AbortOnDropHandle<()>,
}

impl Proxy {
    /// Serves clients of `listener`. Needs a tokio runtime with I/O and time.
    ///
    /// # Errors
    /// If the runtime can't register the socket.
    pub fn listen(listener: std::net::TcpListener, settings: ProxySettings) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        let listener = TcpListener::from_std(listener)?;
        let accepted = stream::unfold(listener, async |listener| {
            let stream = accept(&listener).await;
            Some((stream, listener))
        });
        Ok(Self::serve(Box::pin(accepted), settings))
    }

    /// Serves connections of clients. Needs a tokio runtime with I/O and time.
    pub fn serve<S>(
        connections: impl Stream<Item = S> + Send + Unpin + 'static,
        settings: ProxySettings,
    ) -> Self
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let denials = Denials::default();
        let room = settings.connections;
        let gateway = Arc::new(Gateway::new(settings, denials.clone()));
        let serving = tokio::spawn(serve(connections, gateway, room));
        Self {
            denials,
            _serving: AbortOnDropHandle::new(serving),
        }
    }

    /// Returns the log of refused hosts.
    #[must_use]
    pub fn denials(&self) -> &Denials {
        &self.denials
    }
}

async fn accept(listener: &TcpListener) -> TcpStream {
    loop {
        if let Ok((stream, _)) = listener.accept().await {
            // Small writes of a tunnel must not be delayed.
            let _ = stream.set_nodelay(true);
            return stream;
        }
        tokio::time::sleep(ACCEPT_PAUSE).await;
    }
}

async fn serve<S>(
    mut connections: impl Stream<Item = S> + Unpin,
    gateway: Arc<Gateway>,
    room: usize,
) where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let room = Arc::new(Semaphore::new(room));
    let mut served = JoinSet::new();
    while let Ok(permit) = Arc::clone(&room).acquire_owned().await {
        while served.try_join_next().is_some() {}
        let Some(connection) = connections.next().await else {
            break;
        };
        let gateway = Arc::clone(&gateway);
        served.spawn(async move {
            let _permit = permit;
            connection::serve(connection, gateway).await;
        });
    }
    served.join_all().await;
}

#[cfg(test)]
mod tests;
