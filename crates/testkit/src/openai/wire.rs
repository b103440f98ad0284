//! The wire format: what is read of a request, and a turn as one response or as a stream of events.

use std::borrow::Cow;
use std::hash::{DefaultHasher, Hash, Hasher};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::script::{CallId, Style, ToolCall, Turn, Usage};
use super::{messages, responses};

/// When everything was made: a test that compares whole responses must not depend on the clock.
pub(super) const CREATED: u64 = 1_700_000_000;

pub(super) const ARGUMENT_CHARS: usize = 8;

/// Which API a request came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Api {
    Chat,
    Messages,
    Responses,
}

impl Api {
    /// The API at a path, without the version before it.
    pub(super) fn at(path: &str) -> Option<Self> {
        Some(match path {
            "/chat/completions" => Self::Chat,
            "/messages" => Self::Messages,
            "/responses" => Self::Responses,
            _ => return None,
        })
    }
}

/// What the server reads of a request body.
///
/// The rest is skipped without being built: a bench sends 300 KB a turn, and the server's time is
/// in its numbers.
#[derive(Debug, Deserialize)]
pub(super) struct Envelope<'a> {
    #[serde(borrow)]
    pub(super) model: Cow<'a, str>,
    #[serde(borrow, alias = "input")]
    messages: Vec<Message<'a>>,
    #[serde(borrow)]
    previous_response_id: Option<Cow<'a, str>>,
    stream: Option<bool>,
    stream_options: Option<StreamOptions>,
}

/// A message, or an item of Responses, which has a type and may have no role.
#[derive(Debug, Deserialize)]
struct Message<'a> {
    #[serde(borrow)]
    role: Option<Cow<'a, str>>,
    #[serde(borrow)]
    r#type: Option<Cow<'a, str>>,
    #[serde(borrow)]
    content: Option<&'a RawValue>,
}

impl Message<'_> {
    fn is_the_models(&self) -> bool {
        match (self.role.as_deref(), self.r#type.as_deref()) {
            (Some(role), _) => role == "assistant",
            (None, Some(kind)) => kind != "function_call_output",
            (None, None) => false,
        }
    }
}

#[derive(Debug, Deserialize)]
struct StreamOptions {
    include_usage: Option<bool>,
}

impl Envelope<'_> {
    /// How many turns of the model are in it, or in what it continues. Neighbouring items of
    /// Responses are one turn; of messages, each is.
    pub(super) fn turn(&self, api: Api) -> usize {
        let mut turns = 0;
        let mut within = false;
        for message in &self.messages {
            let the_models = message.is_the_models();
            turns += usize::from(the_models && !(within && api == Api::Responses));
            within = the_models;
        }
        let before = self
            .previous_response_id
            .as_deref()
            .and_then(turn_of_response);
        turns + before.map_or(0, |turn| turn + 1)
    }

    /// The response that is to be continued, where this server can't have made it.
    pub(super) fn unknown_response(&self) -> Option<&str> {
        let id = self.previous_response_id.as_deref()?;
        turn_of_response(id).is_none().then_some(id)
    }

    /// A key for the run the request belongs to: its model, and its messages before the first of
    /// the assistant.
    pub(super) fn run(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.model.hash(&mut hasher);
        for message in self
            .messages
            .iter()
            .take_while(|message| !message.is_the_models())
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

/// The name of a response, which says which turn it is.
pub(super) fn response_id(turn: usize, attempt: usize) -> String {
    format!("resp-{turn}-{attempt}")
}

fn turn_of_response(id: &str) -> Option<usize> {
    let (turn, _attempt) = id.strip_prefix("resp-")?.split_once('-')?;
    turn.parse().ok()
}

/// The answer to one request.
#[derive(Debug, Clone, Copy)]
pub(super) struct Answer<'a> {
    pub(super) api: Api,
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
        let body = match self.api {
            Api::Chat | Api::Responses => json!({"error": error}),
            Api::Messages => json!({"type": "error", "error": error}),
        };
        let text = match self.api {
            _ if !self.envelope.streams() => body.to_string(),
            Api::Chat => format!("data: {body}\n\ndata: [DONE]\n\n"),
            Api::Messages => format!("event: error\ndata: {body}\n\n"),
            Api::Responses => {
                let mut event = error.clone();
                set(&mut event, "type", "error");
                format!("event: error\ndata: {event}\n\n")
            }
        };
        Bytes::from(text)
    }

    /// The answer as one JSON object.
    pub(super) fn whole(&self) -> Part {
        let body = match self.api {
            Api::Chat => self.chat_whole().to_string(),
            Api::Messages => messages::whole(self),
            Api::Responses => responses::whole(self).to_string(),
        };
        Part {
            bytes: Bytes::from(body),
            usage: self.turn.usage,
        }
    }

    fn chat_whole(&self) -> Value {
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
        body
    }

    fn events(&self) -> Vec<Part> {
        match self.api {
            Api::Chat => self.chat_events(),
            Api::Messages => messages::events(self),
            Api::Responses => responses::events(self),
        }
    }

    fn chat_events(&self) -> Vec<Part> {
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

    /// An event with a name, as the APIs that are not Chat Completions have them.
    pub(super) fn named(&self, data: &Value, usage: Option<Usage>) -> Part {
        let name = data.get("type").and_then(Value::as_str).unwrap_or_default();
        let mut part = self.event(&data.to_string(), usage);
        part.bytes = Bytes::from([format!("event: {name}\n").as_bytes(), &part.bytes].concat());
        part
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
        if let Some(id) = self.call_id(index, call) {
            set(&mut value, "id", id);
        }
        value
    }

    /// The id of a call, where it has one.
    pub(super) fn call_id(&self, index: usize, call: &ToolCall) -> Option<String> {
        match &call.id {
            CallId::Numbered => Some(format!("call_{}_{index}", self.turn_index)),
            CallId::Given(id) => Some(id.clone()),
            CallId::Missing => None,
        }
    }

    pub(super) fn finish_reason(&self) -> &str {
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

pub(super) fn set(object: &mut Value, field: &str, value: impl Serialize) {
    if let Some(fields) = object.as_object_mut() {
        fields.insert(field.to_owned(), json!(value));
    }
}

/// `text` in pieces of so many characters, or by word with the space after it.
pub(super) fn pieces(text: &str, chars: Option<usize>) -> Vec<String> {
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
