//! What stands between the backend and a real server, and goes wrong as it is told.

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

/// What becomes of a request.
pub(crate) enum Fate {
    Passed,
    /// The server never sees it.
    Answered(Response<String>),
    /// The server answers, and nobody gets to know.
    Lost,
    /// The server answers, and half of it arrives.
    Halved,
    /// The server answers, and something else arrives.
    Changed(fn(String) -> String),
    /// It is held back until then.
    Held(CancellationToken),
    /// The server answers, and the connection breaks then.
    BrokenAt(CancellationToken),
    /// The server answers, and nothing more comes from then on.
    SilentAt(CancellationToken),
}

/// A request that came.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) query: String,
    pub(crate) headers: HeaderMap,
    pub(crate) at: Instant,
    /// The server has begun to answer it.
    pub(crate) is_answered: bool,
}

impl Seen {
    pub(crate) fn makes_a_sandbox(&self) -> bool {
        self.method == "POST" && self.path.ends_with("/sandboxes")
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        let value = self.headers.get(name).and_then(|value| value.to_str().ok());
        value.unwrap_or_default()
    }
}

struct Shared {
    upstream: String,
    seen: Mutex<Vec<Seen>>,
    plan: Box<dyn Fn(&Seen) -> Fate + Send + Sync>,
    tasks: Tasks,
}

pub(crate) struct Proxy {
    pub(crate) url: String,
    shared: Arc<Shared>,
    _accepting: JoinSet<()>,
}

impl Proxy {
    /// Stands before the server at `url`.
    pub(crate) async fn start(
        url: &str,
        plan: impl Fn(&Seen) -> Fate + Send + Sync + 'static,
    ) -> Self {
        Self::with(url, None, plan).await
    }

    pub(crate) async fn with(
        url: &str,
        tls: Option<TlsAcceptor>,
        plan: impl Fn(&Seen) -> Fate + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let scheme = if tls.is_some() { "https" } else { "http" };
        let own = format!("{scheme}://{}", listener.local_addr().unwrap());
        let shared = Arc::new(Shared {
            upstream: url.trim_start_matches("http://").to_owned(),
            seen: Mutex::default(),
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
                        // Who does not trust us leaves.
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

    /// The requests that are of interest, so far.
    pub(crate) fn seen(&self, is_it: impl Fn(&Seen) -> bool) -> Vec<Seen> {
        let seen = self.shared.seen.lock().unwrap();
        seen.iter().filter(|seen| is_it(seen)).cloned().collect()
    }

    /// Waits until so many of them have come.
    pub(crate) async fn wait_for(&self, number: usize, is_it: impl Fn(&Seen) -> bool) -> Vec<Seen> {
        let deadline = Instant::now() + DEADLINE;
        loop {
            let seen = self.seen(&is_it);
            if seen.len() >= number {
                return seen;
            }
            assert!(Instant::now() < deadline, "only {seen:?}");
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
    // What is told to break does.
    let _ = connection.await;
}

async fn answer(request: Request<Incoming>, shared: Arc<Shared>) -> io::Result<Response<Body>> {
    let seen = Seen {
        method: request.method().to_string(),
        path: request.uri().path().to_owned(),
        query: request.uri().query().unwrap_or_default().to_owned(),
        headers: request.headers().clone(),
        at: Instant::now(),
        is_answered: false,
    };
    let fate = (shared.plan)(&seen);
    let number = {
        let mut all = shared.seen.lock().unwrap();
        all.push(seen);
        all.len() - 1
    };
    if let Fate::Answered(response) = fate {
        // The server would have read it.
        let _ = request.into_body().collect().await;
        return Ok(response.map(|body| whole(body.into())));
    }
    if let Fate::Held(until) = &fate {
        until.cancelled().await;
    }
    let request = request.map(|body| body.map_err(io::Error::other).boxed_unsync());
    let response = ask(&shared.upstream, request, &shared.tasks).await?;
    shared.seen.lock().unwrap()[number].is_answered = true;
    let (mut head, body) = response.into_parts();
    let body = match fate {
        Fate::Lost => return Err(lost()),
        Fate::Halved => {
            let bytes = body.collect().await.map_err(io::Error::other)?.to_bytes();
            let half = bytes.slice(..bytes.len() / 2);
            let pieces = stream::iter([Ok(Frame::data(half)), Err(lost())]);
            StreamBody::new(pieces).boxed_unsync()
        }
        Fate::Changed(change) => {
            let bytes = body.collect().await.map_err(io::Error::other)?.to_bytes();
            let text = change(String::from_utf8(bytes.to_vec()).unwrap());
            head.headers.remove("content-length");
            whole(text.into())
        }
        Fate::BrokenAt(then) => until(body, then, true),
        Fate::SilentAt(then) => until(body, then, false),
        _ => body.map_err(io::Error::other).boxed_unsync(),
    };
    Ok(Response::from_parts(head, body))
}

/// Passes a body on until `then`, and breaks it or keeps quiet.
fn until(body: Incoming, then: CancellationToken, breaks: bool) -> Body {
    let pieces = stream::unfold(
        Some((BodyStream::new(body), then)),
        move |state| async move {
            let (mut body, then) = state?;
            tokio::select! {
                biased;
                () = then.cancelled() => match breaks {
                    true => Some((Err(lost()), None)),
                    false => std::future::pending().await,
                },
                frame = body.next() => {
                    Some((frame?.map_err(io::Error::other), Some((body, then))))
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

/// Asks a server, over a connection of its own.
async fn ask(
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

/// Asks the API of the server itself, past any proxy.
pub(crate) async fn api(url: &str, method: &str, path: &str, body: Value) -> (StatusCode, Value) {
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
    let response = ask(address, request, &tasks).await.unwrap();
    let status = response.status();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, serde_json::from_slice(&body).unwrap_or_default())
}

/// An answer of our own.
pub(crate) fn refusal(status: u16, headers: &[(&str, &str)], body: &str) -> Fate {
    let mut response = Response::builder()
        .status(status)
        .header("content-type", "application/json");
    for (name, value) in headers {
        response = response.header(*name, *value);
    }
    Fate::Answered(response.body(body.to_owned()).unwrap())
}
