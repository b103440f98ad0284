//! Marked processes, found from outside.

use std::fs;
use std::time::{Duration, Instant};

/// Returns the processes with this text in their command line or initial environment.
pub(crate) fn marked(mark: &str) -> Vec<u32> {
    let carries = |pid: u32, file: &str| {
        let content = fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
        String::from_utf8_lossy(&content).contains(mark)
    };
    all()
        .filter(|pid| *pid != std::process::id())
        .filter(|pid| carries(*pid, "cmdline") || carries(*pid, "environ"))
        .collect()
}

/// Returns the descendants of a process.
pub(crate) fn descendants(root: u32) -> Vec<u32> {
    let parents: Vec<_> = all().filter_map(|pid| Some((pid, parent(pid)?))).collect();
    let mut found = vec![root];
    let mut at = 0;
    while let Some(parent) = found.get(at).copied() {
        let children = parents.iter().filter(|(_, known)| *known == parent);
        found.extend(children.map(|(pid, _)| *pid));
        at += 1;
    }
    found.remove(0);
    found
}

/// Whether a process runs and is not a zombie.
pub(crate) fn runs(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit(')').next().unwrap_or_default().trim_start();
    !state.is_empty() && !state.starts_with(['Z', 'X'])
}

/// Waits until a condition is true; returns whether it was in time.
pub(crate) async fn soon(within: Duration, mut is_true: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + within;
    while !is_true() {
        if Instant::now() > deadline {
            return false;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    true
}

/// Describes a process.
pub(crate) fn description(pid: u32) -> String {
    let command = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit(')').next().unwrap_or_default().trim_start();
    let state: String = state.chars().take(12).collect();
    format!(
        "{pid} `{}` ({state}…)",
        command.replace('\0', " ").trim_end()
    )
}

fn all() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

fn parent(pid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, rest) = stat.rsplit_once(") ")?;
    rest.split(' ').nth(1)?.parse().ok()
}
