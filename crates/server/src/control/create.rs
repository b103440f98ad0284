//! Making sandboxes: `POST /v2/sandboxes`, and `POST /sandboxes` as older SDKs have it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::Body;
use axum::extract::{Extension, State as Handed};
use axum::response::{IntoResponse as _, Response};
use http::{HeaderMap, StatusCode};
use serde::Deserialize;
use serde_json::Value;

use super::idempotency::Turn;
use super::{IDLE, REQUEST_BYTES, State, network, parse, shapes};
use crate::body;
use crate::fleet::{Asked, Fleet};
use crate::keys::Owner;
use crate::refusal::Refusal;

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
    Handed(state): Handed<State>,
    Extension(owner): Extension<Owner>,
    headers: HeaderMap,
    request: Body,
) -> Result<Response, Refusal> {
    create(state, owner, &headers, request, V1_LIFETIME_S).await
}

pub(super) async fn v2(
    Handed(state): Handed<State>,
    Extension(owner): Extension<Owner>,
    headers: HeaderMap,
    request: Body,
) -> Result<Response, Refusal> {
    create(state, owner, &headers, request, V2_LIFETIME_S).await
}

async fn create(
    state: State,
    owner: Owner,
    headers: &HeaderMap,
    request: Body,
    usual_lifetime_s: i64,
) -> Result<Response, Refusal> {
    let bytes = body::whole(request, REQUEST_BYTES, IDLE).await;
    let bytes = bytes.map_err(|error| Refusal::bad_request(error.to_string()))?;
    let Some(key) = idempotency_key(headers)? else {
        return make(&state.fleet, owner, &bytes, usual_lifetime_s).await;
    };
    match state.answered.begin(&owner, &key, &bytes)? {
        Turn::Answered(id) => match state.fleet.find_of(&owner, &id) {
            Ok(member) => {
                let answer = Json(shapes::sandbox(&member, &state.fleet.settings));
                Ok((StatusCode::CREATED, answer).into_response())
            }
            // It has ended since.
            Err(refusal) => Err(refusal),
        },
        Turn::Begun(begun) => {
            let member = made(&state.fleet, owner, &bytes, usual_lifetime_s).await?;
            begun.finish(&member.facts.id);
            let answer = Json(shapes::sandbox(&member, &state.fleet.settings));
            Ok((StatusCode::CREATED, answer).into_response())
        }
    }
}

fn idempotency_key(headers: &HeaderMap) -> Result<Option<String>, Refusal> {
    let Some(key) = headers.get("idempotency-key") else {
        return Ok(None);
    };
    let is_key = |key: &&str| {
        let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        (1..=255).contains(&key.len()) && key.bytes().all(allowed)
    };
    match key.to_str().ok().filter(is_key) {
        Some(key) => Ok(Some(key.to_owned())),
        None => Err(Refusal::bad_request(
            "the Idempotency-Key must be 1 to 255 lower-case letters, digits and hyphens",
        )),
    }
}

async fn make(
    fleet: &Arc<Fleet>,
    owner: Owner,
    request: &[u8],
    usual_lifetime_s: i64,
) -> Result<Response, Refusal> {
    let member = made(fleet, owner, request, usual_lifetime_s).await?;
    let answer = Json(shapes::sandbox(&member, &fleet.settings));
    Ok((StatusCode::CREATED, answer).into_response())
}

async fn made(
    fleet: &Arc<Fleet>,
    owner: Owner,
    request: &[u8],
    usual_lifetime_s: i64,
) -> Result<Arc<crate::fleet::Member>, Refusal> {
    let request: CreateRequest = parse(request)?;
    if request.template.is_empty() {
        return Err(Refusal::bad_request("templateID is missing"));
    }
    let is_said = |value: &Option<Value>| value.as_ref().is_some_and(|value| !value.is_null());
    for (name, said) in [
        ("iam", is_said(&request.iam)),
        ("mcp", is_said(&request.mcp)),
        (
            "volumeMounts",
            request
                .volume_mounts
                .is_some_and(|mounts| !mounts.is_empty()),
        ),
    ] {
        if said {
            return Err(Refusal::bad_request(format!(
                "{name} is not supported by this server"
            )));
        }
    }
    let lifetime = lifetime(fleet, request.timeout.unwrap_or(usual_lifetime_s))?;
    let as_asked = request.network.filter(|network| !network.is_null());
    let wanted = as_asked.clone().map(serde_json::from_value).transpose();
    let wanted = wanted.map_err(|error| Refusal::bad_request(format!("network: {error}")))?;
    let policy = &fleet.settings.policy;
    let environment = request.env_vars.unwrap_or_default().into_iter();
    let asked = Asked {
        network: network::of(request.internet, wanted, policy)?,
        template: request.template,
        metadata: request.metadata.unwrap_or_default(),
        environment: environment
            .map(|(name, value)| (name, value.into()))
            .collect(),
        auto_pause: request.auto_pause.unwrap_or(false),
        auto_resume: request.auto_resume.is_some_and(|resume| resume.enabled),
        internet: request.internet,
        network_as_asked: as_asked,
    };
    fleet.create(owner, asked, lifetime).await
}

/// How long a sandbox is to live.
pub(super) fn lifetime(fleet: &Fleet, seconds: i64) -> Result<Duration, Refusal> {
    let most = fleet.settings.limits.lifetime;
    let Ok(seconds) = u64::try_from(seconds) else {
        return Err(Refusal::bad_request("the timeout must not be negative"));
    };
    let lifetime = Duration::from_secs(seconds);
    if lifetime > most {
        let message = format!(
            "the timeout can't be greater than {} seconds",
            most.as_secs()
        );
        return Err(Refusal::bad_request(message));
    }
    Ok(lifetime)
}
