//! One call of a kernel, and the execution that its events result in.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use cantle_core::code::{CodeObserver, RichResult};
use cantle_core::sandbox::{Channel, Exit, ExitStatus, HeadTail, SandboxPath, SpillFile};
use serde_json::Value;
use tokio::time::Instant;

use super::{ChannelName, Event};
use crate::execution::{Execution, ExecutionOutcome};

/// Maximum number of results of one call, and of their bytes.
const MAX_RESULTS: usize = 100;
const MAX_RESULT_BYTES: usize = 32 * 1024 * 1024;
/// Bytes of each output channel that are kept, half of them from the start.
const CAPTURE_BYTES: usize = 80_000;
/// Upper bound of the time limit, within the range of the clock.
const MAX_TIMEOUT: Duration = Duration::from_secs(1 << 32);
/// Time that code has after SIGINT, and the kernel after SIGKILL.
const GRACE: Duration = Duration::from_secs(2);

pub(crate) const LOST_VARIABLES: &str = "The interpreter was started anew: variables, functions and imports of earlier calls are lost. Files are still there.";

const GIVEN_UP: &str = "The interpreter was ended: it sent more at once than is accepted, or closed its output. The next call starts a new one, without the variables.";

/// A call whose code runs.
pub(super) struct RunningCall<'o> {
    id: u64,
    /// The path of the files with all of its output, without their suffixes.
    spill: String,
    pub(super) observer: &'o mut dyn CodeObserver,
    started_at: Instant,
    /// The time of the next step to stop the code.
    pub(super) deadline: Instant,
    stop: Stop,
    execution: Execution,
    stdout: HeadTail,
    stderr: HeadTail,
    results: usize,
    /// Bytes that further results may have.
    room: usize,
}

/// The step of stopping running code, with its reason.
#[derive(Clone, Copy, PartialEq)]
enum Stop {
    No,
    Interrupting(ExecutionOutcome),
    Killing(ExecutionOutcome),
}

impl<'o> RunningCall<'o> {
    pub(super) fn new(
        id: u64,
        spill: String,
        timeout: Duration,
        observer: &'o mut dyn CodeObserver,
    ) -> Self {
        let half = HeadTail::new(CAPTURE_BYTES / 2, CAPTURE_BYTES / 2);
        let now = Instant::now();
        Self {
            id,
            spill,
            observer,
            started_at: now,
            deadline: now + timeout.min(MAX_TIMEOUT),
            stop: Stop::No,
            execution: Execution::new(ExecutionOutcome::Completed),
            stdout: half.clone(),
            stderr: half,
            results: 0,
            room: MAX_RESULT_BYTES,
        }
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.stop != Stop::No
    }

    /// Returns the operation to request from the kernel to stop the code; `None` if none is left.
    pub(super) fn stop(&mut self, reason: ExecutionOutcome) -> Option<&'static str> {
        let (stop, operation) = match self.stop {
            Stop::No => (Stop::Interrupting(reason), "interrupt"),
            Stop::Interrupting(reason) => (Stop::Killing(reason), "kill"),
            Stop::Killing(reason) => {
                self.execution.outcome = reason;
                let note = death(ExitStatus::Signal(9), true);
                self.execution.notes.push(note);
                return None;
            }
        };
        self.stop = stop;
        self.deadline = Instant::now() + GRACE;
        Some(operation)
    }

    /// Applies an event; returns whether it ended the call.
    pub(super) async fn apply(&mut self, event: Event) -> bool {
        match event {
            Event::Started {
                id,
                restarted: true,
            } if id == self.id => self.note_once(LOST_VARIABLES),
            Event::Output { id, channel, data } if id == self.id => {
                if let Ok(bytes) = BASE64.decode(data) {
                    self.output(channel, bytes.into()).await;
                }
            }
            Event::Result { id, result } if id == self.id => self.result(result).await,
            Event::Spilled { id, channel, size } if id == self.id => {
                let (suffix, file) = match channel {
                    ChannelName::Stdout => ("stdout", &mut self.execution.stdout_file),
                    ChannelName::Stderr => ("stderr", &mut self.execution.stderr_file),
                };
                let path = SandboxPath::new(format!("{}.{suffix}", self.spill)).ok();
                *file = path.map(|path| SpillFile::new(path, size));
            }
            Event::Refused { id, reason } if id == self.id => {
                let reason: String = reason.chars().take(200).collect();
                self.note_once(&format!("A result was left out: {reason}."));
            }
            Event::Done { id, error } if id == self.id => {
                self.execution.outcome = self.outcome(match error {
                    Some(_) => ExecutionOutcome::Raised,
                    None => ExecutionOutcome::Completed,
                });
                self.execution.error = error;
                return true;
            }
            Event::Died { id, code } if id == self.id => {
                let status = match code {
                    ..0 => ExitStatus::Signal(code.saturating_neg()),
                    _ => ExitStatus::Code(code),
                };
                self.end(status, ExecutionOutcome::Killed);
                return true;
            }
            Event::Unreadable => {
                self.note_once("A result was left out: it has no readable form.");
            }
            // Frames of other calls, and what code forged.
            _ => {}
        }
        false
    }

    async fn output(&mut self, channel: ChannelName, bytes: Bytes) {
        let (channel, kept) = match channel {
            ChannelName::Stdout => (Channel::Stdout, &mut self.stdout),
            ChannelName::Stderr => (Channel::Stderr, &mut self.stderr),
        };
        kept.push(&bytes);
        self.observer.output(channel, bytes).await;
    }

    async fn result(&mut self, result: RichResult) {
        let size = size_of_fields(&result.formats);
        if self.results >= MAX_RESULTS || size > self.room {
            let note = "Further results were left out: there are too many, or they are too large.";
            return self.note_once(note);
        }
        self.room -= size;
        self.results += 1;
        self.observer.result(result).await;
    }

    /// Records that the kernel is ended because of the size of a frame, or because no more can come.
    pub(super) fn given_up(&mut self) {
        self.execution.outcome = self.outcome(ExecutionOutcome::Killed);
        self.execution.notes.push(GIVEN_UP.to_owned());
    }

    /// Records that the kernel has ended.
    pub(super) fn exited(&mut self, exit: Exit) {
        let outcome = match exit.status {
            ExitStatus::LimitReached { .. } => ExecutionOutcome::LimitReached,
            ExitStatus::TimedOut { .. } => ExecutionOutcome::TimedOut,
            _ => ExecutionOutcome::Killed,
        };
        self.end(exit.status, outcome);
        self.execution.notes.extend(exit.notes);
    }

    fn end(&mut self, status: ExitStatus, outcome: ExecutionOutcome) {
        self.execution.exit = Some(status);
        self.execution.outcome = self.outcome(outcome);
        let note = death(status, self.is_stopping());
        self.execution.notes.push(note);
    }

    /// Returns the reason for which the code was stopped, or else `outcome`.
    fn outcome(&self, outcome: ExecutionOutcome) -> ExecutionOutcome {
        match self.stop {
            Stop::No => outcome,
            Stop::Interrupting(reason) | Stop::Killing(reason) => reason,
        }
    }

    fn note_once(&mut self, note: &str) {
        let notes = &mut self.execution.notes;
        if !notes.iter().any(|it| it == note) && notes.len() < MAX_RESULTS {
            notes.push(note.to_owned());
        }
    }

    pub(super) fn finish(self) -> Execution {
        Execution {
            stdout: self.stdout.finish(),
            stderr: self.stderr.finish(),
            duration: self.started_at.elapsed(),
            ..self.execution
        }
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
        Value::Object(fields) => size_of_fields(fields),
        _ => 32,
    }
}

fn size_of_fields<'v>(fields: impl IntoIterator<Item = (&'v String, &'v Value)>) -> usize {
    let sizes = fields
        .into_iter()
        .map(|(name, it)| 64 + name.len() + size_of_value(it));
    sizes.sum()
}
