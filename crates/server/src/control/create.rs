//! Creating sandboxes: `POST /v2/sandboxes`, and `POST /sandboxes` of older SDKs.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::Body;
use axum::extract::{Extension, State};
use axum::response::{IntoResponse as _, Response};
use http::{HeaderMap, StatusCode};
use serde::Deserialize;
use serde_json::Value;

use super::idempotency::IdempotencyState;
use super::{ControlState, IDLE, REQUEST_BYTES, network, parse, responses};
use crate::api_error::ApiError;
use crate::body;
use crate::fleet::{Fleet, SandboxSpec};
use crate::keys::Owner;

const V1_LIFETIME_S: i64 = 15;
const V2_LIFETIME_S: i64 = 300;

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct CreateRequest {
    #[serde(rename = "templateID")]
    template: String,
    timeout: Option<i64>,
    metadata: Option<BTreeMap<String, String>>,
    env_vars: Option<BTreeMap<String, String>>,
    auto_pause: Option<bool>,
    auto_resume: Option<AutoResume>,
    #[serde(rename = "allow_internet_access")]
    internet: Option<bool>,
    network: Option<Value>,
    iam: Option<Value>,
    mcp: Option<Value>,
    volume_mounts: Option<Vec<Value>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct AutoResume {
    enabled: bool,
}

pub(super) async fn v1(
    State(state): State<ControlState>,
    Extension(owner): Extension<Owner>,
    headers: HeaderMap,
    request: Body,
) -> Result<Response, ApiError> {
    create(state, owner, &headers, request, V1_LIFETIME_S).await
}

pub(super) async fn v2(
    State(state): State<ControlState>,
    Extension(owner): Extension<Owner>,
    headers: HeaderMap,
    request: Body,
) -> Result<Response, ApiError> {
    create(state, owner, &headers, request, V2_LIFETIME_S).await
}

async fn create(
    state: ControlState,
    owner: Owner,
    headers: &HeaderMap,
    request: Body,
    default_lifetime_s: i64,
) -> Result<Response, ApiError> {
    let bytes = body::read_all(request, REQUEST_BYTES, IDLE).await;
    let bytes = bytes.map_err(|error| ApiError::bad_request(error.to_string()))?;
    let Some(key) = idempotency_key(headers)? else {
        return respond(&state.fleet, owner, &bytes, default_lifetime_s).await;
    };
    match state.idempotency.begin(&owner, &key, &bytes)? {
        IdempotencyState::Completed(id) => match state.fleet.find_of(&owner, &id) {
            Ok(member) => {
                let answer = Json(responses::sandbox(&member, &state.fleet.settings));
                Ok((StatusCode::CREATED, answer).into_response())
            }
            // The sandbox has ended since.
            Err(refusal) => Err(refusal),
        },
        IdempotencyState::Started(pending) => {
            let member = create_sandbox(&state.fleet, owner, &bytes, default_lifetime_s).await?;
            pending.complete(&member.identity.id);
            let answer = Json(responses::sandbox(&member, &state.fleet.settings));
            Ok((StatusCode::CREATED, answer).into_response())
        }
    }
}

fn idempotency_key(headers: &HeaderMap) -> Result<Option<String>, ApiError> {
    let Some(key) = headers.get("idempotency-key") else {
        return Ok(None);
    };
    let is_key = |key: &&str| {
        let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        (1..=255).contains(&key.len()) && key.bytes().all(allowed)
    };
    match key.to_str().ok().filter(is_key) {
        Some(key) => Ok(Some(key.to_owned())),
        None => Err(ApiError::bad_request(
            "the Idempotency-Key must be 1 to 255 lower-case letters, digits and hyphens",
        )),
    }
}

async fn respond(
    fleet: &Arc<Fleet>,
    owner: Owner,
    request: &[u8],
    default_lifetime_s: i64,
) -> Result<Response, ApiError> {
    let member = create_sandbox(fleet, owner, request, default_lifetime_s).await?;
    let answer = Json(responses::sandbox(&member, &fleet.settings));
    Ok((StatusCode::CREATED, answer).into_response())
}

async fn create_sandbox(
    fleet: &Arc<Fleet>,
    owner: Owner,
    request: &[u8],
    default_lifetime_s: i64,
) -> Result<Arc<crate::fleet::Member>, ApiError> {
    let request: CreateRequest = parse(request)?;
    if request.template.is_empty() {
        return Err(ApiError::bad_request("templateID is missing"));
    }
    let is_set = |value: &Option<Value>| value.as_ref().is_some_and(|value| !value.is_null());
    for (name, set) in [
        ("iam", is_set(&request.iam)),
        ("mcp", is_set(&request.mcp)),
        (
            "volumeMounts",
            request
                .volume_mounts
                .is_some_and(|mounts| !mounts.is_empty()),
        ),
    ] {
        if set {
            return Err(ApiError::bad_request(format!(
                "{name} is not supported by this server"
            )));
        }
    }
    let lifetime = lifetime(fleet, request.timeout.unwrap_or(default_lifetime_s))?;
    let requested_network = request.network.filter(|network| !network.is_null());
    let rules = requested_network
        .clone()
        .map(serde_json::from_value)
        .transpose();
    let rules = rules.map_err(|error| ApiError::bad_request(format!("network: {error}")))?;
    let policy = &fleet.settings.policy;
    let environment = request.env_vars.unwrap_or_default().into_iter();
    let spec = SandboxSpec {
        network: network::restrict(request.internet, rules, policy)?,
        template: request.template,
        metadata: request.metadata.unwrap_or_default(),
        environment: environment
            .map(|(name, value)| (name, value.into()))
            .collect(),
        auto_pause: request.auto_pause.unwrap_or(false),
        auto_resume: request.auto_resume.is_some_and(|resume| resume.enabled),
        internet: request.internet,
        requested_network,
    };
    fleet.create(owner, spec, lifetime).await
}

/// Validates a requested lifetime.
pub(super) fn lifetime(fleet: &Fleet, seconds: i64) -> Result<Duration, ApiError> {
    let max = fleet.settings.limits.lifetime;
    let Ok(seconds) = u64::try_from(seconds) else {
        return Err(ApiError::bad_request("the timeout must not be negative"));
    };
    let lifetime = Duration::from_secs(seconds);
    if lifetime > max {
        let message = format!(
            "the timeout can't be greater than {} seconds",
            max.as_secs()
        );
        return Err(ApiError::bad_request(message));
    }
    Ok(lifetime)
}
