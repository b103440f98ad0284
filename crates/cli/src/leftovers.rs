//! Workspaces that were kept for runs which never began, or whose journals are gone: nobody will ever go
//! on in them.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cantle::agent::KeptRun;
use cantle::backends::local::LocalBackend;
use cantle::core::ids::RunId;
use cantle::core::policy::{Policy, Strictness};
use cantle::core::sandbox::{
    Backend as _, SandboxContext, SandboxError, SandboxErrorKind, SandboxHandle,
};
use serde_json::{Value, json};

use crate::state::State;

/// Removes them; what is younger than `grace` may belong to a run that is just beginning.
pub(crate) async fn collect(
    state: &State,
    grace: Duration,
    removed: &mut Vec<PathBuf>,
    problems: &mut Vec<(PathBuf, String)>,
) {
    let workspaces = state.workspaces();
    let named = match named(state) {
        Ok(named) => named,
        Err(error) => return problems.push((workspaces, error)),
    };
    let entries = fs::read_dir(&workspaces).into_iter().flatten().flatten();
    for path in entries.map(|entry| entry.path()) {
        if named.contains(&path) || !is_older(&path, grace) {
            continue;
        }
        match remove(&path).await {
            Ok(true) => removed.push(path),
            Ok(false) => {}
            Err(error) => problems.push((path, error.to_string())),
        }
    }
}

/// Removes one as the local backend does it; whether there was anything that nobody uses and that is ours.
async fn remove(path: &Path) -> Result<bool, SandboxError> {
    // The backend's own words for it.
    let handle = SandboxHandle::new("local", json!({ "directory": path }).to_string());
    // Its files are ours or another user's, as whom confined commands run.
    for mut policy in [Policy::workspace(), Policy::unconfined()] {
        policy.strictness = Strictness::BestEffort;
        let cx = SandboxContext::new(RunId::new(), policy);
        match LocalBackend::new().reattach(&handle, cx).await {
            Ok(sandbox) => return sandbox.close().await.map(|()| true),
            Err(error) if error.kind() == SandboxErrorKind::Unavailable => {}
            Err(error) if error.kind() == SandboxErrorKind::Gone => return Ok(false),
            Err(error) => return Err(error),
        }
    }
    Ok(false)
}

/// The directories that journals name.
fn named(state: &State) -> Result<HashSet<PathBuf>, String> {
    let (runs, unreadable) = state.runs().list().map_err(|error| error.to_string())?;
    // What can't be read may name any of them.
    if let Some(error) = unreadable.first() {
        return Err(format!("nothing that was kept is removed: {error}"));
    }
    let mut named = HashSet::new();
    let mut runs: Vec<KeptRun> = runs;
    while let Some(run) = runs.pop() {
        runs.extend(run.sub_agents());
        let token = run.sandbox.map(|handle| handle.token).unwrap_or_default();
        let token: Value = serde_json::from_str(&token).unwrap_or_default();
        let directory = token.get("directory").and_then(Value::as_str);
        named.extend(directory.map(PathBuf::from));
    }
    Ok(named)
}

fn is_older(path: &Path, grace: Duration) -> bool {
    let modified = fs::symlink_metadata(path).and_then(|found| found.modified());
    modified.is_ok_and(|modified| modified.elapsed().is_ok_and(|age| age >= grace))
}
