//! Standard input of a command.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use cantle_command_driver::InputChannel;
use cantle_core::sandbox::{SandboxError, SandboxErrorKind};
use serde::de::IgnoredAny;
use serde_json::{Value, json};
use tokio::select;

use super::pump::{End, Progress};
use crate::envd::{Envd, Fault, PROCESSES};
use crate::shared::Shared;

/// Time limit of a message: the command may read late.
const SEND_TIMEOUT: Duration = Duration::from_secs(3600);

/// Maximum bytes of one message.
const PIECE: usize = 256 * 1024;

/// The input of a command, closed on drop unless part of it was lost.
#[derive(Debug)]
pub(crate) struct RemoteInput {
    pub(super) shared: Arc<Shared>,
    pub(super) progress: Arc<Progress>,
    pub(super) is_terminal: bool,
}

impl InputChannel for RemoteInput {
    async fn write(&mut self, data: Bytes) -> Result<(), SandboxError> {
        let Self {
            shared,
            progress,
            is_terminal,
        } = self;
        let writing = async {
            let active = shared.activate().await?;
            let kind = if *is_terminal { "pty" } else { "stdin" };
            for piece in data.chunks(PIECE) {
                let input = json!({ (kind): STANDARD.encode(piece) });
                if let Err(fault) = send(&active.envd, progress, input).await {
                    return Ok(Some((active, fault)));
                }
            }
            Ok::<_, SandboxError>(None)
        };
        let failure = select! {
            biased;
            result = writing => result?,
            _ = progress.ended() => return Err(closed()),
            why = shared.gone() => return Err(SandboxError::gone(why)),
        };
        let Some((active, fault)) = failure else {
            return Ok(());
        };
        if !loses_input(&fault) {
            return Err(closed());
        }
        // Without its end, the command would take the truncated input for all of it. The input of a terminal is not
        // closed, and its user can repeat it.
        if !*is_terminal {
            progress.end(End::InputLost(Arc::new(fault.clone())));
        }
        let doing = "failed to write to the command";
        Err(active.explain(fault, doing).await)
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

async fn send(envd: &Envd, progress: &Progress, input: Value) -> Result<(), Fault> {
    let pid = progress.wait_for(|state| state.outer).await;
    let message = json!({ "process": { "pid": pid }, "input": input });
    let IgnoredAny = envd
        .call_with_timeout(PROCESSES, "SendInput", &message, SEND_TIMEOUT)
        .await?;
    Ok(())
}

/// Whether the input may not have reached the command. Other refusals mean that the command has ended or doesn't read
/// its input.
fn loses_input(fault: &Fault) -> bool {
    let codes = ["unavailable", "resource_exhausted", "deadline_exceeded"];
    !matches!(fault, Fault::Refused { .. }) || codes.iter().any(|code| fault.has_code(code))
}

async fn close(shared: &Arc<Shared>, progress: &Progress) {
    let closing = async {
        let Ok(active) = shared.activate().await else {
            return;
        };
        let pid = progress.wait_for(|state| state.outer).await;
        let message = json!({ "process": { "pid": pid } });
        let close = || active.envd.order(PROCESSES, "CloseStdin", &message);
        let mut closed = close().await;
        // Closing it twice does no harm.
        if let Err(fault) = &closed
            && loses_input(fault)
            && active.check_gone(fault).await.is_none()
        {
            closed = close().await;
        }
        if let Err(fault) = closed
            && loses_input(&fault)
        {
            // The command would wait for the end of its input.
            progress.end(End::InputLost(Arc::new(fault)));
        }
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
