//! Recorded calls, indexed by request.

use std::collections::HashSet;

use bytes::Bytes;
use cantle_core::llm::{ChatRequest, LlmError, LlmErrorKind};
use cantle_core::message::{Message, SharedMessage, ToolCall, UserKind};
use parking_lot::Mutex;
use serde_json::Value;

use super::difference::describe_difference;
use super::results::{RecordedResult, ResultIndex};
use super::{RecordingError, RecordingErrorKind};
use crate::recording::{
    CallLine, RecordedAnswer, RecordedOutcome, RecordingLine, encode_message, encode_tools, role,
};

#[derive(Debug)]
pub(super) struct CallIndex {
    messages: Vec<String>,
    tools: Vec<String>,
    /// Without turn warnings among the messages.
    calls: Vec<CallLine>,
    results: ResultIndex,
    /// How often each call was replayed.
    replayed: Mutex<Vec<usize>>,
}

impl CallIndex {
    pub(super) fn new(
        lines: impl Iterator<Item = Result<(usize, RecordingLine), RecordingError>>,
    ) -> Result<Self, RecordingError> {
        let (mut messages, mut tools, mut calls) = (Vec::new(), Vec::new(), Vec::new());
        let mut results = ResultIndex::default();
        let mut warnings = HashSet::new();
        for line in lines {
            let (number, line) = line?;
            match line {
                RecordingLine::Message(message) => {
                    if message.get("kind").and_then(Value::as_str) == Some("turn_warning") {
                        warnings.insert(messages.len());
                    }
                    results.add_message(&message);
                    messages.push(message.to_string());
                }
                RecordingLine::Result(result) => results.add(*result),
                RecordingLine::Tools(specs) => tools.push(specs.to_string()),
                RecordingLine::Call(mut call) => {
                    let is_undefined = call.messages.iter().any(|&at| at >= messages.len());
                    if is_undefined || call.tools >= tools.len() {
                        let message =
                            "it refers to a message or tool list that no earlier line defines";
                        let kind = RecordingErrorKind::Line;
                        return Err(RecordingError::new(number, kind, message.to_owned()));
                    }
                    call.messages.retain(|at| !warnings.contains(at));
                    calls.push(*call);
                }
            }
        }
        let replayed = Mutex::new(vec![0; calls.len()]);
        Ok(Self {
            messages,
            tools,
            calls,
            results,
            replayed,
        })
    }

    /// Returns the result of a tool call.
    pub(super) fn result_of(&self, call: &ToolCall) -> Option<RecordedResult> {
        self.results.next(call)
    }

    /// Returns whether any request offered a tool of this name.
    pub(super) fn has_tool(&self, name: &str) -> bool {
        let contains = |tools: &String| {
            let tools: Value = serde_json::from_str(tools).unwrap_or_default();
            let mut tools = tools.as_array().into_iter().flatten();
            tools.any(|tool| tool.get("name").and_then(Value::as_str) == Some(name))
        };
        self.tools.iter().any(contains)
    }

    /// Returns the recorded answer to a request.
    pub(super) fn answer(&self, request: &ChatRequest) -> Result<&RecordedAnswer, LlmError> {
        let encoded = EncodedRequest::new(request).map_err(|error| {
            let message = "failed to encode the request as in recordings";
            LlmError::new(LlmErrorKind::InvalidRequest, message).with_source(error)
        })?;
        let mut replayed = self.replayed.lock();
        let matching = (0..)
            .zip(&self.calls)
            .filter(|(_, call)| self.matches(call, &encoded));
        // Identical requests get their answers in recorded order.
        let next = matching.min_by_key(|(at, _)| (replayed.get(*at).copied().unwrap_or(0), *at));
        let Some((at, call)) = next else {
            return Err(self.not_recorded(&encoded, request));
        };
        if let Some(count) = replayed.get_mut(at) {
            *count += 1;
        }
        match &call.outcome {
            RecordedOutcome::Answer(answer) => Ok(answer),
            RecordedOutcome::Error(failure) => {
                let error = LlmError::new(failure.kind, failure.message.clone());
                Err(match &failure.advice {
                    Some(advice) => error.with_advice(advice.clone()),
                    None => error,
                })
            }
        }
    }

    fn matches(&self, call: &CallLine, request: &EncodedRequest<'_>) -> bool {
        call.messages.len() == request.messages.len()
            && self.common_prefix(call, request) == call.messages.len()
            && self.tools_of(call).as_bytes() == &**request.tools
    }

    /// Returns the number of identical messages at the start.
    fn common_prefix(&self, call: &CallLine, request: &EncodedRequest<'_>) -> usize {
        let pairs = call.messages.iter().zip(&request.messages);
        let is_same =
            |(number, bytes): &(&usize, &&Bytes)| self.message(**number).as_bytes() == ***bytes;
        pairs.take_while(is_same).count()
    }

    fn message(&self, number: usize) -> &str {
        self.messages.get(number).map_or("null", String::as_str)
    }

    fn tools_of(&self, call: &CallLine) -> &str {
        self.tools.get(call.tools).map_or("null", String::as_str)
    }

    /// Returns the error for an unknown request, with its difference from the most similar one.
    fn not_recorded(&self, encoded: &EncodedRequest<'_>, request: &ChatRequest) -> LlmError {
        let summary = "this request was not recorded";
        let error = |message: String| {
            LlmError::new(LlmErrorKind::InvalidRequest, message)
                .with_advice("If the change is intended, record again.")
        };
        let length = encoded.messages.len();
        let closest = (0..)
            .zip(&self.calls)
            .max_by_key(|(at, call): &(usize, &CallLine)| {
                let length_difference = call.messages.len().abs_diff(length);
                let at = std::cmp::Reverse(*at);
                (
                    self.common_prefix(call, encoded),
                    std::cmp::Reverse(length_difference),
                    at,
                )
            });
        let Some((at, call)) = closest else {
            return error(format!("{summary}: the recording contains no call"));
        };
        let (number, common) = (at + 1, self.common_prefix(call, encoded));
        let summary = format!("{summary}. The most similar is call {number} of the recording");
        match (call.messages.get(common), encoded.messages.get(common)) {
            (Some(&recorded), Some(current)) => {
                let role = compared_messages(request)
                    .nth(common)
                    .map_or("", |message| role(message));
                let position = common + 1;
                let difference = describe_difference(self.message(recorded).as_bytes(), current);
                error(format!(
                    "{summary}, where message {position} ({role}) differs at {difference}"
                ))
            }
            (None, None) => {
                let difference = describe_difference(self.tools_of(call).as_bytes(), encoded.tools);
                error(format!("{summary}, where the tools differ at {difference}"))
            }
            _ => {
                let recorded = call.messages.len();
                error(format!(
                    "{summary}, which has {recorded} messages instead of {length}"
                ))
            }
        }
    }
}

/// Returns the messages to compare: all except warnings about turns and budgets, which depend on the
/// clock.
fn compared_messages(request: &ChatRequest) -> impl Iterator<Item = &SharedMessage> {
    let is_warning = |message: &SharedMessage| matches!(&**message, Message::User(user) if user.kind == UserKind::TurnWarning);
    request
        .messages
        .iter()
        .filter(move |message| !is_warning(message))
}

/// A request as encoded in recordings.
struct EncodedRequest<'a> {
    messages: Vec<&'a Bytes>,
    tools: &'a Bytes,
}

impl<'a> EncodedRequest<'a> {
    fn new(request: &'a ChatRequest) -> serde_json::Result<Self> {
        let messages = compared_messages(request).map(encode_message);
        Ok(Self {
            messages: messages.collect::<Result<_, _>>()?,
            tools: encode_tools(&request.tools)?,
        })
    }
}
