//! JSON representations of sandboxes.

use std::collections::BTreeMap;

use axum::Json;
use axum::response::{IntoResponse as _, Response};
use http::StatusCode;
use jiff::Timestamp;
use serde::Serialize;
use serde_json::{Value, json};

use crate::fleet::Member;
use crate::settings::Settings;

/// The envd version whose protocol is implemented; SDKs enable features by it.
pub(super) const ENVD_VERSION: &str = "0.6.13";
/// E2B's field for the cluster.
const CLIENT_ID: &str = "cantle";

/// Response to create and connect.
pub(super) fn sandbox(member: &Member, settings: &Settings) -> Value {
    let identity = &member.identity;
    let mut sandbox = json!({
        "templateID": identity.spec.template,
        "sandboxID": identity.id,
        "clientID": CLIENT_ID,
        "envdVersion": ENVD_VERSION,
        "envdAccessToken": identity.token.expose(),
        "trafficAccessToken": identity.traffic_token().expose(),
    });
    if let (Some(domain), Some(fields)) = (&settings.domain, sandbox.as_object_mut()) {
        fields.insert("domain".to_owned(), domain.as_str().into());
    }
    sandbox
}

/// Response to a request that created or resumed a sandbox.
pub(super) fn created(member: &Member, settings: &Settings) -> Response {
    (StatusCode::CREATED, Json(sandbox(member, settings))).into_response()
}

/// An item of a list response.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct SandboxSummary<'m> {
    #[serde(rename = "templateID")]
    template: &'m str,
    #[serde(rename = "sandboxID")]
    id: &'m str,
    #[serde(rename = "clientID")]
    client: &'static str,
    started_at: Timestamp,
    end_at: Timestamp,
    cpu_count: usize,
    #[serde(rename = "memoryMB")]
    memory_mb: u64,
    #[serde(rename = "diskSizeMB")]
    disk_size_mb: u64,
    state: &'static str,
    envd_version: &'static str,
    metadata: &'m BTreeMap<String, String>,
    volume_mounts: [(); 0],
}

impl<'m> SandboxSummary<'m> {
    pub(super) fn new(member: &'m Member, settings: &Settings) -> Self {
        const MEBIBYTE: u64 = 1 << 20;
        let identity = &member.identity;
        let limits = &settings.policy.limits;
        let processors = std::thread::available_parallelism();
        Self {
            template: &identity.spec.template,
            id: &identity.id,
            client: CLIENT_ID,
            started_at: identity.started_at,
            end_at: member.ends_at(),
            cpu_count: processors.map_or(1, usize::from),
            // Without a limit, a sandbox may use all of the machine's.
            memory_mb: limits.memory_bytes.unwrap_or(settings.machine_memory_bytes) / MEBIBYTE,
            disk_size_mb: limits.disk_bytes.unwrap_or(0) / MEBIBYTE,
            state: member.state_name(),
            envd_version: ENVD_VERSION,
            metadata: &identity.spec.metadata,
            volume_mounts: [],
        }
    }
}

/// Response to a detail request.
pub(super) fn detail(member: &Member, settings: &Settings) -> Value {
    let spec = &member.identity.spec;
    let mut detail = json!(SandboxSummary::new(member, settings));
    let Some(fields) = detail.as_object_mut() else {
        return detail;
    };
    let lifecycle = json!({
        "autoResume": spec.auto_resume,
        "onTimeout": if spec.auto_pause { "pause" } else { "kill" },
    });
    fields.insert("lifecycle".to_owned(), lifecycle);
    let token = member.identity.token.expose();
    fields.insert("envdAccessToken".to_owned(), token.into());
    fields.insert("allowInternetAccess".to_owned(), json!(spec.internet));
    if let Some(domain) = &settings.domain {
        fields.insert("domain".to_owned(), domain.as_str().into());
    }
    if let Some(network) = &spec.requested_network {
        fields.insert("network".to_owned(), network.clone());
    }
    if member.is_paused() {
        // A pause keeps the files only.
        fields.insert("pauseMode".to_owned(), "filesystem".into());
    }
    detail
}
