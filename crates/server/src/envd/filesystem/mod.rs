//! `filesystem.Filesystem`: what files there are, moving and removing them, and watching for changes.

pub(crate) mod census;
mod changes;
pub(crate) mod entry;
mod watch;

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use cantle_core::sandbox::{FileKind, SandboxErrorKind, SandboxPath};
use http::{Request, StatusCode};
use serde::{Deserialize, Serialize};
use tokio::time::timeout;

use self::census::Start;
use self::entry::EntryInfo;
pub(crate) use self::watch::Watchers;
use super::fault::{Code, Fault};
use super::path;
use super::rpc::{self, Shape, json as forms};
use crate::fleet::Live;

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct PathRequest {
    path: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct MoveRequest {
    source: String,
    destination: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ListDirRequest {
    path: String,
    #[serde(deserialize_with = "forms::number")]
    depth: u32,
}

#[derive(Debug, Serialize)]
struct EntryResponse {
    entry: EntryInfo,
}

#[derive(Debug, Serialize)]
struct ListDirResponse {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    entries: Vec<EntryInfo>,
}

#[derive(Debug, Serialize)]
struct Empty {}

/// Answers a call.
pub(crate) async fn call(live: &Arc<Live>, method: &str, request: Request<Body>) -> Response {
    let shape = match method {
        "WatchDir" => Shape::Streamed,
        "Stat" | "MakeDir" | "Move" | "ListDir" | "Remove" | "CreateWatcher"
        | "GetWatcherEvents" | "RemoveWatcher" => Shape::Unary,
        _ => return StatusCode::NOT_FOUND.into_response(),
    };
    if let Err(refusal) = rpc::check(&request, shape) {
        return *refusal;
    }
    let (head, body) = request.into_parts();
    let limit = match rpc::time_limit(&head.headers) {
        Ok(limit) => limit,
        Err(fault) if shape == Shape::Unary => return fault.into_rpc(),
        Err(fault) => return rpc::refused(fault),
    };
    if shape == Shape::Streamed {
        let keepalive = rpc::keepalive(&head.headers);
        return match watch::stream(live, body, limit, keepalive).await {
            Ok(answers) => rpc::stream(answers),
            Err(fault) => rpc::refused(fault),
        };
    }
    let idle = live.commands.patience;
    let answered = async {
        match method {
            "Stat" => rpc::answer(stat(live, body, idle).await),
            "MakeDir" => rpc::answer(make_dir(live, body, idle).await),
            "Move" => rpc::answer(rename(live, body, idle).await),
            "ListDir" => rpc::answer(list_dir(live, body, idle).await),
            "Remove" => rpc::answer(remove(live, body, idle).await),
            "CreateWatcher" => rpc::answer(watch::create(live, body, idle).await),
            "GetWatcherEvents" => rpc::answer(watch::events(live, body, idle).await),
            _ => rpc::answer(watch::remove(live, body, idle).await),
        }
    };
    match timeout(limit.unwrap_or(Duration::from_secs(300)), answered).await {
        Ok(response) => response,
        Err(_) => rpc::too_late().into_rpc(),
    }
}

async fn stat(live: &Live, body: Body, idle: Duration) -> Result<EntryResponse, Fault> {
    let request: PathRequest = rpc::message(body, idle).await?;
    let path = path::resolve(&request.path, &live.home)?;
    entry_at(live, &path).await
}

async fn entry_at(live: &Live, path: &SandboxPath) -> Result<EntryResponse, Fault> {
    let sandbox = live.visit()?;
    match entry::at(live, &*sandbox, path).await? {
        Some(entry) => Ok(EntryResponse { entry }),
        None => Err(Fault::not_found(format!("file not found: {path}"))),
    }
}

async fn make_dir(live: &Live, body: Body, idle: Duration) -> Result<EntryResponse, Fault> {
    let request: PathRequest = rpc::message(body, idle).await?;
    let path = path::resolve(&request.path, &live.home)?;
    let sandbox = live.visit()?;
    let seen = census::take(&*sandbox, &path, Start::Followed, 0).await?;
    match seen.first().map(|seen| seen.kind) {
        None => {}
        Some(FileKind::Directory) => {
            let message = format!("directory already exists: {path}");
            return Err(Fault::new(Code::AlreadyExists, message));
        }
        Some(_) => {
            let message = format!("path already exists but it is not a directory: {path}");
            return Err(Fault::invalid(message));
        }
    }
    sandbox.mkdir(&path).await?;
    entry_at(live, &path).await
}

async fn rename(live: &Live, body: Body, idle: Duration) -> Result<EntryResponse, Fault> {
    let request: MoveRequest = rpc::message(body, idle).await?;
    let from = path::resolve(&request.source, &live.home)?;
    let to = path::resolve(&request.destination, &live.home)?;
    let sandbox = live.visit()?;
    sandbox
        .stat(&from)
        .await
        .map_err(|error| match error.kind() {
            SandboxErrorKind::NotFound => {
                Fault::not_found(format!("source file not found: {from}"))
            }
            _ => error.into(),
        })?;
    if let Some(parent) = to.parent()
        && !parent.is_start()
    {
        sandbox.mkdir(&parent).await?;
    }
    sandbox.rename(&from, &to).await?;
    live.metadata.rename(&from, &to);
    entry_at(live, &to).await
}

async fn remove(live: &Live, body: Body, idle: Duration) -> Result<Empty, Fault> {
    let request: PathRequest = rpc::message(body, idle).await?;
    let path = path::resolve(&request.path, &live.home)?;
    match live.visit()?.remove(&path).await {
        Ok(()) => {}
        Err(error) if error.kind() == SandboxErrorKind::NotFound => {}
        Err(error) => return Err(error.into()),
    }
    live.metadata.remove(&path);
    Ok(Empty {})
}

async fn list_dir(live: &Live, body: Body, idle: Duration) -> Result<ListDirResponse, Fault> {
    let request: ListDirRequest = rpc::message(body, idle).await?;
    let path = path::resolve(&request.path, &live.home)?;
    let sandbox = live.visit()?;
    let mut seen = census::take(&*sandbox, &path, Start::Followed, request.depth.max(1)).await?;
    check_directory(&path, seen.first())?;
    seen.remove(0);
    seen.sort_by(|one, other| one.below.cmp(&other.below));
    let entries = entry::of(live, &*sandbox, &path, seen).await?;
    Ok(ListDirResponse { entries })
}

/// Refuses what is no directory.
fn check_directory(path: &SandboxPath, seen: Option<&census::Seen>) -> Result<(), Fault> {
    match seen {
        None => Err(Fault::not_found(format!("path not found: {path}"))),
        Some(seen) if seen.kind == FileKind::Directory => Ok(()),
        Some(_) => Err(Fault::invalid(format!("path is not a directory: {path}"))),
    }
}
