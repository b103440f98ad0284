//! Wire format of the reference client: requests, answers and connections.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use cantle_core::llm::{ChatEvent, ChatRequest, LlmError, LlmErrorKind, StopReason, TurnEnd};
use cantle_core::message::{AssistantBlock, Message, SharedMessage, ToolCall};
use cantle_core::usage::TokenUsage;
use cantle_testkit::conformance::Endpoint;
use futures_util::{Stream, StreamExt as _, stream};
use http_body_util::{BodyExt as _, BodyStream, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::handshake;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::reference::Fault;

type Result<T> = std::result::Result<T, LlmError>;

pub(crate) fn body(endpoint: &Endpoint, fault: Option<Fault>, request: &ChatRequest) -> Vec<u8> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let mut messages: Vec<Value> = request.messages.iter().map(message).collect();
    match fault {
        Some(Fault::MarksTheLastMessage) => {
            messages.last_mut().unwrap()["cache_control"] = json!({"type": "ephemeral"});
        }
        Some(Fault::ForgetsToolResults) => messages.retain(|message| message["role"] != "tool"),
        _ => {}
    }
    let model = match fault {
        Some(Fault::RequestsAnotherModel) => "another-model",
        _ => &endpoint.model,
    };
    let mut body = json!({"model": model, "messages": messages});
    if !request.tools.is_empty() {
        let tools = request.tools.iter().map(|tool| {
            let function = json!({
                "name": tool.name(),
                "description": tool.description(),
                "parameters": tool.parameters(),
            });
            json!({"type": "function", "function": function})
        });
        body["tools"] = tools.collect();
    }
    if endpoint.stream {
        body["stream"] = json!(true);
        body["stream_options"] = json!({"include_usage": true});
    }
    match fault {
        Some(Fault::PutsTheKeyInTheBody) => body["user"] = json!(endpoint.api_key),
        Some(Fault::NumbersItsRequests) => {
            body["user"] = json!(NUMBER.fetch_add(1, Ordering::Relaxed).to_string());
        }
        _ => {}
    }
    body.to_string().into_bytes()
}

fn message(message: &SharedMessage) -> Value {
    match &**message {
        Message::System(it) => json!({"role": "system", "content": it.content.text()}),
        Message::User(it) => json!({"role": "user", "content": it.content.text()}),
        Message::Tool(it) => json!({
            "role": "tool",
            "tool_call_id": it.tool_call_id,
            "content": it.content.text(),
        }),
        Message::Assistant(it) => {
            let calls = it.tool_calls().map(|call| {
                let function = json!({"name": call.name, "arguments": call.arguments});
                json!({"id": call.id, "type": "function", "function": function})
            });
            let calls: Vec<Value> = calls.collect();
            json!({"role": "assistant", "content": it.text(), "tool_calls": calls})
        }
    }
}

/// Answer with its connection, which is closed on drop.
pub(crate) struct Http {
    pub(crate) status: u16,
    pub(crate) headers: http::HeaderMap,
    pub(crate) body: Incoming,
    _connection: JoinSet<()>,
}

fn broken(error: impl std::error::Error + Send + Sync + 'static) -> LlmError {
    LlmError::new(LlmErrorKind::Connection, "the connection failed").with_source(error)
}

fn interrupted(error: impl std::error::Error + Send + Sync + 'static) -> LlmError {
    LlmError::new(LlmErrorKind::Interrupted, "the answer broke off").with_source(error)
}

impl Http {
    pub(crate) async fn post(url: &str, key: &str, body: &[u8]) -> Result<Self> {
        let address = url
            .strip_prefix("http://")
            .and_then(|it| it.strip_suffix("/v1"));
        let connection = TcpStream::connect(address.unwrap()).await;
        let connection = connection.map_err(|error| {
            LlmError::new(LlmErrorKind::Unreachable, "no connection").with_source(error)
        })?;
        let (mut sender, connection) = handshake(TokioIo::new(connection)).await.map_err(broken)?;
        let mut driver = JoinSet::new();
        driver.spawn(async move { drop(connection.await) });
        let request = http::Request::post("/v1/chat/completions")
            .header("authorization", format!("Bearer {key}"))
            .header("content-type", "application/json")
            .body(Full::new(Bytes::copy_from_slice(body)))
            .unwrap();
        let answer = sender.send_request(request).await.map_err(broken)?;
        let (head, body) = answer.into_parts();
        Ok(Self {
            status: head.status.as_u16(),
            headers: head.headers,
            body,
            _connection: driver,
        })
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    pub(crate) async fn whole(self) -> Result<Bytes> {
        let body = self.body.collect().await;
        body.map(|body| body.to_bytes()).map_err(broken)
    }

    /// Returns the complete lines of the body.
    pub(crate) fn lines(self, piece_by_piece: bool) -> impl Stream<Item = Result<String>> {
        let pieces = BodyStream::new(self.body);
        let connection = self._connection;
        let state = (pieces, connection, Vec::new());
        stream::unfold(
            state,
            move |(mut pieces, connection, mut held)| async move {
                loop {
                    if let Some(end) = held.iter().position(|byte| *byte == b'\n') {
                        let line: Vec<u8> = held.drain(..=end).collect();
                        let line = String::from_utf8_lossy(&line).trim_end().to_owned();
                        return Some((Ok(line), (pieces, connection, held)));
                    }
                    match pieces.next().await? {
                        Ok(frame) => {
                            let data = frame.into_data().unwrap_or_default();
                            if piece_by_piece {
                                held.extend_from_slice(String::from_utf8_lossy(&data).as_bytes());
                            } else {
                                held.extend_from_slice(&data);
                            }
                        }
                        Err(error) => {
                            let state = (pieces, connection, held);
                            return Some((Err(interrupted(error)), state));
                        }
                    }
                }
            },
        )
    }
}

/// Turn being assembled.
pub(crate) struct Assembly {
    fault: Option<Fault>,
    text: String,
    reasoning: String,
    calls: BTreeMap<u64, (Option<String>, String, String)>,
    stop: Option<String>,
    usage: Option<TokenUsage>,
}

pub(crate) fn read_whole(
    body: &str,
    fault: Option<Fault>,
) -> Result<(Vec<AssistantBlock>, TurnEnd)> {
    let mut assembly = Assembly::new(fault);
    assembly.take(body, "message")?;
    if assembly.stop.is_none() && fault != Some(Fault::AcceptsAnyAnswer) {
        return Err(LlmError::protocol("there is no choice in the answer"));
    }
    assembly.finish()
}

impl Assembly {
    pub(crate) fn new(fault: Option<Fault>) -> Self {
        Self {
            fault,
            text: String::new(),
            reasoning: String::new(),
            calls: BTreeMap::new(),
            stop: None,
            usage: None,
        }
    }

    fn has(&self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }

    /// Processes a line of a stream.
    pub(crate) fn line(&mut self, line: &str) -> Result<Vec<ChatEvent>> {
        let data = match line.strip_prefix("data: ") {
            Some(data) => data,
            None if self.has(Fault::ReadsCommentsAsData) && !line.is_empty() => line,
            None => return Ok(Vec::new()),
        };
        if data == "[DONE]" {
            return Ok(Vec::new());
        }
        self.take(data, "delta")
    }

    /// Processes an object with a message or a delta.
    fn take(&mut self, data: &str, field: &str) -> Result<Vec<ChatEvent>> {
        let data: Value = serde_json::from_str(data)
            .map_err(|error| LlmError::protocol("the answer is no JSON").with_source(error))?;
        if !data.is_object() {
            return Err(LlmError::protocol("the answer is no object"));
        }
        let error = &data["error"]["message"];
        if error.is_string() && !self.has(Fault::IgnoresErrorEvents) {
            let message = format!("the server failed under way: {error}");
            return Err(LlmError::new(LlmErrorKind::Server, message));
        }
        if data["usage"].is_object() {
            self.usage = Some(self.counters(&data["usage"]));
        }
        let choice = &data["choices"][0];
        let message = &choice[field];
        let anything = self.has(Fault::AcceptsAnyAnswer);
        if field == "message" && !message.is_object() && !anything {
            return Err(LlmError::protocol("there is no message in the answer"));
        }
        if let Some(stop) = choice["finish_reason"].as_str() {
            self.stop = Some(stop.to_owned());
        }
        let mut events = Vec::new();
        let piece = |name: &str| message[name].as_str().filter(|it| !it.is_empty());
        if let Some(piece) = piece("reasoning_content") {
            self.reasoning.push_str(piece);
            events.push(ChatEvent::ReasoningDelta(piece.to_owned()));
        }
        if let Some(piece) = piece("content") {
            self.text.push_str(piece);
            events.push(ChatEvent::TextDelta(piece.to_owned()));
        }
        let calls = message["tool_calls"].as_array().into_iter().flatten();
        for (position, call) in calls.enumerate() {
            events.push(self.call(position, call));
        }
        Ok(events)
    }

    fn call(&mut self, position: usize, piece: &Value) -> ChatEvent {
        let index = match self.fault {
            Some(Fault::MergesParallelCalls) => 0,
            _ => piece["index"].as_u64().unwrap_or(position as u64),
        };
        let call = self.calls.entry(index).or_default();
        let text = |value: &Value| value.as_str().map(str::to_owned);
        call.0 = call.0.take().or(text(&piece["id"]));
        let name = text(&piece["function"]["name"]);
        call.1.push_str(name.as_deref().unwrap_or_default());
        let arguments = text(&piece["function"]["arguments"]).unwrap_or_default();
        call.2.push_str(&arguments);
        ChatEvent::ToolCallDelta {
            index: usize::try_from(index).unwrap(),
            name,
            arguments,
        }
    }

    fn counters(&self, usage: &Value) -> TokenUsage {
        let count = |path: &str| usage.pointer(path).and_then(Value::as_u64).unwrap_or(0);
        let cache_read = count("/prompt_tokens_details/cached_tokens");
        let reasoning = count("/completion_tokens_details/reasoning_tokens");
        let cached_apart = match self.fault {
            Some(Fault::CountsCachedTokensTwice) => 0,
            _ => cache_read,
        };
        TokenUsage {
            input: count("/prompt_tokens") - cached_apart,
            cache_read,
            cache_write: 0,
            answer: count("/completion_tokens") - reasoning,
            reasoning,
        }
    }

    /// Returns the turn if it is complete.
    pub(crate) fn finish(self) -> Result<(Vec<AssistantBlock>, TurnEnd)> {
        let fault = self.fault;
        let lenient = [
            Fault::IgnoresTruncation,
            Fault::IgnoresErrorEvents,
            Fault::AcceptsAnyAnswer,
        ];
        let stop = match &self.stop {
            None if fault.is_some_and(|fault| lenient.contains(&fault)) => "stop",
            None => {
                let message = "the answer ended before its end";
                return Err(LlmError::new(LlmErrorKind::Interrupted, message));
            }
            Some(_) if self.has(Fault::IgnoresTheStopReason) => "stop",
            Some(stop) => stop,
        };
        let stop = match stop {
            "stop" => StopReason::EndTurn,
            "tool_calls" => StopReason::ToolCalls,
            "length" => StopReason::Length,
            "content_filter" => StopReason::ContentFilter,
            other => StopReason::Other(other.to_owned()),
        };
        let usage = match fault {
            Some(Fault::ReportsMissingUsageAsZero) => Some(self.usage.unwrap_or_default()),
            _ => self.usage,
        };
        let mut blocks = Vec::new();
        if !self.reasoning.is_empty() {
            let content = self.reasoning;
            blocks.push(AssistantBlock::Reasoning { content });
        }
        if !self.text.is_empty() || fault == Some(Fault::MakesEmptyBlocks) {
            let at = if fault == Some(Fault::PutsTextFirst) {
                0
            } else {
                blocks.len()
            };
            blocks.insert(at, AssistantBlock::text(self.text));
        }
        for (_, (id, name, mut arguments)) in self.calls {
            if fault == Some(Fault::RepairsArguments) {
                let value: Value = serde_json::from_str(&arguments).unwrap_or(json!({}));
                arguments = value.to_string();
            }
            let mut call = ToolCall::new(id.clone(), name, arguments);
            if fault == Some(Fault::GeneratesNoIds) {
                call.id = id.unwrap_or_default();
            }
            blocks.push(AssistantBlock::ToolCall(call));
        }
        Ok((blocks, TurnEnd::new(stop, usage)))
    }
}
