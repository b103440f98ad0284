//! A complete backend in three files: commands are plain processes of this machine, files are in a temporary
//! directory.
//!
//! A backend is two types: immutable configuration that implements [`Backend`], and what it opens, which
//! implements [`Sandbox`]. `files` resolves paths beneath the directory; `command` starts processes and
//! passes them to the command driver. Terminals, spilled output, background processes, read-only commands and
//! kept sandboxes return `Unsupported`. It confines nothing, so a strict policy that restricts anything but the
//! environment, the time and the output is refused.
//!
//! `tests/conformance.rs` runs the suite that every backend must pass.

mod command;
mod files;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use cantle_core::ids::unique_id;
use cantle_core::policy::{Policy, PolicyField, Strictness};
use cantle_core::sandbox::{
    Backend, ByteRange, ByteStream, ChangeNotice, Connection, EnforcedBy, Enforcement, FileInfo,
    Process, Sandbox, SandboxContext, SandboxError, SandboxErrorKind, SandboxHandle, SandboxInfo,
    SandboxPath, SpawnRequest, Walk, WriteOptions, walk_by_command,
};
use tempfile::TempDir;

use crate::files::Files;

/// Opens a temporary directory per sandbox.
#[derive(Debug, Clone, Default)]
pub struct PlainBackend;

/// The policy fields that the command driver enforces.
const ENFORCED: [PolicyField; 3] =
    [PolicyField::Environment, PolicyField::WallTime, PolicyField::Output];

#[async_trait]
impl Backend for PlainBackend {
    fn name(&self) -> &str {
        "plain"
    }

    async fn open(&self, cx: SandboxContext) -> Result<Arc<dyn Sandbox>, SandboxError> {
        let mut missing = cx.policy.fields();
        missing.retain(|field| !ENFORCED.contains(field));
        if cx.policy.strictness == Strictness::Strict && !missing.is_empty() {
            return Err(SandboxError::unenforceable(self.name(), missing));
        }
        let failed = |error| SandboxError::io("failed to create a directory", error);
        let directory = tempfile::Builder::new().prefix("plain-").tempdir().map_err(failed)?;
        let root = directory.path().canonicalize().map_err(failed)?;
        let working_directory = SandboxPath::from_os(&root)?;
        let mut info = SandboxInfo::new(self.name(), unique_id(), working_directory.clone());
        info.enforcement = Enforcement::report(&cx.policy, |field| match ENFORCED.contains(&field) {
            true => EnforcedBy::Backend,
            false => EnforcedBy::NotEnforced,
        });
        Ok(Arc::new(PlainSandbox(Arc::new(Shared {
            files: Files::open(&root, working_directory)?,
            info,
            policy: cx.policy,
            marker: unique_id(),
            is_closed: AtomicBool::new(false),
            directory,
        }))))
    }

    async fn reattach(
        &self,
        _: &SandboxHandle,
        _: SandboxContext,
    ) -> Result<Arc<dyn Sandbox>, SandboxError> {
        Err(SandboxError::unsupported("the plain backend keeps no sandboxes"))
    }
}

/// State of a sandbox, shared with its commands.
#[derive(Debug)]
struct Shared {
    info: SandboxInfo,
    files: Files,
    policy: Policy,
    /// In the environment of each process of the sandbox.
    marker: String,
    is_closed: AtomicBool,
    directory: TempDir,
}

impl Shared {
    fn check(&self) -> Result<(), SandboxError> {
        if self.is_closed.load(Ordering::SeqCst) {
            return Err(SandboxError::new(SandboxErrorKind::Closed, "the sandbox is closed"));
        }
        self.files.check()
    }

    fn end(&self) -> std::io::Result<()> {
        if self.is_closed.swap(true, Ordering::SeqCst) {
            return Ok(());
        }
        command::kill_all(&self.marker);
        files::remove_tree(self.directory.path())
    }
}

/// One temporary directory and the processes that were started in it.
#[derive(Debug)]
struct PlainSandbox(Arc<Shared>);

impl Drop for PlainSandbox {
    fn drop(&mut self) {
        // There is no caller to report to.
        let _ = self.0.end();
    }
}

#[async_trait]
impl Sandbox for PlainSandbox {
    fn info(&self) -> &SandboxInfo {
        &self.0.info
    }

    async fn spawn(&self, request: SpawnRequest) -> Result<Box<dyn Process>, SandboxError> {
        self.0.check()?;
        command::spawn(&self.0, request).await
    }

    async fn read(&self, path: &SandboxPath, range: ByteRange) -> Result<ByteStream, SandboxError> {
        self.0.check()?;
        self.0.files.read(path, range)
    }

    async fn write(
        &self,
        path: &SandboxPath,
        options: WriteOptions,
        data: ByteStream,
    ) -> Result<(), SandboxError> {
        self.0.check()?;
        self.0.files.write(path, options, data).await
    }

    async fn stat(&self, path: &SandboxPath) -> Result<FileInfo, SandboxError> {
        self.0.check()?;
        self.0.files.stat(path)
    }

    async fn list(&self, path: &SandboxPath) -> Result<Vec<FileInfo>, SandboxError> {
        self.0.check()?;
        self.0.files.list(path)
    }

    async fn walk(
        &self,
        directory: &SandboxPath,
        max_entries: usize,
    ) -> Result<Walk, SandboxError> {
        walk_by_command(self, directory, max_entries).await
    }

    async fn mkdir(&self, path: &SandboxPath) -> Result<(), SandboxError> {
        self.0.check()?;
        self.0.files.mkdir(path)
    }

    async fn remove(&self, path: &SandboxPath) -> Result<(), SandboxError> {
        self.0.check()?;
        self.0.files.remove(path)
    }

    async fn rename(&self, from: &SandboxPath, to: &SandboxPath) -> Result<(), SandboxError> {
        self.0.check()?;
        self.0.files.rename(from, to)
    }

    async fn connect(&self, _: u16) -> Result<Connection, SandboxError> {
        Err(SandboxError::unsupported("the plain backend can't connect to ports"))
    }

    async fn watch(&self, _: &[SandboxPath]) -> Result<ChangeNotice, SandboxError> {
        Err(SandboxError::unsupported("the plain backend watches no directories"))
    }

    async fn attributes(
        &self,
        _: &[SandboxPath],
        _: &str,
    ) -> Result<Vec<BTreeMap<String, String>>, SandboxError> {
        Err(SandboxError::unsupported("the plain backend reads no attributes"))
    }

    async fn persist(&self) -> Result<SandboxHandle, SandboxError> {
        Err(SandboxError::unsupported("the plain backend keeps no sandboxes"))
    }

    async fn close(&self) -> Result<(), SandboxError> {
        let path = self.0.directory.path().display();
        self.0.end().map_err(|error| SandboxError::io(format!("failed to remove {path}"), error))
    }
}
