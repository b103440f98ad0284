//! The handle of a running command.

use std::sync::Arc;

use async_trait::async_trait;
use cantle_core::sandbox::{
    Exit, OutputChunk, OutputStream, Process, ProcessStdin, PtySize, SandboxError, SandboxErrorKind,
};
use futures_util::stream;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::DropGuard;

use super::drive::Outcome;
use super::pump::Progress;
use super::side;
use super::stdin::RemoteStdin;
use crate::envd::{Pty, Resize, Selected, Selector, Size};
use crate::sandbox::Shared;

/// As many as Linux has.
const SIGNALS: std::ops::RangeInclusive<i32> = 1..=64;

/// To the group that the command leads, or to itself where a terminal has it in another one.
const SIGNAL: &str = r#"kill -s "$1" -- "-$2" 2>/dev/null || kill -s "$1" -- "$2""#;

/// A command of a remote sandbox. Dropped, it is killed with everything it started.
pub(crate) struct RemoteProcess {
    parts: Parts,
    _abandons: DropGuard,
}

pub(super) struct Parts {
    pub(super) shared: Arc<Shared>,
    pub(super) progress: Arc<Progress>,
    pub(super) leader: Option<u32>,
    pub(super) is_terminal: bool,
    pub(super) pieces: Option<mpsc::Receiver<Result<OutputChunk, SandboxError>>>,
    pub(super) stdin: Option<RemoteStdin>,
    pub(super) told: watch::Receiver<Option<Outcome>>,
}

impl RemoteProcess {
    pub(super) fn new(parts: Parts, abandons: DropGuard) -> Self {
        Self {
            parts,
            _abandons: abandons,
        }
    }
}

#[async_trait]
impl Process for RemoteProcess {
    fn id(&self) -> Option<u32> {
        self.parts.leader
    }

    fn take_output(&mut self) -> Option<OutputStream> {
        let pieces = self.parts.pieces.take()?;
        Some(Box::pin(stream::unfold(pieces, |mut pieces| async {
            let piece = pieces.recv().await?;
            Some((piece, pieces))
        })))
    }

    fn take_stdin(&mut self) -> Option<Box<dyn ProcessStdin>> {
        self.parts.stdin.take().map(|stdin| Box::new(stdin) as _)
    }

    async fn signal(&mut self, signal: i32) -> Result<(), SandboxError> {
        if !SIGNALS.contains(&signal) {
            let message = format!("there is no signal {signal}");
            return Err(SandboxError::new(SandboxErrorKind::InvalidInput, message));
        }
        let Some(leader) = self.parts.leader else {
            return Ok(());
        };
        if self.parts.told.borrow().is_some() {
            return Ok(());
        }
        let awake = self.parts.shared.awake().await?;
        let (signal, leader) = (signal.to_string(), leader.to_string());
        match side::run(&awake.envd, SIGNAL, &[&signal, &leader]).await {
            // A command that has ended is fine.
            Ok(_) => Ok(()),
            Err(fault) => {
                let doing = "failed to send a signal";
                Err(self.parts.shared.explain(&awake.envd, fault, doing).await)
            }
        }
    }

    async fn resize(&mut self, size: PtySize) -> Result<(), SandboxError> {
        let Some(pid) = self
            .parts
            .progress
            .outer()
            .filter(|_| self.parts.is_terminal)
        else {
            return Err(SandboxError::unsupported("the command has no terminal"));
        };
        let awake = self.parts.shared.awake().await?;
        let update = Selected {
            process: Selector { pid },
            more: Resize {
                pty: Pty {
                    size: Size {
                        cols: size.columns,
                        rows: size.rows,
                    },
                },
            },
        };
        let updated = awake
            .envd
            .call::<serde_json::Value>("process.Process", "Update", &update);
        match updated.await {
            Ok(_) => Ok(()),
            Err(fault) => {
                let doing = "failed to resize the terminal";
                Err(self.parts.shared.explain(&awake.envd, fault, doing).await)
            }
        }
    }

    async fn wait(&mut self) -> Result<Exit, SandboxError> {
        // Nobody can take it any more, and the command must not wait for a reader.
        self.parts.pieces = None;
        match self.parts.told.wait_for(Option::is_some).await {
            Ok(told) => told.clone().unwrap_or(Outcome::Closed).into_result(),
            Err(_) => Outcome::Closed.into_result(),
        }
    }
}
