//! A command's input.

use std::sync::Arc;

use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use cantle_core::sandbox::{ProcessStdin, SandboxError, SandboxErrorKind};
use tokio::select;

use super::drive::selected;
use super::pump::Progress;
use crate::envd::{Fault, Input, InputBytes, Selected, Selector};
use crate::sandbox::{Awake, Shared};

/// Bytes of one message.
const PIECE: usize = 256 * 1024;

/// Input that is written as the command runs. Dropped, it is closed.
#[derive(Debug)]
pub(crate) struct RemoteStdin {
    shared: Arc<Shared>,
    progress: Arc<Progress>,
    is_terminal: bool,
}

impl RemoteStdin {
    pub(super) fn new(shared: Arc<Shared>, progress: Arc<Progress>, is_terminal: bool) -> Self {
        Self {
            shared,
            progress,
            is_terminal,
        }
    }
}

#[async_trait]
impl ProcessStdin for RemoteStdin {
    async fn write(&mut self, data: Bytes) -> Result<(), SandboxError> {
        write(&self.shared, &self.progress, data, self.is_terminal).await
    }
}

impl Drop for RemoteStdin {
    fn drop(&mut self) {
        // A terminal has no end of its own.
        if self.is_terminal || self.progress.state.borrow().end.is_some() {
            return;
        }
        let (shared, progress) = (Arc::clone(&self.shared), Arc::clone(&self.progress));
        self.shared
            .attend(async move { close(&shared, &progress).await });
    }
}

/// Writes all of an input that is in memory, as far as the command reads it, and closes it.
pub(super) async fn feed(shared: &Arc<Shared>, progress: &Progress, data: Bytes) {
    // A command need not read what it is given.
    let _ = write(shared, progress, data, false).await;
    close(shared, progress).await;
}

async fn write(
    shared: &Arc<Shared>,
    progress: &Progress,
    data: Bytes,
    is_terminal: bool,
) -> Result<(), SandboxError> {
    let writing = async {
        let awake = shared.awake().await?;
        for piece in data.chunks(PIECE) {
            let text = STANDARD.encode(piece);
            let input = if is_terminal {
                InputBytes::Pty(text)
            } else {
                InputBytes::Stdin(text)
            };
            send(shared, &awake, progress, input).await?;
        }
        Ok(())
    };
    select! {
        biased;
        result = writing => result,
        _ = progress.ended() => Err(closed()),
        why = shared.gone() => Err(SandboxError::gone(why)),
    }
}

async fn send(
    shared: &Shared,
    awake: &Awake,
    progress: &Progress,
    input: InputBytes,
) -> Result<(), SandboxError> {
    let pid = progress.wait_for(|state| state.outer).await;
    let message = Selected {
        process: Selector { pid },
        more: Input { input },
    };
    // As long as the command takes to read it.
    let sent = awake
        .envd
        .call_for::<serde_json::Value>(
            "process.Process",
            "SendInput",
            &message,
            std::time::Duration::from_secs(3600),
        )
        .await;
    match sent {
        Ok(_) => Ok(()),
        // Whatever the words: there is no command any more, or none that reads.
        Err(fault @ Fault::Refused { .. }) if !fault.is_unanswered() => Err(closed()),
        Err(fault) => Err(shared
            .explain(&awake.envd, fault, "failed to write to the command")
            .await),
    }
}

async fn close(shared: &Arc<Shared>, progress: &Progress) {
    let closing = async {
        let Ok(awake) = shared.awake().await else {
            return;
        };
        let pid = progress.wait_for(|state| state.outer).await;
        let which = selected(pid);
        let envd = &awake.envd;
        let closed = envd.call::<serde_json::Value>("process.Process", "CloseStdin", &which);
        // A command that has ended has no input.
        let _ = closed.await;
    };
    select! {
        () = closing => {}
        _ = progress.ended() => {}
        _ = shared.gone() => {}
    }
}

fn closed() -> SandboxError {
    let message = "the command has ended or reads no more";
    SandboxError::new(SandboxErrorKind::Closed, message)
}
