//! One execution of code.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::body::Body;
use axum::response::{IntoResponse as _, Response};
use cantle_core::code::{CodeError, CodeRequest};
use cantle_core::sandbox::SandboxErrorKind;
use futures_util::stream;
use http::header;
use serde::Deserialize;

use super::events::Events;
use super::{process, read};
use crate::envd::RunningSandbox;
use crate::envd::contexts::{Contexts, Language};
use crate::envd::error::{EnvdError, Result};

/// A request to execute code.
#[derive(Deserialize)]
struct ExecuteRequest {
    code: String,
    context_id: Option<String>,
    language: Option<String>,
    env_vars: Option<BTreeMap<String, String>>,
}

/// Executes code; the response is its events. The end of the connection interrupts the code.
pub(super) async fn execute(
    live: &Arc<RunningSandbox>,
    contexts: Arc<Contexts>,
    body: Body,
) -> Result<Response> {
    let permit = Arc::clone(&contexts.executions).try_acquire_owned();
    let permit = permit.map_err(|_| {
        let message = "the sandbox executes too much code at once: wait for an execution to end";
        EnvdError::exhausted(message)
    })?;
    let (request, charge) = read::<ExecuteRequest>(live, body).await?;
    let context = contexts.select(request.context_id.as_deref(), request.language.as_deref())?;
    let sandbox_use = live.acquire()?;
    let lease = match context.info.language {
        Language::Python => context.take_descriptors(&live.account).map(|()| None)?,
        _ => Some(live.account.take_descriptors()?),
    };
    let cancellation = context.ended.child_token();
    let idle = live.commands.idle_timeout;
    let (mut events, lines) = Events::new(&live.account, idle, cancellation.clone());
    let id = context.info.id.as_str();
    let mut code = CodeRequest::new(id, request.code, live.max_execution, cancellation.clone());
    code.directory = Some(context.info.cwd.clone());
    code.environment = request.env_vars.unwrap_or_default();
    let gone = live.gone.clone();
    live.spawn(async move {
        events.started(context.next_number()).await;
        let executed = match context.info.language {
            Language::Python => contexts.session.execute(code, &mut events).await,
            language => process::run(&*sandbox_use, language, code, &mut events).await,
        };
        match executed {
            Ok(mut end) => {
                let error = end.error.as_ref();
                let lost = error.and_then(|error| context.lost_variables(error));
                end.notes.extend(lost);
                events.finish(end.error, &end.notes).await;
            }
            Err(error) if error.kind() == SandboxErrorKind::Gone => {
                gone.cancel();
                events.abort().await;
            }
            Err(error) => {
                let error = CodeError::new("SandboxError", error.to_string());
                events.finish(Some(error), &[]).await;
            }
        }
        contexts.end_if_removed(&context.info.id).await;
        // Kept until the code has ended.
        drop((contexts, sandbox_use, lease, permit, charge));
    });
    let guard = cancellation.drop_guard();
    let lines = stream::unfold((lines, guard), |(mut lines, guard)| async move {
        let line = lines.recv().await?;
        Some((line, (lines, guard)))
    });
    let kind = [(header::CONTENT_TYPE, "application/x-ndjson")];
    Ok((kind, Body::from_stream(lines)).into_response())
}
