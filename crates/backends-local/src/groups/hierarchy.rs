//! The control group hierarchies of this machine, and abandoned groups in them.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::Version;
use crate::files::is_name;

/// Upper bound of the time until a new group is joined.
pub(super) const JOIN_TIME: Duration = Duration::from_secs(30);

/// Maximum depth of the search for abandoned groups.
pub(super) const MAX_DEPTH: usize = 12;

/// A hierarchy of control groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hierarchy {
    pub(crate) version: Version,
    /// Controllers usable in groups below `parent`.
    pub(crate) controllers: Vec<String>,
    /// Controllers that this group has but does not pass on.
    pub(crate) others: Vec<String>,
    /// The group below which sandboxes' groups are created.
    pub(crate) parent: PathBuf,
    /// Mount point.
    pub(crate) mount: PathBuf,
}

/// Returns the mounted hierarchies that contain this process.
pub(crate) fn hierarchies() -> Vec<Hierarchy> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    mounts
        .lines()
        .filter_map(|mount| Hierarchy::mounted(mount, &own))
        .collect()
}

impl Hierarchy {
    /// Parses a line of `mountinfo`; `own` is this process's list of groups.
    pub(super) fn mounted(line: &str, own: &str) -> Option<Self> {
        // `… ROOT MOUNT OPTIONS [MORE] - TYPE SOURCE OPTIONS`. Spaces in paths are `\040`; hierarchies have
        // none. Backslashes, which names of systemd have, are `\134`.
        let (mount, kind) = line.split_once(" - ")?;
        let mut mount = mount.split(' ').skip(3);
        let (root, mount) = (mount.next()?, PathBuf::from(mount.next()?));
        let mut kind = kind.split(' ');
        let (kind, options) = (kind.next()?, kind.nth(1)?);
        let version = match kind {
            "cgroup" => Version::One,
            "cgroup2" => Version::Two,
            _ => return None,
        };
        let mounted: Vec<&str> = options.split(',').collect();
        let group = own.lines().find_map(|line| {
            let (_, line) = line.split_once(':')?;
            let (controllers, path) = line.split_once(':')?;
            let is_this = match version {
                Version::One => controllers.split(',').any(|name| mounted.contains(&name)),
                Version::Two => controllers.is_empty(),
            };
            is_this.then_some(path)
        })?;
        let root = root.replace("\\134", "\\");
        let below = Path::new(group).strip_prefix(root).ok()?;
        if below.components().any(|part| part.as_os_str() == "..") {
            return None;
        }
        let group = mount.join(below);
        let known = |names: &mut dyn Iterator<Item = &str>| -> Vec<String> {
            names
                .filter(|name| matches!(*name, "cpu" | "memory" | "pids"))
                .map(str::to_owned)
                .collect()
        };
        if version == Version::One {
            let controllers = known(&mut mounted.into_iter());
            return (!controllers.is_empty()).then_some(Self {
                version,
                controllers,
                others: Vec::new(),
                parent: group,
                mount,
            });
        }
        let read = |group: &Path, file| {
            let text = fs::read_to_string(group.join(file)).unwrap_or_default();
            known(&mut text.split_whitespace())
        };
        let all = read(&group, "cgroup.controllers");
        let beside = group
            .parent()
            .filter(|parent| parent.starts_with(&mount) && is_delegated(parent));
        let mut candidates = std::iter::once(group.as_path()).chain(beside);
        let parent = candidates
            .find(|parent| !read(parent, "cgroup.subtree_control").is_empty())
            .unwrap_or(&group);
        let controllers = read(parent, "cgroup.subtree_control");
        Some(Self {
            version,
            others: all
                .into_iter()
                .filter(|name| !controllers.contains(name))
                .collect(),
            controllers,
            parent: parent.to_owned(),
            mount,
        })
    }
}

/// Removes empty groups with a sandbox's name that are at least so old; the kernel keeps groups with
/// processes.
pub(crate) fn reclaim(grace: Duration) -> Vec<PathBuf> {
    let mut removed = Vec::new();
    let grace = grace.max(JOIN_TIME);
    for hierarchy in hierarchies() {
        reclaim_below(&hierarchy.mount, MAX_DEPTH, grace, &mut removed);
    }
    removed
}

pub(super) fn reclaim_below(
    group: &Path,
    depth: usize,
    grace: Duration,
    removed: &mut Vec<PathBuf>,
) {
    let Ok(entries) = fs::read_dir(group) else {
        return;
    };
    for entry in entries.flatten() {
        let Ok(metadata) = entry.metadata() else {
            continue;
        };
        let path = entry.path();
        if !metadata.is_dir() {
            continue;
        }
        if depth > 0 {
            reclaim_below(&path, depth - 1, grace, removed);
        }
        if !entry.file_name().to_str().is_some_and(is_name) {
            continue;
        }
        let age = metadata.modified().ok().and_then(|at| at.elapsed().ok());
        let is_ours = metadata.uid() == rustix::process::geteuid().as_raw();
        if is_ours && age.is_some_and(|age| age >= grace) && fs::remove_dir(&path).is_ok() {
            removed.push(path);
        }
    }
}

/// Whether systemd has delegated a group to its user.
fn is_delegated(group: &Path) -> bool {
    let mut mark = [0; 8];
    let marked = rustix::fs::getxattr(group, "user.delegate", &mut mark);
    marked.is_ok_and(|length| mark.get(..length) == Some(b"1"))
}
