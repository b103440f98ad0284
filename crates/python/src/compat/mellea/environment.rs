//! An environment: executes code on one tier.

use std::collections::HashSet;
use std::fs::Permissions;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use cantle_core::policy::Policy;
use cantle_core::sandbox::{
    ArtifactLimits, Channel, Command, DirectorySink, ExitStatus, FileKind, Sandbox, SandboxError,
    SandboxExt as _, SandboxPath, Utf8Decoder, Walk, WalkBuilder, WalkEntry,
};
use cantle_core::tool::NoProgress;
use tempfile::TempDir;
use tokio::sync::{Mutex, OnceCell};

use super::policy::CapabilityPolicy;
use super::result::{ExecutionResult, Listing, MelleaArtifact, truncate};
use super::tier::{Mellea, Tier};
use super::{MelleaError, Warning};
use crate::execution::Execution;
use crate::interpreter::{Interpreter, PythonSession};
use crate::packages::{PackageError, PackageSet, PackageSpecifier, PythonTarget};
use crate::source::SourceFacts;

/// Maximum number of entries of an exported directory.
const MAX_EXPORTED: usize = 10_000;

/// Executes code on one tier.
#[derive(Debug)]
pub struct ExecutionEnvironment {
    pub(super) mellea: Mellea,
    pub(super) tier: Tier,
    pub(super) policy: Option<CapabilityPolicy>,
    pub(super) allowed_imports: Option<Vec<String>>,
    pub(super) working_directory: Option<PathBuf>,
    /// The host directory below which artifacts of containers are stored.
    pub(super) export_dir: Option<PathBuf>,
    pub(super) agg: bool,
    /// Whether calls collect artifacts in a directory of their own.
    pub(super) collects: bool,
    /// The container of an entered environment.
    pub(super) session: Mutex<Option<Arc<PythonSession>>>,
    /// The policy's packages, once they are installed.
    pub(super) packages: OnceCell<PackageSet>,
    pub(super) warnings: Vec<Warning>,
}

impl ExecutionEnvironment {
    /// Sets the host directory below which files of a container are exported; a temporary one by default.
    #[must_use]
    pub fn export_dir(mut self, directory: Option<PathBuf>) -> Self {
        self.export_dir = directory;
        self
    }

    /// Returns the tier.
    pub fn tier(&self) -> Tier {
        self.tier
    }

    /// Returns the policy.
    pub fn policy(&self) -> Option<&CapabilityPolicy> {
        self.policy.as_ref()
    }

    /// Returns the warnings of its construction.
    pub fn warnings(&self) -> &[Warning] {
        &self.warnings
    }

    fn mode(&self) -> &'static str {
        self.tier.as_str()
    }

    /// Opens the container that following calls share, as Mellea's context manager does.
    ///
    /// # Errors
    /// If it does not open.
    pub async fn enter(&self) -> Result<(), MelleaError> {
        let opened = self.open(self.sandbox_policy(None)).await;
        let session = opened.map_err(|reason| MelleaError::Runtime(self.failure(&reason)))?;
        *self.session.lock().await = Some(Arc::new(session));
        Ok(())
    }

    /// Closes the container of [`enter`](Self::enter).
    ///
    /// # Errors
    /// If something may be left.
    pub async fn exit(&self) -> Result<(), SandboxError> {
        match self.session.lock().await.take() {
            Some(session) => session.close().await,
            None => Ok(()),
        }
    }

    /// Returns the id of the container of an entered environment.
    pub async fn container_id(&self) -> Option<String> {
        let session = self.session.lock().await;
        session.as_ref().map(|it| it.sandbox().info().id.clone())
    }

    /// Executes code, for at most `timeout`, or the policy's or the tier's time limit.
    pub async fn execute(&self, code: &str, timeout: Option<Duration>) -> ExecutionResult {
        let facts = SourceFacts::of(code.as_bytes());
        if self.tier == Tier::Static && facts.syntax_error.is_some() {
            return ExecutionResult {
                analysis_result: Some(facts),
                ..ExecutionResult::skipped(self.mode(), "Parse failed.")
            };
        }
        let forbidden = forbidden_modules(&facts, self.allowed_imports.as_deref());
        if !forbidden.is_empty() {
            let message = format!("Unauthorized imports detected: {}", forbidden.join(", "));
            return ExecutionResult::skipped(self.mode(), message);
        }
        if self.tier == Tier::Static {
            let message = "Code parses successful; the parse result is in the analysis_result field \
                           of the ExecutionResult object. The static analysis execution environment does not execute code. \
                           To execute code, use one of the other execution environments.";
            return ExecutionResult {
                success: true,
                analysis_result: Some(facts),
                ..ExecutionResult::skipped(self.mode(), message)
            };
        }
        let executed = self.execute_sandboxed(code, timeout).await;
        executed.unwrap_or_else(|reason| ExecutionResult::skipped(self.mode(), reason))
    }

    /// Executes code in a sandbox; the error is why it was skipped.
    async fn execute_sandboxed(
        &self,
        code: &str,
        timeout: Option<Duration>,
    ) -> Result<ExecutionResult, String> {
        let failed = |error: SandboxError| self.failure(&error.to_string());
        let mut own_directory = None;
        if self.collects && self.working_directory.is_none() && !self.tier.is_docker() {
            let made = private_directory(&std::env::temp_dir());
            own_directory = Some(made.map_err(|error| self.failure(&error.to_string()))?);
        }
        let directory = own_directory.as_ref().map(|it| it.path().to_owned());
        let directory = directory.or_else(|| self.working_directory.clone());
        if let Some(directory) = &self.working_directory {
            let made = std::fs::create_dir_all(directory);
            made.map_err(|error| self.failure(&error.to_string()))?;
        }
        let entered = self.session.lock().await.clone();
        let session = match &entered {
            Some(session) => Arc::clone(session),
            None => {
                let policy = self.sandbox_policy(directory.as_ref());
                Arc::new(self.open(policy).await?)
            }
        };
        let before = directory.as_deref().map(Listing::of);
        let executed = self
            .run(&session, code, timeout, directory.as_deref())
            .await;
        let closed = match entered {
            Some(_) => Ok(()),
            None => session.close().await,
        };
        // The error of the run is the one to report.
        let mut result = executed.map_err(failed)?;
        closed.map_err(failed)?;
        if let (true, Some(before), Some(directory)) = (result.success, before, &directory) {
            result.artifacts = Listing::of(directory).changed_since(&before);
        }
        result.directory = own_directory
            .filter(|_| !result.artifacts.is_empty())
            .map(Arc::new)
            .or(result.directory);
        Ok(result)
    }

    /// Runs code in a session, and exports its files from a container.
    async fn run(
        &self,
        session: &PythonSession,
        code: &str,
        timeout: Option<Duration>,
        directory: Option<&Path>,
    ) -> Result<ExecutionResult, SandboxError> {
        let policy_timeout = self.policy.as_ref().map(|policy| policy.timeout);
        let timeout = timeout.or(policy_timeout);
        let timeout = timeout.unwrap_or_else(|| self.tier.default_timeout());
        let mut request = match session.command(code).await? {
            Ok(request) => request.with_timeout(timeout),
            Err(refused) => return Ok(self.refused(&refused)),
        };
        request.spill = None;
        if !self.agg {
            request.environment.remove("MPLBACKEND");
        }
        if let Some(directory) = directory
            && !self.tier.is_docker()
        {
            request.command = in_directory(request.command, directory)?;
        }
        // The captured output lacks the middle of a long one.
        let (mut decoder, mut printed_chars) = (Utf8Decoder::default(), 0);
        let output = session
            .sandbox()
            .run_with_observer(request, &mut |chunk| {
                if chunk.channel == Channel::Stdout {
                    printed_chars += decoder.push(&chunk.bytes).chars().count();
                }
            })
            .await?;
        let policy = self.policy.as_ref();
        let stdout = output.stdout.text();
        let stderr = output.stderr.text();
        let blank_chars = stdout.chars().count() - stdout.trim().chars().count();
        let timed_out = matches!(output.exit.status, ExitStatus::TimedOut { .. });
        let exit_code = match output.exit.status {
            ExitStatus::Code(code) => Some(code),
            ExitStatus::Signal(signal) => Some(-signal),
            _ => None,
        };
        let mut result = ExecutionResult {
            success: exit_code == Some(0),
            stdout: Some(truncate(
                stdout.trim(),
                policy.and_then(|it| it.stdout_max_bytes),
            )),
            stdout_chars: printed_chars.saturating_sub(blank_chars),
            stderr: Some(truncate(
                stderr.trim(),
                policy.and_then(|it| it.stderr_max_bytes),
            )),
            skipped: timed_out,
            skip_message: timed_out.then(|| "Execution timed out.".to_owned()),
            exit_code,
            timed_out,
            execution_mode: self.mode().to_owned(),
            working_directory: self.working_directory.clone(),
            ..ExecutionResult::default()
        };
        if result.success && self.tier.is_docker() {
            self.export(&**session.sandbox(), &mut result).await;
        }
        Ok(result)
    }

    /// The result of code that Python refuses, which Mellea learns from Python.
    fn refused(&self, execution: &Execution) -> ExecutionResult {
        let notes = execution.notes.join(" ");
        if execution.outcome == crate::ExecutionOutcome::Refused {
            return ExecutionResult {
                stdout: Some(String::new()),
                stderr: Some(notes.replacen("Syntax error: ", "SyntaxError: ", 1)),
                exit_code: Some(1),
                execution_mode: self.mode().to_owned(),
                working_directory: self.working_directory.clone(),
                ..ExecutionResult::default()
            };
        }
        ExecutionResult::skipped(self.mode(), self.failure(&notes))
    }

    fn failure(&self, reason: &str) -> String {
        match self.tier.is_docker() {
            true => format!("Sandbox execution error: {reason}"),
            false => format!(
                "Exception encountered in Mellea process (*not* the code interpreter process) when \
                 trying to run code_interpreter: {reason}"
            ),
        }
    }

    /// Returns the policy of a sandbox; an unsafe tier has none.
    fn sandbox_policy(&self, directory: Option<&PathBuf>) -> Policy {
        match &self.policy {
            Some(policy) if !self.tier.is_unsafe() => {
                policy.for_sandbox(directory.filter(|_| !self.tier.is_docker()))
            }
            _ => Policy::unconfined(),
        }
    }

    /// Opens a session with the policy's packages; the error is why the call is skipped.
    async fn open(&self, policy: Policy) -> Result<PythonSession, String> {
        let backend = self.mellea.backend(self.tier).ok_or_else(|| {
            self.failure(&format!("there is no backend for the tier '{}'", self.tier))
        })?;
        let mut interpreter = Interpreter::new(Arc::clone(backend)).policy(policy);
        if let Some(python) = &self.mellea.python {
            interpreter = interpreter.python(python);
        }
        if let Some(policy) = self.policy.as_ref().filter(|it| !it.packages.is_empty()) {
            let set = self.packages.get_or_try_init(|| self.install(policy)).await;
            let set = set.map_err(|reason| {
                let names = policy.packages.join(", ");
                format!("Package installation failed: {names}: {reason}")
            })?;
            interpreter = interpreter.packages(set.clone());
        }
        let opened = interpreter.open().await;
        opened.map_err(|error| self.failure(&error.to_string()))
    }

    /// Installs the policy's packages; the error is why that is not possible.
    async fn install(&self, policy: &CapabilityPolicy) -> Result<PackageSet, String> {
        if !policy.package_installation {
            return Err("the policy forbids it (package_installation=False)".to_owned());
        }
        let Some((store, source)) = &self.mellea.packages else {
            return Err("nothing here installs packages".to_owned());
        };
        let prepared = async {
            let specifiers = policy.packages.iter().map(|it| it.parse());
            let specifiers: Vec<PackageSpecifier> = specifiers.collect::<Result<_, _>>()?;
            let request = source.clone().specifiers(specifiers);
            let python = self.mellea.python.as_deref();
            if !self.tier.is_docker() {
                let request =
                    request.read_roots(policy.filesystem_read_roots.clone().unwrap_or_default());
                let request = match python {
                    Some(python) => request.python(python),
                    None => request,
                };
                return store.prepare(&request, &NoProgress).await;
            }
            let policy = self.sandbox_policy(None);
            let sandbox = self.mellea.open(self.tier, policy).await?;
            let target = PythonTarget::of(&*sandbox, python).await;
            sandbox.close().await?;
            let prepared = store.prepare(&request.target(target?), &NoProgress).await;
            prepared.map(PackageSet::copied)
        };
        prepared
            .await
            .map_err(|error: PackageError| error.to_string())
    }

    /// Copies the export paths of a container to a new directory of the host.
    async fn export(&self, sandbox: &dyn Sandbox, result: &mut ExecutionResult) {
        let paths = self
            .policy
            .as_ref()
            .map(|policy| &policy.artifact_export_paths[..]);
        let paths = paths.unwrap_or_default();
        if paths.is_empty() {
            return;
        }
        let parent = self.export_dir.clone();
        let parent = parent.unwrap_or_else(std::env::temp_dir);
        let made = std::fs::create_dir_all(&parent).and_then(|()| private_directory(&parent));
        let Ok(directory) = made else { return };
        for (number, path) in paths.iter().enumerate() {
            // One that is missing or too large is left out.
            if let Ok(artifact) = export_one(sandbox, (number, path), directory.path()).await {
                result.artifacts.push(artifact);
            }
        }
        if self.export_dir.is_some() {
            let _kept = directory.keep();
        } else {
            result.directory = Some(Arc::new(directory));
        }
    }

    /// Copies a file into the container.
    ///
    /// # Errors
    /// If the tier has none, it is not entered, or the copy fails.
    pub async fn copy_in(&self, host_path: &Path, path: &str) -> Result<(), MelleaError> {
        let session = self.entered("copy_in").await?;
        let path = SandboxPath::new(path).map_err(SandboxError::from)?;
        session.sandbox().upload(host_path, &path).await?;
        Ok(())
    }

    /// Copies a file out of the container.
    ///
    /// # Errors
    /// As [`copy_in`](Self::copy_in).
    pub async fn copy_out(&self, path: &str, host_path: &Path) -> Result<(), MelleaError> {
        let session = self.entered("copy_out").await?;
        let path = SandboxPath::new(path).map_err(SandboxError::from)?;
        session.sandbox().download(&path, host_path).await?;
        Ok(())
    }

    async fn entered(&self, operation: &str) -> Result<Arc<PythonSession>, MelleaError> {
        if !self.tier.is_docker() {
            let class = match self.tier {
                Tier::Static => "StaticAnalysisEnvironment",
                _ => "UnsafeEnvironment",
            };
            return Err(MelleaError::NotImplemented(format!(
                "{class} does not support {operation}. Use LLMSandboxEnvironment (docker or docker_unsafe \
                 tier) for file I/O."
            )));
        }
        let session = self.session.lock().await.clone();
        session.ok_or_else(|| {
            MelleaError::Runtime(format!(
                "{operation} must be used as a context manager: enter the environment first."
            ))
        })
    }
}

/// Has a one-shot command change to a directory of the host, which need not be below the sandbox's.
fn in_directory(command: Command, directory: &Path) -> Result<Command, SandboxError> {
    let (Command::Argv(mut argv), Some(directory)) = (command, directory.to_str()) else {
        let message = format!("the path `{}` is not UTF-8", directory.display());
        return Err(SandboxError::invalid_input(message));
    };
    // The script, after the program and `-c`. A string of JSON is one of Python.
    if let Some(script) = argv.get_mut(2) {
        let change = format!("import os\nos.chdir({})\n", serde_json::json!(directory));
        let rest = std::mem::replace(script, change.into());
        script.push(rest);
    }
    Ok(Command::Argv(argv))
}

/// Creates a directory that only this user may enter.
fn private_directory(parent: &Path) -> io::Result<TempDir> {
    tempfile::Builder::new()
        .prefix("mellea-")
        .permissions(Permissions::from_mode(0o700))
        .tempdir_in(parent)
}

/// Returns the modules that are imported and not allowed, by their top-level names. `None` allows all.
pub(super) fn forbidden_modules(facts: &SourceFacts, allowed: Option<&[String]>) -> Vec<String> {
    let imports = facts.forbidden_imports(allowed);
    let names = imports.filter_map(|import| import.module.split('.').next());
    let mut seen = HashSet::new();
    let names = names.filter(|name| seen.insert(*name));
    names.map(str::to_owned).collect()
}

/// Copies a file or directory of a container into a directory, within the limits of artifacts. One of several paths with
/// the same name goes into a directory of its number.
async fn export_one(
    sandbox: &dyn Sandbox,
    (number, path): (usize, &str),
    directory: &Path,
) -> Result<MelleaArtifact, SandboxError> {
    let source = SandboxPath::new(path)?;
    let info = sandbox.stat(&source).await?;
    let name = SandboxPath::new(source.file_name().unwrap_or(b"root"))?;
    let mut directory = directory.to_owned();
    if directory.join(name.to_string()).exists() {
        directory.push(number.to_string());
    }
    let target = directory.join(name.to_string());
    let is_directory = info.kind == FileKind::Directory;
    let (base, sink, files) = match source.parent().filter(|_| !is_directory) {
        Some(parent) => {
            let mut files = WalkBuilder::new(1);
            files.admit();
            files.insert(
                name.clone(),
                WalkEntry::new(info.kind, info.size_bytes, None),
            );
            (parent, DirectorySink::new(directory), files.finish())
        }
        None => {
            let files = sandbox.walk(&source, MAX_EXPORTED).await?;
            // Also one that is empty.
            let made = std::fs::create_dir_all(&target);
            made.map_err(|error| SandboxError::io("failed to export", error))?;
            (source, DirectorySink::new(&target), files)
        }
    };
    let (nothing, limits) = (Walk::default(), ArtifactLimits::default());
    let copied = sandbox.artifacts(&base, &nothing, &files, limits, &sink);
    let copied = copied.await?;
    let file = copied.files.into_iter().next().filter(|_| !is_directory);
    match (file, copied.refused.into_iter().next()) {
        (None, Some(refused)) if !is_directory => Err(SandboxError::invalid_input(refused.reason)),
        (file, _) => Ok(MelleaArtifact {
            path: target,
            size_bytes: file.as_ref().map(|file| file.size_bytes),
            content_type: file.and_then(|file| file.media_type),
        }),
    }
}
