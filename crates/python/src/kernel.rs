//! A kernel: an interpreter that keeps its variables over calls, and its protocol.
//!
//! The program is a parent that owns the protocol (`kernel_parent.py`) and a forked child that executes code
//! (`kernel.py`). Code can reach both, so every frame is untrusted: bounded, and never more than data.

use std::collections::BTreeMap;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::{Buf as _, Bytes, BytesMut};
use cantle_core::code::{CodeError, CodeObserver, RichResult};
use cantle_core::ids::RunId;
use cantle_core::sandbox::{
    Channel, ExitStatus, HeadTail, OutputStream, Process, ProcessStdin, Sandbox, SandboxError,
    SandboxPath, SpawnRequest, SpillFile, Stdin,
};
use futures_util::StreamExt as _;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep_until, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::execution::{Execution, ExecutionOutcome};

const PROGRAM: &str = concat!(include_str!("kernel.py"), include_str!("kernel_parent.py"));
/// Maximum length of one frame; the program sends results of at most 8 MiB.
const MAX_FRAME_BYTES: usize = 12 * 1024 * 1024;
/// Maximum number of results of one call, and of their bytes.
const MAX_RESULTS: usize = 100;
const MAX_RESULT_BYTES: usize = 32 * 1024 * 1024;
/// Bytes of each output channel that are kept, half of them from the start.
pub(crate) const CAPTURE_BYTES: usize = 80_000;
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// Time that code has after SIGINT, and the kernel after SIGKILL.
const GRACE: Duration = Duration::from_secs(2);

/// The limits of one call, and its variables.
#[derive(Clone, Debug)]
pub(crate) struct CallLimits {
    pub(crate) timeout: Duration,
    pub(crate) cancellation: CancellationToken,
    /// Environment variables of this call alone.
    pub(crate) environment: BTreeMap<String, String>,
    /// Whether long output is also written to files, which the execution names.
    pub(crate) spills: bool,
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

/// Why running code is being stopped.
#[derive(Clone, Copy, PartialEq)]
enum Stop {
    No,
    Interrupting(ExecutionOutcome),
    Killing(ExecutionOutcome),
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
                    let exit = kernel.process.wait().await?;
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
        code: &str,
        limits: &CallLimits,
        observer: &mut dyn CodeObserver,
    ) -> Result<(Execution, bool), SandboxError> {
        self.calls += 1;
        let call = self.calls;
        let started = Instant::now();
        let mut deadline = Instant::now() + limits.timeout;
        let mut execution = Execution::new(ExecutionOutcome::Completed);
        let half = HeadTail::new(CAPTURE_BYTES / 2, CAPTURE_BYTES / 2);
        let (mut stdout, mut stderr) = (half.clone(), half);
        let (mut stop, mut room, mut results) = (Stop::No, MAX_RESULT_BYTES, 0);
        let spill = format!(".cantle/output/python-{}-{call}", self.name);
        let request = json!({
            "op": "execute", "id": call, "code": code, "spill": limits.spills.then_some(&spill),
            "env": limits.environment,
        });
        self.send(&request, deadline).await;
        let mut is_usable = true;
        loop {
            let mut may_buffer = |bytes| observer.may_buffer(bytes);
            let event = tokio::select! {
                biased;
                () = limits.cancellation.cancelled(), if stop == Stop::No => {
                    stop = Stop::Interrupting(ExecutionOutcome::Cancelled);
                    deadline = Instant::now() + GRACE;
                    self.send(&json!({"op": "interrupt"}), deadline).await;
                    continue;
                }
                () = sleep_until(deadline) => {
                    let (outcome, op) = match stop {
                        Stop::No => (ExecutionOutcome::TimedOut, "interrupt"),
                        Stop::Interrupting(outcome) => (outcome, "kill"),
                        Stop::Killing(outcome) => {
                            execution.outcome = outcome;
                            execution.notes.push(death(ExitStatus::Signal(9), true));
                            is_usable = false;
                            break;
                        }
                    };
                    stop = match stop {
                        Stop::No => Stop::Interrupting(outcome),
                        _ => Stop::Killing(outcome),
                    };
                    deadline = Instant::now() + GRACE;
                    self.send(&json!({"op": op}), deadline).await;
                    continue;
                }
                event = self.event(&mut may_buffer) => event,
            };
            let stopped = match stop {
                Stop::No => None,
                Stop::Interrupting(outcome) | Stop::Killing(outcome) => Some(outcome),
            };
            match event {
                Some(Event::Started { id, restarted }) if id == call => {
                    if restarted {
                        note_once(&mut execution, LOST_VARIABLES);
                    }
                }
                Some(Event::Output { id, channel, data }) if id == call => {
                    let Ok(bytes) = BASE64.decode(data).map(Bytes::from) else {
                        continue;
                    };
                    let (channel, kept) = match channel {
                        ChannelName::Stdout => (Channel::Stdout, &mut stdout),
                        ChannelName::Stderr => (Channel::Stderr, &mut stderr),
                    };
                    kept.push(&bytes);
                    observer.output(channel, bytes).await;
                }
                Some(Event::Result { id, result }) if id == call => {
                    let size: usize = result.formats.values().map(size_of_value).sum();
                    if results >= MAX_RESULTS || size > room {
                        note_once(
                            &mut execution,
                            "Further results were left out: there are too many, or they are too large.",
                        );
                        continue;
                    }
                    room -= size;
                    results += 1;
                    observer.result(result).await;
                }
                Some(Event::Spilled { id, channel, size }) if id == call => {
                    let (suffix, file) = match channel {
                        ChannelName::Stdout => ("stdout", &mut execution.stdout_file),
                        ChannelName::Stderr => ("stderr", &mut execution.stderr_file),
                    };
                    let path = SandboxPath::new(format!("{spill}.{suffix}")).ok();
                    *file = path.map(|path| SpillFile::new(path, size));
                }
                Some(Event::Refused { id, reason }) if id == call => {
                    let reason: String = reason.chars().take(200).collect();
                    note_once(&mut execution, &format!("A result was left out: {reason}."));
                }
                Some(Event::Done { id, error }) if id == call => {
                    execution.outcome = stopped.unwrap_or(match error {
                        Some(_) => ExecutionOutcome::Raised,
                        None => ExecutionOutcome::Completed,
                    });
                    execution.error = error;
                    break;
                }
                Some(Event::Died { id, code }) if id == call => {
                    let status = match code {
                        ..0 => ExitStatus::Signal(code.saturating_neg()),
                        _ => ExitStatus::Code(code),
                    };
                    execution.exit = Some(status);
                    execution.outcome = stopped.unwrap_or(ExecutionOutcome::Killed);
                    execution.notes.push(death(status, stopped.is_some()));
                    break;
                }
                Some(Event::Unreadable) => {
                    note_once(
                        &mut execution,
                        "A result was left out: it has no readable form.",
                    );
                }
                // Frames of other calls, and what code forged.
                Some(_) => {}
                None if self.is_flooded => {
                    execution.outcome = stopped.unwrap_or(ExecutionOutcome::Killed);
                    execution.notes.push(FLOODED.to_owned());
                    is_usable = false;
                    break;
                }
                None => {
                    let exit = self.process.wait().await?;
                    execution.exit = Some(exit.status);
                    execution.outcome = stopped.unwrap_or(match exit.status {
                        ExitStatus::LimitReached { .. } => ExecutionOutcome::LimitReached,
                        ExitStatus::TimedOut { .. } => ExecutionOutcome::TimedOut,
                        _ => ExecutionOutcome::Killed,
                    });
                    execution.notes.push(death(exit.status, stopped.is_some()));
                    execution.notes.extend(exit.notes);
                    is_usable = false;
                    break;
                }
            }
        }
        if self.buffer.is_empty() {
            // The memory of a large frame.
            self.buffer = BytesMut::new();
        }
        execution.stdout = stdout.finish();
        execution.stderr = stderr.finish();
        execution.duration = started.elapsed();
        Ok((execution, is_usable))
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

pub(crate) const LOST_VARIABLES: &str = "The interpreter was started anew: variables, functions and imports of earlier calls are lost. Files are still there.";

const FLOODED: &str = "The interpreter was ended: it sent more at once than is accepted. The next call starts a new one, without the variables.";

fn note_once(execution: &mut Execution, note: &str) {
    if !execution.notes.iter().any(|it| it == note) && execution.notes.len() < MAX_RESULTS {
        execution.notes.push(note.to_owned());
    }
}

/// Explains why an interpreter ended.
fn death(status: ExitStatus, is_stopped: bool) -> String {
    let reason = match status {
        _ if is_stopped => {
            "was killed because the code did not stop when it was interrupted".to_owned()
        }
        ExitStatus::Signal(9) => {
            "was killed (SIGKILL); most often that means that memory ran out".to_owned()
        }
        ExitStatus::Signal(11) => "crashed (SIGSEGV) in native code".to_owned(),
        ExitStatus::Signal(6) => "aborted (SIGABRT) in native code".to_owned(),
        ExitStatus::Code(code) => format!("was ended by the code itself, with exit code {code}"),
        status => format!("ended: {status}"),
    };
    format!("The interpreter {reason}. The next call starts a new one, without the variables.")
}

/// Returns the size of a value in memory, roughly.
fn size_of_value(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len(),
        Value::Array(values) => values.iter().map(size_of_value).sum::<usize>() + 32 * values.len(),
        Value::Object(fields) => fields
            .iter()
            .map(|(name, it)| 64 + name.len() + size_of_value(it))
            .sum(),
        _ => 32,
    }
}
