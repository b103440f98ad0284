//! One sandbox: looked at, connected to, paused, given another end, ended.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::{Extension, Path, State as Handed};
use axum::response::{IntoResponse as _, Response};
use http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};

use super::create::lifetime;
use super::{network as rules, read, shapes};
use crate::fleet::{Fleet, Standing};
use crate::keys::Owner;
use crate::refusal::Refusal;

const CONNECT_LIFETIME_S: i64 = 300;
const RESUME_LIFETIME_S: i64 = 15;

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct LifetimeRequest {
    timeout: Option<i64>,
    duration: Option<i64>,
}

pub(super) async fn detail(
    Handed(fleet): Handed<Arc<Fleet>>,
    Extension(owner): Extension<Owner>,
    Path(id): Path<String>,
) -> Result<Json<Value>, Refusal> {
    let member = fleet.find_of(&owner, &id)?;
    Ok(Json(shapes::detail(&member, &fleet.settings)))
}

pub(super) async fn kill(
    Handed(fleet): Handed<Arc<Fleet>>,
    Extension(owner): Extension<Owner>,
    Path(id): Path<String>,
) -> Result<StatusCode, Refusal> {
    let member = fleet.find_of(&owner, &id)?;
    if fleet.end(&member).await {
        Ok(StatusCode::NO_CONTENT)
    } else {
        Err(Refusal::no_sandbox(&id))
    }
}

pub(super) async fn connect(
    Handed(fleet): Handed<Arc<Fleet>>,
    Extension(owner): Extension<Owner>,
    Path(id): Path<String>,
    request: Body,
) -> Result<Response, Refusal> {
    let request: LifetimeRequest = read(request).await?;
    let lifetime = lifetime(&fleet, request.timeout.unwrap_or(CONNECT_LIFETIME_S))?;
    let member = fleet.find_of(&owner, &id)?;
    let status = match fleet.connect(&member, lifetime).await? {
        true => StatusCode::CREATED,
        false => StatusCode::OK,
    };
    Ok((status, Json(shapes::sandbox(&member, &fleet.settings))).into_response())
}

pub(super) async fn resume(
    Handed(fleet): Handed<Arc<Fleet>>,
    Extension(owner): Extension<Owner>,
    Path(id): Path<String>,
    request: Body,
) -> Result<Response, Refusal> {
    let request: LifetimeRequest = read(request).await?;
    let lifetime = lifetime(&fleet, request.timeout.unwrap_or(RESUME_LIFETIME_S))?;
    let member = fleet.find_of(&owner, &id)?;
    if member.is_running() {
        let message = format!("sandbox {id} is already running");
        return Err(Refusal::new(StatusCode::CONFLICT, message));
    }
    fleet.connect(&member, lifetime).await?;
    let sandbox = Json(shapes::sandbox(&member, &fleet.settings));
    Ok((StatusCode::CREATED, sandbox).into_response())
}

pub(super) async fn timeout(
    Handed(fleet): Handed<Arc<Fleet>>,
    Extension(owner): Extension<Owner>,
    Path(id): Path<String>,
    request: Body,
) -> Result<StatusCode, Refusal> {
    let request: LifetimeRequest = read(request).await?;
    let Some(seconds) = request.timeout else {
        return Err(Refusal::bad_request("timeout is missing"));
    };
    let lifetime = lifetime(&fleet, seconds)?;
    let member = fleet.find_of(&owner, &id)?;
    if !member.is_running() {
        return Err(Refusal::no_sandbox(&id));
    }
    member.end_in(lifetime);
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn refresh(
    Handed(fleet): Handed<Arc<Fleet>>,
    Extension(owner): Extension<Owner>,
    Path(id): Path<String>,
    request: Body,
) -> Result<StatusCode, Refusal> {
    let request: LifetimeRequest = read(request).await?;
    let lifetime = lifetime(&fleet, request.duration.unwrap_or(RESUME_LIFETIME_S))?;
    let member = fleet.find_of(&owner, &id)?;
    if !member.is_running() {
        return Err(Refusal::no_sandbox(&id));
    }
    member.end_in_at_least(lifetime);
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn pause(
    Handed(fleet): Handed<Arc<Fleet>>,
    Extension(owner): Extension<Owner>,
    Path(id): Path<String>,
) -> Result<StatusCode, Refusal> {
    let member = fleet.find_of(&owner, &id)?;
    fleet.pause(&member).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// There are none: what commands write is their callers' alone.
pub(super) async fn logs(
    Handed(fleet): Handed<Arc<Fleet>>,
    Extension(owner): Extension<Owner>,
    Path(id): Path<String>,
) -> Result<Json<Value>, Refusal> {
    fleet.find_of(&owner, &id)?;
    Ok(Json(json!({ "logs": [], "logEntries": [] })))
}

/// The walls of a running sandbox stand; what would change them is refused.
pub(super) async fn network(
    Handed(fleet): Handed<Arc<Fleet>>,
    Extension(owner): Extension<Owner>,
    Path(id): Path<String>,
    request: Body,
) -> Result<StatusCode, Refusal> {
    let request: Value = read(request).await?;
    let member = fleet.find_of(&owner, &id)?;
    if matches!(member.standing(), Standing::Ended) {
        return Err(Refusal::no_sandbox(&id));
    }
    let internet = request
        .get("allow_internet_access")
        .and_then(Value::as_bool);
    let wanted = serde_json::from_value(request)
        .map_err(|error| Refusal::bad_request(format!("the rules can't be read: {error}")))?;
    if rules::of(internet, Some(wanted), &fleet.settings.policy)? == member.facts.asked.network {
        return Ok(StatusCode::NO_CONTENT);
    }
    Err(Refusal::bad_request(
        "the network of a running sandbox can't be changed by this server: say what it may reach when it \
         is made",
    ))
}
