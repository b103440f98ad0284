//! Recording: a client that writes down what another one was asked and what it answered.
//!
//! A recording is played by a [`ReplayClient`](crate::replay::ReplayClient), which needs no network
//! and no key, and which says what differs where a request is not one that was recorded. It holds the
//! conversation as it was, and nothing of HTTP: no header and no key. Secrets that are named to the
//! recorder are taken out of texts, too.
//!
//! # The format
//!
//! JSON lines. The first says what it is. Messages and lists of tools stand on lines of their own,
//! each once, and are numbered from 0 in their order; a call names them by number.
//!
//! ```json
//! {"format": "cantle-recording", "version": 2, "model": "gpt-5"}
//! {"message": {"role": "user", "kind": "user", "content": "Hi"}}
//! {"tools": []}
//! {"call": {"messages": [0], "tools": 0, "answer": {"blocks": [{"kind": "text", "text": "Hello!"}], "stop": "end_turn", "usage": null}}}
//! {"result": {"id": "call_1", "tool": "code_exec", "arguments": "{\"cmd\": \"date\"}", "content": "…", "success": true}}
//! ```
//!
//! Where there was a failure, `error` stands in the place of `answer`. What is different each time and
//! no part of what is asked (ids of messages, times, counts of tokens) is left out of messages. The
//! first line also has the model's `context_window` and `max_output_tokens` where they are known,
//! since when a conversation is summarized depends on them. Results of tools are there where the loop
//! around the model [writes them](ResultLog).

mod results;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use cantle_core::llm::{
    ChatEvent, ChatRequest, ChatStream, Fold, LlmClient, LlmError, LlmErrorKind, ModelInfo,
    StopReason, ToolSpecs,
};
use cantle_core::message::{AssistantBlock, EncodingKey, Message, SharedMessage};
use cantle_core::secret::SecretText;
use cantle_core::usage::TokenUsage;
use futures_util::{StreamExt as _, stream};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

pub(crate) use self::results::ResultLine;
pub use self::results::ResultLog;
use crate::replay::FORMAT;

pub(crate) const VERSION: u64 = 2;

const KEY: EncodingKey = EncodingKey::new("recording", 0);

/// One line behind the first.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Line {
    Message(Value),
    Tools(Value),
    Call(Box<CallLine>),
    Result(Box<ResultLine>),
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct CallLine {
    pub(crate) messages: Vec<usize>,
    pub(crate) tools: usize,
    #[serde(flatten)]
    pub(crate) outcome: Outcome,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Outcome {
    Answer(Answer),
    Error(Failure),
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Answer {
    pub(crate) blocks: Vec<AssistantBlock>,
    pub(crate) stop: StopReason,
    pub(crate) usage: Option<TokenUsage>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) response_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) cost_usd: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) served_by: Option<String>,
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub(crate) extra: Map<String, Value>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Failure {
    pub(crate) kind: LlmErrorKind,
    /// What went wrong, the status included.
    pub(crate) message: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) advice: Option<String>,
}

/// A message as it is written down: what is asked, and nothing that is different each time.
pub(crate) fn recorded(message: &SharedMessage) -> Result<Bytes, LlmError> {
    let bytes = message.forms().get_or_try_encode(KEY, || {
        let mut value = serde_json::to_value(&**message).map_err(unwritable)?;
        if let Value::Object(fields) = &mut value {
            for volatile in [
                "id",
                "metadata",
                "provider_response_id",
                "replaced_ids",
                "request_end_time",
                "request_start_time",
                "token_usage",
                "tool_end_time",
                "tool_start_time",
            ] {
                fields.remove(volatile);
            }
        }
        Ok::<_, LlmError>(Bytes::from(value.to_string()))
    });
    bytes.cloned()
}

/// The same for tools.
pub(crate) fn recorded_tools(tools: &ToolSpecs) -> Result<Bytes, LlmError> {
    let bytes = tools.forms().get_or_try_encode(KEY, || {
        let tools = tools.iter().map(|tool| {
            let (name, description) = (tool.name(), tool.description());
            json!({"name": name, "description": description, "parameters": tool.parameters()})
        });
        Ok::<_, LlmError>(Bytes::from(tools.collect::<Value>().to_string()))
    });
    bytes.cloned()
}

/// A client that records another one's calls.
#[derive(Debug)]
pub struct Recorder<C> {
    client: Arc<C>,
    file: Arc<Mutex<File>>,
}

impl<C: LlmClient> Recorder<C> {
    /// Records the calls of `client` to `file`, without `secrets`.
    ///
    /// A call is written when it ends, so that a recording that breaks off holds the calls before. One
    /// that is dropped before its end is not recorded.
    ///
    /// # Errors
    /// Where the first line can't be written.
    pub fn new(
        client: C,
        file: impl Write + Send + 'static,
        secrets: Vec<SecretText>,
    ) -> io::Result<Self> {
        let mut file = File {
            write: Box::new(file),
            secrets,
            messages: HashMap::new(),
            tools: HashMap::new(),
            failed: None,
        };
        let model = client.model();
        let mut header = json!({"format": FORMAT, "version": VERSION, "model": model.slug});
        let limits = [
            ("context_window", model.context_window),
            ("max_output_tokens", model.max_output_tokens),
        ];
        if let Value::Object(header) = &mut header {
            let known = |(name, limit): (&str, Option<u64>)| Some((name.to_owned(), limit?.into()));
            header.extend(limits.into_iter().filter_map(known));
        }
        file.line(&header)?;
        Ok(Self {
            client: Arc::new(client),
            file: Arc::new(Mutex::new(file)),
        })
    }

    /// Where the results of tools go.
    #[must_use]
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
        let call = Call {
            stream: self.client.stream(request.clone()),
            request,
            file: Arc::clone(&self.file),
            fold: Fold::default(),
        };
        Box::pin(stream::unfold(Some(call), |call| async {
            let mut call = call?;
            let event = call.next().await?;
            let over = matches!(event, Ok(ChatEvent::Finished(_)) | Err(_));
            Some((event, (!over).then_some(call)))
        }))
    }
}

struct Call {
    request: ChatRequest,
    stream: ChatStream,
    file: Arc<Mutex<File>>,
    fold: Fold,
}

impl Call {
    async fn next(&mut self) -> Option<Result<ChatEvent, LlmError>> {
        let event = self.stream.next().await?;
        let outcome = match &event {
            Ok(ChatEvent::Finished(end)) => {
                let completion = self.fold.push(ChatEvent::Finished(end.clone()))?;
                Outcome::Answer(Answer {
                    blocks: completion.message.blocks,
                    stop: completion.stop,
                    usage: completion.usage,
                    response_id: end.response_id.clone(),
                    cost_usd: completion.cost_usd,
                    served_by: completion.served_by,
                    extra: end.extra.clone(),
                })
            }
            Ok(ChatEvent::Block(block)) => {
                self.fold.push(ChatEvent::Block(block.clone()));
                return Some(event);
            }
            Ok(_) => return Some(event),
            Err(error) => Outcome::Error(Failure {
                kind: error.kind(),
                message: error.to_string(),
                advice: error.advice().map(str::to_owned),
            }),
        };
        let written = {
            let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
            file.call(&self.request, outcome)
        };
        Some(written.and(event))
    }
}

/// Where lines go, and what stands on which.
struct File {
    write: Box<dyn Write + Send>,
    secrets: Vec<SecretText>,
    messages: HashMap<(usize, u64), usize>,
    tools: HashMap<(usize, u64), usize>,
    /// Why a result of a tool is missing.
    failed: Option<io::Error>,
}

impl File {
    fn call(&mut self, request: &ChatRequest, outcome: Outcome) -> Result<(), LlmError> {
        if let Some(error) = self.failed.take() {
            return Err(unwritable(error));
        }
        let mut messages = Vec::with_capacity(request.messages.len());
        for message in &request.messages {
            let bytes = recorded(message)?;
            let (number, new) = numbered(&mut self.messages, &bytes);
            if new {
                self.raw("message", &bytes)?;
            }
            messages.push(number);
        }
        let bytes = recorded_tools(&request.tools)?;
        let (tools, new) = numbered(&mut self.tools, &bytes);
        if new {
            self.raw("tools", &bytes)?;
        }
        let call = CallLine {
            messages,
            tools,
            outcome,
        };
        let line = serde_json::to_value(Line::Call(Box::new(call))).map_err(unwritable)?;
        self.line(&line).map_err(unwritable)
    }

    fn raw(&mut self, name: &str, json: &[u8]) -> Result<(), LlmError> {
        let value: Value = serde_json::from_slice(json).map_err(unwritable)?;
        self.line(&json!({ name: value })).map_err(unwritable)
    }

    fn line(&mut self, line: &Value) -> io::Result<()> {
        let mut text = line.to_string();
        for secret in self.secrets.iter().filter(|it| !it.expose().is_empty()) {
            // As it stands in JSON, and in JSON that is a text in JSON, as arguments are.
            let once = escaped(secret.expose());
            let twice = escaped(&once);
            for secret in [&twice, &once] {
                text = text.replace(secret, "[hidden]");
            }
        }
        text.push('\n');
        self.write.write_all(text.as_bytes())?;
        self.write.flush()
    }
}

impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("File")
            .field("messages", &self.messages.len())
            .finish_non_exhaustive()
    }
}

/// A text between the quotes of JSON.
fn escaped(text: &str) -> String {
    let json = Value::from(text).to_string();
    let inner = json
        .strip_prefix('"')
        .and_then(|json| json.strip_suffix('"'));
    inner.unwrap_or(&json).to_owned()
}

/// The number of what stands on a line of its own, and whether that is yet to be written.
fn numbered(known: &mut HashMap<(usize, u64), usize>, bytes: &[u8]) -> (usize, bool) {
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    let next = known.len();
    match known.entry((bytes.len(), hasher.finish())) {
        Entry::Occupied(number) => (*number.get(), false),
        Entry::Vacant(place) => (*place.insert(next), true),
    }
}

fn unwritable(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> LlmError {
    let error = error.into();
    let message = format!("the recording can't be written: {error}");
    LlmError::new(LlmErrorKind::InvalidRequest, message).with_source(error)
}

/// What a message is, for people.
pub(crate) fn role(message: &Message) -> &'static str {
    match message {
        Message::System(_) => "system",
        Message::User(_) => "user",
        Message::Assistant(_) => "assistant",
        Message::Tool(_) => "tool",
    }
}

#[cfg(test)]
mod tests;
