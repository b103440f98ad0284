//! The transport over the pipes of a process in a sandbox: one JSON message per line.

use std::cmp::Reverse;
use std::fmt::Write as _;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use cantle_core::escape::{replace_lone_surrogates, shorten};
use cantle_core::sandbox::{
    Channel, HeadTail, OutputStream, Process, ProcessStdin, Sandbox, SandboxError,
    SandboxErrorKind, Signal, SpawnRequest, Stdin,
};
use cantle_core::secret::SecretText;
use futures_util::StreamExt as _;
use parking_lot::Mutex;
use rmcp::RoleClient;
use rmcp::model::{ErrorData, JsonRpcMessage, RequestId, ServerJsonRpcMessage};
use rmcp::service::{RxJsonRpcMessage, TxJsonRpcMessage};
use rmcp::transport::Transport;
use serde::Deserialize;
use serde::de::IgnoredAny;
use tokio::sync::{Mutex as AsyncMutex, Semaphore};
use tokio::time::timeout;
use tokio_util::codec::{AnyDelimiterCodec, AnyDelimiterCodecError as LineError, Decoder as _};

use crate::config::StdioServer;
use crate::limits::MAX_MESSAGE_BYTES;

/// Bytes of the server's standard error that are kept for errors.
const STDERR_BYTES: usize = 2_000;
/// Maximum number of refused hosts that are named.
const MAX_REFUSALS: usize = 3;
/// Shorter values of variables are no secrets, but words.
const MIN_SECRET_BYTES: usize = 6;
/// Maximum number of requests of the server whose answers it has not read.
const MAX_UNREAD_ANSWERS: usize = 256;
/// Time for a server to exit once its input is closed, and to die once it is killed.
const EXIT_GRACE: Duration = Duration::from_secs(2);

impl StdioServer {
    /// Returns the values that errors do not quote, the longest first: one that contains another would be hidden in part
    /// only.
    pub(crate) fn secrets(&self) -> Vec<SecretText> {
        let environment = self.environment.values();
        let mut secrets: Vec<_> = environment.chain(&self.inserted).cloned().collect();
        secrets.sort_by_key(|secret| Reverse(secret.expose().len()));
        secrets
    }
}

/// Returns the length of the first, which is the longest.
fn longest(secrets: &[SecretText]) -> usize {
    secrets.first().map_or(0, |secret| secret.expose().len())
}

/// Returns a text without the values of variables.
pub(crate) fn hidden(mut text: String, secrets: &[SecretText]) -> String {
    let secrets = secrets.iter().map(SecretText::expose);
    for secret in secrets.filter(|secret| secret.len() >= MIN_SECRET_BYTES) {
        text = text.replace(secret, "[hidden]");
    }
    text
}

/// A started server.
pub(crate) struct Child {
    process: AsyncMutex<Box<dyn Process>>,
    output: AsyncMutex<OutputStream>,
    /// The values of its variables, which are not displayed.
    secrets: Vec<SecretText>,
    stderr: Mutex<HeadTail>,
    /// Whether the server has closed one of its pipes.
    has_ended: AtomicBool,
    /// The reason why the connection was ended on this side.
    problem: Mutex<Option<&'static str>>,
}

impl Child {
    /// Starts a server in a sandbox.
    pub(crate) async fn start(
        server: &StdioServer,
        sandbox: &dyn Sandbox,
    ) -> Result<(Arc<Self>, Pipes), SandboxError> {
        // Backends start commands below the working directory only.
        let change_directory = server.directory.iter().flat_map(|directory| {
            let script = "cd -- \"$0\" && exec \"$@\"";
            ["sh", "-c", script, directory]
        });
        let argv = server.argv.iter().map(|argument| argument.expose());
        let mut request = SpawnRequest::argv(change_directory.chain(argv))
            .with_stdin(Stdin::Piped)
            // Node ignores HTTP_PROXY without it.
            .with_env("NODE_USE_ENV_PROXY", "1");
        for (name, value) in &server.environment {
            request = request.with_env(name, value.clone());
        }
        let mut process = sandbox.spawn(request).await?;
        let missing = || SandboxError::unsupported("the sandbox gives no pipes to commands");
        let output = process.take_output().ok_or_else(missing)?;
        let stdin = process.take_stdin().ok_or_else(missing)?;
        let secrets = server.secrets();
        let child = Arc::new(Self {
            process: AsyncMutex::new(process),
            output: AsyncMutex::new(output),
            // What is cut off at its beginning may be part of a secret.
            stderr: Mutex::new(HeadTail::new(0, STDERR_BYTES + longest(&secrets))),
            secrets,
            has_ended: AtomicBool::new(false),
            problem: Mutex::new(None),
        });
        let pipes = Pipes {
            child: Arc::clone(&child),
            stdin: Arc::new(AsyncMutex::new(Some(stdin))),
            received: BytesMut::new(),
            lines: AnyDelimiterCodec::new_with_max_length(
                vec![b'\n'],
                Vec::new(),
                MAX_MESSAGE_BYTES,
            ),
            unread_answers: Arc::new(Semaphore::new(MAX_UNREAD_ANSWERS)),
        };
        Ok((child, pipes))
    }

    /// Kills the process and returns what is known about its end, as sentences.
    pub(crate) async fn post_mortem(&self) -> String {
        let mut text = String::new();
        if let Some(problem) = self.problem.lock().take() {
            let _ = write!(text, " It {problem}.");
        }
        let mut process = self.process.lock().await;
        let patience = match self.has_ended.load(Ordering::Relaxed) {
            true => EXIT_GRACE,
            false => Duration::ZERO,
        };
        let has_exited = timeout(patience, process.wait()).await.is_ok();
        // Fails if it has exited, or the sandbox is gone.
        let _ = process.signal(Signal::KILL).await;
        let _ = timeout(EXIT_GRACE, self.drain()).await;
        if let Ok(Ok(exit)) = timeout(EXIT_GRACE, process.wait()).await {
            if has_exited {
                let _ = write!(text, " Its process ended: {}.", exit.status);
            }
            text += &refusals(&exit.notes);
        }
        let stderr = self.stderr.lock().clone().finish();
        let tail = String::from_utf8_lossy(&stderr.tail).into_owned();
        let mut tail = hidden(tail, &self.secrets);
        if stderr.omitted_bytes > 0 {
            tail.drain(..tail.ceil_char_boundary(longest(&self.secrets)));
        }
        if !tail.trim().is_empty() {
            let _ = write!(text, " Its standard error ends with:\n{}", tail.trim());
        }
        text
    }

    /// Takes the hosts that the server was refused since the last call of this, as sentences.
    pub(crate) async fn take_refusals(&self) -> String {
        refusals(&self.process.lock().await.take_notes())
    }

    /// Reads the rest of the output, of which standard error matters.
    async fn drain(&self) {
        let mut output = self.output.lock().await;
        while let Some(Ok(chunk)) = output.next().await {
            if chunk.channel == Channel::Stderr {
                self.stderr.lock().push(&chunk.bytes);
            }
        }
    }
}

/// Returns the notes on refused hosts, each with the key that allows the host.
fn refusals(notes: &[String]) -> String {
    let refused = notes.iter().filter(|note| note.starts_with("network:"));
    let explained = refused.take(MAX_REFUSALS).map(|note| {
        let host = note.split('`').nth(1).unwrap_or("HOST");
        // These ports need not be named.
        let host = host.strip_suffix(":443").unwrap_or(host);
        let host = host.strip_suffix(":80").unwrap_or(host);
        format!(" {note} (this in its entry allows it: `\"policy\": {{\"hosts\": [\"{host}\"]}}`).")
    });
    explained.collect()
}

/// The pipes of a [`Child`].
pub(crate) struct Pipes {
    child: Arc<Child>,
    stdin: Arc<AsyncMutex<Option<Box<dyn ProcessStdin>>>>,
    received: BytesMut,
    /// Splits `received` into lines.
    lines: AnyDelimiterCodec,
    unread_answers: Arc<Semaphore>,
}

impl Pipes {
    /// Takes the next message from what was received. Lines that are no messages are skipped: programs print
    /// banners.
    ///
    /// # Errors
    /// If a line is too long.
    fn next_message(&mut self) -> Result<Option<RxJsonRpcMessage<RoleClient>>, LineError> {
        while let Some(line) = self.lines.decode(&mut self.received)? {
            let mut line = Vec::from(line);
            replace_lone_surrogates(&mut line);
            let message = parse(&line);
            if message.is_some() {
                return Ok(message);
            }
        }
        Ok(None)
    }

    fn fail(&self, problem: &'static str) {
        *self.child.problem.lock() = Some(problem);
    }
}

impl Transport<RoleClient> for Pipes {
    type Error = SandboxError;

    fn send(
        &mut self,
        item: TxJsonRpcMessage<RoleClient>,
    ) -> impl Future<Output = Result<(), SandboxError>> + Send + 'static {
        let is_answer = matches!(item, JsonRpcMessage::Response(_) | JsonRpcMessage::Error(_));
        let (child, stdin) = (Arc::clone(&self.child), Arc::clone(&self.stdin));
        let unread_answers = Arc::clone(&self.unread_answers);
        async move {
            let mut line = serde_json::to_vec(&item)
                .map_err(|error| SandboxError::invalid_input(error.to_string()))?;
            line.push(b'\n');
            let sent = match &mut *stdin.lock().await {
                Some(stdin) => stdin.write(Bytes::from(line)).await,
                None => {
                    let message = "the connection is closed";
                    Err(SandboxError::new(SandboxErrorKind::Closed, message))
                }
            };
            match &sent {
                Ok(()) if is_answer => unread_answers.add_permits(1),
                Ok(()) => {}
                Err(_) => child.has_ended.store(true, Ordering::Relaxed),
            }
            sent
        }
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleClient>> {
        loop {
            let Ok(received) = self.next_message() else {
                self.fail("sent a message that is larger than 16 MiB");
                return None;
            };
            if let Some(message) = received {
                if matches!(message, JsonRpcMessage::Request(_)) {
                    let Ok(permit) = self.unread_answers.try_acquire() else {
                        self.fail("asks much, and does not read the answers");
                        return None;
                    };
                    permit.forget();
                }
                return Some(message);
            }
            let Some(Ok(chunk)) = self.child.output.lock().await.next().await else {
                self.child.has_ended.store(true, Ordering::Relaxed);
                return None;
            };
            match chunk.channel {
                Channel::Stdout => self.received.extend_from_slice(&chunk.bytes),
                Channel::Stderr => self.child.stderr.lock().push(&chunk.bytes),
            }
        }
    }

    /// Closes the server's input, which asks it to exit.
    async fn close(&mut self) -> Result<(), SandboxError> {
        self.stdin.lock().await.take();
        let _ = timeout(EXIT_GRACE, self.child.drain()).await;
        Ok(())
    }
}

/// Parses a line. A malformed answer becomes an error under its id, so that no call waits for it.
fn parse(line: &[u8]) -> Option<RxJsonRpcMessage<RoleClient>> {
    #[derive(Deserialize)]
    struct Answer {
        id: RequestId,
        result: Option<IgnoredAny>,
        error: Option<IgnoredAny>,
    }
    let error = match serde_json::from_slice(line) {
        Ok(message) => return Some(message),
        Err(error) => error,
    };
    let answer: Answer = serde_json::from_slice(line).ok()?;
    answer.result.or(answer.error)?;
    let message = format!(
        "the answer is malformed: {}",
        shorten(&error.to_string(), 200)
    );
    let error = ErrorData::internal_error(message, None);
    Some(ServerJsonRpcMessage::error(error, Some(answer.id)))
}
