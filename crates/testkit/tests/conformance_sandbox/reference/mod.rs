//! Minimal conforming backend: a directory and processes of this host. It can have one fault, or omit
//! all optional features.
//!
//! It finds a command's processes by a variable in their environment, which a hostile command could
//! remove. This suffices only for testing the suite.

mod command;
mod fault;
mod files;
mod reader;
mod sandbox;

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use cantle_core::ids::unique_id;
use cantle_core::policy::{PolicyField, Strictness};
use cantle_core::sandbox::{
    Backend, EnforcedBy, Enforcement, Sandbox, SandboxContext, SandboxError, SandboxErrorKind,
    SandboxHandle, SandboxInfo, SandboxPath, Survival,
};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::sync::{Semaphore, watch};

pub(crate) use self::fault::Fault;
use self::sandbox::Local;

/// Backend, optionally with a fault. Dropping it kills processes that a fault left running.
#[derive(Debug)]
pub(crate) struct Reference {
    fault: Option<Fault>,
    minimal: bool,
    tag: String,
    /// Parent of the sandboxes' directories.
    place: TempDir,
    shared: TempDir,
    kept: Kept,
    open: Mutex<HashMap<String, Killer>>,
}

/// Directories of kept and dropped sandboxes, by handle.
type Kept = Arc<Mutex<HashMap<String, TempDir>>>;

/// Handle to kill a sandbox from outside.
#[derive(Debug)]
struct Killer {
    tag: String,
    gone: watch::Sender<bool>,
}

impl Reference {
    pub(crate) fn new(fault: Option<Fault>) -> Self {
        Self {
            fault,
            minimal: false,
            tag: unique_id(),
            place: TempDir::new().unwrap(),
            shared: TempDir::new().unwrap(),
            kept: Kept::default(),
            open: Mutex::default(),
        }
    }

    /// Creates a backend without optional features.
    pub(crate) fn minimal() -> Self {
        let mut backend = Self::new(None);
        backend.minimal = true;
        backend
    }

    /// Ends a sandbox as a crash would.
    pub(crate) fn kill(&self, sandbox: &dyn Sandbox) {
        let open = self.open.lock().unwrap();
        let killer = &open[&sandbox.info().id];
        killer.gone.send(true).unwrap();
        kill_tagged(&killer.tag);
    }

    /// Reports whether the backend enforces a field.
    fn enforces(&self, field: PolicyField) -> bool {
        let own = [PolicyField::Environment, PolicyField::WallTime];
        own.contains(&field) || self.fault == Some(Fault::ReportsFalseEnforcement)
    }

    fn open_in(
        &self,
        own: TempDir,
        reattached: bool,
        cx: SandboxContext,
    ) -> Result<Arc<dyn Sandbox>, SandboxError> {
        let mut missing = cx.policy.fields();
        missing.retain(|field| !self.enforces(*field));
        let strict = cx.policy.strictness == Strictness::Strict;
        if strict && !missing.is_empty() && self.fault != Some(Fault::IgnoresThePolicy) {
            return Err(SandboxError::unenforceable(self.name(), missing));
        }
        let root = match self.fault {
            Some(Fault::SharesOneDirectory) => self.shared.path(),
            _ => own.path(),
        };
        let root = root.canonicalize().unwrap();
        let id = match self.fault {
            Some(Fault::ReusesIds) => "the-one".to_owned(),
            _ => unique_id(),
        };
        let mut info = SandboxInfo::new(self.name(), id, SandboxPath::from_os(&root)?);
        if cx.durable && !self.minimal && self.fault != Some(Fault::ReportsNoSurvival) {
            info.survival = Survival::Workspace;
        }
        info.network.clone_from(&cx.policy.network);
        info.enforcement = Enforcement::report(&cx.policy, |field| {
            if self.enforces(field) {
                EnforcedBy::Backend
            } else {
                EnforcedBy::NotEnforced
            }
        });
        if self.fault == Some(Fault::ReportsUnsetFields) {
            let network = Enforcement::new(PolicyField::Network, EnforcedBy::Backend);
            info.enforcement.push(network);
        }
        let tags = ProcessTags {
            backend: self.tag.clone(),
            sandbox: unique_id(),
        };
        let (gone_sender, gone) = watch::channel(false);
        let killer = Killer {
            tag: tags.sandbox.clone(),
            gone: gone_sender,
        };
        self.open.lock().unwrap().insert(info.id.clone(), killer);
        let state = SandboxState {
            fault: self.fault,
            minimal: self.minimal,
            can_be_kept: cx.durable && !self.minimal,
            reattached,
            kept: Arc::clone(&self.kept),
            gone,
            tags,
            stream: Arc::new(Semaphore::new(1)),
        };
        Ok(Arc::new(Local::new(state, info, cx.policy, root, own)?))
    }
}

impl Drop for Reference {
    fn drop(&mut self) {
        kill_tagged(&self.tag);
        remove_all(self.place.path());
    }
}

#[async_trait]
impl Backend for Reference {
    fn name(&self) -> &str {
        "reference"
    }

    async fn open(&self, cx: SandboxContext) -> Result<Arc<dyn Sandbox>, SandboxError> {
        let own = TempDir::new_in(self.place.path());
        let own = own.map_err(|error| SandboxError::io("no directory", error))?;
        self.open_in(own, false, cx)
    }

    async fn reattach(
        &self,
        handle: &SandboxHandle,
        cx: SandboxContext,
    ) -> Result<Arc<dyn Sandbox>, SandboxError> {
        if self.fault == Some(Fault::AcceptsAnyHandle) {
            return self.open(cx).await;
        }
        if self.minimal {
            return Err(SandboxError::unsupported("sandboxes can't be kept"));
        }
        if handle.backend != self.name() {
            let message = "the handle is another backend's";
            return Err(SandboxError::new(SandboxErrorKind::InvalidInput, message));
        }
        let found = self.kept.lock().unwrap().remove(&handle.token);
        let own = found.ok_or_else(|| SandboxError::gone("the sandbox no longer exists"))?;
        self.open_in(own, true, cx)
    }
}

/// Environment tags of every process, used to find it.
#[derive(Clone, Debug)]
struct ProcessTags {
    backend: String,
    sandbox: String,
}

/// State of a sandbox shared with its backend.
#[derive(Debug)]
struct SandboxState {
    fault: Option<Fault>,
    minimal: bool,
    can_be_kept: bool,
    reattached: bool,
    kept: Kept,
    gone: watch::Receiver<bool>,
    tags: ProcessTags,
    /// Single permit for all transfers with `Fault::SharesOneStream`.
    stream: Arc<Semaphore>,
}

/// Removes a directory that may contain read-only directories.
fn remove_all(directory: &Path) {
    if std::fs::remove_dir_all(directory).is_err() && directory.exists() {
        let mut chmod = std::process::Command::new("chmod");
        let _ = chmod.args(["-R", "u+rwx"]).arg(directory).status();
        let _ = std::fs::remove_dir_all(directory);
    }
}

/// Returns the processes with `tag` in their environment.
fn tagged(tag: &str) -> Vec<Pid> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid| is_tagged(*pid, tag))
        .filter_map(Pid::from_raw)
        .collect()
}

/// The environment is empty after a process's end, and for a moment while it replaces its program.
fn is_tagged(pid: i32, tag: &str) -> bool {
    for _ in 0..1_000 {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        if !environment.is_empty() || !replaces_its_program(pid) {
            return String::from_utf8_lossy(&environment).contains(tag);
        }
        std::thread::yield_now();
    }
    false
}

/// Reports whether a process has a program, but no place of its environment yet.
fn replaces_its_program(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // `env_start` is the 50th field; the third follows the name in parentheses.
    let fields = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
    let environment = fields.split(' ').nth(47);
    environment == Some("0") && std::fs::read_link(format!("/proc/{pid}/exe")).is_ok()
}

fn kill_tagged(tag: &str) {
    loop {
        let found = tagged(tag);
        if found.is_empty() {
            return;
        }
        for pid in found {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

/// Counter shared between tasks.
type Counter = Arc<AtomicU64>;
