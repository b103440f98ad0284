//! Execs of scripts whose first output line is a result.

use std::collections::VecDeque;
use std::time::Duration;

use bollard::container::LogOutput;
use bollard::models::ExecConfig;
use bytes::{Bytes, BytesMut};
use cantle_command_driver::kind_of_message;
use cantle_core::sandbox::{Channel, OutputChunk, SandboxError, SandboxErrorKind};
use futures_util::StreamExt as _;
use tokio::time::{Instant, sleep, timeout};

use super::ExecRunner;
use crate::container::{ExecInput, ExecOutput};
use crate::engine::failure::{engine_message, request_failed, status};
use crate::environment::Variables;

/// Time limit for the first line of a script.
const RESULT_TIMEOUT: Duration = Duration::from_secs(30);

/// Time limit for each further piece of a script's output, and for a script to take a piece of input.
///
/// Commands of the same user can stop a script.
const PIECE_TIMEOUT: Duration = Duration::from_mins(1);

/// Time limit for the engine to report the exit of a script whose output has ended.
const EXIT_TIMEOUT: Duration = Duration::from_secs(5);
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Maximum length of the first line.
const MAX_RESULT_BYTES: usize = 4096;

/// Maximum length of standard error that arrives before the first line, which that of a program can overtake.
const MAX_EARLY_BYTES: usize = 16 << 20;

/// A script for the image's `/bin/sh`.
pub(super) struct Script<'s> {
    pub(super) text: &'s str,
    /// `$1` and so on.
    pub(super) arguments: Vec<String>,
    pub(super) variables: &'s Variables,
    pub(super) has_input: bool,
}

/// A running script that has written its first line.
pub(super) struct Exec {
    pub(super) id: String,
    result: String,
    stderr: String,
    /// Output that was read together with the first line.
    early: VecDeque<OutputChunk>,
    output: ExecOutput,
    pub(super) input: Option<ExecInput>,
}

impl Exec {
    pub(super) async fn start(
        runner: &ExecRunner,
        script: Script<'_>,
    ) -> Result<Self, SandboxError> {
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
            user: Some(runner.user.clone()),
            attach_stdin: Some(script.has_input),
            ..ExecConfig::default()
        };
        let started = runner.container.exec(config).await;
        let (id, output, input) = started.map_err(|error| {
            let doing = "failed to start a command in the container";
            match status(&error) {
                // The container has stopped, was removed or is paused: `unless_gone` finds out.
                Some(404 | 409) => {
                    let why = engine_message(&error);
                    SandboxError::unavailable(format!("{doing}: {why}"))
                }
                _ => request_failed(doing, &error),
            }
        })?;
        let mut exec = Self {
            id,
            result: String::new(),
            stderr: String::new(),
            early: VecDeque::new(),
            output,
            input: script.has_input.then_some(input),
        };
        let result = timeout(RESULT_TIMEOUT, exec.read_result()).await;
        result.map_err(|_| SandboxError::unavailable("starting a command timed out"))??;
        Ok(exec)
    }

    /// Reads the first line of the output.
    async fn read_result(&mut self) -> Result<(), SandboxError> {
        let mut read = BytesMut::new();
        let mut early = VecDeque::new();
        let mut early_bytes = 0;
        while let Some(piece) = self.next().await {
            let OutputChunk { channel, bytes } = piece?;
            if channel == Channel::Stderr {
                early_bytes += bytes.len();
                if early_bytes > MAX_EARLY_BYTES {
                    break;
                }
                if self.stderr.len() < MAX_RESULT_BYTES {
                    self.stderr.push_str(&String::from_utf8_lossy(&bytes));
                }
                early.push_back(OutputChunk { channel, bytes });
                continue;
            }
            read.extend_from_slice(&bytes);
            let end = read.iter().position(|byte| *byte == b'\n');
            if let Some(end) = end {
                let line = read.split_to(end);
                self.result = String::from_utf8_lossy(&line).into_owned();
                let bytes = read.split_off(1).freeze();
                if !bytes.is_empty() {
                    let channel = Channel::Stdout;
                    early.push_back(OutputChunk { channel, bytes });
                }
                self.early = early;
                return Ok(());
            }
            if read.len() > MAX_RESULT_BYTES {
                break;
            }
        }
        // The engine writes its error message here if it can't start the shell.
        self.stderr.push_str(&String::from_utf8_lossy(&read));
        Ok(())
    }

    /// Returns the next chunk of output.
    pub(super) async fn next(&mut self) -> Option<Result<OutputChunk, SandboxError>> {
        if let Some(chunk) = self.early.pop_front() {
            return Some(Ok(chunk));
        }
        let chunk = self.output.next().await?.map(|output| {
            let channel = match &output {
                LogOutput::StdErr { .. } => Channel::Stderr,
                _ => Channel::Stdout,
            };
            let bytes = output.into_bytes();
            OutputChunk { channel, bytes }
        });
        let doing = "failed to read the output of a command";
        Some(chunk.map_err(|error| request_failed(doing, &error)))
    }

    /// Like [`next`](Self::next), for a script that writes without waiting for anything.
    pub(super) async fn next_in_time(&mut self) -> Option<Result<OutputChunk, SandboxError>> {
        in_time(self.next())
            .await
            .unwrap_or_else(|error| Some(Err(error)))
    }

    /// Converts a result other than `ok` to an error.
    pub(super) fn into_result(self, doing: &str) -> Result<Self, SandboxError> {
        let (kind, why) = match &*self.result {
            "ok" => return Ok(self),
            "missing" => (
                SandboxErrorKind::NotFound,
                "no such file, directory or program",
            ),
            "outside" => (
                SandboxErrorKind::OutsideSandbox,
                "it is outside the working directory",
            ),
            "notfile" => (SandboxErrorKind::NotAFile, "it is not a regular file"),
            "notdir" => (SandboxErrorKind::NotADirectory, "it is not a directory"),
            "exists" => (SandboxErrorKind::AlreadyExists, "it already exists"),
            "denied" => (SandboxErrorKind::PermissionDenied, "permission denied"),
            _ => {
                let text = format!("{} {}", self.result, self.stderr);
                let (kind, text) = (kind_of_message(&text), text.trim());
                // The engine's message about a shell that it can't start is all that there is.
                let is_missing = text.contains("executable file") && text.contains("not found")
                    || kind.is_none() && text.contains("no such file");
                if self.result.is_empty() && is_missing {
                    let message = format!("{doing}: the image has no shell at /bin/sh: {text}");
                    return Err(SandboxError::unavailable(message)
                        .with_advice("Use an image with a shell."));
                }
                let kind = kind.unwrap_or(SandboxErrorKind::Io);
                return Err(SandboxError::new(kind, format!("{doing}: {text}")));
            }
        };
        Err(SandboxError::new(kind, format!("{doing}: {why}")))
    }

    /// Waits for the exit of a script whose output has ended; fails unless it succeeded.
    pub(super) async fn check_exit(
        &mut self,
        runner: &ExecRunner,
        doing: &str,
    ) -> Result<(), SandboxError> {
        let api = runner.container.engine.api();
        let began = Instant::now();
        let why = loop {
            match api.inspect_exec(&self.id).await {
                Ok(state) if state.running == Some(true) && began.elapsed() < EXIT_TIMEOUT => {
                    sleep(POLL_INTERVAL).await;
                }
                Ok(state) if state.exit_code == Some(0) => return Ok(()),
                Ok(_) => break "the program that did it was interrupted".to_owned(),
                Err(error) => break engine_message(&error),
            }
        };
        let error = SandboxError::new(SandboxErrorKind::Io, format!("{doing}: {why}"));
        Err(runner.reason(error).await)
    }

    /// Reads the rest of the output, up to `limit` bytes.
    pub(super) async fn rest(&mut self, limit: usize) -> Result<Bytes, SandboxError> {
        let mut all = BytesMut::new();
        while let Some(piece) = self.next_in_time().await {
            let OutputChunk { channel, bytes } = piece?;
            if channel == Channel::Stdout {
                if all.len() + bytes.len() > limit {
                    let message = "the output of a script is too long";
                    return Err(SandboxError::new(SandboxErrorKind::Io, message));
                }
                all.extend_from_slice(&bytes);
            }
        }
        Ok(all.freeze())
    }
}

/// Waits until a script has written or taken a piece.
pub(super) async fn in_time<T>(piece: impl Future<Output = T>) -> Result<T, SandboxError> {
    timeout(PIECE_TIMEOUT, piece).await.map_err(|_| {
        let seconds = PIECE_TIMEOUT.as_secs();
        let message = format!("a program in the container did not respond for {seconds} seconds");
        SandboxError::new(SandboxErrorKind::Io, message).with_advice(
            "Repeat it if the machine is busy. If it fails again, a command has stopped the program: open a new \
             sandbox.",
        )
    })
}

#[cfg(test)]
mod tests {
    use futures_util::stream;

    use super::*;

    fn running(output: ExecOutput) -> Exec {
        Exec {
            id: String::new(),
            result: String::new(),
            stderr: String::new(),
            early: VecDeque::new(),
            output,
            input: None,
        }
    }

    #[tokio::test]
    async fn endless_errors_instead_of_a_result_are_not_kept() {
        let message = Bytes::from(vec![b'x'; 32 << 10]);
        let piece = move || {
            let message = message.clone();
            Ok::<_, bollard::errors::Error>(LogOutput::StdErr { message })
        };
        let mut exec = running(Box::pin(stream::repeat_with(piece).take(1000)));
        exec.read_result().await.unwrap();
        assert!(exec.stderr.len() <= 32 << 10 && exec.early.is_empty());
        assert!(exec.into_result("failed").is_err());
    }

    #[test]
    fn error_has_the_kind_that_its_message_names() {
        let kind = |stderr: &str| {
            let mut exec = running(Box::pin(stream::empty()));
            exec.stderr = stderr.to_owned();
            exec.into_result("failed").map(drop).unwrap_err().kind()
        };
        let denied = kind("mv: cannot move 'a' to 'b': Operation not permitted");
        assert_eq!(denied, SandboxErrorKind::PermissionDenied);
        let missing = kind("mv: cannot stat 'too long.txt': No such file or directory");
        assert_eq!(missing, SandboxErrorKind::NotFound);
        for no_shell in [
            "exec: \"/bin/sh\": stat /bin/sh: no such file or directory",
            "executable file `/bin/sh` not found: No such file or directory",
        ] {
            assert_eq!(kind(no_shell), SandboxErrorKind::Unavailable, "{no_shell}");
        }
        assert_eq!(kind("it failed"), SandboxErrorKind::Io);
    }

    #[tokio::test(start_paused = true)]
    async fn stopped_script_is_an_error() {
        let mut exec = running(Box::pin(stream::pending()));
        let error = exec.rest(10).await.unwrap_err();
        assert_eq!(error.kind(), SandboxErrorKind::Io);
        assert!(error.to_string().contains("did not respond"), "{error}");
    }
}
