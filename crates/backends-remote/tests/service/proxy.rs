//! A proxy between the backend and a real server that injects faults.

use std::convert::Infallible;
use std::io;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, BodyStream, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper::{HeaderMap, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use crate::support::{DEADLINE, KEY};

type Body = UnsyncBoxBody<Bytes, io::Error>;
type Tasks = Arc<Mutex<JoinSet<()>>>;

/// The handling of a request.
pub(crate) enum Fault {
    /// Forwards the request.
    None,
    /// Responds without forwarding the request.
    Respond(Response<String>),
    /// Drops the response.
    DropResponse,
    /// Truncates the response to half of its body.
    TruncateResponse,
    /// Changes the response's body.
    ChangeResponse(fn(String) -> String),
    /// Delays the request until the signal.
    DelayUntil(CancellationToken),
    /// Breaks the connection during the response, at the signal.
    BreakAt(CancellationToken),
    /// Stalls the response from the signal on.
    StallAt(CancellationToken),
}

/// A received request.
#[derive(Clone, Debug)]
pub(crate) struct ReceivedRequest {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) query: String,
    pub(crate) headers: HeaderMap,
    pub(crate) at: Instant,
    /// Whether the server has begun its response.
    pub(crate) is_answered: bool,
}

impl ReceivedRequest {
    pub(crate) fn is_creation(&self) -> bool {
        self.method == "POST" && self.path.ends_with("/sandboxes")
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        let value = self.headers.get(name).and_then(|value| value.to_str().ok());
        value.unwrap_or_default()
    }
}

struct Shared {
    upstream: String,
    requests: Mutex<Vec<ReceivedRequest>>,
    plan: Box<dyn Fn(&ReceivedRequest) -> Fault + Send + Sync>,
    tasks: Tasks,
}

pub(crate) struct Proxy {
    pub(crate) url: String,
    shared: Arc<Shared>,
    _accepting: JoinSet<()>,
}

impl Proxy {
    /// Starts a proxy of the server at `url`.
    pub(crate) async fn start(
        url: &str,
        plan: impl Fn(&ReceivedRequest) -> Fault + Send + Sync + 'static,
    ) -> Self {
        Self::start_with_tls(url, None, plan).await
    }

    pub(crate) async fn start_with_tls(
        url: &str,
        tls: Option<TlsAcceptor>,
        plan: impl Fn(&ReceivedRequest) -> Fault + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let scheme = if tls.is_some() { "https" } else { "http" };
        let own = format!("{scheme}://{}", listener.local_addr().unwrap());
        let shared = Arc::new(Shared {
            upstream: url.trim_start_matches("http://").to_owned(),
            requests: Mutex::default(),
            plan: Box::new(plan),
            tasks: Tasks::default(),
        });
        let mut accepting = JoinSet::new();
        let serving = Arc::clone(&shared);
        accepting.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (tls, shared) = (tls.clone(), Arc::clone(&serving));
                serving.tasks.lock().unwrap().spawn(async move {
                    match tls {
                        None => serve(stream, shared).await,
                        // A client that doesn't trust the certificate disconnects.
                        Some(tls) => {
                            if let Ok(stream) = tls.accept(stream).await {
                                serve(stream, shared).await;
                            }
                        }
                    }
                });
            }
        });
        Self {
            url: own,
            shared,
            _accepting: accepting,
        }
    }

    /// Returns the matching requests received so far.
    pub(crate) fn requests(
        &self,
        matches: impl Fn(&ReceivedRequest) -> bool,
    ) -> Vec<ReceivedRequest> {
        let requests = self.shared.requests.lock().unwrap();
        requests
            .iter()
            .filter(|request| matches(request))
            .cloned()
            .collect()
    }

    /// Waits for a number of matching requests.
    pub(crate) async fn wait_for(
        &self,
        number: usize,
        matches: impl Fn(&ReceivedRequest) -> bool,
    ) -> Vec<ReceivedRequest> {
        let deadline = Instant::now() + DEADLINE;
        loop {
            let requests = self.requests(&matches);
            if requests.len() >= number {
                return requests;
            }
            assert!(Instant::now() < deadline, "only {requests:?}");
            sleep(std::time::Duration::from_millis(5)).await;
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.tasks.lock().unwrap().abort_all();
    }
}

async fn serve(stream: impl AsyncRead + AsyncWrite + Unpin, shared: Arc<Shared>) {
    let service = service_fn(|request| answer(request, Arc::clone(&shared)));
    let connection =
        hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service);
    // Injected faults cause errors here.
    let _ = connection.await;
}

async fn answer(request: Request<Incoming>, shared: Arc<Shared>) -> io::Result<Response<Body>> {
    let received = ReceivedRequest {
        method: request.method().to_string(),
        path: request.uri().path().to_owned(),
        query: request.uri().query().unwrap_or_default().to_owned(),
        headers: request.headers().clone(),
        at: Instant::now(),
        is_answered: false,
    };
    let fault = (shared.plan)(&received);
    let number = {
        let mut all = shared.requests.lock().unwrap();
        all.push(received);
        all.len() - 1
    };
    if let Fault::Respond(response) = fault {
        // As the server does, read the whole request.
        let _ = request.into_body().collect().await;
        return Ok(response.map(|body| whole(body.into())));
    }
    if let Fault::DelayUntil(until) = &fault {
        until.cancelled().await;
    }
    let request = request.map(|body| body.map_err(io::Error::other).boxed_unsync());
    let response = send_request(&shared.upstream, request, &shared.tasks).await?;
    shared.requests.lock().unwrap()[number].is_answered = true;
    let (mut head, body) = response.into_parts();
    let body = match fault {
        Fault::DropResponse => return Err(lost()),
        Fault::TruncateResponse => {
            let bytes = body.collect().await.map_err(io::Error::other)?.to_bytes();
            let half = bytes.slice(..bytes.len() / 2);
            let pieces = stream::iter([Ok(Frame::data(half)), Err(lost())]);
            StreamBody::new(pieces).boxed_unsync()
        }
        Fault::ChangeResponse(change) => {
            let bytes = body.collect().await.map_err(io::Error::other)?.to_bytes();
            let text = change(String::from_utf8(bytes.to_vec()).unwrap());
            head.headers.remove("content-length");
            whole(text.into())
        }
        Fault::BreakAt(signal) => forward_until(body, signal, true),
        Fault::StallAt(signal) => forward_until(body, signal, false),
        _ => body.map_err(io::Error::other).boxed_unsync(),
    };
    Ok(Response::from_parts(head, body))
}

/// Forwards a body until `signal`, then breaks the connection or stalls.
fn forward_until(body: Incoming, signal: CancellationToken, breaks: bool) -> Body {
    let pieces = stream::unfold(
        Some((BodyStream::new(body), signal)),
        move |state| async move {
            let (mut body, signal) = state?;
            tokio::select! {
                biased;
                () = signal.cancelled() => match breaks {
                    true => Some((Err(lost()), None)),
                    false => std::future::pending().await,
                },
                frame = body.next() => {
                    Some((frame?.map_err(io::Error::other), Some((body, signal))))
                }
            }
        },
    );
    StreamBody::new(pieces).boxed_unsync()
}

fn lost() -> io::Error {
    io::Error::other("lost on purpose")
}

fn whole(bytes: Bytes) -> Body {
    Full::new(bytes)
        .map_err(|never: Infallible| match never {})
        .boxed_unsync()
}

/// Sends a request over a new connection.
async fn send_request(
    address: &str,
    request: Request<Body>,
    tasks: &Tasks,
) -> io::Result<Response<Incoming>> {
    let stream = TcpStream::connect(address).await?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .map_err(io::Error::other)?;
    tasks.lock().unwrap().spawn(async move {
        let _ = connection.await;
    });
    sender.send_request(request).await.map_err(io::Error::other)
}

/// Calls the server's API without a proxy.
pub(crate) async fn call_api(
    url: &str,
    method: &str,
    path: &str,
    body: Value,
) -> (StatusCode, Value) {
    let address = url.trim_start_matches("http://");
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("host", address)
        .header("x-api-key", KEY)
        .header("content-type", "application/json")
        .body(whole(body.to_string().into()))
        .unwrap();
    let tasks = Tasks::default();
    let response = send_request(address, request, &tasks).await.unwrap();
    let status = response.status();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, serde_json::from_slice(&body).unwrap_or_default())
}

/// Returns a fault with this response.
pub(crate) fn respond(status: u16, headers: &[(&str, &str)], body: &str) -> Fault {
    let mut response = Response::builder()
        .status(status)
        .header("content-type", "application/json");
    for (name, value) in headers {
        response = response.header(*name, *value);
    }
    Fault::Respond(response.body(body.to_owned()).unwrap())
}
