//! Accepting, serving and shutting down connections.
//!
//! A connection is new until a request on it is authenticated. A new connection is closed after a short
//! time, or earlier if its place is needed. Afterwards it is accounted to the owner of its latest request.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use http::{HeaderValue, Request, header};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use crate::accounts::{Accounts, Lease};
use crate::tasks::Tasks;
use crate::unread_body::{self, discard};
use cantle_core::principal::PrincipalId;

/// Time limit for a request's head, and for an authenticated connection without a request.
const REQUEST_HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// Time limit for a connection without an authenticated request.
const UNAUTHENTICATED_TIMEOUT: Duration = Duration::from_secs(10);
/// Age at which an unauthenticated connection may lose its place to a new one.
const EVICTABLE_AGE: Duration = Duration::from_secs(5);
/// Size of a connection's buffer. A head that fills it is refused; with the latest read, it may have twice as
/// much.
const BUFFER_BYTES: usize = 64 * 1024;
/// Time limit for a request of an owner with too many connections, and the interval of looking for a place.
const PLACE_TIMEOUT: Duration = Duration::from_secs(30);
const PLACE_INTERVAL: Duration = Duration::from_millis(20);
/// Delay after `accept` failed, usually for lack of file descriptors.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);
/// Time limit for the responses in progress at shutdown.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(3);

/// Serves requests until `shutdown`, then runs `end`, then completes the responses in progress.
///
/// Each request has its [`Connection`] as an extension.
pub(crate) async fn serve<A, F, E, T>(
    listener: TcpListener,
    accounts: Arc<Accounts>,
    shutdown: CancellationToken,
    answer: A,
    end: E,
) -> T
where
    A: Fn(Request<Body>) -> F + Clone + Send + 'static,
    F: Future<Output = Response> + Send + 'static,
    E: Future<Output = T>,
{
    let new_connections = Arc::new(NewConnections::new(&accounts));
    // Asks connections to close after the current response.
    let closing = CancellationToken::new();
    let mut connections = JoinSet::new();
    loop {
        let stream = tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    sleep(ACCEPT_RETRY_DELAY).await;
                    continue;
                }
            },
            Some(_) = connections.join_next() => continue,
            () = shutdown.cancelled() => break,
        };
        let has_place = loop {
            tokio::select! {
                () = new_connections.make_place() => break true,
                Some(_) = connections.join_next() => {}
                () = shutdown.cancelled() => break false,
            }
        };
        if !has_place {
            break;
        }
        // Envelopes are small; Nagle's algorithm would delay them.
        let _ = stream.set_nodelay(true);
        let connection = Connection::new(&new_connections);
        connections.spawn(drive(stream, connection, answer.clone(), closing.clone()));
    }
    drop(listener);
    let result = end.await;
    closing.cancel();
    let all_closed = async { while connections.join_next().await.is_some() {} };
    if timeout(SHUTDOWN_TIMEOUT, all_closed).await.is_err() {
        connections.shutdown().await;
    }
    result
}

/// Serves one connection until its end.
async fn drive<S, A, F>(
    stream: S,
    connection: Arc<Connection>,
    answer: A,
    closing: CancellationToken,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    A: Fn(Request<Body>) -> F + Clone + Send + 'static,
    F: Future<Output = Response> + Send,
{
    let evicted = connection.evicted.clone();
    let deadline = connection.accepted + UNAUTHENTICATED_TIMEOUT;
    // Reads the rest of abandoned bodies.
    let readers = Arc::new(Tasks::default());
    let service = {
        let connection = Arc::clone(&connection);
        service_fn(move |request: Request<Incoming>| {
            let (head, body) = request.into_parts();
            let (body, unread) = unread_body::track(body);
            let mut request = Request::from_parts(head, Body::new(body));
            request.extensions_mut().insert(Arc::clone(&connection));
            let answering = answer(request);
            let (connection, readers) = (Arc::clone(&connection), Arc::clone(&readers));
            async move {
                let mut response = answering.await;
                // The deadline passed while its request waited for a place, and is not checked again.
                let is_overdue = !connection.is_authenticated() && Instant::now() >= deadline;
                if is_overdue || connection.accounts().waiting.used() > 0 {
                    let close = HeaderValue::from_static("close");
                    response.headers_mut().insert(header::CONNECTION, close);
                }
                if connection.is_authenticated() {
                    // Concurrently: the client may read the response before it has sent everything.
                    readers.spawn(discard(unread, unread_body::AUTHENTICATED));
                } else {
                    discard(unread, unread_body::UNAUTHENTICATED).await;
                }
                Ok::<_, Infallible>(response)
            }
        })
    };
    let serving = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(REQUEST_HEAD_TIMEOUT)
        .max_buf_size(BUFFER_BYTES)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades();
    let mut serving = std::pin::pin!(serving);
    let unauthenticated = async {
        sleep_until(deadline).await;
        if connection.is_authenticated() || connection.is_waiting() {
            std::future::pending::<()>().await;
        }
    };
    let ended = tokio::select! {
        ended = serving.as_mut() => ended,
        () = closing.cancelled() => {
            serving.as_mut().graceful_shutdown();
            serving.await
        }
        () = evicted.cancelled() => Ok(()),
        () = unauthenticated => Ok(()),
    };
    if let Err(error) = ended {
        tracing::trace!(%error, "a connection was aborted");
    }
}

/// The owner has too many connections.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("you have too many connections: close some, or reuse them")]
pub(crate) struct TooManyConnections;

/// Accounts the connection of a request, which is in its extensions, to the owner who authenticated it.
/// Waits for a place.
pub(crate) async fn admit(
    request: &http::Extensions,
    owner: &PrincipalId,
) -> Result<(), TooManyConnections> {
    match request.get::<Arc<Connection>>() {
        Some(connection) => connection.authenticate(owner).await,
        None => Ok(()),
    }
}

/// A connection. It is an extension of its requests.
pub(crate) struct Connection {
    id: u64,
    accepted: Instant,
    new_connections: Arc<NewConnections>,
    /// Cancelled when another connection takes its place.
    evicted: CancellationToken,
    /// The place among the owner's connections.
    place: Mutex<Option<Lease>>,
}

impl Connection {
    fn new(new_connections: &Arc<NewConnections>) -> Arc<Self> {
        let (accepted, evicted) = (Instant::now(), CancellationToken::new());
        let id = new_connections.add(accepted, evicted.clone());
        Arc::new(Self {
            id,
            accepted,
            new_connections: Arc::clone(new_connections),
            evicted,
            place: Mutex::new(None),
        })
    }

    fn accounts(&self) -> &Accounts {
        &self.new_connections.accounts
    }

    fn is_authenticated(&self) -> bool {
        self.place.lock().is_some()
    }

    fn is_waiting(&self) -> bool {
        let by_id = self.new_connections.by_id.lock();
        by_id.get(&self.id).is_some_and(|one| one.is_waiting)
    }

    async fn authenticate(&self, owner: &PrincipalId) -> Result<(), TooManyConnections> {
        if self.take_place(owner) {
            return Ok(());
        }
        let waiting = self.accounts().waiting.take(owner, 1);
        let waiting = waiting.map_err(|_| TooManyConnections)?;
        self.new_connections.set_waiting(self.id, true);
        let placed = timeout(PLACE_TIMEOUT, async {
            while !self.take_place(owner) {
                sleep(PLACE_INTERVAL).await;
            }
        });
        let placed = placed.await.map_err(|_| TooManyConnections);
        self.new_connections.set_waiting(self.id, false);
        drop(waiting);
        placed
    }

    /// Takes a place of the owner, unless the connection has one or there is none.
    fn take_place(&self, owner: &PrincipalId) -> bool {
        let mut place = self.place.lock();
        if place.as_ref().is_some_and(|place| place.owner == *owner) {
            return true;
        }
        let Ok(taken) = self.accounts().connections.take(owner, 1) else {
            return false;
        };
        *place = Some(taken);
        drop(place);
        self.new_connections.remove(self.id);
        true
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.place.lock().take();
        self.new_connections.remove(self.id);
        self.new_connections.changed.notify_one();
    }
}

/// The connections that no request has authenticated.
struct NewConnections {
    accounts: Arc<Accounts>,
    last_id: AtomicU64,
    /// In the order of their ids, and so of their age.
    by_id: Mutex<BTreeMap<u64, NewConnection>>,
    /// Notified when any connection ends, or one no longer waits.
    changed: Notify,
}

struct NewConnection {
    accepted: Instant,
    evicted: CancellationToken,
    /// A request is authenticated and waits for a place.
    is_waiting: bool,
}

impl NewConnections {
    fn new(accounts: &Arc<Accounts>) -> Self {
        Self {
            accounts: Arc::clone(accounts),
            last_id: AtomicU64::new(0),
            by_id: Mutex::default(),
            changed: Notify::new(),
        }
    }

    fn add(&self, accepted: Instant, evicted: CancellationToken) -> u64 {
        let id = self.last_id.fetch_add(1, Ordering::Relaxed) + 1;
        let connection = NewConnection {
            accepted,
            evicted,
            is_waiting: false,
        };
        self.by_id.lock().insert(id, connection);
        id
    }

    fn remove(&self, id: u64) {
        self.by_id.lock().remove(&id);
    }

    fn set_waiting(&self, id: u64, is_waiting: bool) {
        if let Some(connection) = self.by_id.lock().get_mut(&id) {
            connection.is_waiting = is_waiting;
            self.changed.notify_one();
        }
    }

    /// Waits until there is a place for one more connection, if need be by closing the oldest new one.
    async fn make_place(&self) {
        loop {
            let evictable = {
                let mut by_id = self.by_id.lock();
                let authenticated = self.accounts.connections.used();
                if by_id.len() + authenticated < self.accounts.all_connections {
                    return;
                }
                let oldest = by_id.iter().find(|(_, one)| !one.is_waiting);
                let oldest = oldest.map(|(id, one)| (*id, one.accepted + EVICTABLE_AGE));
                if let Some((id, at)) = oldest
                    && at <= Instant::now()
                {
                    if let Some(connection) = by_id.remove(&id) {
                        connection.evicted.cancel();
                    }
                    return;
                }
                oldest.map(|(_, at)| at)
            };
            match evictable {
                Some(at) => tokio::select! {
                    () = sleep_until(at) => {}
                    () = self.changed.notified() => {}
                },
                None => self.changed.notified().await,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use axum::response::IntoResponse as _;
    use http::StatusCode;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;
    use crate::keys::Keys;
    use crate::settings::ServerLimits;

    /// The connections of a server that allows four, and the owner of all of them.
    fn four_connections() -> (Arc<NewConnections>, PrincipalId) {
        let limits = ServerLimits {
            connections: 4,
            ..ServerLimits::default()
        };
        let accounts = Arc::new(Accounts::new(&limits, &Keys::default()));
        let owner = Keys::default().owner("any").unwrap();
        (Arc::new(NewConnections::new(&accounts)), owner)
    }

    #[tokio::test(start_paused = true)]
    async fn the_oldest_silent_connection_loses_its_place() {
        let (connections, owner) = four_connections();
        let [authenticated, waiting, oldest, youngest] =
            std::array::from_fn(|_| Connection::new(&connections));
        assert!(authenticated.take_place(&owner));
        connections.set_waiting(waiting.id, true);
        // In the paused clock, as soon as it is old enough.
        connections.make_place().await;
        let evicted = [&authenticated, &waiting, &oldest, &youngest]
            .map(|connection| connection.evicted.is_cancelled());
        assert_eq!(evicted, [false, false, true, false]);
        assert_eq!(oldest.accepted.elapsed(), EVICTABLE_AGE);
        connections.make_place().await;
        let next = Connection::new(&connections);
        connections.make_place().await;
        assert!(youngest.evicted.is_cancelled());
        drop(next);
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_waited_in_vain_closes_after_the_response() {
        let (connections, owner) = four_connections();
        let take = || connections.accounts.connections.take(&owner, 1).ok();
        let _others: Vec<Lease> = std::iter::from_fn(take).collect();
        let answer = move |request: Request<Body>| {
            let owner = owner.clone();
            async move {
                let (head, _) = request.into_parts();
                match admit(&head.extensions, &owner).await {
                    Ok(()) => StatusCode::OK.into_response(),
                    Err(TooManyConnections) => StatusCode::TOO_MANY_REQUESTS.into_response(),
                }
            }
        };
        let (mut client, stream) = tokio::io::duplex(4096);
        let connection = Connection::new(&connections);
        let driven = drive(stream, connection, answer, CancellationToken::new());
        let exchange = async {
            let request = b"GET / HTTP/1.1\r\nhost: example.com\r\n\r\n";
            client.write_all(request).await.unwrap();
            let mut response = String::new();
            client.read_to_string(&mut response).await.unwrap();
            response
        };
        let ((), response) = tokio::join!(driven, exchange);
        assert!(response.starts_with("HTTP/1.1 429 "), "{response}");
        assert!(response.contains("connection: close"), "{response}");
    }
}
