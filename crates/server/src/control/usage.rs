//! What sandboxes use, measured when it is asked for.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Extension, Path, RawQuery, State as Handed};
use futures_util::{StreamExt as _, stream};
use serde_json::{Map, Value, json};
use url::form_urlencoded;

use crate::envd;
use crate::envd::usage::Usage;
use crate::fleet::{Fleet, Member};
use crate::keys::Owner;
use crate::refusal::Refusal;

/// Sandboxes that are asked about at once, and that are measured at once.
const MOST: usize = 100;
const AT_ONCE: usize = 8;

fn shape(usage: &Usage) -> Value {
    json!({
        "timestamp": usage.at,
        "timestampUnix": usage.at.as_second(),
        "cpuCount": usage.cpu_count,
        "cpuUsedPct": usage.cpu_used_percent,
        "memUsed": usage.memory_used,
        "memTotal": usage.memory_total,
        "memCache": usage.memory_cache,
        "diskUsed": usage.disk_used,
        "diskTotal": usage.disk_total,
    })
}

async fn measured(member: &Member) -> Option<Value> {
    let live = member.live()?;
    let usage = envd::usage(&live).await.ok()?;
    Some(shape(&usage))
}

/// `GET /sandboxes/{id}/metrics`: one measurement, of now.
pub(super) async fn one(
    Handed(fleet): Handed<Arc<Fleet>>,
    Extension(owner): Extension<Owner>,
    Path(id): Path<String>,
) -> Result<Json<Vec<Value>>, Refusal> {
    let member = fleet.find_of(&owner, &id)?;
    Ok(Json(measured(&member).await.into_iter().collect()))
}

/// `GET /sandboxes/metrics`: one of each that runs.
pub(super) async fn many(
    Handed(fleet): Handed<Arc<Fleet>>,
    Extension(owner): Extension<Owner>,
    RawQuery(query): RawQuery,
) -> Result<Json<Value>, Refusal> {
    let query = query.unwrap_or_default();
    let pairs = form_urlencoded::parse(query.as_bytes()).filter(|(name, _)| name == "sandbox_ids");
    let mut members = Vec::new();
    for (_, ids) in pairs {
        members.extend(
            ids.split(',')
                .filter_map(|id| fleet.find_of(&owner, id).ok()),
        );
    }
    if members.len() > MOST {
        return Err(Refusal::bad_request(format!(
            "ask about {MOST} sandboxes at once"
        )));
    }
    let measuring = stream::iter(members).map(|member| async move {
        let usage = measured(&member).await?;
        Some((member.facts.id.clone(), usage))
    });
    let sandboxes: Map<String, Value> = measuring
        .buffer_unordered(AT_ONCE)
        .filter_map(|one| async { one })
        .collect()
        .await;
    Ok(Json(json!({ "sandboxes": sandboxes })))
}
