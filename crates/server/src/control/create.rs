//! Creating sandboxes: `POST /v2/sandboxes`, and `POST /sandboxes` of older SDKs.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use http::HeaderMap;
use serde::Deserialize;
use serde_json::Value;

use super::idempotency::IdempotencyState;
use super::{Client, ControlState, network, parse, read, responses};
use crate::accounts::Account;
use crate::api_error::{ApiError, ApiResult};
use crate::fleet::{Fleet, SandboxSpec};

/// Lifetimes of sandboxes for which none is requested, by version of the API.
pub(super) const V1_SECONDS: u64 = 15;
pub(super) const V2_SECONDS: u64 = 300;

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

pub(super) async fn create<const DEFAULT_SECONDS: u64>(
    Client { fleet, owner }: Client,
    State(ControlState { idempotency, .. }): State<ControlState>,
    headers: HeaderMap,
    request: Body,
) -> ApiResult<Response> {
    let mut kept = Account::new(&fleet.accounts, &owner).charge();
    let bytes = read(request, &mut kept).await?;
    let pending = match idempotency_key(&headers)? {
        None => None,
        Some(key) => match idempotency.begin(&owner, key, &bytes)? {
            IdempotencyState::Completed(id) => {
                // Fails if the sandbox has ended since.
                let member = fleet.find_of(&owner, &id)?;
                return Ok(responses::created(&member, &fleet.settings));
            }
            IdempotencyState::Started(pending) => Some(pending),
        },
    };
    let (spec, lifetime) = parse_spec(&fleet, &bytes, Duration::from_secs(DEFAULT_SECONDS))?;
    let creating = fleet.finish(|fleet| async move {
        let member = fleet.create(owner, spec, lifetime, kept).await?;
        // Above all if the client has disconnected, which will repeat its request.
        if let Some(pending) = pending {
            pending.complete(&member.identity.id);
        }
        Ok(member)
    });
    let member = creating.await?;
    Ok(responses::created(&member, &fleet.settings))
}

fn idempotency_key(headers: &HeaderMap) -> ApiResult<Option<&str>> {
    let Some(key) = headers.get("idempotency-key") else {
        return Ok(None);
    };
    let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    match key.to_str() {
        Ok(key) if (1..=255).contains(&key.len()) && key.bytes().all(allowed) => Ok(Some(key)),
        _ => Err(ApiError::bad_request(
            "the Idempotency-Key must be 1 to 255 lower-case letters, digits and hyphens",
        )),
    }
}

/// Returns the requested sandbox and its lifetime.
fn parse_spec(
    fleet: &Fleet,
    request: &[u8],
    default_lifetime: Duration,
) -> ApiResult<(SandboxSpec, Duration)> {
    let request: CreateRequest = parse(request)?;
    if request.template.is_empty() {
        return Err(ApiError::bad_request("templateID is missing"));
    }
    let mounts = request.volume_mounts.filter(|mounts| !mounts.is_empty());
    for (name, is_set) in [
        ("iam", request.iam.is_some()),
        ("mcp", request.mcp.is_some()),
        ("volumeMounts", mounts.is_some()),
    ] {
        if is_set {
            let message = format!("{name} is not supported by this server");
            return Err(ApiError::bad_request(message));
        }
    }
    let lifetime = lifetime(fleet, request.timeout, default_lifetime)?;
    let rules = request.network.clone().map(serde_json::from_value);
    let rules = rules.transpose();
    let rules = rules.map_err(|error| ApiError::bad_request(format!("network: {error}")))?;
    let policy = &fleet.settings.policy;
    let environment = request.env_vars.unwrap_or_default();
    let is_invalid = |(name, value): &(&String, &String)| {
        name.is_empty() || name.contains(['=', '\0']) || value.contains('\0')
    };
    if let Some((name, _)) = environment.iter().find(is_invalid) {
        let name = name.escape_debug();
        return Err(ApiError::bad_request(format!(
            "envVars: the variable `{name}` is invalid: names are not empty and have no `=`, and neither \
             names nor values have NUL characters"
        )));
    }
    let spec = SandboxSpec {
        network: network::restrict(request.internet, rules, policy)?,
        template: request.template,
        metadata: request.metadata.unwrap_or_default(),
        environment: environment
            .into_iter()
            .map(|(name, value)| (name, value.into()))
            .collect(),
        auto_pause: request.auto_pause.unwrap_or(false),
        auto_resume: request.auto_resume.is_some_and(|resume| resume.enabled),
        internet: request.internet,
        requested_network: request.network,
    };
    Ok((spec, lifetime))
}

/// Validates a requested lifetime. That of a request without one is at most the default.
pub(super) fn lifetime(
    fleet: &Fleet,
    seconds: Option<i64>,
    default: Duration,
) -> ApiResult<Duration> {
    let max = fleet.settings.limits.lifetime;
    let Some(seconds) = seconds else {
        return Ok(default.min(max));
    };
    let negative = |_| ApiError::bad_request("the timeout must not be negative");
    let lifetime = Duration::from_secs(seconds.try_into().map_err(negative)?);
    if lifetime > max {
        let max = max.as_secs();
        let message = format!("the timeout can't be greater than {max} seconds");
        return Err(ApiError::bad_request(message));
    }
    Ok(lifetime)
}
