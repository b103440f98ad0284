//! Requests for one sandbox: details, connect, pause, deadline, kill.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::{Extension, Path, State};
use axum::response::{IntoResponse as _, Response};
use http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};

use super::create::lifetime;
use super::{network, read, responses};
use crate::api_error::ApiError;
use crate::fleet::{Fleet, SandboxState};
use crate::keys::Owner;

const CONNECT_LIFETIME_S: i64 = 300;
const RESUME_LIFETIME_S: i64 = 15;

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct LifetimeRequest {
    timeout: Option<i64>,
    duration: Option<i64>,
}

pub(super) async fn detail(
    State(fleet): State<Arc<Fleet>>,
    Extension(owner): Extension<Owner>,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let member = fleet.find_of(&owner, &id)?;
    Ok(Json(responses::detail(&member, &fleet.settings)))
}

pub(super) async fn kill(
    State(fleet): State<Arc<Fleet>>,
    Extension(owner): Extension<Owner>,
    Path(id): Path<String>,
) -> Result<StatusCode, ApiError> {
    let member = fleet.find_of(&owner, &id)?;
    if fleet.end(&member).await {
        Ok(StatusCode::NO_CONTENT)
    } else {
        Err(ApiError::sandbox_not_found(&id))
    }
}

pub(super) async fn connect(
    State(fleet): State<Arc<Fleet>>,
    Extension(owner): Extension<Owner>,
    Path(id): Path<String>,
    request: Body,
) -> Result<Response, ApiError> {
    let request: LifetimeRequest = read(request).await?;
    let lifetime = lifetime(&fleet, request.timeout.unwrap_or(CONNECT_LIFETIME_S))?;
    let member = fleet.find_of(&owner, &id)?;
    let status = match fleet.connect(&member, lifetime).await? {
        true => StatusCode::CREATED,
        false => StatusCode::OK,
    };
    Ok((status, Json(responses::sandbox(&member, &fleet.settings))).into_response())
}

pub(super) async fn resume(
    State(fleet): State<Arc<Fleet>>,
    Extension(owner): Extension<Owner>,
    Path(id): Path<String>,
    request: Body,
) -> Result<Response, ApiError> {
    let request: LifetimeRequest = read(request).await?;
    let lifetime = lifetime(&fleet, request.timeout.unwrap_or(RESUME_LIFETIME_S))?;
    let member = fleet.find_of(&owner, &id)?;
    if member.is_running() {
        let message = format!("sandbox {id} is already running");
        return Err(ApiError::new(StatusCode::CONFLICT, message));
    }
    fleet.connect(&member, lifetime).await?;
    let sandbox = Json(responses::sandbox(&member, &fleet.settings));
    Ok((StatusCode::CREATED, sandbox).into_response())
}

pub(super) async fn timeout(
    State(fleet): State<Arc<Fleet>>,
    Extension(owner): Extension<Owner>,
    Path(id): Path<String>,
    request: Body,
) -> Result<StatusCode, ApiError> {
    let request: LifetimeRequest = read(request).await?;
    let Some(seconds) = request.timeout else {
        return Err(ApiError::bad_request("timeout is missing"));
    };
    let lifetime = lifetime(&fleet, seconds)?;
    let member = fleet.find_of(&owner, &id)?;
    if !member.is_running() {
        return Err(ApiError::sandbox_not_found(&id));
    }
    member.set_lifetime(lifetime);
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn refresh(
    State(fleet): State<Arc<Fleet>>,
    Extension(owner): Extension<Owner>,
    Path(id): Path<String>,
    request: Body,
) -> Result<StatusCode, ApiError> {
    let request: LifetimeRequest = read(request).await?;
    let lifetime = lifetime(&fleet, request.duration.unwrap_or(RESUME_LIFETIME_S))?;
    let member = fleet.find_of(&owner, &id)?;
    if !member.is_running() {
        return Err(ApiError::sandbox_not_found(&id));
    }
    member.extend_lifetime(lifetime);
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn pause(
    State(fleet): State<Arc<Fleet>>,
    Extension(owner): Extension<Owner>,
    Path(id): Path<String>,
) -> Result<StatusCode, ApiError> {
    let member = fleet.find_of(&owner, &id)?;
    fleet.pause(&member).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Returns empty logs: output is not stored.
pub(super) async fn logs(
    State(fleet): State<Arc<Fleet>>,
    Extension(owner): Extension<Owner>,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    fleet.find_of(&owner, &id)?;
    Ok(Json(json!({ "logs": [], "logEntries": [] })))
}

/// Refuses changes to the network of a running sandbox.
pub(super) async fn update_network(
    State(fleet): State<Arc<Fleet>>,
    Extension(owner): Extension<Owner>,
    Path(id): Path<String>,
    request: Body,
) -> Result<StatusCode, ApiError> {
    let request: Value = read(request).await?;
    let member = fleet.find_of(&owner, &id)?;
    if matches!(member.state(), SandboxState::Ended) {
        return Err(ApiError::sandbox_not_found(&id));
    }
    let internet = request
        .get("allow_internet_access")
        .and_then(Value::as_bool);
    let rules = serde_json::from_value(request)
        .map_err(|error| ApiError::bad_request(format!("invalid network rules: {error}")))?;
    if network::restrict(internet, Some(rules), &fleet.settings.policy)?
        == member.identity.spec.network
    {
        return Ok(StatusCode::NO_CONTENT);
    }
    Err(ApiError::bad_request(
        "the network of a running sandbox can't be changed; set it when the sandbox is created",
    ))
}
