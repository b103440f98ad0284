//! A kernel: an interpreter that keeps its variables over calls, and its protocol.
//!
//! The program is a parent that owns the protocol (`kernel_parent.py`) and a forked child that executes code
//! (`kernel.py`). Code can reach both, so every frame is untrusted: bounded, and never more than data.

mod call;

use std::time::Duration;

use bytes::{Buf as _, BytesMut};
use cantle_core::code::{CodeError, CodeObserver, CodeRequest, RichResult};
use cantle_core::ids::RunId;
use cantle_core::sandbox::{
    Channel, Exit, HeadTail, OutputStream, Process, ProcessStdin, Sandbox, SandboxError,
    SpawnRequest, Stdin,
};
use futures_util::StreamExt as _;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

pub(crate) use self::call::LOST_VARIABLES;
use self::call::RunningCall;
use crate::execution::{Execution, ExecutionOutcome};

const PROGRAM: &str = concat!(include_str!("kernel.py"), include_str!("kernel_parent.py"));
/// Maximum length of one frame; the program sends results of at most 8 MiB.
const MAX_FRAME_BYTES: usize = 12 * 1024 * 1024;
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// Time that the program has to end after its output has.
const EXIT_TIMEOUT: Duration = Duration::from_secs(30);

/// Output of a call that is longer than an execution holds.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum LongOutput {
    /// Is also written to files, which the execution names.
    Kept,
    /// Is only passed to the observer.
    Passed,
}

/// A running kernel. Dropping it kills its processes.
pub(crate) struct Kernel {
    process: Box<dyn Process>,
    stdin: Box<dyn ProcessStdin>,
    output: OutputStream,
    buffer: BytesMut,
    /// The end of what the program itself wrote to standard error.
    messages: HeadTail,
    /// Distinguishes its files from those of other kernels in the sandbox.
    name: String,
    calls: u64,
    /// Whether it sent a frame that was not accepted.
    is_flooded: bool,
}

/// A frame of the program.
#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
enum Event {
    Ready {},
    Started {
        id: u64,
        restarted: bool,
    },
    Output {
        id: u64,
        channel: ChannelName,
        data: String,
    },
    Result {
        id: u64,
        #[serde(flatten)]
        result: RichResult,
    },
    Spilled {
        id: u64,
        channel: ChannelName,
        size: u64,
    },
    Refused {
        id: u64,
        reason: String,
    },
    Done {
        id: u64,
        error: Option<CodeError>,
    },
    Died {
        id: u64,
        code: i32,
    },
    /// A line that is none of these.
    #[serde(skip_deserializing)]
    Unreadable,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum ChannelName {
    Stdout,
    Stderr,
}

impl Kernel {
    /// Starts a kernel with this Python, in a directory below the working directory or anywhere else.
    pub(crate) async fn start(
        sandbox: &dyn Sandbox,
        python: &str,
        figures: bool,
        directory: &str,
    ) -> Result<Result<Self, String>, SandboxError> {
        let mode = if figures { "figures" } else { "plain" };
        let request = SpawnRequest::argv([python, "-c", PROGRAM, mode, directory])
            .with_env("PYTHONUNBUFFERED", "")
            .with_env("PYTHONIOENCODING", "utf-8")
            .with_stdin(Stdin::Piped);
        let mut process = sandbox.spawn(request).await?;
        let (Some(stdin), Some(output)) = (process.take_stdin(), process.take_output()) else {
            return Ok(Err("the sandbox gives no pipes to a command".to_owned()));
        };
        let mut kernel = Self {
            process,
            stdin,
            output,
            buffer: BytesMut::new(),
            messages: HeadTail::new(0, 4096),
            name: RunId::new().to_string(),
            calls: 0,
            is_flooded: false,
        };
        let deadline = Instant::now() + START_TIMEOUT;
        loop {
            match timeout_at(deadline, kernel.event(&mut |_| true)).await {
                Ok(Some(Event::Ready {})) => return Ok(Ok(kernel)),
                Ok(Some(_)) => {}
                Ok(None) => {
                    let Some(exit) = kernel.exit().await? else {
                        return Ok(Err("its output is not that of a kernel".to_owned()));
                    };
                    let messages = kernel.messages.finish().text();
                    return Ok(Err(format!(
                        "the kernel ended ({}): {}",
                        exit.status,
                        messages.trim()
                    )));
                }
                Err(_) => return Ok(Err("the kernel did not start in 30 s".to_owned())),
            }
        }
    }

    /// Executes code and passes its output and results to `observer` as they come. Returns the execution, and whether the
    /// kernel can be used again. Dropping the future leaves the kernel in an unknown state.
    pub(crate) async fn execute(
        &mut self,
        request: &CodeRequest,
        long_output: LongOutput,
        observer: &mut dyn CodeObserver,
    ) -> Result<(Execution, bool), SandboxError> {
        self.calls += 1;
        let spill = format!(".cantle/output/python-{}-{}", self.name, self.calls);
        let spill_path = (long_output == LongOutput::Kept).then_some(&spill);
        let order = json!({
            "op": "execute", "id": self.calls, "code": request.code, "spill": spill_path,
            "env": request.environment,
        });
        let mut call = RunningCall::new(self.calls, spill, request.timeout, observer);
        self.send(&order, call.deadline).await;
        let is_usable = loop {
            let is_stopping = call.is_stopping();
            let mut may_buffer = |bytes| call.observer.may_buffer(bytes);
            let event = tokio::select! {
                biased;
                () = request.cancellation.cancelled(), if !is_stopping => {
                    Err(ExecutionOutcome::Cancelled)
                }
                () = sleep_until(call.deadline) => Err(ExecutionOutcome::TimedOut),
                event = self.event(&mut may_buffer) => Ok(event),
            };
            match event {
                Ok(Some(event)) => {
                    if call.apply(event).await {
                        break true;
                    }
                }
                Ok(None) => {
                    match self.exit().await? {
                        Some(exit) => call.exited(exit),
                        None => call.given_up(),
                    }
                    break false;
                }
                Err(reason) => match call.stop(reason) {
                    Some(operation) => self.send(&json!({"op": operation}), call.deadline).await,
                    None => break false,
                },
            }
        };
        if self.buffer.is_empty() {
            // The memory of a large frame.
            self.buffer = BytesMut::new();
        }
        Ok((call.finish(), is_usable))
    }

    /// Returns the exit of the program after [`event`](Self::event) has returned `None`; `None` if it may go on forever.
    async fn exit(&mut self) -> Result<Option<Exit>, SandboxError> {
        if self.is_flooded {
            return Ok(None);
        }
        let exit = timeout(EXIT_TIMEOUT, self.process.wait()).await;
        exit.ok().transpose()
    }

    /// Sends a request. What a kernel does that no longer reads is left to the time limits and the end of its output.
    async fn send(&mut self, request: &Value, deadline: Instant) {
        let line = format!("{request}\n");
        let _ = timeout_at(deadline, self.stdin.write(line.into())).await;
    }

    /// Returns the next frame; `None` once the kernel ended or sent a frame that is too large or that `may_buffer` refuses.
    async fn event(&mut self, may_buffer: &mut (dyn FnMut(usize) -> bool + Send)) -> Option<Event> {
        let mut searched = 0;
        loop {
            let unsearched = self.buffer.get(searched..).unwrap_or_default();
            if let Some(end) = unsearched.iter().position(|byte| *byte == b'\n') {
                let line = self.buffer.split_to(searched + end);
                self.buffer.advance(1);
                return Some(serde_json::from_slice(&line).unwrap_or(Event::Unreadable));
            }
            searched = self.buffer.len();
            if searched > MAX_FRAME_BYTES || !may_buffer(searched) {
                self.is_flooded = true;
                return None;
            }
            let chunk = self.output.next().await?.ok()?;
            match chunk.channel {
                Channel::Stdout => self.buffer.extend_from_slice(&chunk.bytes),
                Channel::Stderr => self.messages.push(&chunk.bytes),
            }
        }
    }
}
