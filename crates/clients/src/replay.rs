//! A model whose turns come from a recording: for demonstrations, examples and tests.
//!
//! There are two kinds of recording. Turns, mostly written by hand: which of them answers a request is
//! a property of the request, the number of assistant messages in it. So a request that is made
//! again, by a retry or by a resumed run, gets the same turn again, and the client keeps no place in
//! the recording. And calls, written by a [`Recorder`](crate::record::Recorder): each request is
//! looked up among those that were recorded, and one that is not there is an error that shows what
//! differs. Requests that were recorded several times get their answers in their order. Such a
//! recording also has what tools said ([`ReplayClient::result_of`]), for whoever runs them: told that,
//! a model is asked the same also where commands print times and process ids.
//!
//! # The format of turns
//!
//! JSON lines. The first says what it is; each further one is a turn: an assistant message as in a
//! history (see [`cantle_core::message::history`]), and optionally `stop`, why the model stopped
//! (without it, to have tools run where there are calls, else at the end of its turn). Empty lines
//! count as lines and as nothing else.
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
use cantle_core::message::{AssistantBlock, AssistantMessage, Message, ToolCall};
use cantle_core::usage::TokenUsage;
use futures_util::{StreamExt as _, stream};
use serde::Deserialize;

use self::calls::Calls;
pub use self::results::RecordedResult;
use crate::record::VERSION as CALLS_VERSION;

pub(crate) const FORMAT: &str = "cantle-recording";
/// Of turns.
const VERSION: u64 = 1;

/// A recorded model.
///
/// A turn's text and reasoning are streamed word by word, without delay. A replayed message has an
/// id of its own, and the usage that was recorded with it.
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
    source: Source,
}

#[derive(Clone, Debug)]
enum Source {
    Turns(Arc<[Turn]>),
    Calls(Arc<Calls>),
}

#[derive(Clone, Debug)]
struct Turn {
    message: AssistantMessage,
    end: TurnEnd,
}

impl ReplayClient {
    /// A model that is called `model` and takes these turns.
    pub fn new(model: impl Into<String>, turns: Vec<AssistantMessage>) -> Self {
        Self {
            model: ModelInfo::new(model),
            source: Source::Turns(
                turns
                    .into_iter()
                    .map(|turn| Turn::new(turn, None))
                    .collect(),
            ),
        }
    }

    /// Reads a recording.
    ///
    /// # Errors
    /// Where a line is not what the format says; the error names it.
    pub fn from_jsonl(recording: &[u8]) -> Result<Self, RecordingError> {
        let mut lines = (1..)
            .zip(recording.split(|&byte| byte == b'\n'))
            .filter(|(_, line)| !line.trim_ascii().is_empty());
        let Some((number, first)) = lines.next() else {
            return Err(RecordingError::at(1, "the recording is empty".to_owned()));
        };
        let header: Header = parsed(number, first).map_err(|error| {
            let message = format!(
                "expected {{\"format\": \"{FORMAT}\", \"version\": {VERSION}, \"model\": …}}: {}",
                error.message
            );
            RecordingError::at(number, message)
        })?;
        if header.format != FORMAT {
            let message = format!("expected the format `{FORMAT}`, got `{}`", header.format);
            return Err(RecordingError::at(number, message));
        }
        let source = match header.version {
            VERSION => Source::Turns(
                lines
                    .map(|(number, line)| turn(number, line))
                    .collect::<Result<_, _>>()?,
            ),
            CALLS_VERSION => {
                let lines = lines.map(|(number, line)| Ok((number, parsed(number, line)?)));
                Source::Calls(Arc::new(Calls::new(lines)?))
            }
            found => {
                let message =
                    format!("version {found} is not known here; {VERSION} and {CALLS_VERSION} are");
                return Err(RecordingError::at(number, message));
            }
        };
        let model = ModelInfo::new(header.model)
            .with_limits(header.context_window, header.max_output_tokens)
            .map_err(|error| RecordingError::at(number, error.to_string()))?;
        Ok(Self { model, source })
    }

    /// Whether this plays calls, so that all that is asked must be as it was: also what tools say.
    #[must_use]
    pub fn plays_calls(&self) -> bool {
        matches!(self.source, Source::Calls(_))
    }

    /// What a tool call came to when it was recorded. The same call recorded several times has its
    /// results in their order. `None` where there is no such call, or turns are played.
    #[must_use]
    pub fn result_of(&self, call: &ToolCall) -> Option<RecordedResult> {
        match &self.source {
            Source::Turns(_) => None,
            Source::Calls(calls) => calls.result_of(call),
        }
    }

    /// Whether the model was offered a tool of this name when its calls were recorded.
    #[must_use]
    pub fn was_offered(&self, tool: &str) -> bool {
        match &self.source {
            Source::Turns(_) => false,
            Source::Calls(calls) => calls.offered(tool),
        }
    }
}

impl LlmClient for ReplayClient {
    fn model(&self) -> &ModelInfo {
        &self.model
    }

    fn stream(&self, request: ChatRequest) -> ChatStream {
        let client = self.clone();
        // Nothing happens until it is polled: calls are counted.
        let events = stream::once(async move {
            let turn = match &client.source {
                Source::Turns(turns) => client.turn(turns, &request).cloned(),
                Source::Calls(calls) => calls.answer(&request),
            };
            match turn {
                Ok(turn) => stream::iter(turn.events().into_iter().map(Ok).collect::<Vec<_>>()),
                Err(error) => stream::iter(vec![Err(error)]),
            }
        });
        Box::pin(events.flatten())
    }
}

impl ReplayClient {
    fn turn<'a>(&self, turns: &'a [Turn], request: &ChatRequest) -> Result<&'a Turn, LlmError> {
        let taken = request
            .messages
            .iter()
            .filter(|message| matches!(***message, Message::Assistant(_)))
            .count();
        let turn = turns.get(taken);
        turn.ok_or_else(|| self.past_the_end(turns.len(), taken))
    }

    fn past_the_end(&self, turns: usize, taken: usize) -> LlmError {
        let model = &self.model.slug;
        let wanted = taken + 1;
        let message = format!(
            "the recording of `{model}` has {turns} turns, and turn {wanted} was asked for"
        );
        LlmError::new(LlmErrorKind::InvalidRequest, message)
    }
}

impl Turn {
    fn new(message: AssistantMessage, stop: Option<StopReason>) -> Self {
        let usual = if message.tool_calls().next().is_some() {
            StopReason::ToolCalls
        } else {
            StopReason::EndTurn
        };
        // All zero is how a history says that the provider did not tell.
        let usage = message.token_usage;
        let usage = (usage != TokenUsage::default()).then_some(usage);
        Self {
            end: TurnEnd::new(stop.unwrap_or(usual), usage),
            message,
        }
    }

    fn events(&self) -> Vec<ChatEvent> {
        let blocks = &self.message.blocks;
        let mut events = Vec::new();
        let words = |text: &str, event: fn(String) -> ChatEvent| {
            let words = text.split_inclusive(char::is_whitespace);
            words.map(|word| event(word.to_owned())).collect::<Vec<_>>()
        };
        let mut calls = 0;
        for block in blocks {
            match block {
                AssistantBlock::Text { text, .. } => {
                    events.extend(words(text, ChatEvent::TextDelta));
                }
                AssistantBlock::Reasoning { content }
                | AssistantBlock::SignedReasoning { content, .. } => {
                    events.extend(words(content, ChatEvent::ReasoningDelta));
                }
                AssistantBlock::ToolCall(call) => {
                    events.push(ChatEvent::ToolCallDelta {
                        index: calls,
                        name: Some(call.name.clone()),
                        arguments: call.arguments.clone(),
                    });
                    calls += 1;
                }
                _ => {}
            }
        }
        events.extend(blocks.iter().cloned().map(ChatEvent::Block));
        events.push(ChatEvent::Finished(self.end.clone()));
        events
    }
}

#[derive(Deserialize)]
struct Header {
    format: String,
    version: u64,
    model: String,
    context_window: Option<u64>,
    max_output_tokens: Option<u64>,
}

#[derive(Deserialize)]
struct Stop {
    stop: Option<StopReason>,
}

fn turn(number: usize, line: &[u8]) -> Result<Turn, RecordingError> {
    let Message::Assistant(message) = parsed(number, line)? else {
        let message = "expected a message with the role `assistant`".to_owned();
        return Err(RecordingError::at(number, message));
    };
    let Stop { stop } = parsed(number, line)?;
    Ok(Turn::new(message, stop))
}

fn parsed<'a, T: Deserialize<'a>>(number: usize, line: &'a [u8]) -> Result<T, RecordingError> {
    serde_json::from_slice(line).map_err(|error| {
        // serde_json counts lines in what it was given, which is one.
        let text = error.to_string();
        let place = format!(" at line {} column {}", error.line(), error.column());
        let message = match text.strip_suffix(&place) {
            Some(message) if error.column() > 0 => {
                format!("{message} at column {}", error.column())
            }
            _ => text,
        };
        RecordingError::at(number, message)
    })
}

/// A recording that can't be read.
#[derive(Debug, thiserror::Error)]
#[error("failed to read the recording at line {line}: {message}")]
pub struct RecordingError {
    line: usize,
    message: String,
}

impl RecordingError {
    fn at(line: usize, message: String) -> Self {
        Self { line, message }
    }

    /// Which line it is about, counted from 1.
    #[must_use]
    pub fn line(&self) -> usize {
        self.line
    }
}

#[cfg(test)]
mod tests;
