//! The smallest backend that conforms: a directory of this host, and processes of this one. It can
//! be told to have one fault.
//!
//! It finds what a command started by a variable in its environment, which a hostile command could
//! remove. That is good enough for a suite's own test, and for nothing else.

mod command;
mod files;
mod reader;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use async_trait::async_trait;
use cantle_core::ids::fresh_id;
use cantle_core::policy::{PolicyField, Strictness};
use cantle_core::sandbox::{
    Backend, ByteRange, ByteStream, EnforcedBy, Enforcement, FileInfo, Process, Sandbox,
    SandboxContext, SandboxError, SandboxErrorKind, SandboxHandle, SandboxInfo, SandboxPath,
    SpawnRequest, WriteOptions,
};
use cantle_core::secret::SecretText;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use self::files::Files;

/// What is wrong with a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    // Commands
    LosesTheExitCode,
    TakesSignalsForCodes,
    UsesTheWrongShell,
    UsesAShellForArguments,
    LeaksTheEnvironment,
    ForgetsTheEnvironment,
    IgnoresTheDirectory,
    FailsWithoutAKind,
    TakesNoTime,
    AnswersWithPipes,
    // Input and output
    LeavesInputOpen,
    WritesAllInputFirst,
    BuffersEverything,
    NeverHoldsTheCommand,
    MergesTheChannels,
    TakesOutputForText,
    LosesTheLastPiece,
    CountsOnlyWhatIsRead,
    SpillsEverything,
    SpillsWithoutACap,
    SpillsElsewhere,
    // Ends
    IgnoresTimeouts,
    KillsOnlyTheLeader,
    KillsEverythingOnTimeout,
    WaitsForThePipesEnd,
    GivesTheGraceAfterTheTime,
    TakesTheGraceFromTheTime,
    IgnoresCancellation,
    ForgetsDroppedProcesses,
    ListsNoBackground,
    LeavesProcesses,
    LeavesZombies,
    // Files
    ChecksPathsAsText,
    ChecksThenOpens,
    FollowsLinks,
    RefusesLinks,
    OpensAnything,
    ReadsNothing,
    LoadsFiles,
    WritesTheFirstPiece,
    WritesInPlace,
    LeavesTemporaryFiles,
    SharesTheTemporaryFile,
    IgnoresTheSize,
    LosesModes,
    IgnoresRanges,
    TakesNamesForText,
    ListsUnsorted,
    MakesNoDirectories,
    // Life and policy
    SharesOneDirectory,
    ReusesIds,
    AnswersAfterClose,
    ClosesOnce,
    LeavesFiles,
    FindsAnything,
    IgnoresThePolicy,
    PromisesEverything,
    ClaimsToEnforce,
}

/// Backend, sound or with one fault. Dropped, it ends what a fault left running.
#[derive(Debug)]
pub(crate) struct Reference {
    fault: Option<Fault>,
    tag: String,
    shared: TempDir,
}

impl Reference {
    pub(crate) fn new(fault: Option<Fault>) -> Self {
        Self {
            fault,
            tag: fresh_id(),
            shared: TempDir::new().unwrap(),
        }
    }

    /// Whether the backend can see to it that a field is kept.
    fn enforces(&self, field: PolicyField) -> bool {
        let own = [PolicyField::Environment, PolicyField::WallTime];
        own.contains(&field) || self.fault == Some(Fault::ClaimsToEnforce)
    }
}

impl Drop for Reference {
    fn drop(&mut self) {
        kill_tagged(&self.tag);
    }
}

#[async_trait]
impl Backend for Reference {
    fn name(&self) -> &str {
        "reference"
    }

    async fn open(&self, cx: SandboxContext) -> Result<Arc<dyn Sandbox>, SandboxError> {
        let mut missing = cx.policy.fields();
        missing.retain(|field| !self.enforces(*field));
        let strict = cx.policy.strictness == Strictness::Strict;
        if strict && !missing.is_empty() && self.fault != Some(Fault::IgnoresThePolicy) {
            return Err(SandboxError::unenforceable(self.name(), missing));
        }
        let own = TempDir::new().map_err(|error| SandboxError::io("no directory", error))?;
        let root = match self.fault {
            Some(Fault::SharesOneDirectory) => self.shared.path(),
            _ => own.path(),
        };
        let root = root.canonicalize().unwrap();
        let id = match self.fault {
            Some(Fault::ReusesIds) => "the-one".to_owned(),
            _ => fresh_id(),
        };
        let working_directory = SandboxPath::from_os(&root)?;
        let mut info = SandboxInfo::new(self.name(), id, working_directory.clone());
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
        Ok(Arc::new(Local {
            fault: self.fault,
            files: Files::new(root, working_directory, self.fault)?,
            info,
            environment: cx.policy.environment,
            wall_time: cx.policy.limits.wall_time,
            tags: Tags {
                backend: self.tag.clone(),
                sandbox: fresh_id(),
            },
            closed: AtomicBool::new(false),
            directory: own,
        }))
    }

    async fn reattach(
        &self,
        _: &SandboxHandle,
        cx: SandboxContext,
    ) -> Result<Arc<dyn Sandbox>, SandboxError> {
        if self.fault == Some(Fault::FindsAnything) {
            return self.open(cx).await;
        }
        Err(SandboxError::unsupported("nothing is kept here"))
    }
}

/// What is said to every process, so that it is found again.
#[derive(Clone, Debug)]
struct Tags {
    backend: String,
    sandbox: String,
}

#[derive(Debug)]
struct Local {
    fault: Option<Fault>,
    info: SandboxInfo,
    files: Files,
    environment: BTreeMap<String, SecretText>,
    wall_time: Option<std::time::Duration>,
    tags: Tags,
    closed: AtomicBool,
    directory: TempDir,
}

impl Local {
    fn must_be_open(&self) -> Result<(), SandboxError> {
        if self.closed.load(Ordering::SeqCst) && self.fault != Some(Fault::AnswersAfterClose) {
            return Err(SandboxError::new(
                SandboxErrorKind::Closed,
                "the sandbox is closed",
            ));
        }
        Ok(())
    }

    fn answer<T>(&self, result: Result<T, SandboxError>) -> Result<T, SandboxError> {
        if self.fault == Some(Fault::FailsWithoutAKind) {
            return result.map_err(|it| SandboxError::new(SandboxErrorKind::Io, it.to_string()));
        }
        result
    }

    fn end_commands(&self) {
        if self.fault != Some(Fault::LeavesProcesses) {
            kill_tagged(&self.tags.sandbox);
        }
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        self.end_commands();
    }
}

#[async_trait]
impl Sandbox for Local {
    fn info(&self) -> &SandboxInfo {
        &self.info
    }

    async fn spawn(&self, request: SpawnRequest) -> Result<Box<dyn Process>, SandboxError> {
        self.must_be_open()?;
        self.answer(command::spawn(self, request).await)
    }

    async fn read(&self, path: &SandboxPath, range: ByteRange) -> Result<ByteStream, SandboxError> {
        self.must_be_open()?;
        self.answer(self.files.read(path, range))
    }

    async fn write(
        &self,
        path: &SandboxPath,
        options: WriteOptions,
        data: ByteStream,
    ) -> Result<(), SandboxError> {
        self.must_be_open()?;
        self.answer(self.files.write(path, options, data).await)
    }

    async fn stat(&self, path: &SandboxPath) -> Result<FileInfo, SandboxError> {
        self.must_be_open()?;
        self.answer(self.files.stat(path))
    }

    async fn list(&self, path: &SandboxPath) -> Result<Vec<FileInfo>, SandboxError> {
        self.must_be_open()?;
        self.answer(self.files.list(path))
    }

    async fn mkdir(&self, path: &SandboxPath) -> Result<(), SandboxError> {
        self.must_be_open()?;
        self.answer(self.files.mkdir(path))
    }

    async fn remove(&self, path: &SandboxPath) -> Result<(), SandboxError> {
        self.must_be_open()?;
        self.answer(self.files.remove(path))
    }

    async fn rename(&self, from: &SandboxPath, to: &SandboxPath) -> Result<(), SandboxError> {
        self.must_be_open()?;
        self.answer(self.files.rename(from, to))
    }

    async fn persist(&self) -> Result<SandboxHandle, SandboxError> {
        if self.fault == Some(Fault::FindsAnything) {
            return Ok(SandboxHandle::new("reference", "anything"));
        }
        Err(SandboxError::unsupported("nothing is kept here"))
    }

    async fn close(&self) -> Result<(), SandboxError> {
        let again = self.closed.swap(true, Ordering::SeqCst);
        if again && self.fault == Some(Fault::ClosesOnce) {
            return Err(SandboxError::gone("there is nothing to close"));
        }
        self.end_commands();
        if !again && self.fault != Some(Fault::LeavesFiles) {
            remove_all(self.directory.path());
        }
        Ok(())
    }
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
