//! Control groups: limits for all processes of a sandbox together, if this process may create groups.
//!
//! A group is created only for a limit that nothing else enforces (memory; processes, if a user namespace
//! can't count them), because joining one takes time. It is below this process's group, whose limits then
//! apply to the sandbox, too. In version 2 a group with processes has no limited groups below it; there the
//! new group is a sibling, if systemd has delegated the parent (`Delegate=yes` and `DelegateSubgroup=`). The
//! supervisor's guard removes the groups at the end, even if this process is gone.
//!
//! All sandboxes without a memory limit of their own share a group. In version 1 they join it. In version 2 a
//! process is in one group only, so each sandbox has a group below the shared one.

mod defaults;
mod hierarchy;

use std::cmp::Reverse;
use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::sleep;
use std::time::Duration;

use cantle_core::policy::{Policy, PolicyField};
use parking_lot::MutexGuard;

pub(crate) use self::defaults::Defaults;
use self::defaults::SharedGroup;
pub(crate) use self::hierarchy::{Hierarchy, hierarchies, reclaim};
use crate::files::renamed;
use crate::identity::Identity;
use crate::mechanism::{Mechanism, Mechanisms};
use crate::mode::Mode;

/// Supervisor processes that count like a command's: init and the command's keeper.
pub(crate) const OWN_PROCESSES: u64 = 2;

/// Memory of the supervisor, which counts like a command's.
const OWN_BYTES: u64 = 2 << 20;

/// Part of the memory limit that version 1 grants to the buffers of TCP and UDP sockets, which it counts separately. The
/// machine's own limit for them is about as large a part of its memory.
const SOCKETS_PART: u64 = 16;

/// Attempts to remove a group that is in use, and the pause between them.
const MAX_REMOVALS: u32 = 250;
const REMOVAL_PAUSE: Duration = Duration::from_millis(2);

/// The control groups of a sandbox. Dropping removes the empty ones.
#[derive(Debug)]
pub(crate) struct Groups {
    /// Its own, that of version 2 first.
    groups: Vec<Group>,
    /// The group of all sandboxes, if its limit is the only one of memory.
    shared: Option<SharedGroup>,
}

/// The limits that groups can enforce.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct GroupLimits {
    pub(crate) memory_bytes: Option<u64>,
    pub(crate) processes: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Group {
    version: Version,
    directory: PathBuf,
    limits: GroupLimits,
    /// Whether groups of sandboxes may be below it.
    is_shared: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Version {
    One,
    Two,
}

/// How often limits were reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LimitEvents {
    /// Processes killed for lack of memory.
    pub(crate) oom_kills: u64,
    /// Processes refused.
    pub(crate) refused_processes: u64,
}

impl Groups {
    /// Creates the groups that the policy of a sandbox needs, as far as possible. A group that commands could modify is
    /// not created.
    pub(crate) fn create(
        sandbox: &str,
        mode: Mode,
        policy: &Policy,
        identity: Identity,
        mechanisms: Mechanisms,
        defaults: &Arc<Defaults>,
    ) -> Self {
        let mut groups = Self {
            groups: Vec::new(),
            shared: None,
        };
        if !mechanisms.include(Mechanism::ControlGroups) {
            return groups;
        }
        let needs_default = mode != Mode::Open
            && policy.limits.memory_bytes.is_none()
            && defaults.under(policy).memory_bytes.is_some()
            && !policy.limits.unlimited.contains(&PolicyField::Memory);
        if needs_default {
            let shared = defaults.group();
            groups.shared = shared.filter(|shared| {
                !can_be_written(policy, &shared.group.directory) || identity.is_other
            });
        }
        // The guard of an earlier sandbox in the same directory may still stop and remove its groups, by name.
        let name = &renamed(sandbox);
        let mut missing = GroupLimits::needed(mode, policy, identity);
        if let Some(shared) = &groups.shared {
            let parent = &shared.group.directory;
            let group = Group::below(parent, name, &shared.hierarchy, missing);
            let is_needed = group.version == Version::Two || group.limits != GroupLimits::default();
            if is_needed && groups.add(group, &mut missing).is_err() {
                groups.shared = None;
            }
        }
        if missing == GroupLimits::default() {
            return groups;
        }
        for hierarchy in hierarchies() {
            let group = Group::below(&hierarchy.parent, name, &hierarchy, missing);
            let is_writable = can_be_written(policy, &hierarchy.parent) && !identity.is_other;
            if group.limits != GroupLimits::default() && !is_writable {
                // A limit without a group is reported as not enforced.
                let _ = groups.add(group, &mut missing);
            }
        }
        groups.groups.sort_by_key(|group| Reverse(group.version));
        groups
    }

    fn add(&mut self, group: Group, missing: &mut GroupLimits) -> io::Result<()> {
        group.create()?;
        *missing = missing.without(group.limits);
        self.groups.push(group);
        Ok(())
    }

    /// Returns them, the shared one before those below it.
    fn all(&self) -> impl Iterator<Item = &Group> {
        let shared = self.shared.iter().map(|shared| &shared.group);
        shared.chain(&self.groups)
    }

    /// Returns those that processes join, that of version 2 first.
    fn joined(&self) -> impl Iterator<Item = &Group> {
        let shared = self.shared.iter().map(|shared| &shared.group);
        let has_below = |shared: &Group| {
            let mut groups = self.groups.iter();
            groups.any(|group| group.directory.starts_with(&shared.directory))
        };
        let shared = shared.filter(move |shared| !has_below(shared));
        self.groups.iter().chain(shared)
    }

    /// Whether the first that processes join is of version 2.
    pub(crate) fn has_version_two(&self) -> bool {
        let first = self.joined().next();
        first.is_some_and(|group| group.version == Version::Two)
    }

    /// Returns the directory of the group of all sandboxes.
    pub(crate) fn shared_directory(&self) -> Option<CString> {
        let shared = self.shared.as_ref()?;
        CString::new(shared.group.directory.as_os_str().as_bytes()).ok()
    }

    /// Whether their memory limit holds for all sandboxes together.
    pub(crate) fn share_memory_limit(&self) -> bool {
        self.shared.is_some()
    }

    /// Returns the limits that they enforce.
    pub(crate) fn limits(&self) -> GroupLimits {
        GroupLimits {
            memory_bytes: self.all().find_map(|group| group.limits.memory_bytes),
            processes: self.all().find_map(|group| group.limits.processes),
        }
    }

    /// Returns the supervisor's instructions for their removal.
    pub(crate) fn cleanups(&self) -> Vec<GroupCleanup> {
        self.groups.iter().filter_map(Group::cleanup).collect()
    }

    /// Calls `start` with what the supervisor needs to join them.
    ///
    /// Groups that are gone by then are created again: that of all sandboxes can be empty and old, and another process may
    /// [reclaim](crate::LocalBackend::reclaim) it.
    pub(crate) fn join<T, E: From<io::Error>>(
        &self,
        mut start: impl FnMut(&[File]) -> Result<T, E>,
    ) -> Result<T, E> {
        let mut attempt = || {
            let files: io::Result<Vec<File>> = {
                let _creating = self.lock_creation();
                self.joined().map(Group::open).collect()
            };
            start(&files?)
        };
        let joined = attempt();
        if joined.is_ok() {
            return joined;
        }
        let created = {
            let _creating = self.lock_creation();
            self.all().filter(|group| group.create().is_ok()).count()
        };
        match created {
            0 => joined,
            _ => attempt(),
        }
    }

    /// Waits until no other thread creates the group of all sandboxes, and keeps them from it while the returned value
    /// is held.
    fn lock_creation(&self) -> Option<MutexGuard<'_, ()>> {
        let shared = self.shared.as_ref();
        shared.map(|shared| shared.defaults.creating.lock())
    }

    /// Counts how often limits have been reached.
    pub(crate) fn limit_events(&self) -> LimitEvents {
        let mut events = LimitEvents::default();
        for group in self.all() {
            let count = |file, name| {
                let text = fs::read_to_string(group.file(file)).unwrap_or_default();
                value(&text, name).unwrap_or(0)
            };
            if group.limits.memory_bytes.is_some() {
                events.oom_kills += count(group.version.memory_events(), "oom_kill");
            }
            if group.limits.processes.is_some() {
                events.refused_processes += count("pids.events", "max");
            }
        }
        events
    }

    /// Removes the groups once they are empty. Blocks.
    pub(crate) fn remove(&self) {
        self.groups.iter().for_each(Group::remove);
    }
}

impl Drop for Groups {
    fn drop(&mut self) {
        for group in &self.groups {
            // Usually it is gone.
            let _ = fs::remove_dir(&group.directory);
        }
    }
}

impl GroupLimits {
    fn needed(mode: Mode, policy: &Policy, identity: Identity) -> Self {
        if mode == Mode::Open {
            // Commands could leave the group.
            return Self::default();
        }
        // Otherwise a user namespace counts the processes.
        let is_uncounted = mode == Mode::Landlock || identity.uid == 0;
        Self {
            memory_bytes: policy.limits.memory_bytes,
            processes: policy.limits.processes.filter(|_| is_uncounted),
        }
    }

    /// Returns the limits that have a controller.
    fn with(self, controllers: &[String]) -> Self {
        let has = |name| controllers.iter().any(|controller| controller == name);
        Self {
            memory_bytes: self.memory_bytes.filter(|_| has("memory")),
            processes: self.processes.filter(|_| has("pids")),
        }
    }

    fn without(self, others: Self) -> Self {
        Self {
            memory_bytes: self.memory_bytes.filter(|_| others.memory_bytes.is_none()),
            processes: self.processes.filter(|_| others.processes.is_none()),
        }
    }

    /// Returns the fields of the policy.
    pub(crate) fn fields(self) -> Vec<PolicyField> {
        let memory = self.memory_bytes.map(|_| PolicyField::Memory);
        let processes = self.processes.map(|_| PolicyField::Processes);
        memory.into_iter().chain(processes).collect()
    }
}

impl Group {
    /// Describes a group of a sandbox with those of the limits for which its hierarchy has a controller.
    fn below(parent: &Path, name: &str, hierarchy: &Hierarchy, limits: GroupLimits) -> Self {
        Self {
            version: hierarchy.version,
            directory: parent.join(name),
            limits: limits.with(&hierarchy.controllers),
            is_shared: false,
        }
    }

    /// Describes a group of all sandboxes with a limit of memory.
    pub(crate) fn shared(hierarchy: &Hierarchy, name: &str, bytes: u64) -> Self {
        Self {
            version: hierarchy.version,
            directory: hierarchy.parent.join(name),
            limits: GroupLimits {
                memory_bytes: Some(bytes),
                processes: None,
            },
            is_shared: true,
        }
    }

    /// Opens the file through which a process joins it, or in version 2 its directory.
    fn open(&self) -> io::Result<File> {
        match self.version {
            // The `tasks` file: moving a thread does not wait for RCU grace periods (some 10 ms), as moving a
            // process does.
            Version::One => OpenOptions::new().write(true).open(self.file("tasks")),
            Version::Two => File::open(&self.directory),
        }
    }

    /// Removes it once it is empty. Blocks.
    pub(crate) fn remove(&self) {
        // Usually the guard has removed it. If the guard was killed, processes that have just ended may still
        // be counted.
        for _ in 0..MAX_REMOVALS {
            match fs::remove_dir(&self.directory) {
                Err(error) if error.kind() == io::ErrorKind::ResourceBusy => sleep(REMOVAL_PAUSE),
                _ => break,
            }
        }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Creates it with its limits.
    pub(crate) fn create(&self) -> io::Result<()> {
        fs::create_dir(&self.directory)?;
        let limited = self.write_limits(has_swap());
        if limited.is_err() {
            // The first error is the one to report.
            let _ = fs::remove_dir(&self.directory);
        }
        if self.is_shared && self.version == Version::Two {
            // If it can limit processes, those below can.
            let _ = write(&self.file("cgroup.subtree_control"), "+pids");
        }
        limited
    }

    fn write_limits(&self, has_swap: bool) -> io::Result<()> {
        if let Some(bytes) = self.limits.memory_bytes {
            if self.version == Version::One {
                let sockets = (bytes / SOCKETS_PART).to_string();
                // Kernels may have removed the file.
                let _ = write(&self.file("memory.kmem.tcp.limit_in_bytes"), &sockets);
            }
            let bytes = bytes.saturating_add(OWN_BYTES).to_string();
            let (memory, swap) = match self.version {
                Version::One => (
                    "memory.limit_in_bytes",
                    // Memory and swap together.
                    ("memory.memsw.limit_in_bytes", bytes.as_str()),
                ),
                Version::Two => ("memory.max", ("memory.swap.max", "0")),
            };
            write(&self.file(memory), &bytes)?;
            match write(&self.file(swap.0), swap.1) {
                // Without swap the kernel may not have the file.
                Err(error) if error.kind() == io::ErrorKind::NotFound && !has_swap => {}
                written => written?,
            }
        }
        if let Some(processes) = self.limits.processes {
            let all = processes.saturating_add(OWN_PROCESSES).to_string();
            write(&self.file("pids.max"), &all)?;
        }
        Ok(())
    }

    /// Returns `None` if its path contains NUL.
    fn cleanup(&self) -> Option<GroupCleanup> {
        let (stop, stop_value) = match (self.version, self.limits.processes) {
            (Version::Two, _) => (self.file("cgroup.kill"), c"1"),
            (Version::One, Some(_)) => (self.file("pids.max"), c"0"),
            (Version::One, None) => (PathBuf::new(), c""),
        };
        let c_path = |path: &Path| CString::new(path.as_os_str().as_bytes()).ok();
        Some(GroupCleanup {
            directory: c_path(&self.directory)?,
            stop: c_path(&stop)?,
            stop_value: stop_value.to_owned(),
        })
    }
}

impl Version {
    fn memory_events(self) -> &'static str {
        match self {
            Self::One => "memory.oom_control",
            Self::Two => "memory.events",
        }
    }
}

/// How to remove a group at the end; see [`cantle_supervisor::wire::ControlGroup`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GroupCleanup {
    pub(crate) directory: CString,
    pub(crate) stop: CString,
    pub(crate) stop_value: CString,
}

/// Writes to an existing file.
fn write(path: &Path, text: &str) -> io::Result<()> {
    use std::io::Write as _;

    let mut file = OpenOptions::new().write(true).open(path)?;
    file.write_all(text.as_bytes())
}

/// Returns the number after a word at the start of a line.
fn value(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let (found, number) = line.split_once(' ')?;
        (found == name).then(|| number.trim().parse().ok())?
    })
}

fn has_swap() -> bool {
    // A header, and a line for each.
    let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
    swaps.lines().count() > 1
}

/// Whether the policy allows commands to write below a directory.
fn can_be_written(policy: &Policy, directory: &Path) -> bool {
    match &policy.write_roots {
        // As with Landlock, write access includes read access.
        None => policy.read_roots.is_none(),
        Some(roots) => roots.iter().any(|root| {
            let target = fs::canonicalize(root);
            directory.starts_with(target.as_deref().unwrap_or(root))
        }),
    }
}

#[cfg(test)]
mod tests;
