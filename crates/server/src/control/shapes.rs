//! What the control plane says of sandboxes.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::Serialize;
use serde_json::{Value, json};

use crate::fleet::{Member, Standing};
use crate::settings::Settings;

/// What of the protocol inside sandboxes we speak; SDKs turn features on by it.
pub(super) const ENVD_VERSION: &str = "0.6.13";
/// There are no clusters here.
const CLIENT_ID: &str = "cantle";

/// A sandbox that was made or connected to.
pub(super) fn sandbox(member: &Member, settings: &Settings) -> Value {
    let facts = &member.facts;
    let mut sandbox = json!({
        "templateID": facts.asked.template,
        "sandboxID": facts.id,
        "clientID": CLIENT_ID,
        "envdVersion": ENVD_VERSION,
        "envdAccessToken": facts.token.expose(),
        "trafficAccessToken": null,
    });
    if let (Some(domain), Some(fields)) = (&settings.domain, sandbox.as_object_mut()) {
        fields.insert("domain".to_owned(), domain.as_str().into());
    }
    sandbox
}

/// One of a list.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Listed<'m> {
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

impl<'m> Listed<'m> {
    pub(super) fn new(member: &'m Member, settings: &Settings) -> Self {
        const MEBIBYTE: u64 = 1 << 20;
        let facts = &member.facts;
        let limits = &settings.policy.limits;
        let processors = std::thread::available_parallelism();
        Self {
            template: &facts.asked.template,
            id: &facts.id,
            client: CLIENT_ID,
            started_at: facts.started_at,
            end_at: member.end_at(),
            cpu_count: processors.map_or(1, usize::from),
            memory_mb: limits.memory_bytes.unwrap_or(0) / MEBIBYTE,
            disk_size_mb: limits.disk_bytes.unwrap_or(0) / MEBIBYTE,
            state: if member.is_running() {
                "running"
            } else {
                "paused"
            },
            envd_version: ENVD_VERSION,
            metadata: &facts.asked.metadata,
            volume_mounts: [],
        }
    }
}

/// Everything about one sandbox, for its owner.
pub(super) fn detail(member: &Member, settings: &Settings) -> Value {
    let asked = &member.facts.asked;
    let mut detail = json!(Listed::new(member, settings));
    let Some(fields) = detail.as_object_mut() else {
        return detail;
    };
    let lifecycle = json!({
        "autoResume": asked.auto_resume,
        "onTimeout": if asked.auto_pause { "pause" } else { "kill" },
    });
    fields.insert("lifecycle".to_owned(), lifecycle);
    let token = member.facts.token.expose();
    fields.insert("envdAccessToken".to_owned(), token.into());
    fields.insert("allowInternetAccess".to_owned(), json!(asked.internet));
    if let Some(domain) = &settings.domain {
        fields.insert("domain".to_owned(), domain.as_str().into());
    }
    if let Some(network) = &asked.network_as_asked {
        fields.insert("network".to_owned(), network.clone());
    }
    if let Standing::Paused(_) = member.standing() {
        // What outlives a pause is the files.
        fields.insert("pauseMode".to_owned(), "filesystem".into());
    }
    detail
}
