//! The events of an execution: JSON lines, at the client's pace.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use bytes::Bytes;
use cantle_core::code::{CodeError, CodeObserver, RichResult};
use cantle_core::sandbox::{Channel, Utf8Decoder};
use serde_json::{Map, Value, json};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::accounts::{Account, MemoryCharge};
use crate::body::charged;

/// Events that wait for the client.
const QUEUED_EVENTS: usize = 4;
/// Bytes charged for each byte that an interpreter sends: the buffer, and the parsed value.
const BUFFER_WEIGHT: usize = 2;
/// The formats that clients know; code can display others.
const FORMATS: [&str; 12] = [
    "text",
    "html",
    "markdown",
    "svg",
    "png",
    "jpeg",
    "pdf",
    "latex",
    "json",
    "javascript",
    "data",
    "chart",
];

/// A line of a response, charged until it is sent; an error breaks the response off.
pub(super) type Line = Result<Bytes, std::io::Error>;

/// Sends the events of one execution.
pub(super) struct Events {
    lines: mpsc::Sender<Line>,
    account: Account,
    buffer: MemoryCharge,
    /// How long the client may read nothing.
    idle: Duration,
    /// Cancelled to interrupt the code, and when the client is gone.
    cancellation: CancellationToken,
    stdout: Utf8Decoder,
    stderr: Utf8Decoder,
    /// The reason why events were left out.
    failure: Option<String>,
}

impl Events {
    pub(super) fn new(
        account: &Account,
        idle: Duration,
        cancellation: CancellationToken,
    ) -> (Self, mpsc::Receiver<Line>) {
        let (lines, receiver) = mpsc::channel(QUEUED_EVENTS);
        let events = Self {
            lines,
            account: account.clone(),
            buffer: account.charge(),
            idle,
            cancellation,
            stdout: Utf8Decoder::default(),
            stderr: Utf8Decoder::default(),
            failure: None,
        };
        (events, receiver)
    }

    /// Sends an event, and interrupts the code if that is impossible.
    async fn send(&mut self, event: &Value) {
        let line = format!("{event}\n");
        let mut charge = self.account.charge();
        if let Err(error) = charge.grow(line.len()) {
            self.failure.get_or_insert_with(|| error.to_string());
            self.cancellation.cancel();
            return;
        }
        let line = charged(line.into(), charge);
        let sent = timeout(self.idle, self.lines.send(Ok(line))).await;
        if !matches!(sent, Ok(Ok(()))) {
            self.cancellation.cancel();
        }
    }

    /// Sends an event of code that may be interrupted meanwhile.
    async fn send_from_code(&mut self, event: &Value) {
        let cancellation = self.cancellation.clone();
        tokio::select! {
            biased;
            () = cancellation.cancelled() => {}
            () = self.send(event) => {}
        }
    }

    pub(super) async fn started(&mut self, number: u64) {
        self.send(&json!({ "type": "number_of_executions", "execution_count": number }))
            .await;
    }

    /// Sends the end of the execution.
    pub(super) async fn finish(mut self, error: Option<CodeError>, notes: &[String]) {
        let (stdout, stderr) = (self.stdout.finish(), self.stderr.finish());
        for (channel, text) in [(Channel::Stdout, stdout), (Channel::Stderr, stderr)] {
            if !text.is_empty() {
                self.send(&text_event(channel, &text)).await;
            }
        }
        for note in notes {
            let text = format!("{note}\n");
            self.send(&text_event(Channel::Stderr, &text)).await;
        }
        let error = match self.failure.take() {
            Some(failure) => Some(CodeError::new("OutputTooLarge", failure)),
            None => error,
        };
        if let Some(error) = error {
            let event = json!({
                "type": "error",
                "name": error.name,
                "value": error.value,
                "traceback": error.traceback,
            });
            self.send(&event).await;
        }
        self.send(&json!({ "type": "end_of_execution" })).await;
    }

    /// Breaks the response off, so that a client can't mistake it for complete.
    pub(super) async fn abort(self) {
        let reset = std::io::Error::from(std::io::ErrorKind::ConnectionReset);
        // Fails if the client is gone.
        let _ = timeout(self.idle, self.lines.send(Err(reset))).await;
    }
}

#[async_trait]
impl CodeObserver for Events {
    async fn output(&mut self, channel: Channel, bytes: Bytes) {
        let decoder = match channel {
            Channel::Stderr => &mut self.stderr,
            _ => &mut self.stdout,
        };
        let text = decoder.push(&bytes).into_owned();
        if !text.is_empty() {
            self.send_from_code(&text_event(channel, &text)).await;
        }
    }

    async fn result(&mut self, result: RichResult) {
        let mut formats = result.formats;
        if let Some(Value::String(text)) = formats.get_mut("text") {
            without_quotes(text);
        }
        let formats = formats.into_iter();
        let known = formats.filter(|(name, _)| FORMATS.contains(&name.as_str()));
        let mut event: Map<String, Value> = known.collect();
        event.insert("type".to_owned(), "result".into());
        event.insert("is_main_result".to_owned(), result.is_main.into());
        self.send_from_code(&Value::Object(event)).await;
    }

    fn may_buffer(&mut self, bytes: usize) -> bool {
        self.buffer.set(bytes.saturating_mul(BUFFER_WEIGHT)).is_ok()
    }
}

/// Removes the quotes of a string's representation, as E2B's server does: SDKs return the text as it is.
fn without_quotes(text: &mut String) {
    for quote in ['\'', '"'] {
        let inner = text.strip_prefix(quote);
        if let Some(inner) = inner.and_then(|it| it.strip_suffix(quote)) {
            *text = inner.to_owned();
            return;
        }
    }
}

fn text_event(channel: Channel, text: &str) -> Value {
    let name = match channel {
        Channel::Stderr => "stderr",
        _ => "stdout",
    };
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let timestamp = now.map_or(0, |time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    json!({ "type": name, "text": text, "timestamp": timestamp })
}
