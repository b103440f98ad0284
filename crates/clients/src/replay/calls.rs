//! Recorded calls, looked up by what was asked.

use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use cantle_core::llm::{ChatRequest, LlmError, LlmErrorKind, TurnEnd};
use cantle_core::message::AssistantMessage;
use serde_json::Value;

use super::{RecordingError, Turn};
use crate::record::{Line, Outcome, recorded, recorded_tools, role};

/// How much is shown of a text before and from where it differs, in characters.
const BEFORE: usize = 40;
const AFTER: usize = 160;

#[derive(Debug)]
pub(super) struct Calls {
    messages: Vec<String>,
    tools: Vec<String>,
    calls: Vec<Call>,
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
        for line in lines {
            let (number, line) = line?;
            match line {
                Line::Message(message) => messages.push(message.to_string()),
                Line::Tools(specs) => tools.push(specs.to_string()),
                Line::Call(call) => {
                    let unknown = call.messages.iter().any(|&at| at >= messages.len());
                    if unknown || call.tools >= tools.len() {
                        let message = "it names what stands on no line before".to_owned();
                        return Err(RecordingError::at(number, message));
                    }
                    calls.push(Call {
                        messages: call.messages,
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
            played,
        })
    }

    /// What was answered to this request.
    pub(super) fn answer(&self, request: &ChatRequest) -> Result<Turn, LlmError> {
        let asked = Asked {
            messages: request
                .messages
                .iter()
                .map(recorded)
                .collect::<Result<_, _>>()?,
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
                let role = request
                    .messages
                    .get(common)
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

/// A request in the form of a recording.
struct Asked {
    messages: Vec<Bytes>,
    tools: Bytes,
}

/// Where two texts of JSON differ first, and what stands there.
fn shown(then: &[u8], now: &[u8]) -> String {
    let read = |json| serde_json::from_slice::<Value>(json).unwrap_or_default();
    let (then, now) = (read(then), read(now));
    let mut path = String::new();
    let (then, now) = first_difference(&then, &now, &mut path);
    let (then, now) = match (then, now) {
        (Some(Value::String(then)), Some(Value::String(now))) => excerpts(then, now),
        (then, now) => {
            let text = |value: Option<&Value>| value.map_or("nothing".to_owned(), Value::to_string);
            excerpts(&text(then), &text(now))
        }
    };
    let path = path.trim_start_matches('.');
    format!("`{path}`\n  recorded: {then}\n  now:      {now}")
}

fn first_difference<'a>(
    then: &'a Value,
    now: &'a Value,
    path: &mut String,
) -> (Option<&'a Value>, Option<&'a Value>) {
    match (then, now) {
        (Value::Object(before), Value::Object(after)) => {
            let names = before.keys().chain(after.keys());
            let differs = |name: &&String| before.get(*name) != after.get(*name);
            if let Some(name) = { names }.find(differs) {
                path.push('.');
                path.push_str(name);
                return match (before.get(name), after.get(name)) {
                    (Some(then), Some(now)) => first_difference(then, now, path),
                    one_is_missing => one_is_missing,
                };
            }
        }
        (Value::Array(before), Value::Array(after)) => {
            let longest = before.len().max(after.len());
            if let Some(at) = (0..longest).find(|&at| before.get(at) != after.get(at)) {
                path.push_str(&format!("[{at}]"));
                return match (before.get(at), after.get(at)) {
                    (Some(then), Some(now)) => first_difference(then, now, path),
                    one_is_missing => one_is_missing,
                };
            }
        }
        _ => {}
    }
    (Some(then), Some(now))
}

/// Two texts from a little before where they differ.
fn excerpts(then: &str, now: &str) -> (String, String) {
    let common = then
        .chars()
        .zip(now.chars())
        .take_while(|(a, b)| a == b)
        .count();
    let start = common.saturating_sub(BEFORE);
    let excerpt = |text: &str| {
        let mut excerpt: String = text
            .chars()
            .skip(start)
            .take(common - start + AFTER)
            .collect();
        if start > 0 {
            excerpt.insert(0, '…');
        }
        if text.chars().count() > common + AFTER {
            excerpt.push('…');
        }
        excerpt.replace('\n', "\\n")
    };
    (excerpt(then), excerpt(now))
}
