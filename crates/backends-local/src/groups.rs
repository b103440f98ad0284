//! Control groups: limits for all processes of a sandbox together, where our process may make groups.
//!
//! A group is made only where it limits what nothing else does (memory; processes where they can't be
//! counted by a user namespace), because joining one takes its time. It lies below the group that we
//! are in, so that what limits us still limits the sandbox, too; with version 2, where a group with
//! processes has no groups with limits below it, beside ours, if systemd says that the place is ours
//! to use (`Delegate=yes` and `DelegateSubgroup=`). The supervisor's guard removes the groups at the
//! end, also where we are gone.

mod hierarchy;

use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use cantle_core::policy::{Policy, PolicyField};

pub(crate) use self::hierarchy::{hierarchies, reclaim};
use crate::backend::{Wall, Walls};
use crate::confinement::{Identity, Mode, OWN_PROCESSES};

/// Memory of the supervisor and of the kernel for it, which counts like a command's.
const OWN_BYTES: u64 = 2 << 20;

/// How often to try to remove a group that is in use, and how long to wait in between: together half a
/// second.
const MOST_REMOVALS: u32 = 250;
const BETWEEN_REMOVALS: Duration = Duration::from_millis(2);

/// The groups of one sandbox. Dropped, they are removed, unless something is in them.
#[derive(Debug)]
pub(crate) struct Groups {
    groups: Vec<Group>,
    limits: Limited,
}

/// What is limited, and how much of it there is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Limited {
    memory_bytes: Option<u64>,
    processes: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Group {
    version: Version,
    directory: PathBuf,
    limits: Limited,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Version {
    One,
    Two,
}

/// How often a limit was reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reached {
    /// Processes that were killed for their memory.
    pub(crate) memory: u64,
    /// Processes that were not started.
    pub(crate) processes: u64,
}

impl Groups {
    /// Makes the groups that a policy needs, as far as they can be made; none where they would do
    /// nothing, or could be changed from inside.
    pub(crate) fn make(
        name: &str,
        mode: Mode,
        policy: &Policy,
        identity: Identity,
        walls: Walls,
    ) -> Self {
        let mut groups = Self {
            groups: Vec::new(),
            limits: Limited::wanted(mode, policy, identity),
        };
        if !walls.include(Wall::ControlGroups) || groups.limits == Limited::default() {
            return groups;
        }
        let hierarchies = hierarchies();
        let mut left = groups.limits;
        for hierarchy in &hierarchies {
            let limits = left.with(&hierarchy.controllers);
            let is_reachable = can_be_written(policy, &hierarchy.place) && !identity.is_other;
            if limits == Limited::default() || is_reachable {
                continue;
            }
            let group = Group {
                version: hierarchy.version,
                directory: hierarchy.place.join(name),
                limits,
            };
            if group.make().is_ok() {
                groups.groups.push(group);
                left = left.without(limits);
            }
        }
        groups.limits = groups.limits.without(left);
        groups
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// The fields of the policy that they limit.
    pub(crate) fn fields(&self) -> Vec<PolicyField> {
        self.limits.fields()
    }

    /// What they are, for people.
    pub(crate) fn name(&self) -> String {
        let fields: Vec<&str> = self.fields().iter().map(|it| it.as_str()).collect();
        format!("control groups ({})", fields.join(", "))
    }

    /// What the supervisor is told of each.
    pub(crate) fn ends(&self) -> Vec<End> {
        self.groups.iter().filter_map(Group::end).collect()
    }

    /// The files by which a process joins them.
    pub(crate) fn entrances(&self) -> io::Result<Vec<File>> {
        let all = self
            .groups
            .iter()
            .map(|group| group.file(group.version.entrance()));
        all.map(|path| OpenOptions::new().write(true).open(path))
            .collect()
    }

    /// How much memory there is for everything together.
    pub(crate) fn memory_bytes(&self) -> Option<u64> {
        self.limits.memory_bytes
    }

    /// How many processes there may be at once.
    pub(crate) fn processes(&self) -> Option<u64> {
        self.limits.processes
    }

    /// How often limits were reached so far.
    pub(crate) fn reached(&self) -> Reached {
        let mut reached = Reached::default();
        for group in &self.groups {
            let count = |file, name| {
                let text = fs::read_to_string(group.file(file)).unwrap_or_default();
                value(&text, name).unwrap_or(0)
            };
            if group.limits.memory_bytes.is_some() {
                reached.memory += count(group.version.memory_events(), "oom_kill");
            }
            if group.limits.processes.is_some() {
                reached.processes += count("pids.events", "max");
            }
        }
        reached
    }

    /// Removes them, once nothing is in them any more. Blocks.
    pub(crate) fn remove(&self) {
        for group in &self.groups {
            // As a rule the supervisor has done so. Where it was killed, what has just ended may still
            // count.
            for _ in 0..MOST_REMOVALS {
                match fs::remove_dir(&group.directory) {
                    Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                        sleep(BETWEEN_REMOVALS);
                    }
                    _ => break,
                }
            }
        }
    }
}

impl Drop for Groups {
    fn drop(&mut self) {
        for group in &self.groups {
            // Mostly it is gone.
            let _ = fs::remove_dir(&group.directory);
        }
    }
}

impl Limited {
    fn wanted(mode: Mode, policy: &Policy, identity: Identity) -> Self {
        if mode == Mode::Open {
            // Commands could leave them.
            return Self::default();
        }
        // Elsewhere the sandbox has a user of its own, whose processes are counted.
        let is_uncounted = mode == Mode::Rules || identity.uid == 0;
        Self {
            memory_bytes: policy.limits.memory_bytes,
            processes: policy.limits.processes.filter(|_| is_uncounted),
        }
    }

    /// Those of them that have a controller.
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

    fn fields(self) -> Vec<PolicyField> {
        let memory = self.memory_bytes.map(|_| PolicyField::Memory);
        let processes = self.processes.map(|_| PolicyField::Processes);
        memory.into_iter().chain(processes).collect()
    }
}

impl Group {
    fn file(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Makes it, with its limits.
    fn make(&self) -> io::Result<()> {
        fs::create_dir(&self.directory)?;
        let limited = self.limit(has_swap());
        if limited.is_err() {
            // What was wrong with it is what there is to say.
            let _ = fs::remove_dir(&self.directory);
        }
        limited
    }

    fn limit(&self, has_swap: bool) -> io::Result<()> {
        if let Some(bytes) = self.limits.memory_bytes {
            let bytes = bytes.saturating_add(OWN_BYTES).to_string();
            let (memory, swap) = match self.version {
                Version::One => (
                    "memory.limit_in_bytes",
                    // Both together.
                    ("memory.memsw.limit_in_bytes", bytes.as_str()),
                ),
                Version::Two => ("memory.max", ("memory.swap.max", "0")),
            };
            write(&self.file(memory), &bytes)?;
            match write(&self.file(swap.0), swap.1) {
                // The kernel doesn't count what isn't there.
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

    /// `None` where its path can't be told.
    fn end(&self) -> Option<End> {
        let (stop, word) = match (self.version, self.limits.processes) {
            (Version::Two, _) => (self.file("cgroup.kill"), c"1"),
            (Version::One, Some(_)) => (self.file("pids.max"), c"0"),
            (Version::One, None) => (PathBuf::new(), c""),
        };
        let c_path = |path: &Path| CString::new(path.as_os_str().as_bytes()).ok();
        Some(End {
            directory: c_path(&self.directory)?,
            stop: c_path(&stop)?,
            word: word.to_owned(),
        })
    }
}

impl Version {
    /// The file by which a process with one thread joins.
    fn entrance(self) -> &'static str {
        match self {
            // Not that for whole processes: a thread that moves itself waits for nobody, a process
            // for the kernel's grace periods, some 10 ms.
            Self::One => "tasks",
            Self::Two => "cgroup.procs",
        }
    }

    fn memory_events(self) -> &'static str {
        match self {
            Self::One => "memory.oom_control",
            Self::Two => "memory.events",
        }
    }
}

/// What becomes of a group at the end; see [`cantle_supervisor::wire::Group`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct End {
    pub(crate) directory: CString,
    pub(crate) stop: CString,
    pub(crate) word: CString,
}

/// Writes to a file that is there.
fn write(path: &Path, text: &str) -> io::Result<()> {
    use std::io::Write as _;

    let mut file = OpenOptions::new().write(true).open(path)?;
    file.write_all(text.as_bytes())
}

/// The number after a word at the start of a line.
fn value(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let (found, number) = line.split_once(' ')?;
        (found == name).then(|| number.trim().parse().ok())?
    })
}

fn has_swap() -> bool {
    // A title, and a line for each.
    let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
    swaps.lines().count() > 1
}

/// Whether the policy lets commands write to what is in `place`.
fn can_be_written(policy: &Policy, place: &Path) -> bool {
    match &policy.write_roots {
        // As where Landlock keeps it: who may write may read.
        None => policy.read_roots.is_none(),
        Some(roots) => roots.iter().any(|root| {
            let target = fs::canonicalize(root);
            place.starts_with(target.as_deref().unwrap_or(root))
        }),
    }
}

#[cfg(test)]
mod tests;
