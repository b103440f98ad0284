//! The command driver's transport for remote commands.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use cantle_command_driver::{Report, Transport};
use cantle_core::sandbox::{
    BackgroundProcess, ByteStream, Channel, Exit, PtySize, SandboxError, SandboxPath, Signal,
};
use futures_util::StreamExt as _;
use serde_json::json;
use tokio::sync::mpsc;
use tokio_util::sync::DropGuard;

use super::control::{self, Orders};
use super::pump::{End, Progress};
use super::stdin::RemoteInput;
use crate::envd::PROCESSES;
use crate::shared::{SCRATCH, Shared};
use crate::{files, script};

/// Sends a signal to the process group of the command, or to its first process if a terminal put that into
/// another group.
const SIGNAL: &str = r#"kill -s "$1" -- "-$2" 2>/dev/null || kill -s "$1" -- "$2""#;

/// Note in the exit of a command whose stream broke.
const OUTPUT_LOST: &str = "part of the output may be missing: the connection to the sandbox broke while \
                           the command ran";

/// A running command of a remote sandbox.
pub(crate) struct RemoteTransport {
    pub(super) shared: Arc<Shared>,
    pub(super) progress: Arc<Progress>,
    pub(super) token: String,
    pub(super) leader: Option<u32>,
    pub(super) orders: Orders,
    pub(super) _abandon: DropGuard,
}

impl Transport for RemoteTransport {
    type Reports = mpsc::UnboundedReceiver<Report>;
    type Output = mpsc::Receiver<Result<Bytes, SandboxError>>;
    type Input = RemoteInput;

    const CHANNELS_END: bool = true;
    /// Killing takes several calls, which have deadlines of their own.
    const KILL_DEADLINE: Duration = Duration::from_secs(60);

    fn terminate(&self) {
        self.orders.terminate.cancel();
    }

    fn kill(&self) {
        self.orders.kill.cancel();
    }

    async fn signal(&self, signal: Signal) -> Result<(), SandboxError> {
        let Some(leader) = self.leader else {
            return Ok(());
        };
        let active = self.shared.activate().await?;
        let (signal, leader) = (signal.as_raw().to_string(), leader.to_string());
        let sent = script::run(&active.envd, SIGNAL, &[&signal, &leader]).await;
        // The script fails if the command has ended.
        active.explained(sent, "failed to send a signal").await?;
        Ok(())
    }

    async fn resize(&self, size: PtySize) -> Result<(), SandboxError> {
        let Some(pid) = self.progress.outer() else {
            return Err(SandboxError::unsupported("the command has no terminal"));
        };
        let active = self.shared.activate().await?;
        let message = json!({ "process": { "pid": pid }, "pty": script::pty(size) });
        let resized = active.envd.order(PROCESSES, "Update", &message).await;
        active
            .explained(resized, "failed to resize the terminal")
            .await
    }

    async fn list(&self) -> Vec<BackgroundProcess> {
        let end = self.progress.state.borrow().end.clone();
        if let Some(End::Reported { left, .. }) = end {
            return left;
        }
        match self.shared.activate().await {
            Ok(active) => control::list(&active.envd, &self.token, self.leader).await,
            Err(_) => Vec::new(),
        }
    }

    fn check(&self) -> Result<(), SandboxError> {
        self.shared.check()
    }

    fn written_bytes(&self, channel: Channel, read_bytes: u64) -> u64 {
        self.progress.received_bytes(channel).max(read_bytes)
    }

    fn spill_path(&self, channel: Channel) -> Option<SandboxPath> {
        let (token, name) = (&self.token, channel.as_str());
        SandboxPath::new(format!("{SCRATCH}/cantle-{token}.{name}")).ok()
    }

    /// The output has come here already when it is known to be large; it goes back as an upload.
    async fn write_spill(&self, channel: Channel, data: ByteStream, written_bytes: &AtomicU64) {
        let (Some(path), Ok(active)) = (self.spill_path(channel), self.shared.activate().await)
        else {
            return;
        };
        let size_bytes = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&size_bytes);
        let data = data.map(move |bytes| {
            let length = bytes.as_ref().map_or(0, Bytes::len) as u64;
            counter.fetch_add(length, Ordering::Relaxed);
            bytes.map_err(io::Error::other)
        });
        let uploaded = files::upload(&active.envd, &path.to_string(), Box::pin(data)).await;
        if uploaded.is_ok() {
            written_bytes.store(size_bytes.load(Ordering::Relaxed), Ordering::Release);
        }
    }

    async fn complete(&self, exit: &mut Exit) {
        let state = self.progress.state.borrow();
        if let Some(End::Reported {
            duration: Some(duration),
            ..
        }) = state.end
        {
            exit.duration = exit.duration.min(duration);
        }
        if state.may_lack_output {
            exit.notes.push(OUTPUT_LOST.to_owned());
        }
    }
}
