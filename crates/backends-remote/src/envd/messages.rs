//! The responses of `process.Process` and `filesystem.Filesystem`, as JSON.
//!
//! Types and fields mirror the protobuf definitions and keep their names.
//! Missing fields have their defaults, and unknown fields are ignored.

use std::borrow::Cow;

use serde::{Deserialize, Deserializer};

#[derive(Debug, Deserialize)]
pub(crate) struct Started<'a> {
    #[serde(borrow, default)]
    pub(crate) event: Event<'a>,
}

/// Exactly one field is set.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Event<'a> {
    pub(crate) start: Option<StartEvent>,
    #[serde(borrow)]
    pub(crate) data: Option<Data<'a>>,
    #[serde(borrow)]
    pub(crate) end: Option<EndEvent<'a>>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct StartEvent {
    #[serde(default)]
    pub(crate) pid: u32,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Data<'a> {
    #[serde(borrow)]
    pub(crate) stdout: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub(crate) stderr: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub(crate) pty: Option<Cow<'a, str>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct EndEvent<'a> {
    #[serde(default, alias = "exit_code")]
    pub(crate) exit_code: i32,
    #[serde(default)]
    pub(crate) exited: bool,
    #[serde(borrow, default)]
    pub(crate) status: Cow<'a, str>,
}

#[derive(Debug, Default, Deserialize)]
pub(crate) struct EndOfStream {
    pub(crate) error: Option<RpcError>,
}

/// An error in Connect's format; errors of plain HTTP have a number as the code.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct RpcError {
    #[serde(default, deserialize_with = "string_or_empty")]
    pub(crate) code: String,
    #[serde(default)]
    pub(crate) message: String,
}

fn string_or_empty<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let value = serde_json::Value::deserialize(deserializer)?;
    Ok(value.as_str().unwrap_or_default().to_owned())
}

/// The list of running processes.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Processes {
    processes: Vec<ProcessEntry>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ProcessEntry {
    pid: u32,
    config: ProcessEntryConfig,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ProcessEntryConfig {
    args: Vec<String>,
}

impl Processes {
    /// Returns the ids of processes with this argument.
    pub(crate) fn with_argument(&self, argument: &str) -> impl Iterator<Item = u32> {
        let has_it = move |it: &&ProcessEntry| it.config.args.iter().any(|arg| arg == argument);
        self.processes.iter().filter(has_it).map(|it| it.pid)
    }
}

#[derive(Debug, Deserialize)]
pub(crate) struct Entry {
    pub(crate) entry: EntryInfo,
}

#[derive(Debug, Default, Deserialize)]
pub(crate) struct Entries {
    #[serde(default)]
    pub(crate) entries: Vec<EntryInfo>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct EntryInfo {
    pub(crate) name: String,
    #[serde(rename = "type")]
    pub(crate) kind: String,
    #[serde(deserialize_with = "size")]
    pub(crate) size: u64,
    pub(crate) mode: u32,
    pub(crate) permissions: String,
    #[serde(alias = "symlink_target")]
    pub(crate) symlink_target: Option<String>,
    #[serde(alias = "is_symlink")]
    pub(crate) is_symlink: bool,
}

/// Deserializes a 64-bit number, which may be a string in this JSON.
fn size<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    let value = serde_json::Value::deserialize(deserializer)?;
    let text = value.as_str().and_then(|text| text.parse().ok());
    Ok(text.or(value.as_u64()).unwrap_or_default())
}

/// A created or connected sandbox, as the API describes it.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SandboxRecord {
    #[serde(rename = "sandboxID")]
    pub(crate) sandbox_id: String,
    #[serde(default)]
    pub(crate) envd_version: String,
    pub(crate) envd_access_token: Option<cantle_core::secret::SecretText>,
    pub(crate) domain: Option<String>,
}
