//! `filesystem.Filesystem`: listing, moving, removing and watching files.

pub(crate) mod entry;
mod watch;
mod watched;

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::Body;
use axum::response::{IntoResponse as _, Response};
use cantle_core::sandbox::{FileKind, SandboxErrorKind, SandboxPath};
use http::{Request, StatusCode};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use self::entry::EntryInfo;
use super::directories::listing::{self, StartLink};
use super::error::{EnvdError, Result, RpcCode};
use super::path;
use super::rpc::{CallKind, Empty, LargeMessage, RpcCall, json as protobuf};
use crate::envd::RunningSandbox;

/// Time limit of a unary call without one of its own.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(300);
/// Memory of one description, besides its name.
const DESCRIPTION_BYTES: usize = 320;

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct PathRequest {
    #[serde(deserialize_with = "protobuf::or_default")]
    path: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct MoveRequest {
    #[serde(deserialize_with = "protobuf::or_default")]
    source: String,
    #[serde(deserialize_with = "protobuf::or_default")]
    destination: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ListDirRequest {
    #[serde(deserialize_with = "protobuf::or_default")]
    path: String,
    #[serde(deserialize_with = "protobuf::number")]
    depth: u32,
}

#[derive(Debug, Serialize)]
struct ListDirResponse {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    entries: Vec<EntryInfo>,
}

/// Responds to one call.
pub(crate) async fn call(
    live: &Arc<RunningSandbox>,
    method: &str,
    request: Request<Body>,
) -> Response {
    let kind = match method {
        "WatchDir" => CallKind::Streaming,
        "Stat" | "MakeDir" | "Move" | "ListDir" | "Remove" | "CreateWatcher"
        | "GetWatcherEvents" | "RemoveWatcher" => CallKind::Unary,
        _ => return StatusCode::NOT_FOUND.into_response(),
    };
    let mut call = match RpcCall::new(request, kind, live.commands.idle_timeout, &live.account) {
        Ok(call) => call,
        Err(refusal) => return *refusal,
    };
    if method == "WatchDir" {
        return call
            .stream(|request, times| watch::stream(live, request, times))
            .await;
    }
    call.times.limit.get_or_insert(DEFAULT_TIMEOUT);
    match method {
        "Stat" => call.unary(|request| stat(live, request)).await,
        "MakeDir" => call.unary(|request| make_dir(live, request)).await,
        "Move" => call.unary(|request| rename(live, request)).await,
        "ListDir" => call.unary(|request| list_dir(live, request)).await,
        "Remove" => call.unary(|request| remove(live, request)).await,
        "CreateWatcher" => call.unary(|request| watch::create(live, request)).await,
        "GetWatcherEvents" => call.unary(|request| watch::events(live, request)).await,
        _ => call.unary(|request| watch::remove(live, request)).await,
    }
}

async fn stat(live: &Arc<RunningSandbox>, request: PathRequest) -> Result<Json<Value>> {
    let path = path::resolve(&request.path, &live.home)?;
    entry_at(live, &path).await
}

async fn entry_at(live: &Arc<RunningSandbox>, path: &SandboxPath) -> Result<Json<Value>> {
    let sandbox = live.acquire()?;
    match entry::describe(live, &sandbox, path).await? {
        Some(entry) => Ok(Json(json!({ "entry": entry }))),
        None => Err(EnvdError::not_found(format!("file not found: {path}"))),
    }
}

async fn make_dir(live: &Arc<RunningSandbox>, request: PathRequest) -> Result<Json<Value>> {
    let path = path::resolve(&request.path, &live.home)?;
    let sandbox = live.acquire()?;
    let listed = listing::list(&sandbox, &path, StartLink::Follow, 0).await?;
    match listed.entries.first().map(|listed| listed.kind) {
        None => {}
        Some(FileKind::Directory) => {
            let message = format!("directory already exists: {path}");
            return Err(EnvdError::new(RpcCode::AlreadyExists, message));
        }
        Some(_) => {
            let message = format!("path already exists but it is not a directory: {path}");
            return Err(EnvdError::invalid(message));
        }
    }
    sandbox.mkdir(&path).await?;
    entry_at(live, &path).await
}

async fn rename(live: &Arc<RunningSandbox>, request: MoveRequest) -> Result<Json<Value>> {
    let from = path::resolve(&request.source, &live.home)?;
    let to = path::resolve(&request.destination, &live.home)?;
    let sandbox = live.acquire()?;
    sandbox
        .stat(&from)
        .await
        .map_err(|error| match error.kind() {
            SandboxErrorKind::NotFound => {
                EnvdError::not_found(format!("source file not found: {from}"))
            }
            _ => error.into(),
        })?;
    if let Some(parent) = to.parent()
        && !parent.is_base()
    {
        sandbox.mkdir(&parent).await?;
    }
    sandbox.rename(&from, &to).await?;
    live.metadata.rename(&from, &to);
    entry_at(live, &to).await
}

async fn remove(live: &Arc<RunningSandbox>, request: PathRequest) -> Result<Empty> {
    let path = path::resolve(&request.path, &live.home)?;
    match live.acquire()?.remove(&path).await {
        Ok(()) => {}
        Err(error) if error.kind() == SandboxErrorKind::NotFound => {}
        Err(error) => return Err(error.into()),
    }
    live.metadata.remove(&path);
    Ok(Empty)
}

async fn list_dir(live: &Arc<RunningSandbox>, request: ListDirRequest) -> Result<LargeMessage> {
    let path = path::resolve(&request.path, &live.home)?;
    let sandbox = live.acquire()?;
    let depth = request.depth.clamp(1, watch::MAX_DEPTH);
    let mut listed = listing::list(&sandbox, &path, StartLink::Follow, depth).await?;
    check_directory(&path, listed.entries.first())?;
    // The directory itself comes first.
    listed.entries.remove(0);
    let (size_bytes, mut charge) = (listed.size_bytes(), live.account.charge());
    charge.grow(size_bytes + listed.entries.len() * DESCRIPTION_BYTES)?;
    let entries = entry::describe_all(live, &sandbox, &path, listed, &mut charge).await?;
    LargeMessage::new(ListDirResponse { entries }, size_bytes, charge).await
}

/// Refuses a path that is not a directory.
fn check_directory(path: &SandboxPath, listed: Option<&listing::ListedEntry>) -> Result<()> {
    match listed {
        None => Err(EnvdError::not_found(format!("path not found: {path}"))),
        Some(listed) if listed.kind == FileKind::Directory => Ok(()),
        Some(_) => Err(EnvdError::invalid(format!(
            "path is not a directory: {path}"
        ))),
    }
}
