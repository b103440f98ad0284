//! Finds out what this machine supports by opening sandboxes with all and with only some mechanisms of the
//! kernel, in each of which a command tries to escape.
//!
//! Nothing is concluded from kernel settings: namespaces that may be created can still refuse a mount. A
//! probe never fails as a whole; its failures are its findings. `cantle doctor` displays them.

#[cfg(confined)]
use std::collections::BTreeMap;
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

use crate::blocking;
#[cfg(confined)]
use crate::groups;
use crate::{LocalBackend, Mechanism};

/// The isolation mechanisms that this machine supports.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Probe {
    /// With all mechanisms and every limit, best effort.
    pub whole: Trial,
    /// With namespaces required.
    pub namespaces: Trial,
    /// Like `whole`, without namespaces.
    pub without_namespaces: Trial,
    /// With only a system call filter, required.
    pub filter: Trial,
    /// With each preset, strict.
    pub presets: Vec<(Preset, Trial)>,
    /// The limits of sandboxes whose policy names none.
    pub default_limits: Limits,
    /// The mounted control groups, at most one entry per version.
    pub control_groups: Vec<ControlGroupSupport>,
}

/// The result of trying one sandbox.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Trial {
    /// The sandbox's description, or why there was none.
    pub opened: Result<SandboxInfo, ProbeFailure>,
    /// Fields that were reported as enforced and that a command violated.
    pub broken: Vec<PolicyField>,
}

/// The reason why a sandbox could not be opened, or could not run a command.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProbeFailure {
    /// The fields that can't be enforced, if that was the reason.
    pub unenforced: Vec<PolicyField>,
    /// The reason, for display.
    pub reason: String,
}

/// Support of one version of control groups.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ControlGroupSupport {
    /// 1 or 2.
    pub version: u8,
    /// The available ones of `cpu`, `memory` and `pids`.
    pub controllers: Vec<String>,
    /// Those usable in a group that this process creates.
    pub writable: Vec<String>,
}

impl Probe {
    /// Opens sandboxes of `backend`, each for at most `limit`; a trial that takes longer fails with that
    /// reason.
    pub async fn run(backend: &LocalBackend, limit: Duration) -> Self {
        let parent = backend.settings.parent_directory();
        let prepare = move || Ok((Bait::create(&parent).ok(), control_groups()));
        let (bait, control_groups) = blocking::run(prepare).await.unwrap_or_default();
        let bait = bait.as_ref();
        let mut everything = Policy::workspace();
        everything.limits = all_limits();
        everything.strictness = Strictness::BestEffort;
        let reaching = Policy::network(example());
        let mut offline = Policy::unconfined();
        offline.network = Policy::workspace().network;

        let no_namespaces = backend.clone().without(Mechanism::Namespaces);
        let filter_alone = no_namespaces.clone().without(Mechanism::Landlock);
        // Without Landlock as a fallback, the reported reason is that of the namespaces.
        let namespaces_alone = backend.clone().without(Mechanism::Landlock);
        let mut probe = Self {
            whole: trial(backend, &everything, bait, limit).await,
            namespaces: trial(&namespaces_alone, &reaching, bait, limit).await,
            without_namespaces: trial(&no_namespaces, &everything, bait, limit).await,
            filter: trial(&filter_alone, &offline, bait, limit).await,
            presets: Vec::new(),
            default_limits: backend.default_limits(),
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
    /// Whether a sandbox opened and enforced what it reported.
    pub fn works(&self) -> bool {
        self.opened.is_ok() && self.broken.is_empty()
    }

    /// Returns the sandbox's name of a mechanism in force, such as `Landlock 7`.
    pub fn mechanism(&self, mechanism: Mechanism) -> Option<&str> {
        let start = match mechanism {
            Mechanism::Namespaces => "namespaces",
            Mechanism::Landlock => "Landlock",
            Mechanism::SystemCalls => "system call filter",
            Mechanism::Identity => "user ",
            Mechanism::ControlGroups => "control group",
            Mechanism::DiskImages => "disk image",
        };
        let mut names = self.opened.as_ref().ok()?.mechanisms.iter();
        names
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
            opened: Err(ProbeFailure {
                unenforced: error.unenforced().to_vec(),
                reason: reason.unwrap_or_else(|| error.to_string()),
            }),
            broken: Vec::new(),
        }
    }
}

/// Sets every limit to a value that a small command does not reach.
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

/// A reserved host, which is allowed but not contacted.
fn example() -> Option<HostPattern> {
    "example.org".parse().ok()
}

/// Opens a sandbox, has a command try to escape, and closes it.
async fn trial(
    backend: &LocalBackend,
    policy: &Policy,
    bait: Option<&Bait>,
    limit: Duration,
) -> Trial {
    let work = async {
        let cx = SandboxContext::new(RunId::new(), policy.clone());
        let sandbox = backend.open(cx).await?;
        let tried = try_to_escape(&*sandbox, bait).await;
        let closed = sandbox.close().await;
        let broken = tried?;
        closed?;
        Ok(Trial {
            opened: Ok(sandbox.info().clone()),
            broken,
        })
    };
    let ended: Result<_, SandboxError> = tokio::time::timeout(limit, work)
        .await
        .unwrap_or_else(|_| Err(SandboxError::unavailable("the probe timed out")));
    ended.unwrap_or_else(|error| Trial::refused(&error))
}

/// Runs a command that violates the policy; returns the fields that were reported as enforced but did not
/// stop it.
async fn try_to_escape(
    sandbox: &dyn Sandbox,
    bait: Option<&Bait>,
) -> Result<Vec<PolicyField>, SandboxError> {
    let script = bait.map_or_else(|| "echo ran".to_owned(), Bait::script);
    let output = sandbox.run(SpawnRequest::shell(script)).await?;
    let text = output.stdout.text();
    if !text.lines().any(|line| line == "ran") {
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
        .filter(|field| text.lines().any(|line| line == field.as_str()))
        .collect())
}

/// The target of an escape: a world-writable host directory and a listening port.
#[derive(Debug)]
struct Bait {
    directory: PathBuf,
    listener: TcpListener,
}

impl Bait {
    fn create(parent: &Path) -> io::Result<Self> {
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

    /// Returns a script that prints `ran`, and then the name of each field that did not stop it.
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
        // An empty directory may be left; its name identifies it.
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// Returns the control groups of this process, and tries to create one below.
#[cfg(confined)]
fn control_groups() -> Vec<ControlGroupSupport> {
    let mut found = BTreeMap::new();
    for hierarchy in groups::hierarchies() {
        let version = match hierarchy.version {
            groups::Version::One => 1,
            groups::Version::Two => 2,
        };
        let below = hierarchy
            .parent
            .join(format!("cantle-probe-{}", RunId::new()));
        let writable = fs::create_dir(&below).is_ok() && fs::remove_dir(&below).is_ok();
        let groups = found.entry(version).or_insert_with(|| ControlGroupSupport {
            version,
            controllers: Vec::new(),
            writable: Vec::new(),
        });
        let usable = hierarchy.controllers.iter().filter(|_| writable);
        groups.writable.extend(usable.cloned());
        groups.controllers.extend(hierarchy.controllers);
        groups.controllers.extend(hierarchy.others);
    }
    found.into_values().collect()
}

#[cfg(not(confined))]
fn control_groups() -> Vec<ControlGroupSupport> {
    Vec::new()
}

#[cfg(all(test, confined))]
mod tests;
