//! One exec of a script: what it answers first, and then its streams.

use std::collections::VecDeque;
use std::pin::Pin;
use std::time::Duration;

use bollard::container::LogOutput;
use bollard::exec::{StartExecOptions, StartExecResults};
use bollard::models::ExecConfig;
use bytes::{Bytes, BytesMut};
use cantle_core::sandbox::{Channel, OutputChunk, SandboxError, SandboxErrorKind};
use futures_core::Stream;
use futures_util::StreamExt as _;
use tokio::io::AsyncWrite;
use tokio::time::{Instant, sleep};

use super::Shared;
use crate::engine::failure::{failed, status};
use crate::environment::Variables;

/// How long a script may take to say its first word.
const FIRST_WORD: Duration = Duration::from_secs(30);

/// How long the engine may take to notice the end of a script whose output has ended.
const NOTICED: Duration = Duration::from_secs(5);
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// The longest first word.
const MOST_WORD: usize = 4096;

type Output = Pin<Box<dyn Stream<Item = Result<LogOutput, bollard::errors::Error>> + Send>>;

/// A script for the image's `sh`.
pub(super) struct Script<'s> {
    pub(super) text: &'s str,
    /// `$1` and so on.
    pub(super) arguments: Vec<String>,
    pub(super) variables: &'s Variables,
    pub(super) has_input: bool,
}

/// A script that runs and has said its first word.
pub(super) struct Exec {
    pub(super) id: String,
    word: String,
    complaint: String,
    /// What came before the word, or with it.
    early: VecDeque<OutputChunk>,
    output: Output,
    pub(super) input: Option<Pin<Box<dyn AsyncWrite + Send>>>,
}

impl Exec {
    pub(super) async fn start(shared: &Shared, script: Script<'_>) -> Result<Self, SandboxError> {
        let mut command = ["/bin/sh", "-c", script.text, "cantle"]
            .map(str::to_owned)
            .to_vec();
        command.extend(script.arguments);
        let variables = script.variables.iter();
        let config = ExecConfig {
            cmd: Some(command),
            env: Some(
                variables
                    .map(|(name, value)| format!("{name}={}", value.expose()))
                    .collect(),
            ),
            user: Some(shared.user.clone()),
            attach_stdin: Some(script.has_input),
            attach_stdout: Some(true),
            attach_stderr: Some(true),
            ..ExecConfig::default()
        };
        let api = shared.container.engine.api();
        let created = api.create_exec(&shared.container.id, config).await;
        let created = created.map_err(|error| Self::failed(shared, error))?;
        let options = StartExecOptions::default();
        let started = api.start_exec(&created.id, Some(options)).await;
        let StartExecResults::Attached { output, input } =
            started.map_err(|error| Self::failed(shared, error))?
        else {
            return Err(SandboxError::new(
                SandboxErrorKind::Io,
                "the engine attached nothing",
            ));
        };
        let mut exec = Self {
            id: created.id,
            word: String::new(),
            complaint: String::new(),
            early: VecDeque::new(),
            output,
            input: script.has_input.then_some(input),
        };
        let heard = tokio::select! {
            heard = tokio::time::timeout(FIRST_WORD, exec.hear()) => heard,
            () = shared.gone.cancelled() => return Err(shared.gone()),
        };
        heard.map_err(|_| {
            let message = "a command was not started in time";
            SandboxError::new(SandboxErrorKind::Unavailable, message)
        })??;
        Ok(exec)
    }

    fn failed(shared: &Shared, error: bollard::errors::Error) -> SandboxError {
        match status(&error) {
            // It doesn't run any more, or isn't there.
            Some(404 | 409) => shared.gone(),
            _ => failed("failed to start a command in the container", error),
        }
    }

    /// Reads the first line of its output.
    async fn hear(&mut self) -> Result<(), SandboxError> {
        let mut read = BytesMut::new();
        let mut early = VecDeque::new();
        while let Some(piece) = self.next().await {
            let OutputChunk { channel, bytes } = piece?;
            if channel == Channel::Stderr {
                self.complaint.push_str(&String::from_utf8_lossy(&bytes));
                early.push_back(OutputChunk { channel, bytes });
                continue;
            }
            read.extend_from_slice(&bytes);
            let end = read.iter().position(|byte| *byte == b'\n');
            if let Some(end) = end {
                let word = read.split_to(end);
                self.word = String::from_utf8_lossy(&word).into_owned();
                let bytes = read.split_off(1).freeze();
                if !bytes.is_empty() {
                    let channel = Channel::Stdout;
                    early.push_back(OutputChunk { channel, bytes });
                }
                self.early = early;
                return Ok(());
            }
            if read.len() > MOST_WORD {
                break;
            }
        }
        // The engine's own words where it could not start the shell.
        self.complaint.push_str(&String::from_utf8_lossy(&read));
        Ok(())
    }

    /// The next piece of its output.
    pub(super) async fn next(&mut self) -> Option<Result<OutputChunk, SandboxError>> {
        if let Some(chunk) = self.early.pop_front() {
            return Some(Ok(chunk));
        }
        let piece = self.output.next().await?;
        Some(match piece {
            Ok(LogOutput::StdErr { message: bytes }) => Ok(OutputChunk {
                channel: Channel::Stderr,
                bytes,
            }),
            Ok(output) => Ok(OutputChunk {
                channel: Channel::Stdout,
                bytes: output.into_bytes(),
            }),
            Err(error) => Err(failed("failed to read the output of a command", error)),
        })
    }

    /// What the script answered: nothing that speaks against it, or an error.
    pub(super) fn into_result(self, doing: &str) -> Result<Self, SandboxError> {
        let (kind, why) = match &*self.word {
            "ok" => return Ok(self),
            "missing" => (
                SandboxErrorKind::NotFound,
                "no such file, directory or program",
            ),
            "outside" => (
                SandboxErrorKind::OutsideSandbox,
                "it leads out of the working directory",
            ),
            "notfile" => (SandboxErrorKind::NotAFile, "it is not a regular file"),
            "notdir" => (SandboxErrorKind::NotADirectory, "it is not a directory"),
            "exists" => (
                SandboxErrorKind::AlreadyExists,
                "something is there already",
            ),
            "denied" => (SandboxErrorKind::PermissionDenied, "permission denied"),
            _ => {
                let said = format!("{} {}", self.word, self.complaint);
                let kind = if said.contains("No space left") {
                    SandboxErrorKind::StorageFull
                } else if said.contains("Permission denied")
                    || said.contains("Read-only file system")
                {
                    SandboxErrorKind::PermissionDenied
                } else if said.contains("too long") {
                    SandboxErrorKind::InvalidInput
                } else if said.contains("executable file not found")
                    || said.contains("no such file")
                {
                    let message = format!(
                        "{doing}: the image has no shell at /bin/sh: {}",
                        said.trim()
                    );
                    return Err(SandboxError::new(SandboxErrorKind::Unavailable, message)
                        .with_advice("Use an image with a shell."));
                } else {
                    SandboxErrorKind::Io
                };
                return Err(SandboxError::new(kind, format!("{doing}: {}", said.trim())));
            }
        };
        Err(SandboxError::new(kind, format!("{doing}: {why}")))
    }

    /// Fails unless the script, whose output is at its end, has come to its own end.
    pub(super) async fn ended_well(
        &mut self,
        shared: &Shared,
        doing: &str,
    ) -> Result<(), SandboxError> {
        let api = shared.container.engine.api();
        let began = Instant::now();
        let code = loop {
            match api.inspect_exec(&self.id).await {
                Ok(state) if state.running == Some(true) && began.elapsed() < NOTICED => {
                    sleep(LOOK_EVERY).await;
                }
                Ok(state) => break state.exit_code,
                Err(_) => return Err(shared.gone()),
            }
        };
        if code == Some(0) {
            return Ok(());
        }
        let message = format!("{doing}: what did it has ended before");
        Err(shared
            .reason(SandboxError::new(SandboxErrorKind::Io, message))
            .await)
    }

    /// Reads it to its end; keeps no more than `limit` bytes of its output.
    pub(super) async fn rest(&mut self, limit: usize) -> Result<Bytes, SandboxError> {
        let mut all = BytesMut::new();
        while let Some(piece) = self.next().await {
            let OutputChunk { channel, bytes } = piece?;
            if channel == Channel::Stdout {
                if all.len() + bytes.len() > limit {
                    let message = "the answer is too long";
                    return Err(SandboxError::new(SandboxErrorKind::Io, message));
                }
                all.extend_from_slice(&bytes);
            }
        }
        Ok(all.freeze())
    }
}
