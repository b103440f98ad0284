//! Resource usage, measured on request.

use axum::Json;
use axum::extract::RawQuery;
use futures_util::{StreamExt as _, stream};
use jiff::Timestamp;
use serde_json::{Map, Value, json};
use url::form_urlencoded;

use super::{Addressed, Client};
use crate::api_error::{ApiError, ApiResult};
use crate::envd::usage;
use crate::fleet::Member;

/// Maximum sandboxes per request, and concurrent measurements.
const MAX_SANDBOXES: usize = 100;
const CONCURRENCY: usize = 8;

/// Measures a sandbox whose policy may limit its memory to fewer bytes than the machine has.
async fn measure(member: &Member, memory_limit: Option<u64>) -> Option<Value> {
    let running = member.running()?;
    let usage = usage::measure(&running).await.ok()?;
    Some(json!({
        "timestamp": usage.at,
        "timestampUnix": usage.at.as_second(),
        "cpuCount": usage.cpu_count,
        "cpuUsedPct": usage.cpu_used_pct,
        "memUsed": usage.mem_used,
        "memTotal": usage.mem_total.min(memory_limit.unwrap_or(u64::MAX)),
        "memCache": usage.mem_cache,
        "diskUsed": usage.disk_used,
        "diskTotal": usage.disk_total,
    }))
}

/// `GET /sandboxes/{id}/metrics`: one current measurement, if the time is in the range of the query.
pub(super) async fn one(
    sandbox: Addressed,
    RawQuery(query): RawQuery,
) -> ApiResult<Json<Vec<Value>>> {
    let now = Timestamp::now().as_second();
    let mut is_included = true;
    for (name, value) in form_urlencoded::parse(query.unwrap_or_default().as_bytes()) {
        let second = || -> ApiResult<i64> {
            let invalid = |_| ApiError::bad_request(format!("`{name}` is not a time in seconds"));
            value.parse().map_err(invalid)
        };
        match &*name {
            "start" => is_included &= second()? <= now,
            "end" => is_included &= now <= second()?,
            _ => {}
        }
    }
    let usage = match is_included {
        true => {
            let limits = &sandbox.fleet.settings.policy.limits;
            measure(&sandbox.member, limits.memory_bytes).await
        }
        false => None,
    };
    Ok(Json(usage.into_iter().collect()))
}

/// `GET /sandboxes/metrics`: one measurement of each running sandbox.
pub(super) async fn many(
    Client { fleet, owner }: Client,
    RawQuery(query): RawQuery,
) -> ApiResult<Json<Value>> {
    let query = query.unwrap_or_default();
    let pairs = form_urlencoded::parse(query.as_bytes()).filter(|(name, _)| name == "sandbox_ids");
    let mut members = Vec::new();
    for (_, ids) in pairs {
        let found = ids.split(',').map(|id| fleet.find_of(&owner, id));
        members.extend(found.flatten());
    }
    if members.len() > MAX_SANDBOXES {
        let message = format!("at most {MAX_SANDBOXES} sandboxes per request");
        return Err(ApiError::bad_request(message));
    }
    let memory_limit = fleet.settings.policy.limits.memory_bytes;
    let measuring = stream::iter(members).map(move |member| async move {
        let usage = measure(&member, memory_limit).await?;
        Some((member.identity.id.clone(), usage))
    });
    let sandboxes: Map<String, Value> = measuring
        .buffer_unordered(CONCURRENCY)
        .filter_map(|one| async { one })
        .collect()
        .await;
    Ok(Json(json!({ "sandboxes": sandboxes })))
}
