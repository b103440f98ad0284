//! One sandbox: a private directory, the commands that run in it, and what they left running.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use cantle_core::policy::{Policy, PolicyField, Strictness};
use cantle_core::sandbox::{
    ByteRange, ByteStream, EnforcedBy, Enforcement, FileInfo, Process, Sandbox, SandboxContext,
    SandboxError, SandboxErrorKind, SandboxInfo, SandboxPath, SpawnRequest, WriteOptions,
};
use rustix::process::{PidfdFlags, getpid, pidfd_open};
use tokio::net::unix::pipe;
use tokio::task::JoinSet;

use crate::backend::LocalBackend;
use crate::blocking;
use crate::command::{self, discard};
use crate::environment::{self, Environment};
use crate::files::Root;
use crate::processes::{self, Leader, Tree};

/// How long closing waits for the death of what it killed.
const KILL_DEADLINE: Duration = Duration::from_secs(2);

/// Opens a sandbox. Blocks.
pub(crate) fn open(
    backend: &LocalBackend,
    cx: &SandboxContext,
) -> Result<LocalSandbox, SandboxError> {
    let enforcement = enforcement(&cx.policy)?;
    let search_path = environment::absolute_directories(backend.search_path());
    let shell = find_shell(backend.shell(), &search_path)?;
    check_system()?;
    environment::check(&cx.policy.environment)?;
    let root = Root::create(backend.parent(), &format!("cantle-{}-", cx.run))?;
    let environment = Environment::new(
        search_path,
        &shell,
        &root.working_directory(),
        &root.temporary_directory(),
        &cx.policy.environment,
    );
    let directory = SandboxPath::from_os(root.working_directory())?;
    let mut info = SandboxInfo::new("local", root.name(), directory);
    info.enforcement = enforcement;
    Ok(LocalSandbox {
        shared: Arc::new(Shared {
            info,
            root: Arc::new(root),
            environment,
            shell,
            wall_time: cx.policy.limits.wall_time,
            numbers: AtomicU64::new(0),
            state: Mutex::default(),
        }),
    })
}

/// Whether the system has what it takes to watch and find processes.
fn check_system() -> Result<(), SandboxError> {
    let unavailable = |message: &str, advice: &str| {
        Err(SandboxError::new(SandboxErrorKind::Unavailable, message).with_advice(advice))
    };
    if !Path::new("/proc/self/stat").exists() {
        let advice = "Mount it: without it, what a command leaves running can't be found.";
        return unavailable("`/proc` is not mounted", advice);
    }
    if pidfd_open(getpid(), PidfdFlags::empty()).is_err() {
        let advice = "It needs Linux 5.6 or newer, and a container that allows it.";
        return unavailable("the system call `pidfd_open` is not available", advice);
    }
    Ok(())
}

/// What is enforced of a policy: its environment and its wall time.
fn enforcement(policy: &Policy) -> Result<Vec<Enforcement>, SandboxError> {
    let report = Enforcement::report(policy, |field| match field {
        PolicyField::Environment | PolicyField::WallTime => EnforcedBy::Backend,
        _ => EnforcedBy::NotEnforced,
    });
    let missing: Vec<PolicyField> = report
        .iter()
        .filter(|enforcement| enforcement.by == EnforcedBy::NotEnforced)
        .map(|enforcement| enforcement.field)
        .collect();
    if policy.strictness == Strictness::Strict && !missing.is_empty() {
        return Err(SandboxError::unenforceable("local", missing).with_advice(
            "Take these fields out of the policy, accept that they aren't enforced (best effort), \
             or use a backend that isolates.",
        ));
    }
    Ok(report)
}

fn find_shell(
    chosen: Option<&Path>,
    search_path: &std::ffi::OsStr,
) -> Result<PathBuf, SandboxError> {
    let unavailable = |message: String, advice: &str| {
        SandboxError::new(SandboxErrorKind::Unavailable, message).with_advice(advice)
    };
    match chosen {
        Some(shell) if shell.is_absolute() && environment::is_executable(shell) => {
            Ok(shell.to_owned())
        }
        Some(shell) => Err(unavailable(
            format!("`{}` is not the path of a shell", shell.display()),
            "Give the absolute path of bash.",
        )),
        None => {
            let found = environment::find_program("bash".as_ref(), search_path, Path::new("/"));
            found.ok_or_else(|| {
                let places = search_path.to_string_lossy();
                unavailable(
                    format!("there is no bash in {places}"),
                    "Install bash (the package is called `bash` everywhere), or set PATH to where \
                     it is.",
                )
            })
        }
    }
}

/// What a sandbox and its commands share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) info: SandboxInfo,
    pub(crate) root: Arc<Root>,
    pub(crate) environment: Environment,
    pub(crate) shell: PathBuf,
    /// The longest time a command may have.
    pub(crate) wall_time: Option<Duration>,
    numbers: AtomicU64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    closed: bool,
    running: HashMap<u64, Arc<Leader>>,
    /// Processes that commands left and that stay until the end.
    kept: Vec<processes::Process>,
    /// Tasks that read what these still write.
    discarding: JoinSet<()>,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.state().closed
    }

    fn check_open(&self) -> Result<(), SandboxError> {
        if self.is_closed() {
            let message = "the sandbox is closed";
            return Err(SandboxError::new(SandboxErrorKind::Closed, message));
        }
        Ok(())
    }

    /// A number that no other command of this sandbox has.
    pub(crate) fn next_number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Takes a command that was started into account, so that closing ends it.
    pub(crate) fn admit(&self, number: u64, leader: &Arc<Leader>) -> Result<(), SandboxError> {
        let mut state = self.state();
        if state.closed {
            drop(state);
            return self.check_open();
        }
        state.running.insert(number, Arc::clone(leader));
        Ok(())
    }

    /// A command is over.
    pub(crate) fn forget(&self, number: u64) {
        self.state().running.remove(&number);
    }

    /// Remembers processes that go on, for when the sandbox is closed.
    pub(crate) fn keep(&self, processes: &[processes::Process]) {
        if processes.is_empty() {
            return;
        }
        let mut state = self.state();
        state.kept.retain(processes::Process::is_alive);
        state.kept.extend_from_slice(processes);
    }

    /// Reads a pipe for as long as somebody writes to it.
    pub(crate) fn discard(&self, pipe: pipe::Receiver) {
        let mut state = self.state();
        while state.discarding.try_join_next().is_some() {}
        state.discarding.spawn(discard(pipe));
    }

    /// Kills what belongs to the sandbox and reaps its commands. Returns what is left.
    fn kill(
        &self,
        running: Vec<Arc<Leader>>,
        known: Vec<processes::Process>,
    ) -> Vec<processes::Process> {
        let tree = Tree {
            leaders: running,
            marker: format!("CANTLE_SANDBOX={}", self.info.id),
            known,
        };
        let deadline = Instant::now() + KILL_DEADLINE;
        let left = tree.kill(deadline);
        for leader in &tree.leaders {
            while leader.reap().is_none() && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        left
    }

    /// Kills what runs and removes the directory; the second time it does nothing. Blocks.
    fn tear_down(&self) -> Result<(), SandboxError> {
        let (running, known) = {
            let mut state = self.state();
            if state.closed {
                return Ok(());
            }
            state.closed = true;
            let running = std::mem::take(&mut state.running);
            (
                running.into_values().collect(),
                std::mem::take(&mut state.kept),
            )
        };
        let left = if self.numbers.load(Ordering::Relaxed) == 0 {
            Vec::new()
        } else {
            self.kill(running, known)
        };
        let removed = self.root.delete();
        if left.is_empty() {
            return removed;
        }
        let left: Vec<String> = left.iter().map(ToString::to_string).collect();
        let mut message = format!("can't kill {}", left.join(", "));
        if let Err(error) = removed {
            message = format!("{message}; {error}");
        }
        Err(SandboxError::new(
            SandboxErrorKind::PermissionDenied,
            message,
        ))
    }
}

/// A sandbox of the local backend.
#[derive(Debug)]
pub(crate) struct LocalSandbox {
    shared: Arc<Shared>,
}

impl LocalSandbox {
    /// Does something with the files, off the runtime.
    async fn with_files<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Root) -> Result<T, SandboxError> + Send + 'static,
    ) -> Result<T, SandboxError> {
        self.shared.check_open()?;
        let root = Arc::clone(&self.shared.root);
        blocking::run(move || work(&root)).await
    }
}

#[async_trait]
impl Sandbox for LocalSandbox {
    fn info(&self) -> &SandboxInfo {
        &self.shared.info
    }

    async fn spawn(&self, request: SpawnRequest) -> Result<Box<dyn Process>, SandboxError> {
        self.shared.check_open()?;
        Ok(Box::new(command::start(&self.shared, request)?))
    }

    async fn read(&self, path: &SandboxPath, range: ByteRange) -> Result<ByteStream, SandboxError> {
        let path = path.clone();
        self.with_files(move |root| root.read(&path, range)).await
    }

    async fn write(
        &self,
        path: &SandboxPath,
        options: WriteOptions,
        data: ByteStream,
    ) -> Result<(), SandboxError> {
        self.shared.check_open()?;
        Root::write(&self.shared.root, path, options, data).await
    }

    async fn stat(&self, path: &SandboxPath) -> Result<FileInfo, SandboxError> {
        let path = path.clone();
        self.with_files(move |root| root.stat(path)).await
    }

    async fn list(&self, path: &SandboxPath) -> Result<Vec<FileInfo>, SandboxError> {
        let path = path.clone();
        self.with_files(move |root| root.list(&path)).await
    }

    async fn mkdir(&self, path: &SandboxPath) -> Result<(), SandboxError> {
        let path = path.clone();
        self.with_files(move |root| root.mkdir(&path)).await
    }

    async fn remove(&self, path: &SandboxPath) -> Result<(), SandboxError> {
        let path = path.clone();
        self.with_files(move |root| root.remove(&path)).await
    }

    async fn rename(&self, from: &SandboxPath, to: &SandboxPath) -> Result<(), SandboxError> {
        let (from, to) = (from.clone(), to.clone());
        self.with_files(move |root| root.rename(&from, &to)).await
    }

    async fn close(&self) -> Result<(), SandboxError> {
        let shared = Arc::clone(&self.shared);
        blocking::run(move || shared.tear_down()).await
    }
}

impl Drop for LocalSandbox {
    fn drop(&mut self) {
        // Nobody is left to be told. What stays is killed and removed as far as that goes.
        let _ = self.shared.tear_down();
    }
}
