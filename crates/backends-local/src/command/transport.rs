//! The command driver's transport for local commands.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use cantle_command_driver::{Reports as _, Transport};
use cantle_core::policy::PolicyField;
use cantle_core::sandbox::{
    BackgroundProcess, ByteStream, Channel, Exit, ExitStatus, PtySize, SandboxError, SandboxPath,
    Signal,
};
use tokio::select;

use super::output::{LocalOutput, OutputSource, Terminal, discard};
use super::process::{CommandProcess, ProcessReports, WriteAccess, count_processes};
use super::stdin::LocalInput;
use crate::blocking;
use crate::engine::StartMark;
use crate::files::{Batch, DiskUsage};
use crate::shared::Shared;

/// A running command of a local sandbox.
#[derive(Debug)]
pub(crate) struct LocalTransport {
    pub(super) shared: Arc<Shared>,
    /// Unique among the sandbox's commands.
    pub(super) id: u32,
    pub(super) process: CommandProcess,
    pub(super) access: WriteAccess,
    /// State of the sandbox when the command was started.
    pub(super) mark: StartMark,
    pub(super) stdout: Arc<OutputSource>,
    pub(super) stderr: Arc<OutputSource>,
    pub(super) terminal: Option<Arc<Terminal>>,
}

impl LocalTransport {
    /// Measures the files after the command: exceeding a limit becomes its status.
    async fn check_files(&self, exit: &mut Exit) {
        if !self.shared.limits.files.are_measured() {
            return;
        }
        let root = Arc::clone(&self.shared.root);
        let measured = blocking::run(move || Ok(root.exceeded_limit_at_rest())).await;
        let Ok(Some((field, limit))) = measured else {
            return;
        };
        let has_exited = matches!(exit.status, ExitStatus::Code(_) | ExitStatus::Signal(_));
        if has_exited && self.access == WriteAccess::Full {
            exit.status = ExitStatus::LimitReached { field, limit };
        }
        if !exit.background.is_empty() {
            self.kill();
            exit.background.clear();
        }
        exit.notes.push(format!(
            "The sandbox's files exceed the limit `{field}` of {limit}: until enough of them are removed, commands \
             can only read and remove files."
        ));
    }

    fn spill_name(&self, channel: Channel) -> String {
        self.shared.root.spill_name(self.id, channel.as_str())
    }

    /// Enforces the polled limits on background processes of a command that has ended.
    async fn enforce_limits(&self, mut reports: ProcessReports) {
        let (field, limit) = select! {
            () = async { while reports.next().await.is_some() {} } => return,
            reached = self.limit_reached() => reached,
        };
        self.kill();
        self.shared.note(format!(
            "Background processes of an earlier command were killed: they exceeded the limit `{field}` \
             of {limit}."
        ));
    }
}

impl Transport for LocalTransport {
    type Reports = ProcessReports;
    type Output = LocalOutput;
    type Input = LocalInput;

    fn terminate(&self) {
        self.process.terminate(&self.shared);
    }

    fn kill(&self) {
        self.process.kill(&self.shared);
    }

    async fn signal(&self, signal: Signal) -> Result<(), SandboxError> {
        let sent = self.process.signal(&self.shared, signal.as_raw());
        sent.map_err(|error| SandboxError::io("failed to signal the command", error))
    }

    async fn resize(&self, size: PtySize) -> Result<(), SandboxError> {
        let resized = match &self.terminal {
            Some(terminal) => terminal.resize(size),
            None => Err(io::ErrorKind::Unsupported.into()),
        };
        resized.map_err(|error| SandboxError::io("failed to resize the terminal", error))
    }

    async fn list(&self) -> Vec<BackgroundProcess> {
        self.process.list(&self.shared).await.unwrap_or_default()
    }

    fn check(&self) -> Result<(), SandboxError> {
        self.shared.check_open()?;
        if self.shared.engine.is_gone() {
            return Err(SandboxError::gone("its supervisor was killed"));
        }
        Ok(())
    }

    fn written_bytes(&self, channel: Channel, read_bytes: u64) -> u64 {
        let source = match channel {
            Channel::Stdout => &self.stdout,
            Channel::Stderr => &self.stderr,
        };
        read_bytes + source.unread_bytes()
    }

    async fn limit_reached(&self) -> (PolicyField, u64) {
        let limits = &self.shared.limits;
        let count_processes = || count_processes(&self.shared);
        // A command that can't write does not exceed a limit further.
        let root = Some(&self.shared.root).filter(|_| self.access == WriteAccess::Full);
        limits.reached(root, count_processes).await
    }

    fn spill_path(&self, channel: Channel) -> Option<SandboxPath> {
        let name = self.spill_name(channel);
        self.shared.root.temporary_path(&name).ok()
    }

    async fn write_spill(&self, channel: Channel, mut data: ByteStream, written_bytes: &AtomicU64) {
        let root = Arc::clone(&self.shared.root);
        let name = self.spill_name(channel);
        let Some(path) = self.spill_path(channel) else {
            return;
        };
        let created = blocking::run(move || root.create_temporary(&name)).await;
        let Ok(mut file) = created else {
            return;
        };
        while let Ok(batch) = Batch::take(&mut data).await {
            let (size_bytes, is_last) = (batch.size_bytes as u64, batch.is_last);
            let (root, path) = (Arc::clone(&self.shared.root), path.clone());
            // The file keeps what was written before the disk was full or the directory gone.
            let written = blocking::run(move || {
                root.charge(&path, DiskUsage::data(size_bytes))?;
                write_all(file, &batch.pieces)
            });
            let written = written.await;
            let Ok((written, same_file)) = written else {
                return;
            };
            written_bytes.fetch_add(written, Ordering::AcqRel);
            if is_last || written < size_bytes {
                return;
            }
            file = same_file;
        }
    }

    fn take_notes(&self) -> Vec<String> {
        self.shared.engine.take_refusals(&self.mark)
    }

    async fn complete(&self, exit: &mut Exit) {
        self.shared.engine.explain_exit(&self.mark, exit);
        self.check_files(exit).await;
        exit.notes.extend(self.shared.take_notes());
    }

    fn detach(self: Arc<Self>, reports: ProcessReports, outputs: Vec<LocalOutput>) {
        // A background process that still writes must neither block nor get SIGPIPE.
        for output in outputs {
            self.shared.spawn_tracked(discard(output));
        }
        if self.shared.limits.are_polled() {
            let shared = Arc::clone(&self.shared);
            shared.spawn_tracked(async move { self.enforce_limits(reports).await });
        }
    }
}

/// Appends chunks to a file until one fails; returns the number of bytes written. Blocks.
fn write_all(
    mut file: std::fs::File,
    chunks: &[Bytes],
) -> Result<(u64, std::fs::File), SandboxError> {
    use std::io::Write as _;

    let mut written = 0;
    for chunk in chunks {
        if file.write_all(chunk).is_err() {
            break;
        }
        written += chunk.len() as u64;
    }
    Ok((written, file))
}
