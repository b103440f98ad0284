//! The code interpreter of one sandbox: contexts that keep variables, and executions as streams of JSON lines.
//!
//! Requests come from [`crate::gateway`], which has authorized them.

mod events;
mod execute;
mod process;

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::response::{IntoResponse as _, Response};
use http::{Method, Request, StatusCode};
use serde::de::DeserializeOwned;

use crate::accounts::MemoryCharge;
use crate::body;
use crate::envd::RunningSandbox;
use crate::envd::contexts::{ContextOptions, Contexts};
use crate::envd::error::{Result, plain};
use crate::envd::rpc;
use crate::tasks::Interrupted;

/// Maximum size of a request's body.
const BODY_BYTES: usize = 8 << 20;
/// Bytes charged for each byte of a body: its text, the code, and the copy that is sent to the interpreter.
const BODY_WEIGHT: usize = 3;

/// Answers a request.
pub(crate) async fn route(
    live: &Arc<RunningSandbox>,
    contexts: Arc<Contexts>,
    request: Request<Body>,
) -> Response {
    let path = request.uri().path().to_owned();
    let segments: Vec<&str> = path.split('/').skip(1).collect();
    let answered = match (request.method(), segments.as_slice()) {
        (&Method::GET, ["health"]) => Ok("OK".into_response()),
        (&Method::POST, ["execute"]) => execute::execute(live, contexts, request.into_body()).await,
        (&Method::GET, ["contexts"]) => Ok(Json(contexts.list()).into_response()),
        (&Method::POST, ["contexts"]) => create(live, &contexts, request.into_body()).await,
        (&Method::DELETE, ["contexts", id]) => {
            let id = (*id).to_owned();
            finish(live, async move { contexts.remove(&id).await }).await
        }
        (&Method::POST, ["contexts", id, "restart"]) => {
            let id = (*id).to_owned();
            finish(live, async move { contexts.restart(&id).await }).await
        }
        _ => Ok(plain(StatusCode::NOT_FOUND, "path not found")),
    };
    answered.unwrap_or_else(|error| error.into_plain())
}

/// Ends a context, also if the client disconnects meanwhile: a context that is left halfway interrupts all its code.
async fn finish(
    live: &RunningSandbox,
    ending: impl Future<Output = Result<()>> + Send + 'static,
) -> Result<Response> {
    let (ended, sandbox_use) = (live.ended.clone(), live.acquire()?);
    let finished = live.tasks.finish(async move {
        let result = ended.run_until_cancelled(ending).await;
        // Kept until the context has ended.
        drop(sandbox_use);
        result
    });
    finished.await.flatten().ok_or(Interrupted)??;
    Ok(StatusCode::NO_CONTENT.into_response())
}

async fn create(live: &RunningSandbox, contexts: &Contexts, body: Body) -> Result<Response> {
    let (options, _charge) = read::<ContextOptions>(live, body).await?;
    let created = contexts.create(options, &live.home)?;
    Ok((StatusCode::CREATED, Json(created)).into_response())
}

/// Reads a JSON body and its charge.
async fn read<T: DeserializeOwned>(live: &RunningSandbox, body: Body) -> Result<(T, MemoryCharge)> {
    let mut charge = live.account.charge();
    let idle = live.commands.idle_timeout;
    let bytes = body::read_all(body, BODY_BYTES, idle, &mut charge, BODY_WEIGHT).await?;
    Ok((rpc::read(&bytes)?, charge))
}
