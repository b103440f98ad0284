//! The Chromium process and its DevTools connection.
//!
//! Messages are JSON texts that end with NUL, over the pipes of the process. All of them are untrusted: pages run in
//! the same sandbox, so the process may be in their hands.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use cantle_core::escape::replace_lone_surrogates;
use cantle_core::sandbox::{
    Channel, HeadTail, OutputStream, Process, ProcessStdin, Sandbox, SandboxError, Signal,
    SpawnRequest, Stdin,
};
use futures_util::StreamExt as _;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::time::timeout;
use tokio_util::codec::{AnyDelimiterCodec, Decoder as _};

use crate::failure::{Failure, clip};
use crate::settings::BrowserTools;

/// Maximum size of a message. The largest are screenshots.
const MAX_MESSAGE_BYTES: usize = 16 << 20;
/// Bytes of standard error that are kept for the error of a browser that doesn't start.
const STDERR_BYTES: usize = 2_000;
/// Time for the browser to exit when it is closed.
const EXIT_GRACE: Duration = Duration::from_secs(2);
/// Exit code of the script without a browser.
const NO_BROWSER: i32 = 127;

/// Starts the browser with the command's pipes.
const SCRIPT: &str = include_str!("start.sh");

/// A started browser.
pub(crate) struct Connection {
    process: Box<dyn Process>,
    /// `None` once a message was not written to its end, for example because the call was cancelled.
    stdin: Option<Box<dyn ProcessStdin>>,
    output: OutputStream,
    received: BytesMut,
    /// Splits `received` into messages.
    messages: AnyDelimiterCodec,
    stderr: HeadTail,
    last_id: u64,
}

/// A message of the browser.
pub(crate) enum Incoming {
    Answer {
        id: u64,
        result: Result<Box<RawValue>, String>,
    },
    Event(Event),
}

/// An event, about a tab or the browser.
pub(crate) struct Event {
    pub(crate) session: Option<String>,
    pub(crate) kind: EventKind,
}

/// The events that are handled, with the names of the protocol.
#[derive(Deserialize)]
#[serde(tag = "method", content = "params", rename_all_fields = "camelCase")]
pub(crate) enum EventKind {
    #[serde(rename = "Target.attachedToTarget")]
    Attached(Attached),
    #[serde(rename = "Target.detachedFromTarget")]
    Detached { session_id: String },
    #[serde(rename = "Inspector.targetCrashed")]
    Crashed {},
    #[serde(rename = "Page.javascriptDialogOpening")]
    DialogOpened(Dialog),
    #[serde(rename = "Page.fileChooserOpened")]
    FileChooserOpened(FileChooser),
    #[serde(
        rename = "Page.frameStartedLoading",
        alias = "Page.frameStartedNavigating"
    )]
    LoadingStarted { frame_id: String },
    #[serde(rename = "Page.frameStoppedLoading")]
    LoadingStopped { frame_id: String },
    #[serde(rename = "Browser.downloadWillBegin")]
    DownloadBegan(Download),
    #[serde(rename = "Browser.downloadProgress")]
    DownloadProgressed(Progress),
}

/// A new connection to a target.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Attached {
    pub(crate) session_id: String,
    pub(crate) target_info: Target,
}

/// A target of the protocol, such as a tab.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Target {
    pub(crate) target_id: String,
    #[serde(rename = "type")]
    pub(crate) kind: String,
}

/// A dialog of a page.
#[derive(Deserialize)]
pub(crate) struct Dialog {
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) message: String,
}

/// A file chooser that a page has opened, which is not displayed.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct FileChooser {
    pub(crate) frame_id: String,
    pub(crate) backend_node_id: i64,
}

/// A new download.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Download {
    pub(crate) guid: String,
    pub(crate) suggested_filename: String,
}

/// The progress of a download.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Progress {
    pub(crate) guid: String,
    pub(crate) state: String,
    pub(crate) received_bytes: f64,
    pub(crate) file_path: Option<String>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Outgoing<'m> {
    id: u64,
    method: &'m str,
    params: Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    session_id: Option<&'m str>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Message {
    id: Option<u64>,
    session_id: Option<String>,
    result: Option<Box<RawValue>>,
    error: Option<RemoteError>,
}

#[derive(Deserialize)]
struct RemoteError {
    message: String,
}

impl Connection {
    /// Starts a browser in a sandbox. `profile` is the name of its temporary directory.
    pub(crate) async fn start(
        settings: &BrowserTools,
        profile: &str,
        sandbox: &dyn Sandbox,
    ) -> Result<Self, SandboxError> {
        let program = settings.executable_path.as_deref().unwrap_or_default();
        let argv = ["sh", "-c", SCRIPT, "sh", profile, program]
            .into_iter()
            .chain(settings.headless.then_some("--headless"))
            .chain(settings.extra_args.iter().map(String::as_str))
            .chain(["about:blank"]);
        let request = SpawnRequest::argv(argv).with_stdin(Stdin::Piped);
        let mut process = sandbox.spawn(request).await?;
        let missing = || SandboxError::unsupported("the sandbox gives no pipes to commands");
        Ok(Self {
            output: process.take_output().ok_or_else(missing)?,
            stdin: Some(process.take_stdin().ok_or_else(missing)?),
            process,
            received: BytesMut::new(),
            messages: AnyDelimiterCodec::new_with_max_length(
                vec![0],
                Vec::new(),
                MAX_MESSAGE_BYTES,
            ),
            stderr: HeadTail::new(0, STDERR_BYTES),
            last_id: 0,
        })
    }

    /// Sends a command and returns its id.
    pub(crate) async fn send(
        &mut self,
        session: Option<&str>,
        method: &str,
        params: Value,
    ) -> Result<u64, Failure> {
        self.last_id += 1;
        let message = Outgoing {
            id: self.last_id,
            method,
            params,
            session_id: session,
        };
        let mut text = serde_json::to_vec(&message)
            .map_err(|error| Failure::lost(format!("a command can't be written: {error}")))?;
        text.push(0);
        let Some(mut stdin) = self.stdin.take() else {
            return Err(Failure::lost("the connection was interrupted"));
        };
        if stdin.write(Bytes::from(text)).await.is_err() {
            drop(stdin);
            return Err(self.post_mortem().await);
        }
        self.stdin = Some(stdin);
        Ok(self.last_id)
    }

    /// Receives a message. Cancel-safe.
    pub(crate) async fn receive(&mut self) -> Result<Incoming, Failure> {
        loop {
            if let Some(message) = self.next_message()? {
                return Ok(message);
            }
            match self.output.next().await {
                Some(Ok(chunk)) if chunk.channel == Channel::Stdout => {
                    self.received.extend_from_slice(&chunk.bytes);
                }
                Some(Ok(chunk)) => self.stderr.push(&chunk.bytes),
                Some(Err(_)) | None => return Err(self.post_mortem().await),
            }
        }
    }

    fn next_message(&mut self) -> Result<Option<Incoming>, Failure> {
        let too_long = |_| Failure::lost("it sent a message of more than 16 MiB");
        while let Some(text) = self.messages.decode(&mut self.received).map_err(too_long)? {
            let mut text = Vec::from(text);
            // Chromium passes them on from pages.
            replace_lone_surrogates(&mut text);
            let message: Message = serde_json::from_slice(&text)
                .map_err(|error| Failure::lost(format!("it sent no DevTools message: {error}")))?;
            if let Some(id) = message.id {
                let result = match (message.result, message.error) {
                    (Some(result), None) => Ok(result),
                    (_, Some(error)) => Err(clip(&error.message, 500)),
                    (None, None) => Err("an empty answer".to_owned()),
                };
                return Ok(Some(Incoming::Answer { id, result }));
            }
            if let Ok(kind) = serde_json::from_slice(&text) {
                let session = message.session_id;
                return Ok(Some(Incoming::Event(Event { session, kind })));
            }
        }
        Ok(None)
    }

    /// Waits for the end of a process that has closed its pipes, and describes it.
    async fn post_mortem(&mut self) -> Failure {
        self.stdin = None;
        let exit = match timeout(EXIT_GRACE, self.process.wait()).await {
            Ok(Ok(exit)) => exit,
            Ok(Err(error)) => return Failure::Sandbox(error),
            Err(_) => return Failure::lost("it closed the connection"),
        };
        if exit.status.shell_code() == NO_BROWSER {
            return Failure::Refused(
                "There is no Chromium in the sandbox. Tell the user to install it where commands run (on Debian the \
                 package `chromium`), or to use an image that has it, or to set the path of the program."
                    .to_owned(),
            );
        }
        let mut reason = format!("its process ended: {}", exit.status);
        for note in exit.notes.iter().take(3) {
            reason.push_str("; ");
            reason.push_str(&clip(note, 300));
        }
        // Only of a browser that did not start: later, this is text of pages.
        let stderr = self.stderr.clone().finish().text();
        if self.last_id <= 1 && !stderr.trim().is_empty() {
            reason.push_str("; its standard error ends with: ");
            reason.push_str(&clip(stderr.trim(), STDERR_BYTES));
        }
        Failure::lost(reason)
    }

    /// Asks the browser to exit, and kills it if it does not.
    pub(crate) async fn close(mut self) {
        let closing = async {
            let _ = self.send(None, "Browser.close", json!({})).await;
            while let Some(Ok(_)) = self.output.next().await {}
            let _ = self.process.wait().await;
        };
        if timeout(EXIT_GRACE, closing).await.is_err() {
            // Fails if the sandbox is gone.
            let _ = self.process.signal(Signal::KILL).await;
            let _ = timeout(EXIT_GRACE, self.process.wait()).await;
        }
    }
}
