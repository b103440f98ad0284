//! What this machine can do, found by doing it: sandboxes are opened with all of the kernel's walls and
//! with some taken away, and in each a command tries to get out.
//!
//! Nothing is concluded from settings of the kernel: namespaces that may be made can still refuse a
//! mount. A probe never fails as a whole; what goes wrong in it is what it found. `cantle doctor` shows
//! it.

use std::fs;
use std::io;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cantle_core::ids::RunId;
use cantle_core::policy::{HostPattern, Limits, Policy, PolicyField, Preset, Strictness};
use cantle_core::sandbox::{
    Backend as _, EnforcedBy, Sandbox, SandboxContext, SandboxError, SandboxErrorKind,
    SandboxExt as _, SandboxInfo, SpawnRequest,
};

#[cfg(confined)]
use crate::groups;
use crate::{LocalBackend, Wall};

/// What this machine can do.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Probe {
    /// With all walls, and every limit, as far as they go.
    pub whole: Trial,
    /// With namespaces, or refused: why there are none.
    pub namespaces: Trial,
    /// The same as `whole` without namespaces, as it would be where they are forbidden.
    pub without_namespaces: Trial,
    /// With a system call filter alone, or refused.
    pub filter: Trial,
    /// With each preset as it is meant: all of it, or refused.
    pub presets: Vec<(Preset, Trial)>,
    /// The control groups that are mounted, at most one for each version.
    pub control_groups: Vec<ControlGroups>,
}

/// What came of one sandbox.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Trial {
    /// What the sandbox said of itself, or why there was none.
    pub opened: Result<SandboxInfo, Refusal>,
    /// Fields that were said to be enforced, and that a command got past.
    pub broken: Vec<PolicyField>,
}

/// Why there was no sandbox, or none that could run a command.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Refusal {
    /// The fields that can't be enforced, where it was for them.
    pub unenforced: Vec<PolicyField>,
    /// Why, for people.
    pub reason: String,
}

/// A version of control groups.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ControlGroups {
    /// 1 or 2.
    pub version: u8,
    /// Of `cpu`, `memory` and `pids` those that there are.
    pub controllers: Vec<String>,
    /// Those that could be limited in a group of ours.
    pub writable: Vec<String>,
}

impl Probe {
    /// Opens sandboxes of `backend`, each for at most `limit`; what isn't found out by then is refused
    /// with that reason.
    pub async fn take(backend: &LocalBackend, limit: Duration) -> Self {
        let parent = backend.place();
        let (bait, control_groups) =
            off_runtime(move || (Bait::lay(&parent).ok(), control_groups()))
                .await
                .unwrap_or_default();
        let bait = bait.as_ref();
        let mut everything = Policy::workspace();
        everything.limits = all_limits();
        everything.strictness = Strictness::BestEffort;
        let reaching = Policy::network(example());
        let mut offline = Policy::unconfined();
        offline.network = Policy::workspace().network;

        let no_namespaces = backend.clone().without(Wall::Namespaces);
        let filter_alone = no_namespaces.clone().without(Wall::Landlock);
        // Without Landlock to fall back on, the reason that is given is that of the namespaces.
        let namespaces_alone = backend.clone().without(Wall::Landlock);
        let mut probe = Self {
            whole: trial(backend, &everything, bait, limit).await,
            namespaces: trial(&namespaces_alone, &reaching, bait, limit).await,
            without_namespaces: trial(&no_namespaces, &everything, bait, limit).await,
            filter: trial(&filter_alone, &offline, bait, limit).await,
            presets: Vec::new(),
            control_groups,
        };
        for preset in Preset::ALL {
            let policy = match preset {
                Preset::Network => reaching.clone(),
                other => other.policy(),
            };
            let trial = trial(backend, &policy, bait, limit).await;
            probe.presets.push((*preset, trial));
        }
        probe
    }
}

impl Trial {
    /// Whether there was a sandbox that kept what it said.
    #[must_use]
    pub fn works(&self) -> bool {
        self.opened.is_ok() && self.broken.is_empty()
    }

    /// What the sandbox called a wall that it had, such as `Landlock 7`.
    #[must_use]
    pub fn wall(&self, wall: Wall) -> Option<&str> {
        let start = match wall {
            Wall::Namespaces => "namespaces",
            Wall::Landlock => "Landlock",
            Wall::SystemCalls => "system call filter",
            Wall::Identity => "user ",
            Wall::ControlGroups => "control group",
        };
        let mut walls = self.opened.as_ref().ok()?.walls.iter();
        walls
            .find(|name| name.starts_with(start))
            .map(String::as_str)
    }

    fn refused(error: &SandboxError) -> Self {
        const BEFORE_REASON: &str = "This machine: ";
        let advice = error.advice().unwrap_or_default();
        let reason = advice.split_once(BEFORE_REASON).map(|(_, reasons)| {
            let reasons = reasons.trim_end_matches('.');
            reasons.replace(&format!(". {BEFORE_REASON}"), "; ")
        });
        Self {
            opened: Err(Refusal {
                unenforced: error.unenforced().to_vec(),
                reason: reason.unwrap_or_else(|| error.to_string()),
            }),
            broken: Vec::new(),
        }
    }
}

/// Some value for every limit, none of which a small command reaches.
fn all_limits() -> Limits {
    let time = Some(Duration::from_secs(60));
    let mut limits = Limits::default();
    limits.wall_time = time;
    limits.cpu_time = time;
    limits.memory_bytes = Some(1 << 30);
    limits.processes = Some(256);
    limits.file_size_bytes = Some(1 << 24);
    limits.disk_bytes = Some(1 << 24);
    limits.inodes = Some(1 << 10);
    limits.open_files = Some(256);
    limits.output_bytes = Some(1 << 20);
    limits
}

/// A host that is reserved for examples; it is allowed and not contacted.
fn example() -> Option<HostPattern> {
    "example.org".parse().ok()
}

/// Opens a sandbox, has a command try to get out of it, and closes it.
async fn trial(
    backend: &LocalBackend,
    policy: &Policy,
    bait: Option<&Bait>,
    limit: Duration,
) -> Trial {
    let work = async {
        let cx = SandboxContext::new(RunId::new(), policy.clone());
        let sandbox = backend.open(cx).await?;
        let tried = try_to_get_out(&*sandbox, bait).await;
        let closed = sandbox.close().await;
        let broken = tried?;
        closed?;
        Ok(Trial {
            opened: Ok(sandbox.info().clone()),
            broken,
        })
    };
    let ended = within(limit, work).await;
    ended.unwrap_or_else(|error| Trial::refused(&error))
}

/// Runs a command that does what the policy forbids; returns the fields that are said to be enforced
/// and did not stop it.
async fn try_to_get_out(
    sandbox: &dyn Sandbox,
    bait: Option<&Bait>,
) -> Result<Vec<PolicyField>, SandboxError> {
    let script = bait.map_or_else(|| "echo ran".to_owned(), Bait::script);
    let output = sandbox.run(SpawnRequest::shell(script)).await?;
    let said = output.stdout.text();
    if !said.lines().any(|line| line == "ran") {
        let message = format!(
            "a command could not be run: {}",
            output.stderr.text().trim()
        );
        return Err(SandboxError::new(SandboxErrorKind::Io, message));
    }
    let enforced = sandbox.info().enforcement.iter();
    Ok(enforced
        .filter(|it| it.by != EnforcedBy::NotEnforced)
        .map(|it| it.field)
        .filter(|field| said.lines().any(|line| line == field.as_str()))
        .collect())
}

/// What a command tries to reach: a directory of the host in which everybody may read and write, and
/// a port on which somebody listens.
#[derive(Debug)]
struct Bait {
    directory: PathBuf,
    listener: TcpListener,
}

impl Bait {
    fn lay(parent: &Path) -> io::Result<Self> {
        let directory = parent.join(format!("cantle-probe-{}", RunId::new()));
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        fs::create_dir(&directory)?;
        let bait = Self {
            directory,
            listener,
        };
        fs::write(bait.directory.join("file"), "bait")?;
        fs::set_permissions(&bait.directory, fs::Permissions::from_mode(0o777))?;
        Ok(bait)
    }

    /// Says `ran`, and then the name of each field that did not stop it.
    fn script(&self) -> String {
        let directory = self.directory.to_string_lossy().replace('\'', r"'\''");
        let port = self
            .listener
            .local_addr()
            .map_or(0, |address| address.port());
        format!(
            "exec 2>/dev/null; echo ran; cd '{directory}' && cat file >/dev/null && echo read_roots; cd; \
             (: > '{directory}/written') && echo write_roots; (: > written) && echo working_directory; \
             (exec 3<>/dev/tcp/127.0.0.1/{port}) && echo network; true"
        )
    }
}

impl Drop for Bait {
    fn drop(&mut self) {
        // What can't be removed is an empty directory and says whose it is.
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// Finds the control groups of our process, and tries to make one below.
#[cfg(confined)]
fn control_groups() -> Vec<ControlGroups> {
    let mut found: Vec<ControlGroups> = Vec::new();
    for hierarchy in groups::hierarchies() {
        let version = match hierarchy.version {
            groups::Version::One => 1,
            groups::Version::Two => 2,
        };
        let below = hierarchy
            .place
            .join(format!("cantle-probe-{}", RunId::new()));
        let writable = fs::create_dir(&below).is_ok() && fs::remove_dir(&below).is_ok();
        let index = found.iter().position(|groups| groups.version == version);
        let mut groups = match index {
            Some(index) => found.swap_remove(index),
            None => ControlGroups {
                version,
                controllers: Vec::new(),
                writable: Vec::new(),
            },
        };
        let usable = hierarchy.controllers.iter().filter(|_| writable);
        groups.writable.extend(usable.cloned());
        groups.controllers.extend(hierarchy.controllers);
        groups.controllers.extend(hierarchy.others);
        found.push(groups);
    }
    found.sort_by_key(|groups| groups.version);
    found
}

#[cfg(not(confined))]
fn control_groups() -> Vec<ControlGroups> {
    Vec::new()
}

async fn within<T>(
    limit: Duration,
    work: impl Future<Output = Result<T, SandboxError>>,
) -> Result<T, SandboxError> {
    let ended = tokio::time::timeout(limit, work).await;
    ended.unwrap_or_else(|_| {
        let message = "it was not found out in time";
        Err(SandboxError::new(SandboxErrorKind::Unavailable, message))
    })
}

async fn off_runtime<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    crate::blocking::run(move || Ok(work())).await.ok()
}

#[cfg(all(test, confined))]
mod tests;
