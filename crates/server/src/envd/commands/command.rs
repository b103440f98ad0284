//! One command, whose output goes to all subscribers at the pace of the slowest.
//!
//! A subscriber that reads nothing for the idle time is dropped. Output without subscribers is
//! discarded, as in envd.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use cantle_core::sandbox::{
    ExitStatus, OutputStream, Process, ProcessStdin, PtySize, SandboxError, SandboxErrorKind,
    Signal,
};
use futures_util::StreamExt as _;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::messages::{self, ProcessInfo};
use crate::accounts::MemoryCharge;
use crate::envd::error::{EnvdError, Result};

/// Maximum output bytes of one event.
const CHUNK_BYTES: usize = 32 * 1024;
const PTY_CHUNK_BYTES: usize = 16 * 1024;
/// Queued events per subscriber.
const QUEUED_EVENTS: usize = 4;

/// Event of a command, as sent to subscribers.
#[derive(Clone)]
pub(crate) enum ProcessEvent {
    /// Output.
    Output(Bytes),
    /// The end event, and whether the time limit caused it.
    Ended { event: Bytes, timed_out: bool },
}

/// A request to a running command.
pub(crate) enum ControlRequest {
    Signal(Signal),
    Resize(PtySize),
}

/// A request and the receiver of its result.
pub(crate) type ControlCall = (ControlRequest, oneshot::Sender<Result<(), SandboxError>>);

/// A command that was started; it may have ended.
pub(crate) struct RunningCommand {
    pub(crate) info: Arc<ProcessInfo>,
    pub(crate) is_pty: bool,
    /// Cancel to kill the whole process tree.
    pub(crate) kill: CancellationToken,
    /// Cancelled when the command has ended.
    pub(crate) ended: CancellationToken,
    requests: mpsc::Sender<ControlCall>,
    stdin: tokio::sync::Mutex<Option<Box<dyn ProcessStdin>>>,
    subscribers: Mutex<Vec<mpsc::Sender<ProcessEvent>>>,
    /// Time and event of the end.
    end: OnceLock<(Instant, ProcessEvent)>,
    /// The memory of `info`.
    _kept: MemoryCharge,
}

impl RunningCommand {
    /// Creates the state of a command, and the receiver of its requests.
    pub(crate) fn new(
        info: ProcessInfo,
        is_pty: bool,
        stdin: Option<Box<dyn ProcessStdin>>,
        kill: CancellationToken,
        kept: MemoryCharge,
    ) -> (Arc<Self>, mpsc::Receiver<ControlCall>) {
        let (requests, receiver) = mpsc::channel(4);
        let running = Self {
            info: Arc::new(info),
            is_pty,
            kill,
            ended: CancellationToken::new(),
            requests,
            stdin: tokio::sync::Mutex::new(stdin),
            subscribers: Mutex::default(),
            end: OnceLock::new(),
            _kept: kept,
        };
        (Arc::new(running), receiver)
    }

    /// Subscribes to further events.
    pub(crate) fn subscribe(&self) -> mpsc::Receiver<ProcessEvent> {
        let (sender, receiver) = mpsc::channel(QUEUED_EVENTS);
        let mut subscribers = self.subscribers.lock();
        match self.end.get() {
            // The new channel has capacity.
            Some((_, event)) => drop(sender.try_send(event.clone())),
            None => {
                // A silent command never sends anything to those who are gone.
                subscribers.retain(|other| !other.is_closed());
                subscribers.push(sender);
            }
        }
        receiver
    }

    /// Returns the time since the command ended.
    pub(crate) fn time_since_end(&self) -> Option<Duration> {
        self.end.get().map(|(at, _)| at.elapsed())
    }

    /// Drives a command until it has ended and all subscribers have received its end, or have read nothing for the idle
    /// time. Its slot is free before they receive it.
    ///
    /// # Errors
    /// If the sandbox ended first.
    pub(crate) async fn drive(
        &self,
        mut process: Box<dyn Process>,
        output: Option<OutputStream>,
        requests: mpsc::Receiver<ControlCall>,
        idle_timeout: Duration,
        slot: OwnedSemaphorePermit,
    ) -> Result<(), SandboxError> {
        let control = async {
            // Dropped with the end of the command, which fails the requests that wait.
            let mut requests = requests;
            let exit = loop {
                tokio::select! {
                    exit = process.wait() => break exit,
                    Some((request, done)) = requests.recv() => {
                        let result = match request {
                            ControlRequest::Signal(signal) => process.signal(signal).await,
                            ControlRequest::Resize(size) => process.resize(size).await,
                        };
                        // Fails if the requester is gone.
                        let _ = done.send(result);
                    }
                }
            };
            // Subscribers may read the rest of the output much later.
            self.ended.cancel();
            exit
        };
        let (exit, ()) =
            futures_util::future::join(control, self.forward_output(output, idle_timeout)).await;
        self.stdin.lock().await.take();
        let event = match exit {
            Ok(exit) => ProcessEvent::Ended {
                event: messages::ended(&exit),
                timed_out: matches!(exit.status, ExitStatus::TimedOut { .. }),
            },
            Err(error) if error.kind() == SandboxErrorKind::Gone => return Err(error),
            Err(error) => ProcessEvent::Ended {
                event: messages::lost(&error),
                timed_out: false,
            },
        };
        let subscribers = {
            let mut subscribers = self.subscribers.lock();
            self.end.get_or_init(|| (Instant::now(), event.clone()));
            std::mem::take(&mut *subscribers)
        };
        drop(slot);
        for subscriber in subscribers {
            // Fails if the subscriber is gone.
            let _ = timeout(idle_timeout, subscriber.send(event.clone())).await;
        }
        Ok(())
    }

    /// Forwards output until its end.
    async fn forward_output(&self, output: Option<OutputStream>, idle_timeout: Duration) {
        let Some(mut output) = output else { return };
        let max = if self.is_pty {
            PTY_CHUNK_BYTES
        } else {
            CHUNK_BYTES
        };
        // Errors here also fail the wait for the exit, which reports them.
        while let Some(Ok(mut chunk)) = output.next().await {
            while !chunk.bytes.is_empty() {
                let part = chunk.bytes.split_to(max.min(chunk.bytes.len()));
                let subscribers = self.subscribers.lock().clone();
                if subscribers.is_empty() {
                    continue;
                }
                let event =
                    ProcessEvent::Output(messages::written(chunk.channel, self.is_pty, &part));
                for subscriber in subscribers {
                    let sent = timeout(idle_timeout, subscriber.send(event.clone())).await;
                    if !matches!(sent, Ok(Ok(()))) {
                        let mut subscribers = self.subscribers.lock();
                        subscribers.retain(|other| !other.same_channel(&subscriber));
                    }
                }
            }
        }
    }

    /// Writes to stdin or the terminal.
    pub(crate) async fn write(&self, data: Bytes) -> Result<()> {
        let written = async {
            let mut stdin = self.stdin.lock().await;
            let Some(stdin) = stdin.as_mut() else {
                let message = "stdin is closed, or the process was started without it";
                return Err(EnvdError::internal(message));
            };
            stdin.write(data).await.map_err(|error| match error.kind() {
                SandboxErrorKind::Closed => EnvdError::internal("the process has closed its stdin"),
                _ => error.into(),
            })
        };
        let written = self.ended.run_until_cancelled(written).await;
        written.unwrap_or_else(|| Err(self.not_found()))
    }

    /// Closes stdin. Idempotent.
    pub(crate) async fn close_stdin(&self) {
        tokio::select! {
            mut stdin = self.stdin.lock() => drop(stdin.take()),
            () = self.ended.cancelled() => {}
        }
    }

    /// Sends a request to the command's task and waits for the result.
    pub(crate) async fn request(&self, request: ControlRequest) -> Result<()> {
        let (done, answer) = oneshot::channel();
        // Both fail if the command has ended.
        let sent = self.requests.send((request, done)).await;
        sent.map_err(|_| self.not_found())?;
        Ok(answer.await.map_err(|_| self.not_found())??)
    }

    pub(crate) fn not_found(&self) -> EnvdError {
        EnvdError::not_found(format!("process with pid {} not found", self.info.pid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::accounts::{Account, Accounts};
    use crate::keys::Keys;
    use crate::settings::ServerLimits;

    #[test]
    fn subscribers_of_a_silent_command_are_forgotten() {
        let keys = Keys::default();
        let accounts = Accounts::new(&ServerLimits::default(), &keys);
        let kept = Account::new(&Arc::new(accounts), &keys.owner("any").unwrap()).charge();
        let (info, kill) = (ProcessInfo::default(), CancellationToken::new());
        let (command, _requests) = RunningCommand::new(info, false, None, kill, kept);
        let first = command.subscribe();
        for _ in 0..10 {
            drop(command.subscribe());
        }
        assert!(command.subscribers.lock().len() <= 2);
        assert!(!first.is_closed());
    }
}
