//! One command: what it writes goes to everybody who listens, at the pace of the slowest.
//!
//! A listener who takes nothing for a while is dropped, so that it can't hold the command up for good.
//! What is written while nobody listens is discarded, as envd does.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use cantle_core::sandbox::{
    ExitStatus, OutputStream, Process, ProcessStdin, PtySize, SandboxError, SandboxErrorKind,
};
use futures_util::StreamExt as _;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::messages::{self, ProcessConfig};
use crate::envd::fault::{Code, Fault};

/// Bytes of one event.
const PIECE_BYTES: usize = 32 * 1024;
const PTY_PIECE_BYTES: usize = 16 * 1024;
/// Events that wait for one listener.
const EVENTS_IN_FLIGHT: usize = 8;

/// What listeners are told.
#[derive(Clone)]
pub(crate) enum Told {
    /// Something was written.
    Event(Bytes),
    /// It has ended: the last event, and whether that was because its time was over.
    Ended { event: Bytes, timed_out: bool },
}

/// What a running command is to do.
pub(crate) enum Order {
    Signal(i32, oneshot::Sender<Result<(), SandboxError>>),
    Resize(PtySize, oneshot::Sender<Result<(), SandboxError>>),
}

/// A command that was started, and may have ended.
pub(crate) struct Running {
    pub(crate) pid: u32,
    pub(crate) tag: Option<String>,
    pub(crate) config: ProcessConfig,
    pub(crate) is_pty: bool,
    /// Cancelled to kill it with all that it started.
    pub(crate) kill: CancellationToken,
    /// Cancelled when it has ended.
    pub(crate) ended: CancellationToken,
    pub(crate) orders: mpsc::Sender<Order>,
    stdin: tokio::sync::Mutex<Option<Box<dyn ProcessStdin>>>,
    listeners: Mutex<Listeners>,
    /// When it ended, and what is told of it then.
    end: watch::Sender<Option<(Instant, Told)>>,
}

#[derive(Default)]
struct Listeners(VecDeque<mpsc::Sender<Told>>);

/// What of a command its own task needs.
pub(crate) struct Parts {
    pub(crate) process: Box<dyn Process>,
    pub(crate) output: Option<OutputStream>,
    pub(crate) orders: mpsc::Receiver<Order>,
    /// How long a listener may stand still.
    pub(crate) patience: Duration,
}

impl Running {
    /// A command that was just started, and the first who listens to it.
    pub(crate) fn new(
        pid: u32,
        tag: Option<String>,
        config: ProcessConfig,
        is_pty: bool,
        stdin: Option<Box<dyn ProcessStdin>>,
        kill: CancellationToken,
    ) -> (Arc<Self>, mpsc::Receiver<Order>) {
        let (orders, receiver) = mpsc::channel(4);
        let running = Self {
            pid,
            tag,
            config,
            is_pty,
            kill,
            ended: CancellationToken::new(),
            orders,
            stdin: tokio::sync::Mutex::new(stdin),
            listeners: Mutex::default(),
            end: watch::Sender::new(None),
        };
        (Arc::new(running), receiver)
    }

    fn listeners(&self) -> MutexGuard<'_, Listeners> {
        self.listeners
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Listens from now on.
    pub(crate) fn listen(&self) -> mpsc::Receiver<Told> {
        let (sender, receiver) = mpsc::channel(EVENTS_IN_FLIGHT);
        let mut listeners = self.listeners();
        match &*self.end.borrow() {
            // There is room for one.
            Some((_, told)) => drop(sender.try_send(told.clone())),
            None => listeners.0.push_back(sender),
        }
        receiver
    }

    /// How long ago it ended, if it has.
    pub(crate) fn ended_for(&self) -> Option<Duration> {
        self.end.borrow().as_ref().map(|(at, _)| at.elapsed())
    }

    /// Does what is to be done for a command until it has ended and everything is told.
    ///
    /// # Errors
    /// Where the sandbox ended first.
    pub(crate) async fn look_after(&self, parts: Parts) -> Result<(), SandboxError> {
        let Parts {
            mut process,
            output,
            mut orders,
            patience,
        } = parts;
        let life = async {
            loop {
                tokio::select! {
                    exit = process.wait() => break exit,
                    Some(order) = orders.recv() => match order {
                        // Where nobody waits for the answer, nobody needs it.
                        Order::Signal(signal, done) => drop(done.send(process.signal(signal).await)),
                        Order::Resize(size, done) => drop(done.send(process.resize(size).await)),
                    },
                }
            }
        };
        let (exit, ()) = futures_util::future::join(life, self.pass_on(output, patience)).await;
        self.stdin.lock().await.take();
        self.ended.cancel();
        let exit = exit?;
        let told = Told::Ended {
            event: messages::ended(&exit),
            timed_out: matches!(exit.status, ExitStatus::TimedOut { .. }),
        };
        let listeners = {
            let mut listeners = self.listeners();
            self.end.send_replace(Some((Instant::now(), told.clone())));
            std::mem::take(&mut listeners.0)
        };
        for listener in listeners {
            // One who doesn't listen any more has missed nothing.
            let _ = timeout(patience, listener.send(told.clone())).await;
        }
        Ok(())
    }

    /// Passes output on until its end.
    async fn pass_on(&self, output: Option<OutputStream>, patience: Duration) {
        let Some(mut output) = output else { return };
        let most = if self.is_pty {
            PTY_PIECE_BYTES
        } else {
            PIECE_BYTES
        };
        // What fails here fails in the wait for the end as well, which says so.
        while let Some(Ok(mut chunk)) = output.next().await {
            while !chunk.bytes.is_empty() {
                let piece = chunk.bytes.split_to(most.min(chunk.bytes.len()));
                let listeners = self.listeners().0.clone();
                if listeners.is_empty() {
                    continue;
                }
                let told = Told::Event(messages::written(chunk.channel, self.is_pty, &piece));
                for listener in listeners {
                    let sent = timeout(patience, listener.send(told.clone())).await;
                    if !matches!(sent, Ok(Ok(()))) {
                        self.listeners()
                            .0
                            .retain(|other| !other.same_channel(&listener));
                    }
                }
            }
        }
    }

    /// Writes to its input.
    pub(crate) async fn write(&self, data: Bytes) -> Result<(), Fault> {
        let written = async {
            let mut stdin = self.stdin.lock().await;
            let Some(stdin) = stdin.as_mut() else {
                let message = "stdin is not open: it was not asked for, or is closed";
                return Err(Fault::new(Code::Internal, message));
            };
            stdin.write(data).await.map_err(|error| match error.kind() {
                SandboxErrorKind::Closed => Fault::new(
                    Code::Internal,
                    "the process doesn't read its stdin any more",
                ),
                _ => error.into(),
            })
        };
        tokio::select! {
            written = written => written,
            () = self.ended.cancelled() => Err(self.not_found()),
        }
    }

    /// Closes its input. A second time is fine.
    pub(crate) async fn close_stdin(&self) {
        tokio::select! {
            mut stdin = self.stdin.lock() => drop(stdin.take()),
            () = self.ended.cancelled() => {}
        }
    }

    /// Has something done, if it still runs.
    pub(crate) async fn order(
        &self,
        order: impl FnOnce(oneshot::Sender<Result<(), SandboxError>>) -> Order,
    ) -> Result<(), Fault> {
        let (done, answer) = oneshot::channel();
        if self.orders.send(order(done)).await.is_err() {
            return Err(self.not_found());
        }
        match answer.await {
            Ok(result) => Ok(result?),
            Err(_) => Err(self.not_found()),
        }
    }

    pub(crate) fn not_found(&self) -> Fault {
        Fault::not_found(format!("process with pid {} not found", self.pid))
    }
}
