//! What is served of one sandbox: files over plain HTTP, processes and directories over Connect RPC.
//!
//! A request got here because its headers or its host name a sandbox ([`crate::address`]), or because
//! the signature in its address was made with that sandbox's token.

mod fault;
pub(crate) mod files;
mod filesystem;
mod inside;
mod metadata;
mod path;
mod process;
mod rpc;
pub(crate) mod usage;

use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use axum::Json;
use axum::body::{Body, HttpBody as _};
use axum::response::{IntoResponse, Response};
use futures_util::{StreamExt as _, stream};
use http::{HeaderValue, Method, Request, StatusCode, header};
use serde_json::json;

use self::fault::{Code, Fault, Gone, plain};
use self::files::Query;
use self::files::signature::{self, Verdict};
pub(crate) use self::filesystem::Watchers;
pub(crate) use self::metadata::Metadata;
pub(crate) use self::process::Commands;
use self::rpc::Shape;
use crate::address::TOKEN;
use crate::fleet::{Fleet, Live, Member, Standing};
use crate::keys;

/// The port of a sandbox that all this is served on.
const PORT: u16 = 49983;

/// How long a sandbox lives that was resumed because something was sent to it.
const RESUMED: Duration = Duration::from_secs(300);

/// Answers a request to a port of a sandbox.
pub(crate) async fn serve(
    fleet: &Arc<Fleet>,
    id: &str,
    port: u16,
    request: Request<Body>,
) -> Response {
    if request.method() == Method::OPTIONS {
        return open_to_all(StatusCode::NO_CONTENT.into_response());
    }
    let Some(member) = fleet.find(id) else {
        return open_to_all(not_found(id));
    };
    let is_paused = matches!(member.standing(), Standing::Paused(_));
    if is_paused && member.facts.asked.auto_resume && is_allowed(&member, &request).is_ok() {
        // Where it can't be, it is not found.
        let _ = fleet.connect(&member, RESUMED).await;
    }
    let Some(live) = member.live() else {
        return open_to_all(not_found(id));
    };
    if port != PORT {
        return open_to_all(closed_port(id, port));
    }
    if let Err(fault) = is_allowed(&member, &request) {
        return open_to_all(fault.into_plain());
    }
    if let Err(fault) = check_user(&request, fleet) {
        return open_to_all(match request.uri().path() {
            "/files" => fault.into_plain(),
            _ if rpc::check(&request, Shape::Streamed).is_ok() => rpc::refused(fault),
            _ => fault.into_rpc(),
        });
    }
    let answered = tokio::select! {
        response = route(&member, &live, request) => response,
        () = live.cut.cancelled() => not_found(id),
    };
    if answered.extensions().get::<Gone>().is_some() {
        live.gone.cancel();
    }
    if live.gone.is_cancelled() {
        return open_to_all(not_found(id));
    }
    open_to_all(breakable(answered, &live))
}

/// Answers a request that names no sandbox: which one is meant is told by its token, or by the
/// signature in its address.
pub(crate) async fn serve_unnamed(fleet: &Arc<Fleet>, request: Request<Body>) -> Response {
    let query = Query::of(request.uri());
    let operation = files::operation(request.method());
    let means = |member: &&Arc<Member>| {
        let token = member.facts.token.expose();
        has_token(&request, token)
            || operation.is_some_and(|operation| {
                signature::check(&query, operation, token) != Verdict::Wrong
            })
    };
    let id = fleet
        .members()
        .iter()
        .find(means)
        .map(|member| member.facts.id.clone());
    match id {
        Some(id) => serve(fleet, &id, PORT, request).await,
        // It was one of a sandbox that is over.
        None if request.headers().contains_key(TOKEN) => open_to_all(not_found("")),
        None => open_to_all(unauthorized().into_plain()),
    }
}

async fn route(member: &Member, live: &Arc<Live>, request: Request<Body>) -> Response {
    let path = request.uri().path().to_owned();
    let method = request.method().clone();
    if let Some(call) = path.strip_prefix("/process.Process/") {
        return process::call(live, call, request).await;
    }
    if let Some(call) = path.strip_prefix("/filesystem.Filesystem/") {
        return filesystem::call(live, call, request).await;
    }
    match (method, path.as_str()) {
        (Method::GET, "/health") => StatusCode::NO_CONTENT.into_response(),
        (_, "/files") => files::serve(live, Query::of(request.uri()), request).await,
        (Method::GET, "/envs") => {
            let variables = member.facts.environment();
            let shown = variables.iter().map(|(name, value)| (name, value.expose()));
            Json(shown.collect::<std::collections::BTreeMap<_, _>>()).into_response()
        }
        (Method::GET, "/metrics") => match usage(live).await {
            Ok(usage) => Json(json!({
                "ts": usage.at.as_second(),
                "cpu_count": usage.cpu_count,
                "cpu_used_pct": usage.cpu_used_percent,
                "mem_total": usage.memory_total,
                "mem_used": usage.memory_used,
                "mem_cache": usage.memory_cache,
                "disk_used": usage.disk_used,
                "disk_total": usage.disk_total,
            }))
            .into_response(),
            Err(fault) => fault.into_plain(),
        },
        (Method::GET | Method::POST, _) => plain(StatusCode::NOT_FOUND, "there is no such path"),
        _ => StatusCode::METHOD_NOT_ALLOWED.into_response(),
    }
}

/// What a sandbox uses.
pub(crate) async fn usage(live: &Live) -> Result<usage::Usage, Fault> {
    let sandbox = live.visit()?;
    usage::measure(&*sandbox).await
}

/// Whether the sender may do this.
fn is_allowed(member: &Member, request: &Request<Body>) -> Result<(), Fault> {
    let path = request.uri().path();
    if path == "/health" && request.method() == Method::GET {
        return Ok(());
    }
    let token = member.facts.token.expose();
    if has_token(request, token) {
        return Ok(());
    }
    let verdict = match files::operation(request.method()) {
        Some(operation) if path == "/files" => {
            signature::check(&Query::of(request.uri()), operation, token)
        }
        _ => Verdict::Wrong,
    };
    match verdict {
        Verdict::Good => Ok(()),
        Verdict::Expired => Err(Fault::new(
            Code::Unauthenticated,
            "signature is already expired",
        )),
        Verdict::Wrong => Err(unauthorized()),
    }
}

fn has_token(request: &Request<Body>, token: &str) -> bool {
    let given = request
        .headers()
        .get(TOKEN)
        .and_then(|given| given.to_str().ok());
    given.is_some_and(|given| keys::same(given, token))
}

fn unauthorized() -> Fault {
    let message =
        "unauthorized access, please provide a valid access token or method signing if supported";
    Fault::new(Code::Unauthenticated, message)
}

/// Refuses another user than the one there is.
fn check_user(request: &Request<Body>, fleet: &Fleet) -> Result<(), Fault> {
    let user = match request.uri().path() {
        "/files" => Query::of(request.uri())
            .username
            .filter(|user| !user.is_empty()),
        _ => basic_user(request),
    };
    let own = &fleet.settings.user;
    match user {
        Some(user) if user != *own => {
            let message = format!("invalid username: '{user}' (everything here runs as '{own}')");
            Err(Fault::new(Code::Unauthenticated, message))
        }
        _ => Ok(()),
    }
}

/// The user that `Authorization: Basic` names, where it does.
fn basic_user(request: &Request<Body>) -> Option<String> {
    let header = request
        .headers()
        .get(header::AUTHORIZATION)?
        .to_str()
        .ok()?;
    let encoded = header
        .strip_prefix("Basic ")
        .or_else(|| header.strip_prefix("basic "))?;
    let decoded = rpc::json::decode_base64(encoded)?;
    let text = String::from_utf8(decoded).ok()?;
    let user = text.split(':').next().unwrap_or_default();
    (!user.is_empty()).then(|| user.to_owned())
}

/// Has the body of an answer break off when the sandbox is over, so that nobody takes it for whole.
fn breakable(response: Response, live: &Live) -> Response {
    let (head, body) = response.into_parts();
    if body.size_hint().exact().is_some() {
        return Response::from_parts(head, body);
    }
    let mut cut = Box::pin(live.cut.clone().cancelled_owned());
    let mut data = body.into_data_stream();
    let body = stream::poll_fn(move |cx| {
        if cut.as_mut().poll(cx).is_ready() {
            let broken = std::io::Error::from(std::io::ErrorKind::ConnectionReset);
            return Poll::Ready(Some(Err(axum::Error::new(broken))));
        }
        data.poll_next_unpin(cx)
    });
    Response::from_parts(head, Body::from_stream(body))
}

/// Pages of any origin may ask: what protects a sandbox is its token.
fn open_to_all(mut response: Response) -> Response {
    let headers = response.headers_mut();
    for (name, value) in [
        (header::ACCESS_CONTROL_ALLOW_ORIGIN, "*"),
        (header::ACCESS_CONTROL_ALLOW_METHODS, "*"),
        (header::ACCESS_CONTROL_ALLOW_HEADERS, "*"),
        (header::ACCESS_CONTROL_EXPOSE_HEADERS, "*"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

fn not_found(id: &str) -> Response {
    let message = "The sandbox was not found";
    let body = json!({ "sandboxId": id, "message": message, "code": 502 });
    (StatusCode::BAD_GATEWAY, Json(body)).into_response()
}

fn closed_port(id: &str, port: u16) -> Response {
    let message = "The sandbox is running but port is not open";
    let body = json!({ "sandboxId": id, "message": message, "port": port, "code": 502 });
    (StatusCode::BAD_GATEWAY, Json(body)).into_response()
}
