//! Scripted server: connections, routing and authentication.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use http::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use http::{HeaderMap, Method, Response, StatusCode};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use super::delivery::{self, Body};
use super::fault::{Fault, Reply, error_body};
use super::record::Record;
use super::request::Request;
use super::script::{Script, Usage};
use super::wire::{Answer, Api, Envelope};

/// Scripts per model and required API key of a [`ScriptedServer`].
#[derive(Debug, Clone)]
#[non_exhaustive]
#[must_use]
pub struct ServerOptions {
    script: Script,
    models: BTreeMap<String, Script>,
    api_key: Option<String>,
    record: bool,
}

impl ServerOptions {
    /// Creates options with `script` for every model without a script of its own.
    pub fn new(script: Script) -> Self {
        Self {
            script,
            models: BTreeMap::new(),
            api_key: None,
            record: true,
        }
    }

    /// Sets the script for `model`.
    pub fn model(mut self, model: impl Into<String>, script: Script) -> Self {
        self.models.insert(model.into(), script);
        self
    }

    /// Sets the API key. A request without it, as a bearer token or `x-api-key`, is answered with
    /// status 401 and not recorded.
    pub fn api_key(mut self, key: impl Into<String>) -> Self {
        self.api_key = Some(key.into());
        self
    }

    /// Disables the record of requests, so that the server's memory stays constant.
    pub fn without_record(mut self) -> Self {
        self.record = false;
        self
    }
}

impl From<Script> for ServerOptions {
    fn from(script: Script) -> Self {
        Self::new(script)
    }
}

/// Scripted server on a free loopback port. Dropping it closes the port and all connections.
#[derive(Debug)]
pub struct ScriptedServer {
    address: SocketAddr,
    record: Arc<Record>,
    // Aborts the server on drop.
    _task: JoinSet<io::Result<Infallible>>,
}

impl ScriptedServer {
    /// Starts a server on the current tokio runtime.
    ///
    /// # Errors
    /// If no loopback port can be bound.
    pub async fn start(options: impl Into<ServerOptions>) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let service = Arc::new(Service::new(options.into()));
        let record = Arc::clone(&service.record);
        let mut task = JoinSet::new();
        task.spawn(serve(listener, service));
        Ok(Self {
            address,
            record,
            _task: task,
        })
    }

    /// Returns the base URL for clients: `http://127.0.0.1:PORT/v1`.
    pub fn url(&self) -> String {
        format!("http://{}/v1", self.address)
    }

    /// Returns the requests that reached a script, in order of arrival.
    pub fn requests(&self) -> Vec<Request> {
        self.record.requests()
    }

    /// Waits, without a deadline, until `count` requests have reached a script.
    pub async fn received(&self, count: usize) {
        self.record.received(count).await;
    }

    /// Returns the total usage sent. An answer that was cut before its usage doesn't count.
    pub fn usage_sent(&self) -> Usage {
        self.record.usage()
    }
}

/// Serves on `listener` until `shutdown` is ready, then closes all connections. For servers that
/// run as a separate program.
///
/// # Errors
/// If `listener` fails to accept.
pub async fn serve_until(
    listener: TcpListener,
    options: impl Into<ServerOptions>,
    shutdown: impl Future<Output = ()>,
) -> io::Result<()> {
    let service = Arc::new(Service::new(options.into()));
    tokio::select! {
        () = shutdown => Ok(()),
        ended = serve(listener, service) => match ended? {},
    }
}

async fn serve(listener: TcpListener, service: Arc<Service>) -> io::Result<Infallible> {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let (stream, _) = accepted?;
                connections.spawn(serve_connection(stream, Arc::clone(&service)));
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

/// Answers the requests of one connection until either side closes it. Errors are ignored; the
/// client observes them.
async fn serve_connection(stream: TcpStream, service: Arc<Service>) {
    // A failure only costs latency.
    let _ = stream.set_nodelay(true);
    let answer = service_fn(|request| {
        let service = Arc::clone(&service);
        async move { service.answer(request).await }
    });
    let _ = http1::Builder::new()
        .serve_connection(TokioIo::new(stream), answer)
        .await;
}

#[derive(Debug)]
struct Service {
    options: ServerOptions,
    record: Arc<Record>,
}

impl Service {
    fn new(options: ServerOptions) -> Self {
        let record = Arc::new(Record::new(options.record));
        Self { options, record }
    }

    /// Answers one request. An error closes the connection without a response.
    async fn answer(&self, request: http::Request<Incoming>) -> io::Result<Response<Body>> {
        let (head, body) = request.into_parts();
        let path = head.uri.path();
        if !self.authorized(&head.headers) {
            return Ok(refusal(
                401,
                "Incorrect API key provided.",
                "invalid_api_key",
            ));
        }
        let path_in_version = path.strip_prefix("/v1").unwrap_or(path);
        match (&head.method, Api::from_path(path_in_version)) {
            (&Method::GET, None) if path_in_version == "/models" => {
                Ok(reply(&Reply::json(200, &self.models())))
            }
            (&Method::POST, Some(api)) => self.generate(api, head.headers, body).await,
            (method, _) => {
                let message = format!("There is no {method} {path} here.");
                Ok(refusal(404, &message, "unknown_url"))
            }
        }
    }

    async fn generate(
        &self,
        api: Api,
        headers: HeaderMap,
        body: Incoming,
    ) -> io::Result<Response<Body>> {
        let raw = body.collect().await.map_err(io::Error::other)?.to_bytes();
        let envelope: Envelope<'_> = match serde_json::from_slice(&raw) {
            Ok(envelope) => envelope,
            Err(error) => {
                return Ok(refusal(
                    400,
                    &format!("Invalid body: {error}."),
                    Value::Null,
                ));
            }
        };
        let turn_index = envelope.turn(api);
        let request = self
            .record
            .receive(headers, raw.clone(), envelope.run(), turn_index);
        if let Some(id) = envelope.unknown_response() {
            let message = format!("Previous response with id '{id}' not found.");
            return Ok(refusal(400, &message, "previous_response_not_found"));
        }
        let options = &self.options;
        let script = options
            .models
            .get(&*envelope.model)
            .unwrap_or(&options.script);
        let Some(turn) = script.answer(&request) else {
            let turns = script.len();
            let message = format!(
                "The script has {turns} turns; turn {turn_index}, counted from 0, was asked for."
            );
            return Ok(refusal(400, &message, Value::Null));
        };
        if !turn.latency.is_zero() {
            tokio::time::sleep(turn.latency).await;
        }
        let fault = turn.fault_on(request.attempt);
        match fault {
            Some(Fault::Close) => return Err(io::Error::other("a scripted close")),
            Some(Fault::Hang) => std::future::pending().await,
            Some(Fault::Reply(scripted)) => return Ok(reply(scripted)),
            _ => {}
        }
        let attempt = request.attempt;
        let answer = Answer {
            api,
            envelope: &envelope,
            turn: &turn,
            style: script.style,
            turn_index,
            attempt,
        };
        let body = delivery::body(&answer, fault, Arc::clone(&self.record));
        let kind = match envelope.streams() {
            true => "text/event-stream",
            false => "application/json",
        };
        let mut response = Response::new(body);
        response
            .headers_mut()
            .insert(CONTENT_TYPE, HeaderValue::from_static(kind));
        Ok(response)
    }

    fn authorized(&self, headers: &HeaderMap) -> bool {
        self.options.api_key.as_ref().is_none_or(|key| {
            let header = |name: &str| headers.get(name)?.to_str().ok();
            let bearer = header(AUTHORIZATION.as_str()).and_then(|it| it.strip_prefix("Bearer "));
            bearer == Some(key) || header("x-api-key") == Some(key)
        })
    }

    fn models(&self) -> Value {
        let models = self.options.models.keys();
        let models: Vec<Value> = models
            .map(|id| json!({"id": id, "object": "model", "created": 0, "owned_by": "script"}))
            .collect();
        json!({"object": "list", "data": models})
    }
}

fn reply(scripted: &Reply) -> Response<Body> {
    let mut response = Response::builder().status(scripted.status);
    for (name, value) in &scripted.headers {
        response = response.header(name, value);
    }
    response
        .body(delivery::complete(scripted.body.clone()))
        .unwrap_or_else(|error| {
            let message = format!("Invalid scripted reply: {error}.");
            let mut response = Response::new(delivery::complete(message.into()));
            *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
            response
        })
}

fn refusal(status: u16, message: &str, code: impl Into<Value>) -> Response<Body> {
    let body = error_body(message, "invalid_request_error", code);
    reply(&Reply::json(status, &body))
}
