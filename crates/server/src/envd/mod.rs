//! The services of one sandbox: files over plain HTTP, processes and directories over Connect RPC.
//!
//! Requests come from [`crate::gateway`], which has authorized them.

mod access;
mod commands;
pub(crate) mod contexts;
mod directories;
pub(crate) mod error;
pub(crate) mod files;
mod filesystem;
mod helper;
mod metadata;
mod path;
mod process;
pub(crate) mod rpc;
mod running;
pub(crate) mod usage;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::Poll;

use axum::Json;
use axum::body::{Body, HttpBody as _};
use axum::response::{IntoResponse as _, Response};
use cantle_core::secret::SecretText;
use futures_util::{StreamExt as _, stream};
use http::{Method, Request, StatusCode};

pub(crate) use self::access::SandboxUse;
use self::error::{EnvdError, SandboxGone, plain};
use self::files::FileQuery;
use self::rpc::LargeMessage;
pub(crate) use self::running::RunningSandbox;

/// Serves an authorized request by `answer`, which ends with the sandbox. Returns `None` if the sandbox has ended.
pub(crate) async fn serve(
    live: &Arc<RunningSandbox>,
    answer: impl Future<Output = Response>,
) -> Option<Response> {
    let answered = tokio::select! {
        response = answer => response,
        () = live.ended.cancelled() => return None,
    };
    if answered.extensions().get::<SandboxGone>().is_some() {
        live.gone.cancel();
    }
    (!live.gone.is_cancelled()).then(|| abort_with_sandbox(answered, live))
}

/// Answers a request; `environment` returns the variables of every command.
pub(crate) async fn route(
    live: &Arc<RunningSandbox>,
    environment: impl FnOnce() -> BTreeMap<String, SecretText>,
    request: Request<Body>,
) -> Response {
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
        (_, "/files") => files::serve(live, FileQuery::parse(request.uri()), request).await,
        (Method::GET, "/envs") => {
            let variables = environment().into_iter();
            let shown = variables.map(|(name, value)| (name, value.expose().to_owned()));
            let shown: BTreeMap<String, String> = shown.collect();
            let size_bytes = shown.iter().map(|(name, it)| name.len() + it.len()).sum();
            let message = LargeMessage::new(shown, size_bytes, live.account.charge()).await;
            message.map_or_else(EnvdError::into_plain, LargeMessage::into_response)
        }
        (Method::GET, "/metrics") => match usage::measure(live).await {
            Ok(usage) => Json(usage).into_response(),
            Err(error) => error.into_plain(),
        },
        (Method::GET | Method::POST, _) => plain(StatusCode::NOT_FOUND, "path not found"),
        _ => StatusCode::METHOD_NOT_ALLOWED.into_response(),
    }
}

/// Ends a streamed body when the sandbox ends: a stream of messages with an error, and any other by breaking
/// it off, so that a client can't mistake it for complete.
fn abort_with_sandbox(response: Response, live: &RunningSandbox) -> Response {
    let (head, body) = response.into_parts();
    if body.size_hint().exact().is_some() {
        return Response::from_parts(head, body);
    }
    let mut ended = Some(Box::pin(live.ended.clone().cancelled_owned()));
    let mut data = body.into_data_stream();
    let is_stream = rpc::is_stream(&head.headers);
    let body = stream::poll_fn(move |cx| {
        let Some(ended_now) = &mut ended else {
            return Poll::Ready(None);
        };
        if ended_now.as_mut().poll(cx).is_ready() {
            ended = None;
            if is_stream {
                return Poll::Ready(Some(Ok(rpc::sandbox_ended())));
            }
            let reset = std::io::Error::from(std::io::ErrorKind::ConnectionReset);
            return Poll::Ready(Some(Err(axum::Error::new(reset))));
        }
        data.poll_next_unpin(cx)
    });
    Response::from_parts(head, Body::from_stream(body))
}
