//! The smallest backend that conforms: a directory of this host, and processes of this one. It can
//! be told to have one fault, or to do no more than it must.
//!
//! It finds what a command started by a variable in its environment, which a hostile command could
//! remove. That is good enough for a suite's own test, and for nothing else.

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
use cantle_core::ids::fresh_id;
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

/// Backend, sound or with one fault. Dropped, it ends what a fault left running.
#[derive(Debug)]
pub(crate) struct Reference {
    fault: Option<Fault>,
    modest: bool,
    tag: String,
    /// Where the sandboxes have their directories.
    place: TempDir,
    shared: TempDir,
    kept: Kept,
    open: Mutex<HashMap<String, Fate>>,
}

/// The directories of sandboxes that were kept and dropped, by their handles.
type Kept = Arc<Mutex<HashMap<String, TempDir>>>;

/// How a sandbox is killed from outside.
#[derive(Debug)]
struct Fate {
    tag: String,
    gone: watch::Sender<bool>,
}

impl Reference {
    pub(crate) fn new(fault: Option<Fault>) -> Self {
        Self {
            fault,
            modest: false,
            tag: fresh_id(),
            place: TempDir::new().unwrap(),
            shared: TempDir::new().unwrap(),
            kept: Kept::default(),
            open: Mutex::default(),
        }
    }

    /// The same without anything that a backend may lack.
    pub(crate) fn modest() -> Self {
        let mut backend = Self::new(None);
        backend.modest = true;
        backend
    }

    /// Ends a sandbox as a crash would.
    pub(crate) fn kill(&self, sandbox: &dyn Sandbox) {
        let open = self.open.lock().unwrap();
        let fate = &open[&sandbox.info().id];
        fate.gone.send(true).unwrap();
        kill_tagged(&fate.tag);
    }

    /// Whether the backend can see to it that a field is kept.
    fn enforces(&self, field: PolicyField) -> bool {
        let own = [PolicyField::Environment, PolicyField::WallTime];
        own.contains(&field) || self.fault == Some(Fault::ClaimsToEnforce)
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
            _ => fresh_id(),
        };
        let mut info = SandboxInfo::new(self.name(), id, SandboxPath::from_os(&root)?);
        if cx.durable && !self.modest && self.fault != Some(Fault::SaysThatNothingSurvives) {
            info.survival = Survival::Workspace;
        }
        info.enforcement = Enforcement::report(&cx.policy, |field| {
            if self.enforces(field) {
                EnforcedBy::Backend
            } else {
                EnforcedBy::NotEnforced
            }
        });
        if self.fault == Some(Fault::PromisesEverything) {
            let network = Enforcement::new(PolicyField::Network, EnforcedBy::Backend);
            info.enforcement.push(network);
        }
        let tags = Tags {
            backend: self.tag.clone(),
            sandbox: fresh_id(),
        };
        let (killer, gone) = watch::channel(false);
        let fate = Fate {
            tag: tags.sandbox.clone(),
            gone: killer,
        };
        self.open.lock().unwrap().insert(info.id.clone(), fate);
        let setting = Setting {
            fault: self.fault,
            modest: self.modest,
            can_be_kept: cx.durable && !self.modest,
            reattached,
            kept: Arc::clone(&self.kept),
            gone,
            tags,
            stream: Arc::new(Semaphore::new(1)),
        };
        Ok(Arc::new(Local::new(setting, info, cx.policy, root, own)?))
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
        if self.fault == Some(Fault::FindsAnything) {
            return self.open(cx).await;
        }
        if self.modest {
            return Err(SandboxError::unsupported("nothing is kept here"));
        }
        if handle.backend != self.name() {
            let message = "the handle is another backend's";
            return Err(SandboxError::new(SandboxErrorKind::InvalidInput, message));
        }
        let found = self.kept.lock().unwrap().remove(&handle.token);
        let own = found.ok_or_else(|| SandboxError::gone("it isn't there any more"))?;
        self.open_in(own, true, cx)
    }
}

/// What is said to every process, so that it is found again.
#[derive(Clone, Debug)]
struct Tags {
    backend: String,
    sandbox: String,
}

/// What a sandbox has of its backend.
#[derive(Debug)]
struct Setting {
    fault: Option<Fault>,
    modest: bool,
    can_be_kept: bool,
    reattached: bool,
    kept: Kept,
    gone: watch::Receiver<bool>,
    tags: Tags,
    /// What everything goes through, where that is the fault.
    stream: Arc<Semaphore>,
}

/// Removes a directory that may hold some that can't be written.
fn remove_all(directory: &Path) {
    if std::fs::remove_dir_all(directory).is_err() && directory.exists() {
        let mut chmod = std::process::Command::new("chmod");
        let _ = chmod.args(["-R", "u+rwx"]).arg(directory).status();
        let _ = std::fs::remove_dir_all(directory);
    }
}

/// Processes with `tag` in their environment. One that has ended has none any more.
fn tagged(tag: &str) -> Vec<Pid> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter_map(|pid| {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).ok()?;
        let found = environment
            .windows(tag.len())
            .any(|it| it == tag.as_bytes());
        found.then(|| Pid::from_raw(pid)).flatten()
    })
    .collect()
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

/// For what is counted on one task and read on another.
type Counter = Arc<AtomicU64>;
