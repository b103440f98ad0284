//! `cantle gc`: removes what killed processes left behind.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cantle::backends::local::{LocalBackend, Reclaimed};
use cantle::core::ids::RunId;
use cantle::core::policy::{Policy, Strictness};
use cantle::core::sandbox::{
    Backend as _, SandboxContext, SandboxError, SandboxErrorKind, SandboxHandle,
};
use serde_json::json;

use super::print;
use crate::args::GcArgs;
use crate::backend;
use crate::exit::{Failure, FailureExt as _};
use crate::kept_sandbox::{self, directory_of};
use crate::messages::warn;
use crate::packages;
use crate::saved_settings;
use crate::settings::KeepSettings;
use crate::settings::layers::Layers;
use crate::state_dir::StateDir;
use crate::text::{one_line, plural};
use crate::undelivered;
use crate::working_copy;

/// Younger directories may belong to a process that is starting.
const GRACE: Duration = Duration::from_secs(60);
/// Age of the latest use after which installed packages are removed.
const UNUSED_PACKAGES: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// Removes what can be removed, and returns the exit code.
pub(crate) async fn perform(args: GcArgs) -> Result<u8, Failure> {
    let settings = Layers::with_files(&args.settings).usage()?;
    let settings: KeepSettings = settings.typed().usage()?;
    let state = StateDir::find().ok();
    let mut backends = vec![LocalBackend::new()];
    if let Some(state) = &state {
        let kept = [state.workspaces(), state.served()].into_iter();
        backends.extend(
            kept.filter(|directory| directory.is_dir())
                .map(|directory| LocalBackend::new().in_directory(directory)),
        );
    }
    let mut text = String::new();
    let mut all = Reclaimed::default();
    for backend in backends {
        add(&mut all, backend.reclaim(GRACE).await);
    }
    if let Some(state) = &state {
        match state.runs().remove_incomplete(GRACE) {
            Ok(incomplete) => all.removed.extend(incomplete),
            Err(error) => all.failed.push((state.workspaces(), error.to_string())),
        }
        let pruned = kept_sandbox::prune(state, settings.retention()).await;
        add(&mut all, pruned);
        if state.packages().is_dir()
            && let Ok(store) = packages::store()
        {
            let collected = store.collect_garbage(UNUSED_PACKAGES).await;
            all.removed.extend(collected.removed);
            all.failed.extend(collected.failed);
        }
        remove_orphans(state, &mut all).await;
        let pruned = undelivered::prune(state, settings.retention().age, GRACE);
        for directory in &pruned.removed {
            let directory = one_line(&directory.display().to_string());
            text.push_str(&format!(
                "removed output files that were not delivered: {directory}\n"
            ));
        }
        add(&mut all, pruned);
    }
    let mut summary = plural(all.removed.len() as u64, "directory", "directories");
    let name = |path: PathBuf| path.display().to_string();
    let mut removed: Vec<String> = all.removed.into_iter().map(name).collect();
    let failed = all.failed.into_iter();
    let mut failed: Vec<_> = failed.map(|(path, error)| (name(path), error)).collect();
    // Without a reachable engine there are none to remove.
    let containers = backend::containers().reclaim().await.unwrap_or_default();
    let images = packages::remove_derived(UNUSED_PACKAGES).await;
    for (reclaimed, one, many) in [
        (containers, "container", "containers"),
        (images, "image", "images"),
    ] {
        if !reclaimed.removed.is_empty() {
            summary += " and ";
            summary += &plural(reclaimed.removed.len() as u64, one, many);
        }
        removed.extend(reclaimed.removed);
        failed.extend(reclaimed.failed);
    }
    for name in removed.iter().filter(|_| args.verbose) {
        text.push_str(&format!("{}\n", one_line(name)));
    }
    for (name, error) in &failed {
        warn(&format!("{name}: {error}"));
    }
    text.push_str(&format!("{summary} removed\n"));
    print(&text)?;
    Ok(u8::from(!failed.is_empty()))
}

fn add(all: &mut Reclaimed, more: Reclaimed) {
    all.removed.extend(more.removed);
    all.failed.extend(more.failed);
}

/// Removes kept working directories, and copies of directories, that no journal names: their runs never began, or their
/// journals are gone.
async fn remove_orphans(state: &StateDir, all: &mut Reclaimed) {
    let (mut runs, mut unreadable) = match state.runs().list() {
        Ok(listed) => listed,
        Err(error) => return all.failed.push((state.workspaces(), error.to_string())),
    };
    let copies = runs.iter().filter_map(saved_settings::working_copy);
    let copies = copies.map(|copy| copy.directory);
    // Not later: what follows may take longer than the grace period.
    let copies = unnamed(&state.working_copies(), &copies.collect());
    let mut named = HashSet::new();
    while let Some(run) = runs.pop() {
        let (sub_agents, errors) = run.sub_agents();
        runs.extend(sub_agents);
        unreadable.extend(errors);
        named.extend(run.sandbox.as_ref().and_then(directory_of));
    }
    // An unreadable journal may name any of them.
    if let Some(error) = unreadable.first() {
        let error = format!("no kept working directory is removed: {error}");
        return all.failed.push((state.workspaces(), error));
    }
    for path in unnamed(&state.workspaces(), &named) {
        match remove(&path).await {
            Ok(true) => all.removed.push(path),
            Ok(false) => {}
            Err(error) => all.failed.push((path, error.to_string())),
        }
    }
    for path in copies {
        if working_copy::is_locked(&path) {
            continue;
        }
        match fs::remove_dir_all(&path) {
            Ok(()) => all.removed.push(path),
            Err(error) => all.failed.push((path, error.to_string())),
        }
    }
}

/// Returns the entries of a directory that are not among `named`, and not young.
fn unnamed(directory: &Path, named: &HashSet<PathBuf>) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let paths = entries.map(|entry| entry.path());
    paths
        .filter(|path| !named.contains(path) && is_older_than_grace(path))
        .collect()
}

/// Removes a working directory through its backend; returns whether it was one that is not in use.
async fn remove(path: &Path) -> Result<bool, SandboxError> {
    // The local backend's format of a handle.
    let handle = SandboxHandle::new("local", json!({ "directory": path }).to_string());
    // Its files belong to this user or to the one that confined commands run as.
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

fn is_older_than_grace(path: &Path) -> bool {
    let modified = fs::symlink_metadata(path).and_then(|found| found.modified());
    modified.is_ok_and(|modified| modified.elapsed().is_ok_and(|age| age >= GRACE))
}
