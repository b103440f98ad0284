//! Recording of model traffic.
//!
//! [`ReplayClient`](crate::replay::ReplayClient) replays a recording without network and key, and
//! reports the difference if a request was not recorded. A recording contains the conversation but no
//! HTTP headers and no key; secrets that are passed to the recorder are removed from all text.
//!
//! # Format
//!
//! JSON lines, of which the first is a header. Each distinct message and tool list has a line of its
//! own, numbered from 0; calls refer to them by number.
//!
//! ```json
//! {"format": "cantle-recording", "version": 2, "model": "gpt-5"}
//! {"message": {"role": "user", "kind": "user", "content": "Hi"}}
//! {"tools": []}
//! {"call": {"messages": [0], "tools": 0, "answer": {"blocks": [{"kind": "text", "text": "Hello!"}], "stop": "end_turn", "usage": null}}}
//! {"result": {"id": "call_1", "tool": "code_exec", "arguments": "{\"cmd\": \"date\"}", "content": "…", "success": true}}
//! ```
//!
//! A failed call has `error` instead of `answer`. Fields of messages that differ between runs (ids,
//! times, token counts) are omitted. The header also contains the model's `context_window` and
//! `max_output_tokens` if known, because they decide when a conversation is summarized. Tool results are
//! recorded if the loop around the model [reports them](ResultLog).

mod results;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::{self, Write};
use std::sync::Arc;

use cantle_core::llm::{
    ChatEvent, ChatRequest, ChatStream, LlmClient, LlmError, LlmErrorKind, ModelInfo,
};
use cantle_core::message::AssistantBlock;
use cantle_core::secret::SecretText;
use cantle_core::usage::TokenUsage;
use futures_util::{TryStreamExt as _, stream};
use parking_lot::Mutex;
use serde::Serialize;
use serde_json::Value;

pub use self::results::ResultLog;
use crate::recording::{
    CALLS_VERSION, CallLine, FORMAT, RecordedAnswer, RecordedError, RecordedOutcome,
    RecordingHeader, RecordingLine, encode_message, encode_tools,
};

/// A client that records the calls of another one.
#[derive(Debug)]
pub struct Recorder<C> {
    client: Arc<C>,
    file: Arc<Mutex<RecordingFile>>,
}

impl<C: LlmClient> Recorder<C> {
    /// Records the calls of `client` to `file`, with `secrets` removed.
    ///
    /// Each call is written when it ends. A call that is dropped before its end is not recorded.
    ///
    /// # Errors
    /// If writing the header fails.
    pub fn new(
        client: C,
        file: impl Write + Send + 'static,
        secrets: Vec<SecretText>,
    ) -> io::Result<Self> {
        let mut file = RecordingFile {
            writer: Box::new(file),
            secrets,
            messages: HashMap::new(),
            tools: HashMap::new(),
            result_error: None,
        };
        let model = client.model();
        file.write_line(&RecordingHeader {
            format: FORMAT.to_owned(),
            version: CALLS_VERSION,
            model: model.slug.clone(),
            context_window: model.context_window,
            max_output_tokens: model.max_output_tokens,
        })?;
        Ok(Self {
            client: Arc::new(client),
            file: Arc::new(Mutex::new(file)),
        })
    }

    /// Returns a handle that adds tool results to the recording.
    pub fn results(&self) -> ResultLog {
        ResultLog {
            file: Arc::clone(&self.file),
        }
    }
}

impl<C: LlmClient> LlmClient for Recorder<C> {
    fn model(&self) -> &ModelInfo {
        self.client.model()
    }

    fn stream(&self, request: ChatRequest) -> ChatStream {
        let call = RecordedCall {
            stream: self.client.stream(request.clone()),
            request,
            file: Arc::clone(&self.file),
            blocks: Vec::new(),
        };
        Box::pin(stream::try_unfold(call, |mut call| async {
            let event = call.next().await?;
            Ok(event.map(|event| (event, call)))
        }))
    }
}

struct RecordedCall {
    request: ChatRequest,
    stream: ChatStream,
    file: Arc<Mutex<RecordingFile>>,
    blocks: Vec<AssistantBlock>,
}

impl RecordedCall {
    async fn next(&mut self) -> Result<Option<ChatEvent>, LlmError> {
        let event = self.stream.try_next().await;
        match &event {
            Ok(Some(ChatEvent::Block(block))) => self.blocks.push(block.clone()),
            Ok(Some(ChatEvent::AttemptFailed(_))) => self.blocks.clear(),
            Ok(Some(ChatEvent::Finished(end))) => {
                let (blocks, end) = (std::mem::take(&mut self.blocks), end.clone());
                let usage = end.usage;
                self.write(
                    RecordedOutcome::Answer(RecordedAnswer { blocks, end }),
                    usage,
                )?;
            }
            Ok(_) => {}
            Err(error) => {
                let recorded = RecordedError {
                    kind: error.kind(),
                    message: error.to_string(),
                    advice: error.advice().map(str::to_owned),
                };
                self.write(RecordedOutcome::Error(recorded), error.usage())?;
            }
        }
        event
    }

    /// Records the call. If that fails, the error has the call's usage, so that its tokens are counted.
    fn write(&self, outcome: RecordedOutcome, usage: Option<TokenUsage>) -> Result<(), LlmError> {
        let mut file = self.file.lock();
        file.write_call(&self.request, outcome).map_err(|error| {
            let message = format!("failed to write the recording: {error}");
            LlmError::new(LlmErrorKind::InvalidRequest, message).with_usage(usage)
        })
    }
}

/// A recording that is being written.
struct RecordingFile {
    writer: Box<dyn Write + Send>,
    secrets: Vec<SecretText>,
    messages: LineNumbers,
    tools: LineNumbers,
    /// Error of writing a tool result, returned by the next call.
    result_error: Option<io::Error>,
}

/// Numbers of written lines, by length and hash of their content.
type LineNumbers = HashMap<(usize, u64), usize>;

impl RecordingFile {
    fn write_call(&mut self, request: &ChatRequest, outcome: RecordedOutcome) -> io::Result<()> {
        self.result_error.take().map_or(Ok(()), Err)?;
        let mut messages = Vec::with_capacity(request.messages.len());
        for message in &request.messages {
            let json = encode_message(message)?;
            let (number, is_new) = line_number(&mut self.messages, json);
            if is_new {
                self.write_line(&RecordingLine::Message(serde_json::from_slice(json)?))?;
            }
            messages.push(number);
        }
        let json = encode_tools(&request.tools)?;
        let (tools, is_new) = line_number(&mut self.tools, json);
        if is_new {
            self.write_line(&RecordingLine::Tools(serde_json::from_slice(json)?))?;
        }
        let call = CallLine {
            messages,
            tools,
            outcome,
        };
        self.write_line(&RecordingLine::Call(Box::new(call)))
    }

    fn write_line(&mut self, line: &impl Serialize) -> io::Result<()> {
        let mut text = serde_json::to_value(line)?.to_string();
        for secret in self.secrets.iter().filter(|it| !it.expose().is_empty()) {
            // Tool call arguments are JSON within a JSON string, so their escapes are doubled.
            let once = escaped(secret.expose());
            let twice = escaped(&once);
            for secret in [&twice, &once] {
                text = text.replace(secret, "[hidden]");
            }
        }
        text.push('\n');
        self.writer.write_all(text.as_bytes())?;
        self.writer.flush()
    }
}

impl fmt::Debug for RecordingFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecordingFile")
            .field("messages", &self.messages.len())
            .finish_non_exhaustive()
    }
}

/// Returns the text as in a JSON string, without the quotes.
fn escaped(text: &str) -> String {
    let json = Value::from(text).to_string();
    let inner = json
        .strip_prefix('"')
        .and_then(|json| json.strip_suffix('"'));
    inner.unwrap_or(&json).to_owned()
}

/// Returns the line number of `bytes`, and whether the line is still to be written.
fn line_number(numbers: &mut LineNumbers, bytes: &[u8]) -> (usize, bool) {
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    let next = numbers.len();
    match numbers.entry((bytes.len(), hasher.finish())) {
        Entry::Occupied(number) => (*number.get(), false),
        Entry::Vacant(entry) => (*entry.insert(next), true),
    }
}

#[cfg(test)]
mod tests;
