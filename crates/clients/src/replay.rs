//! A client that answers from a recording, for demonstrations, examples and tests.
//!
//! There are two kinds of recording:
//!
//! - **Turns** (version 1) are mostly written by hand. The number of assistant messages in a request
//!   selects the turn, so that a retried or resumed request gets the same turn again and the client
//!   needs no state.
//! - **Calls** (version 2) are written by a [`Recorder`](crate::record::Recorder). Each request is looked
//!   up, and an unknown one fails with its difference from the most similar one. Identical requests get
//!   their answers in recorded order. Such a recording may also contain tool results
//!   ([`ReplayClient::result_of`]); with these instead of new results, requests are reproducible even
//!   if commands print times or process ids.
//!
//! # Format of turns
//!
//! JSON lines, of which the first is a header. Each further line is a turn: an assistant message as in
//! a history (see [`cantle_core::message::history`]), with an optional stop reason `stop` (default:
//! `tool_calls` if there are any, else `end_turn`). Empty lines are ignored.
//!
//! ```json
//! {"format": "cantle-recording", "version": 1, "model": "demo"}
//! {"role": "assistant", "blocks": [{"kind": "tool_call", "name": "code_exec", "arguments": "{\"cmd\": \"ls\"}", "tool_call_id": "call_1"}]}
//! {"role": "assistant", "blocks": [{"kind": "text", "text": "There are two files."}], "stop": "end_turn"}
//! ```

mod calls;
mod difference;
mod results;

use std::sync::Arc;

use cantle_core::llm::{
    ChatEvent, ChatRequest, ChatStream, LlmClient, LlmError, LlmErrorKind, ModelInfo, StopReason,
    TurnEnd,
};
use cantle_core::message::{AssistantBlock, AssistantMessage, Message, SharedMessage, ToolCall};
use cantle_core::usage::TokenUsage;
use futures_util::{TryStreamExt as _, stream};
use serde::Deserialize;

use self::calls::CallIndex;
pub use self::results::RecordedResult;
use crate::recording::{CALLS_VERSION, FORMAT, RecordedAnswer, RecordingHeader, TURNS_VERSION};

/// A model that answers from a recording.
///
/// Text and reasoning are streamed word by word, without delay. Replayed messages have new ids and the
/// recorded usage.
///
/// ```
/// use cantle_clients::replay::ReplayClient;
/// use cantle_core::llm::{ChatRequest, LlmClientExt as _, ToolSpecs};
/// use cantle_core::message::{AssistantBlock, AssistantMessage, Message};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), cantle_core::llm::LlmError> {
/// let turn = AssistantMessage::new(vec![AssistantBlock::text("Hello!")]);
/// let model = ReplayClient::new("demo", vec![turn]);
/// let request = ChatRequest::new(vec![Message::user("Hi").into()], ToolSpecs::default());
/// assert_eq!(model.complete(request).await?.message.text(), "Hello!");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct ReplayClient {
    model: ModelInfo,
    source: RecordingSource,
}

#[derive(Clone, Debug)]
enum RecordingSource {
    Turns(Arc<[RecordedAnswer]>),
    Calls(Arc<CallIndex>),
}

impl ReplayClient {
    /// Creates a client for a model named `model` that answers with these turns.
    pub fn new(model: impl Into<String>, turns: Vec<AssistantMessage>) -> Self {
        let turns = turns.into_iter().map(|turn| answer(turn, None));
        Self {
            model: recorded_model(ModelInfo::new(model)),
            source: RecordingSource::Turns(turns.collect()),
        }
    }

    /// Parses a recording of either kind.
    ///
    /// # Errors
    /// If a line is invalid; the error contains its number.
    pub fn from_jsonl(recording: &[u8]) -> Result<Self, RecordingError> {
        let mut lines = (1..)
            .zip(recording.split(|&byte| byte == b'\n'))
            .filter(|(_, line)| !line.trim_ascii().is_empty());
        let invalid = |number, kind, message| Err(RecordingError::new(number, kind, message));
        let Some((number, first)) = lines.next() else {
            let message = "the recording is empty".to_owned();
            return invalid(1, RecordingErrorKind::Header, message);
        };
        let header: RecordingHeader = parse_line(number, first).map_err(|error| {
            let expected =
                format!("\"format\": \"{FORMAT}\", \"version\": {TURNS_VERSION}, \"model\": …");
            RecordingError {
                kind: RecordingErrorKind::Header,
                message: format!("expected {{{expected}}}: {}", error.message),
                ..error
            }
        })?;
        if header.format != FORMAT {
            let message = format!("expected the format `{FORMAT}`, got `{}`", header.format);
            return invalid(number, RecordingErrorKind::Header, message);
        }
        let source = match header.version {
            TURNS_VERSION => {
                let turns = lines.map(|(number, line)| parse_turn(number, line));
                RecordingSource::Turns(turns.collect::<Result<_, _>>()?)
            }
            CALLS_VERSION => {
                let lines = lines.map(|(number, line)| Ok((number, parse_line(number, line)?)));
                RecordingSource::Calls(Arc::new(CallIndex::new(lines)?))
            }
            found => {
                let message = format!(
                    "version {found} is not supported; versions {TURNS_VERSION} and {CALLS_VERSION} are"
                );
                return invalid(number, RecordingErrorKind::Version, message);
            }
        };
        let model = ModelInfo::new(header.model)
            .with_limits(header.context_window, header.max_output_tokens)
            .map_err(|error| {
                RecordingError::new(number, RecordingErrorKind::Header, error.to_string())
            })?;
        let model = recorded_model(model);
        Ok(Self { model, source })
    }

    /// Returns whether the recording consists of calls, so that requests, tool results included, must be
    /// as recorded.
    pub fn replays_calls(&self) -> bool {
        matches!(self.source, RecordingSource::Calls(_))
    }

    /// Returns the recorded result of a tool call, or `None` if there is none.
    ///
    /// If the call was recorded several times, the results are returned in recorded order.
    pub fn result_of(&self, call: &ToolCall) -> Option<RecordedResult> {
        match &self.source {
            RecordingSource::Turns(_) => None,
            RecordingSource::Calls(calls) => calls.result_of(call),
        }
    }

    /// Returns whether any recorded request offered a tool of this name.
    pub fn has_tool(&self, tool: &str) -> bool {
        match &self.source {
            RecordingSource::Turns(_) => false,
            RecordingSource::Calls(calls) => calls.has_tool(tool),
        }
    }
}

/// Returns a model whose calls cost what was recorded.
fn recorded_model(mut model: ModelInfo) -> ModelInfo {
    model.reports_cost = Some(true);
    model
}

impl LlmClient for ReplayClient {
    fn model(&self) -> &ModelInfo {
        &self.model
    }

    fn stream(&self, request: ChatRequest) -> ChatStream {
        let client = self.clone();
        // Lazy, because replayed calls are counted.
        let events = stream::once(async move {
            let answer = match &client.source {
                RecordingSource::Turns(turns) => client.turn(turns, &request)?,
                RecordingSource::Calls(calls) => calls.answer(&request)?,
            };
            Ok(stream::iter(events(answer).into_iter().map(Ok)))
        });
        Box::pin(events.try_flatten())
    }
}

impl ReplayClient {
    fn turn<'a>(
        &self,
        turns: &'a [RecordedAnswer],
        request: &ChatRequest,
    ) -> Result<&'a RecordedAnswer, LlmError> {
        let is_turn = |message: &&SharedMessage| matches!(***message, Message::Assistant(_));
        let index = request.messages.iter().filter(is_turn).count();
        turns.get(index).ok_or_else(|| {
            let message = format!(
                "the recording of `{}` has {} turns, but turn {} was requested",
                self.model.slug,
                turns.len(),
                index + 1
            );
            LlmError::new(LlmErrorKind::InvalidRequest, message)
        })
    }
}

/// Returns a message as an answer.
fn answer(message: AssistantMessage, stop: Option<StopReason>) -> RecordedAnswer {
    let default_stop = match message.tool_calls().next() {
        Some(_) => StopReason::ToolCalls,
        None => StopReason::EndTurn,
    };
    // In a history, all zero means that the provider reported no usage.
    let usage = message.token_usage;
    let usage = (usage != TokenUsage::default()).then_some(usage);
    RecordedAnswer {
        end: TurnEnd::new(stop.unwrap_or(default_stop), usage),
        blocks: message.blocks,
    }
}

/// Returns the events of an answer, with its text in words.
fn events(answer: &RecordedAnswer) -> Vec<ChatEvent> {
    let words = |text: &str, event: fn(String) -> ChatEvent| {
        let words = text.split_inclusive(char::is_whitespace);
        words.map(|word| event(word.to_owned())).collect::<Vec<_>>()
    };
    let mut events = Vec::new();
    let mut calls = 0..;
    for block in &answer.blocks {
        match block {
            AssistantBlock::Text { text, .. } => events.extend(words(text, ChatEvent::TextDelta)),
            AssistantBlock::Reasoning { content }
            | AssistantBlock::SignedReasoning { content, .. } => {
                events.extend(words(content, ChatEvent::ReasoningDelta));
            }
            AssistantBlock::ToolCall(call) => {
                events.extend(calls.next().map(|index| ChatEvent::ToolCallDelta {
                    index,
                    name: Some(call.name.clone()),
                    arguments: call.arguments.clone(),
                }));
            }
            _ => {}
        }
    }
    events.extend(answer.blocks.iter().cloned().map(ChatEvent::Block));
    events.push(ChatEvent::Finished(answer.end.clone()));
    events
}

#[derive(Deserialize)]
struct StopField {
    stop: Option<StopReason>,
}

fn parse_turn(number: usize, line: &[u8]) -> Result<RecordedAnswer, RecordingError> {
    let Message::Assistant(message) = parse_line(number, line)? else {
        let message = "expected a message with the role `assistant`".to_owned();
        return Err(RecordingError::new(
            number,
            RecordingErrorKind::Line,
            message,
        ));
    };
    let StopField { stop } = parse_line(number, line)?;
    Ok(answer(message, stop))
}

fn parse_line<'a, T: Deserialize<'a>>(number: usize, line: &'a [u8]) -> Result<T, RecordingError> {
    serde_json::from_slice(line).map_err(|error| {
        // `line` is the number within the recording; serde_json sees a single line.
        let text = error.to_string();
        let place = format!(" at line {} column {}", error.line(), error.column());
        let message = match text.strip_suffix(&place) {
            Some(message) if error.column() > 0 => {
                format!("{message} at column {}", error.column())
            }
            _ => text,
        };
        RecordingError::new(number, RecordingErrorKind::Line, message)
    })
}

/// Error of parsing a recording.
#[derive(Debug, thiserror::Error)]
#[error("failed to read the recording at line {line}: {message}")]
pub struct RecordingError {
    line: usize,
    kind: RecordingErrorKind,
    message: String,
}

/// The kind of a [`RecordingError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RecordingErrorKind {
    /// The first line is not the header of a recording.
    Header,
    /// The version of the format is not supported.
    Version,
    /// A line is not what the format has there.
    Line,
}

impl RecordingError {
    fn new(line: usize, kind: RecordingErrorKind, message: String) -> Self {
        Self {
            line,
            kind,
            message,
        }
    }

    /// Returns the kind of error.
    pub fn kind(&self) -> RecordingErrorKind {
        self.kind
    }

    /// Returns the number of the invalid line, counted from 1.
    pub fn line(&self) -> usize {
        self.line
    }
}

#[cfg(test)]
mod tests;
