//! The wire format: what is read of a request, and a turn as one response or as a stream of events.

use std::borrow::Cow;
use std::hash::{DefaultHasher, Hash, Hasher};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::script::{CallId, Style, ToolCall, Turn, Usage};

/// When everything was made: a test that compares whole responses must not depend on the clock.
const CREATED: u64 = 1_700_000_000;

const ARGUMENT_CHARS: usize = 8;

/// What the server reads of a request body.
///
/// The rest is skipped without being built: a bench sends 300 KB a turn, and the server's time is
/// in its numbers.
#[derive(Debug, Deserialize)]
pub(super) struct Envelope<'a> {
    #[serde(borrow)]
    pub(super) model: Cow<'a, str>,
    #[serde(borrow)]
    messages: Vec<Message<'a>>,
    stream: Option<bool>,
    stream_options: Option<StreamOptions>,
}

#[derive(Debug, Deserialize)]
struct Message<'a> {
    #[serde(borrow)]
    role: Cow<'a, str>,
    #[serde(borrow)]
    content: Option<&'a RawValue>,
}

#[derive(Debug, Deserialize)]
struct StreamOptions {
    include_usage: Option<bool>,
}

impl Envelope<'_> {
    pub(super) fn turn(&self) -> usize {
        self.messages
            .iter()
            .filter(|message| message.role == "assistant")
            .count()
    }

    /// A key for the run the request belongs to: its model, and its messages before the first of
    /// the assistant.
    pub(super) fn run(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.model.hash(&mut hasher);
        for message in self
            .messages
            .iter()
            .take_while(|message| message.role != "assistant")
        {
            (&message.role, message.content.map(RawValue::get)).hash(&mut hasher);
        }
        hasher.finish()
    }

    pub(super) fn streams(&self) -> bool {
        self.stream == Some(true)
    }

    fn includes_usage(&self) -> bool {
        self.stream_options
            .as_ref()
            .is_some_and(|options| options.include_usage == Some(true))
    }
}

/// A part of a response body that is sent or cut as one: an event of a stream, or a whole body.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) bytes: Bytes,
    /// The usage it reports.
    pub(super) usage: Option<Usage>,
}

/// The answer to one request.
#[derive(Debug, Clone, Copy)]
pub(super) struct Answer<'a> {
    pub(super) envelope: &'a Envelope<'a>,
    pub(super) turn: &'a Turn,
    pub(super) style: Style,
    pub(super) turn_index: usize,
    pub(super) attempt: usize,
}

impl Answer<'_> {
    /// The answer in the form that was asked for.
    pub(super) fn parts(&self) -> Vec<Part> {
        if self.envelope.streams() {
            self.events()
        } else {
            vec![self.whole()]
        }
    }

    /// What ends a stream for a reason that is not the model's.
    pub(super) fn error(&self, error: &Value) -> Bytes {
        let body = json!({"error": error});
        let text = if self.envelope.streams() {
            format!("data: {body}\n\ndata: [DONE]\n\n")
        } else {
            body.to_string()
        };
        Bytes::from(text)
    }

    /// The answer as one JSON object.
    pub(super) fn whole(&self) -> Part {
        let turn = self.turn;
        let mut message = json!({"role": "assistant", "content": null, "refusal": null});
        if !turn.text.is_empty() {
            set(&mut message, "content", &turn.text);
        }
        if !turn.reasoning.is_empty() {
            set(&mut message, "reasoning_content", &turn.reasoning);
        }
        if !turn.calls.is_empty() {
            let calls = turn.calls.iter().enumerate();
            let calls = calls.map(|(index, call)| self.call(index, call, &call.arguments));
            set(&mut message, "tool_calls", calls.collect::<Value>());
        }
        let choice = json!({"index": 0, "message": message, "finish_reason": self.finish_reason()});
        let mut body = self.head("chat.completion", &json!([choice]));
        if let Some(usage) = turn.usage {
            set(&mut body, "usage", usage_json(usage));
        }
        Part {
            bytes: Bytes::from(body.to_string()),
            usage: turn.usage,
        }
    }

    fn events(&self) -> Vec<Part> {
        let turn = self.turn;
        let first = if turn.text.is_empty() {
            Value::Null
        } else {
            json!("")
        };
        let mut events = vec![self.delta(&json!({"role": "assistant", "content": first}))];
        for piece in pieces(&turn.reasoning, turn.delta_chars) {
            events.push(self.delta(&json!({"reasoning_content": piece})));
        }
        for piece in pieces(&turn.text, turn.delta_chars) {
            events.push(self.delta(&json!({"content": piece})));
        }
        for (index, call) in turn.calls.iter().enumerate() {
            let mut opening = self.call(index, call, "");
            set(&mut opening, "index", index);
            events.push(self.delta(&json!({"tool_calls": [opening]})));
            for piece in pieces(&call.arguments, turn.delta_chars.or(Some(ARGUMENT_CHARS))) {
                let call = json!({"index": index, "function": {"arguments": piece}});
                events.push(self.delta(&json!({"tool_calls": [call]})));
            }
        }
        let last = json!({"index": 0, "delta": {}, "finish_reason": self.finish_reason()});
        events.push(self.chunk(&json!([last]), None));
        if let Some(usage) = turn.usage.filter(|_| self.envelope.includes_usage()) {
            let empty = json!({"index": 0, "delta": {}});
            let choices = if self.style.usage_in_choice {
                json!([empty])
            } else {
                json!([])
            };
            events.push(self.chunk(&choices, Some(usage)));
        }
        events.push(self.event("[DONE]", None));
        events
    }

    fn delta(&self, delta: &Value) -> Part {
        self.chunk(
            &json!([{"index": 0, "delta": delta, "finish_reason": null}]),
            None,
        )
    }

    fn chunk(&self, choices: &Value, usage: Option<Usage>) -> Part {
        let mut chunk = self.head("chat.completion.chunk", choices);
        if self.envelope.includes_usage() {
            // Every chunk has the field then, and all but the last hold null in it.
            set(&mut chunk, "usage", usage.map(usage_json));
        }
        self.event(&chunk.to_string(), usage)
    }

    fn event(&self, data: &str, usage: Option<Usage>) -> Part {
        let comment = if self.style.comments {
            ": keep-alive\n\n"
        } else {
            ""
        };
        Part {
            bytes: Bytes::from(format!("{comment}data: {data}\n\n")),
            usage,
        }
    }

    fn head(&self, object: &str, choices: &Value) -> Value {
        json!({
            "id": format!("chatcmpl-{}-{}", self.turn_index, self.attempt),
            "object": object,
            "created": CREATED,
            "model": self.envelope.model,
            "choices": choices,
        })
    }

    fn call(&self, index: usize, call: &ToolCall, arguments: &str) -> Value {
        let function = json!({"name": call.name, "arguments": arguments});
        let mut value = json!({"type": "function", "function": function});
        match &call.id {
            CallId::Numbered => set(
                &mut value,
                "id",
                format!("call_{}_{index}", self.turn_index),
            ),
            CallId::Given(id) => set(&mut value, "id", id),
            CallId::Missing => {}
        }
        value
    }

    fn finish_reason(&self) -> &str {
        let usual = if self.turn.calls.is_empty() {
            "stop"
        } else {
            "tool_calls"
        };
        self.turn.finish_reason.as_deref().unwrap_or(usual)
    }
}

fn usage_json(usage: Usage) -> Value {
    let mut value = json!({
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.completion,
        "total_tokens": usage.prompt + usage.completion,
    });
    if let Some(cached) = usage.cached {
        set(
            &mut value,
            "prompt_tokens_details",
            json!({"cached_tokens": cached}),
        );
    }
    if let Some(reasoning) = usage.reasoning {
        set(
            &mut value,
            "completion_tokens_details",
            json!({"reasoning_tokens": reasoning}),
        );
    }
    value
}

fn set(object: &mut Value, field: &str, value: impl Serialize) {
    if let Some(fields) = object.as_object_mut() {
        fields.insert(field.to_owned(), json!(value));
    }
}

/// `text` in pieces of so many characters, or by word with the space after it.
fn pieces(text: &str, chars: Option<usize>) -> Vec<String> {
    match chars {
        None => text.split_inclusive(' ').map(str::to_owned).collect(),
        Some(chars) => {
            let all: Vec<char> = text.chars().collect();
            all.chunks(chars.max(1))
                .map(|piece| piece.iter().collect())
                .collect()
        }
    }
}
