//! Recorded calls, looked up by what was asked.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use cantle_core::llm::{ChatRequest, LlmError, LlmErrorKind, TurnEnd};
use cantle_core::message::{AssistantMessage, Message, SharedMessage, ToolCall, UserKind};
use serde_json::Value;

use super::difference::shown;
use super::results::{RecordedResult, Results};
use super::{RecordingError, Turn};
use crate::record::{Line, Outcome, recorded, recorded_tools, role};

#[derive(Debug)]
pub(super) struct Calls {
    messages: Vec<String>,
    tools: Vec<String>,
    calls: Vec<Call>,
    results: Results,
    /// How often each call was played.
    played: Mutex<Vec<usize>>,
}

#[derive(Debug)]
struct Call {
    messages: Vec<usize>,
    tools: usize,
    outcome: Outcome,
}

impl Calls {
    pub(super) fn new(
        lines: impl Iterator<Item = Result<(usize, Line), RecordingError>>,
    ) -> Result<Self, RecordingError> {
        let (mut messages, mut tools, mut calls) = (Vec::new(), Vec::new(), Vec::new());
        let mut results = Results::default();
        // Which messages are warnings.
        let mut warnings = HashSet::new();
        for line in lines {
            let (number, line) = line?;
            match line {
                Line::Message(message) => {
                    if message.get("kind").and_then(Value::as_str) == Some("turn_warning") {
                        warnings.insert(messages.len());
                    }
                    results.add_told(&message);
                    messages.push(message.to_string());
                }
                Line::Result(result) => results.add(*result),
                Line::Tools(specs) => tools.push(specs.to_string()),
                Line::Call(call) => {
                    let unknown = call.messages.iter().any(|&at| at >= messages.len());
                    if unknown || call.tools >= tools.len() {
                        let message = "it names what stands on no line before".to_owned();
                        return Err(RecordingError::at(number, message));
                    }
                    let compared = call.messages.into_iter();
                    calls.push(Call {
                        messages: compared.filter(|at| !warnings.contains(at)).collect(),
                        tools: call.tools,
                        outcome: call.outcome,
                    });
                }
            }
        }
        let played = Mutex::new(vec![0; calls.len()]);
        Ok(Self {
            messages,
            tools,
            calls,
            results,
            played,
        })
    }

    /// What a tool call came to.
    pub(super) fn result_of(&self, call: &ToolCall) -> Option<RecordedResult> {
        self.results.of(call)
    }

    /// Whether the model was offered a tool of this name.
    pub(super) fn offered(&self, name: &str) -> bool {
        let has = |tools: &String| {
            let tools: Value = serde_json::from_str(tools).unwrap_or_default();
            let mut tools = tools.as_array().into_iter().flatten();
            tools.any(|tool| tool.get("name").and_then(Value::as_str) == Some(name))
        };
        self.tools.iter().any(has)
    }

    /// What was answered to this request.
    pub(super) fn answer(&self, request: &ChatRequest) -> Result<Turn, LlmError> {
        let asked = Asked {
            messages: compared(request).map(recorded).collect::<Result<_, _>>()?,
            tools: recorded_tools(&request.tools)?,
        };
        let mut played = self.played.lock().unwrap_or_else(PoisonError::into_inner);
        let same = (0..)
            .zip(&self.calls)
            .filter(|(_, call)| self.is(call, &asked));
        // The same was asked several times: the answers in their order, and the last for any more.
        let next = same.min_by_key(|(at, _)| (played.get(*at).copied().unwrap_or(0), *at));
        let Some((at, call)) = next else {
            return Err(self.difference(&asked, request));
        };
        if let Some(count) = played.get_mut(at) {
            *count += 1;
        }
        match &call.outcome {
            Outcome::Answer(answer) => {
                let mut end = TurnEnd::new(answer.stop.clone(), answer.usage);
                end.response_id.clone_from(&answer.response_id);
                end.cost_usd = answer.cost_usd;
                end.served_by.clone_from(&answer.served_by);
                end.extra.clone_from(&answer.extra);
                let message = AssistantMessage::new(answer.blocks.clone());
                Ok(Turn { message, end })
            }
            Outcome::Error(failure) => {
                let error = LlmError::new(failure.kind, failure.message.clone());
                Err(match &failure.advice {
                    Some(advice) => error.with_advice(advice.clone()),
                    None => error,
                })
            }
        }
    }

    fn is(&self, call: &Call, asked: &Asked) -> bool {
        call.messages.len() == asked.messages.len()
            && self.common(call, asked) == call.messages.len()
            && self.tools_of(call).as_bytes() == asked.tools
    }

    /// How many messages at the beginning are the same.
    fn common(&self, call: &Call, asked: &Asked) -> usize {
        let pairs = call.messages.iter().zip(&asked.messages);
        let same = |(number, now): &(&usize, &Bytes)| self.message(**number).as_bytes() == **now;
        pairs.take_while(same).count()
    }

    fn message(&self, number: usize) -> &str {
        self.messages.get(number).map_or("null", String::as_str)
    }

    fn tools_of(&self, call: &Call) -> &str {
        self.tools.get(call.tools).map_or("null", String::as_str)
    }

    /// The error for a request that was not recorded: how it differs from the one that comes closest.
    fn difference(&self, asked: &Asked, request: &ChatRequest) -> LlmError {
        let new = "this request was not recorded";
        let error = |message: String| {
            LlmError::new(LlmErrorKind::InvalidRequest, message)
                .with_advice("Where the change is meant, make the recording anew.")
        };
        let length = asked.messages.len();
        let close = (0..)
            .zip(&self.calls)
            .max_by_key(|(at, call): &(usize, &Call)| {
                let lengths = call.messages.len().abs_diff(length);
                let at = std::cmp::Reverse(*at);
                (self.common(call, asked), std::cmp::Reverse(lengths), at)
            });
        let Some((at, call)) = close else {
            return error(format!("{new}: the recording holds no call"));
        };
        let (number, common) = (at + 1, self.common(call, asked));
        let closest = format!("{new}. It comes closest to call {number} of the recording");
        match (call.messages.get(common), asked.messages.get(common)) {
            (Some(&then), Some(now)) => {
                let role = compared(request)
                    .nth(common)
                    .map_or("", |message| role(message));
                let place = common + 1;
                let shown = shown(self.message(then).as_bytes(), now);
                error(format!(
                    "{closest}, where message {place} ({role}) differs at {shown}"
                ))
            }
            (None, None) => {
                let shown = shown(self.tools_of(call).as_bytes(), &asked.tools);
                error(format!("{closest}, where the tools differ at {shown}"))
            }
            _ => {
                let then = call.messages.len();
                error(format!(
                    "{closest}, which has {then} messages; there are {length} now"
                ))
            }
        }
    }
}

/// What of a request is compared: all but warnings that turns or a budget run out, for those depend
/// on the clock.
fn compared(request: &ChatRequest) -> impl Iterator<Item = &SharedMessage> {
    let warning = |message: &SharedMessage| matches!(&**message, Message::User(user) if user.kind == UserKind::TurnWarning);
    request
        .messages
        .iter()
        .filter(move |message| !warning(message))
}

/// A request in the form of a recording.
struct Asked {
    messages: Vec<Bytes>,
    tools: Bytes,
}
