//! One connection of a client: its request, the check, and the exchange.
//!
//! A connection carries one request, so a check for one host never applies to another.

use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use cantle_core::network::{is_own, is_public, may_be_private_host};
use cantle_core::policy::{HostName, HostPattern};
use http::header::{CONNECTION, CONTENT_TYPE, HeaderValue};
use http::{Method, Request, Response, StatusCode};
use http_body_util::{Either, Full};
use hyper::body::Incoming;
use hyper::ext::ReasonPhrase;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, copy_bidirectional};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;

use super::ProxySettings;
use super::activity::Activity;
use super::denials::{Denials, Denied};
use super::request::{Rejection, Target, forwarded, returned, target};

/// Maximum length of the head of a request or response.
const MAX_HEAD_BYTES: usize = 64 * 1024;
/// Maximum number of addresses of one name to try.
const MAX_ADDRESSES: usize = 8;
/// Maximum length of the reason phrase, which is all that most programs display.
const MAX_REASON_CHARS: usize = 300;
/// Maximum length of the list of allowed hosts in a refusal.
const MAX_ALLOWED_CHARS: usize = 160;

type Body = Either<Full<Bytes>, Incoming>;

/// Connects clients to allowed hosts.
#[derive(Debug)]
pub(super) struct Gateway {
    settings: ProxySettings,
    denials: Denials,
    /// The allowed hosts, as refusals list them.
    allowed: String,
}

/// The outgoing half of a connection.
enum Upstream {
    /// Becomes a tunnel once the response has been sent.
    Tunnel(OnUpgrade, TcpStream),
    /// Transfers a request and its response.
    Exchange { _task: AbortOnDropHandle<()> },
}

type Slot = Arc<Mutex<Option<Upstream>>>;

/// Serves a connection until it ends or is idle for too long.
pub(super) async fn serve<S>(stream: S, gateway: Arc<Gateway>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (stream, activity) = Activity::watch(stream);
    let idle = gateway.settings.idle;
    tokio::select! {
        () = exchange(stream, gateway) => {}
        () = activity.idle_for(idle) => {}
    }
}

async fn exchange<S>(stream: S, gateway: Arc<Gateway>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let slot = Slot::default();
    let head = gateway.settings.head;
    let service = service_fn(|request| {
        let (gateway, slot) = (Arc::clone(&gateway), Arc::clone(&slot));
        async move { Ok::<_, Infallible>(gateway.answer(request, &slot).await) }
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(head)
        .max_buf_size(MAX_HEAD_BYTES)
        // Some clients close their side after the request.
        .half_close(true)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades()
        .await;
    let upstream = slot.lock().take();
    if let (Ok(()), Some(Upstream::Tunnel(client, mut upstream))) = (served, upstream)
        && let Ok(client) = client.await
    {
        // An error ends the tunnel like a normal end.
        let _ = copy_bidirectional(&mut TokioIo::new(client), &mut upstream).await;
    }
}

impl Gateway {
    pub(super) fn new(settings: ProxySettings, denials: Denials) -> Self {
        let mut allowed = String::new();
        let mut listed = 0;
        for pattern in &settings.hosts {
            let text = pattern.to_string();
            if !allowed.is_empty() && allowed.len() + text.len() > MAX_ALLOWED_CHARS {
                break;
            }
            allowed.push_str(if allowed.is_empty() { "" } else { ", " });
            allowed.push_str(&text);
            listed += 1;
        }
        match settings.hosts.len() - listed {
            _ if allowed.is_empty() => allowed.push_str("no host"),
            0 => {}
            more => allowed.push_str(&format!(" and {more} more")),
        }
        Self {
            settings,
            denials,
            allowed,
        }
    }

    async fn answer(&self, request: Request<Incoming>, slot: &Slot) -> Response<Body> {
        let answered = match target(&request) {
            Ok(target) if request.method() == Method::CONNECT => {
                self.tunnel(request, &target, slot).await
            }
            Ok(target) => self.forward(request, &target, slot).await,
            Err(rejection) => Err(rejection),
        };
        answered.unwrap_or_else(|rejection| {
            if let Rejection::Denied(denied) = &rejection {
                self.denials.add(denied.clone());
            }
            refusal(&rejection)
        })
    }

    async fn tunnel(
        &self,
        request: Request<Incoming>,
        target: &Target,
        slot: &Slot,
    ) -> Result<Response<Body>, Rejection> {
        let upstream = self.connect(target).await?;
        *slot.lock() = Some(Upstream::Tunnel(hyper::upgrade::on(request), upstream));
        Ok(Response::new(Body::Left(Full::default())))
    }

    async fn forward(
        &self,
        request: Request<Incoming>,
        target: &Target,
        slot: &Slot,
    ) -> Result<Response<Body>, Rejection> {
        let request =
            forwarded(request, target).ok_or(Rejection::Malformed("the URL has no path"))?;
        let failed = |error: hyper::Error| {
            let Target { host, port } = target;
            Rejection::Unreachable(format!("the exchange with `{host}:{port}` failed: {error}"))
        };
        let upstream = self.connect(target).await?;
        let (mut sender, connection) = hyper::client::conn::http1::Builder::new()
            .max_buf_size(MAX_HEAD_BYTES)
            .handshake(TokioIo::new(upstream))
            .await
            .map_err(failed)?;
        let connection = tokio::spawn(async move {
            // `sender` or the body's reader gets the error.
            let _ = connection.await;
        });
        *slot.lock() = Some(Upstream::Exchange {
            _task: AbortOnDropHandle::new(connection),
        });
        let response = sender.send_request(request).await.map_err(failed)?;
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            let reason = "the server switched protocols without being asked".to_owned();
            return Err(Rejection::Unreachable(reason));
        }
        Ok(returned(response).map(Body::Right))
    }

    /// Connects to an allowed host at a checked address.
    async fn connect(&self, target: &Target) -> Result<TcpStream, Rejection> {
        let Target { host, port } = target;
        let is_private = self.check_name(host, *port)?;
        let unreachable = |why: String| Rejection::Unreachable(format!("`{host}:{port}` {why}"));
        let resolved = self.in_time(self.settings.resolver.resolve(host)).await;
        let resolved = resolved.map_err(|error| unreachable(format!("has no address: {error}")))?;
        let addresses: Vec<SocketAddr> = resolved
            .into_iter()
            .map(|ip| SocketAddr::new(ip, *port))
            .collect();
        let is_exempt = |address: &SocketAddr| self.settings.exempt.contains(address);
        let denied = || {
            let reason = match is_private {
                true => "its name leads to this machine, its link or a metadata service, which are never reachable".to_owned(),
                false => format!(
                    "its name leads to an address that is not public, which only the user can allow, with `{host},private`, \
                     unless it is this machine's"
                ),
            };
            Rejection::Denied(Denied::new(host.as_str(), *port, reason))
        };
        let is_reachable = |address: &SocketAddr| {
            is_public(address.ip())
                || is_private && may_be_private_host(address.ip())
                || is_exempt(address)
        };
        if !addresses.iter().all(is_reachable) {
            return Err(denied());
        }
        let mut failure = unreachable("has no address".to_owned());
        for address in addresses.into_iter().take(MAX_ADDRESSES) {
            // Last, because this machine's addresses change.
            if is_own(address.ip()) && !is_exempt(&address) {
                return Err(denied());
            }
            match self.in_time(TcpStream::connect(address)).await {
                Ok(stream) => {
                    let _ = stream.set_nodelay(true);
                    return Ok(stream);
                }
                Err(error) => failure = unreachable(format!("can't be reached: {error}")),
            }
        }
        Err(failure)
    }

    /// Returns whether the addresses of an allowed host may be private.
    fn check_name(&self, host: &HostName, port: u16) -> Result<bool, Rejection> {
        let hosts = &self.settings.hosts;
        let mut allowing = hosts
            .iter()
            .filter(|pattern| pattern.matches(host, port))
            .peekable();
        let is_denied = hosts.iter().any(|pattern| pattern.denies(host, port));
        if allowing.peek().is_some() && !is_denied {
            return Ok(allowing.any(HostPattern::allows_private_addresses));
        }
        let is_named = |pattern: &HostPattern| !pattern.is_denied() && pattern.matches_name(host);
        let what = if !is_denied && hosts.iter().any(is_named) {
            "its port is"
        } else {
            "it is"
        };
        let reason = format!(
            "{what} not allowed; policy field network allows {}",
            self.allowed
        );
        Err(Rejection::Denied(Denied::new(host.as_str(), port, reason)))
    }

    async fn in_time<T>(
        &self,
        doing: impl Future<Output = std::io::Result<T>>,
    ) -> std::io::Result<T> {
        match timeout(self.settings.connect, doing).await {
            Ok(done) => done,
            Err(_) => Err(std::io::ErrorKind::TimedOut.into()),
        }
    }
}

fn refusal(rejection: &Rejection) -> Response<Body> {
    let text = rejection.to_string();
    let mut response = Response::new(Body::Left(Full::from(format!("{text}\n"))));
    *response.status_mut() = rejection.status();
    let headers = response.headers_mut();
    headers.insert(
        CONTENT_TYPE,
        HeaderValue::from_static("text/plain; charset=utf-8"),
    );
    headers.insert(CONNECTION, HeaderValue::from_static("close"));
    // pip and others display only the status line of a refused tunnel.
    let printable = |character: &char| matches!(character, ' '..='~');
    let phrase: String = text
        .chars()
        .filter(printable)
        .take(MAX_REASON_CHARS)
        .collect();
    if let Ok(phrase) = ReasonPhrase::try_from(phrase) {
        response.extensions_mut().insert(phrase);
    }
    response
}
