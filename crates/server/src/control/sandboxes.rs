//! Requests for one sandbox: details, connect, pause, deadline, kill.

use std::time::Duration;

use axum::Json;
use axum::response::{IntoResponse as _, Response};
use http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};

use super::create::lifetime;
use super::{Addressed, Message, network, responses};
use crate::api_error::{ApiError, ApiResult};
use crate::fleet::{Member, SandboxState};

const CONNECT_LIFETIME: Duration = Duration::from_secs(300);
const RESUME_LIFETIME: Duration = Duration::from_secs(15);

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct LifetimeRequest {
    timeout: Option<i64>,
    duration: Option<i64>,
}

pub(super) async fn detail(Addressed { fleet, member }: Addressed) -> Json<Value> {
    Json(responses::detail(&member, &fleet.settings))
}

pub(super) async fn kill(Addressed { fleet, member }: Addressed) -> ApiResult<StatusCode> {
    if fleet.end(&member).await {
        Ok(StatusCode::NO_CONTENT)
    } else {
        Err(ApiError::sandbox_not_found(&member.identity.id))
    }
}

pub(super) async fn connect(
    Addressed { fleet, member }: Addressed,
    Message(request): Message<LifetimeRequest>,
) -> ApiResult<Response> {
    let lifetime = lifetime(&fleet, request.timeout, CONNECT_LIFETIME)?;
    let status = match fleet.connect(&member, lifetime).await? {
        true => StatusCode::CREATED,
        false => StatusCode::OK,
    };
    Ok((status, Json(responses::sandbox(&member, &fleet.settings))).into_response())
}

pub(super) async fn resume(
    Addressed { fleet, member }: Addressed,
    Message(request): Message<LifetimeRequest>,
) -> ApiResult<Response> {
    let lifetime = lifetime(&fleet, request.timeout, RESUME_LIFETIME)?;
    if member.is_running() {
        let message = format!("sandbox {} is already running", member.identity.id);
        return Err(ApiError::conflict(message));
    }
    fleet.connect(&member, lifetime).await?;
    Ok(responses::created(&member, &fleet.settings))
}

pub(super) async fn timeout(
    Addressed { fleet, member }: Addressed,
    Message(request): Message<LifetimeRequest>,
) -> ApiResult<StatusCode> {
    if request.timeout.is_none() {
        return Err(ApiError::bad_request("timeout is missing"));
    }
    let lifetime = lifetime(&fleet, request.timeout, Duration::ZERO)?;
    check_running(&member)?;
    member.set_lifetime(lifetime);
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn refresh(
    Addressed { fleet, member }: Addressed,
    Message(request): Message<LifetimeRequest>,
) -> ApiResult<StatusCode> {
    let lifetime = lifetime(&fleet, request.duration, RESUME_LIFETIME)?;
    check_running(&member)?;
    member.extend_lifetime(lifetime);
    Ok(StatusCode::NO_CONTENT)
}

fn check_running(member: &Member) -> ApiResult<()> {
    let missing = || ApiError::sandbox_not_found(&member.identity.id);
    member.is_running().then_some(()).ok_or_else(missing)
}

pub(super) async fn pause(Addressed { fleet, member }: Addressed) -> ApiResult<StatusCode> {
    fleet.pause(&member).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Returns empty logs: output is not stored.
pub(super) async fn logs(_: Addressed) -> Json<Value> {
    Json(json!({ "logs": [], "logEntries": [] }))
}

/// Refuses changes to the network of a running sandbox.
pub(super) async fn update_network(
    Addressed { fleet, member }: Addressed,
    Message(request): Message<Value>,
) -> ApiResult<StatusCode> {
    if matches!(member.state(), SandboxState::Ended) {
        return Err(ApiError::sandbox_not_found(&member.identity.id));
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
