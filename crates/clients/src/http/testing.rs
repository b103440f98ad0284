//! Turns of a dialect from a stream and from a body, and content, for the tests of dialects.

use std::collections::VecDeque;
use std::ops::ControlFlow;

use cantle_core::content::Media;
use cantle_core::llm::{ChatEvent, Completion, Fold, LlmError};
use cantle_core::message::AssistantBlock;
use cantle_core::tool::ToolSpec;
use reqwest::header::HeaderMap;
use serde_json::{Value, json};

use super::{ErrorContext, TurnAssembler};
use crate::sse::EventParser;

fn context() -> ErrorContext {
    ErrorContext {
        base_url: "http://localhost:8000/v1".to_owned(),
        path: "/path",
        response: "a response",
        model: "m".to_owned(),
        key: None,
        proxy: None,
    }
}

/// Returns the events of a stream, and its error.
pub(crate) fn assemble(
    mut turn: impl TurnAssembler,
    stream: &[u8],
) -> (Vec<ChatEvent>, Option<LlmError>) {
    let mut parser = EventParser::default();
    parser.push(stream);
    let mut events = VecDeque::new();
    while let Some(event) = parser.next_event() {
        match turn.read_event(&context(), &event.unwrap(), &mut events) {
            Ok(ControlFlow::Continue(())) => {}
            Ok(ControlFlow::Break(())) => break,
            Err(error) => return (events.into(), Some(error)),
        }
    }
    match turn.finish(&HeaderMap::new()) {
        Ok(end) => {
            events.extend(end);
            (events.into(), None)
        }
        Err(error) => (events.into(), Some(error)),
    }
}

/// Returns the answer of these events, without the id of its message.
pub(crate) fn folded(events: Vec<ChatEvent>) -> Completion {
    let mut fold = Fold::default();
    let mut completion = events
        .into_iter()
        .find_map(|event| fold.push(event))
        .unwrap();
    completion.message.id.clear();
    completion
}

/// Returns the answer of a body.
pub(crate) fn answered(mut turn: impl TurnAssembler, body: &Value) -> Result<Completion, LlmError> {
    turn.read_body(&context(), &HeaderMap::new(), body.to_string().as_bytes())?;
    turn.finish(&HeaderMap::new()).map(folded)
}

pub(crate) fn reasoning(content: &str) -> AssistantBlock {
    let content = content.to_owned();
    AssistantBlock::Reasoning { content }
}

pub(crate) fn signed_reasoning(signature: &str, content: &str) -> AssistantBlock {
    let (signature, content) = (signature.to_owned(), content.to_owned());
    AssistantBlock::SignedReasoning { signature, content }
}

pub(crate) fn redacted_reasoning(data: &str) -> AssistantBlock {
    let data = data.to_owned();
    AssistantBlock::RedactedReasoning { data }
}

pub(crate) fn opaque(data: &str) -> AssistantBlock {
    let data = data.to_owned();
    AssistantBlock::Opaque { data }
}

pub(crate) fn png() -> Media {
    Media::image(&b"\x89PNG\r\n\x1a\n"[..]).unwrap()
}

pub(crate) fn look() -> ToolSpec {
    let parameters = json!({"type": "object", "properties": {"at": {"type": "string"}}});
    ToolSpec::new("look", "Lists files.", parameters)
}
