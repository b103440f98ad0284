//! Standard input of a command.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use cantle_command_driver::InputChannel;
use cantle_core::sandbox::{SandboxError, SandboxErrorKind};
use tokio::select;

use super::control::selected;
use super::pump::Progress;
use crate::envd::{Fault, Input, InputBytes, SelectedProcess, Selector};
use crate::sandbox::{ActiveSandbox, Shared};

/// Maximum bytes of one message.
const PIECE: usize = 256 * 1024;

/// The input of a command, closed on drop.
#[derive(Debug)]
pub(crate) struct RemoteInput {
    shared: Arc<Shared>,
    progress: Arc<Progress>,
    is_terminal: bool,
}

impl RemoteInput {
    pub(super) fn new(shared: Arc<Shared>, progress: Arc<Progress>, is_terminal: bool) -> Self {
        Self {
            shared,
            progress,
            is_terminal,
        }
    }
}

impl InputChannel for RemoteInput {
    async fn write(&mut self, data: Bytes) -> Result<(), SandboxError> {
        write(&self.shared, &self.progress, &data, self.is_terminal).await
    }
}

impl Drop for RemoteInput {
    fn drop(&mut self) {
        // A terminal's input can't be closed without closing the terminal.
        if self.is_terminal || self.progress.state.borrow().end.is_some() {
            return;
        }
        let (shared, progress) = (Arc::clone(&self.shared), Arc::clone(&self.progress));
        self.shared
            .spawn_task(async move { close(&shared, &progress).await });
    }
}

async fn write(
    shared: &Arc<Shared>,
    progress: &Progress,
    data: &[u8],
    is_terminal: bool,
) -> Result<(), SandboxError> {
    let writing = async {
        let active = shared.activate().await?;
        for piece in data.chunks(PIECE) {
            let text = STANDARD.encode(piece);
            let input = if is_terminal {
                InputBytes::Pty(text)
            } else {
                InputBytes::Stdin(text)
            };
            send(shared, &active, progress, input).await?;
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
    active: &ActiveSandbox,
    progress: &Progress,
    input: InputBytes,
) -> Result<(), SandboxError> {
    let pid = progress.wait_for(|state| state.outer).await;
    let message = SelectedProcess {
        process: Selector { pid },
        fields: Input { input },
    };
    // No time limit: the command may read late.
    let sent = active
        .envd
        .call_with_timeout::<serde_json::Value>(
            "process.Process",
            "SendInput",
            &message,
            std::time::Duration::from_secs(3600),
        )
        .await;
    match sent {
        Ok(_) => Ok(()),
        // Any refusal means that the command has ended or doesn't read its input.
        Err(fault @ Fault::Refused { .. }) if !fault.is_unanswered() => Err(closed()),
        Err(fault) => Err(shared
            .explain(&active.envd, fault, "failed to write to the command")
            .await),
    }
}

async fn close(shared: &Arc<Shared>, progress: &Progress) {
    let closing = async {
        let Ok(active) = shared.activate().await else {
            return;
        };
        let pid = progress.wait_for(|state| state.outer).await;
        let which = selected(pid);
        let envd = &active.envd;
        let closed = envd.call::<serde_json::Value>("process.Process", "CloseStdin", &which);
        // The command may have ended.
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
