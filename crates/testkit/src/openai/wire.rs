//! Wire format shared by all dialects: the request envelope and the answer.

use std::borrow::Cow;
use std::hash::{DefaultHasher, Hash, Hasher};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::script::{CallId, Style, ToolCall, Turn, Usage};

/// Constant timestamp of all responses, because tests compare whole responses.
pub(super) const CREATED: u64 = 1_700_000_000;

pub(super) const ARGUMENT_CHARS: usize = 8;

/// Dialect of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Api {
    Chat,
    Messages,
    Responses,
}

impl Api {
    /// Returns the API at a path without the version prefix.
    pub(super) fn from_path(path: &str) -> Option<Self> {
        Some(match path {
            "/chat/completions" => Self::Chat,
            "/messages" => Self::Messages,
            "/responses" => Self::Responses,
            _ => return None,
        })
    }
}

/// Fields of a request body that the server reads.
///
/// Other fields are skipped for speed: benches send 300 KB per turn and include the server's time.
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

/// Message, or item of Responses, which has a type and may have no role.
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
    fn is_assistant(&self) -> bool {
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
    /// Returns the number of the model's turns in the request and the response it continues. Each
    /// assistant message is a turn; adjacent items of Responses are one.
    pub(super) fn turn(&self, api: Api) -> usize {
        let mut turns = 0;
        let mut previous = false;
        for message in &self.messages {
            let assistant = message.is_assistant();
            turns += usize::from(assistant && !(previous && api == Api::Responses));
            previous = assistant;
        }
        let before = self
            .previous_response_id
            .as_deref()
            .and_then(turn_of_response);
        turns + before.map_or(0, |turn| turn + 1)
    }

    /// Returns the id of the response to continue if this server can't have created it.
    pub(super) fn unknown_response(&self) -> Option<&str> {
        let id = self.previous_response_id.as_deref()?;
        turn_of_response(id).is_none().then_some(id)
    }

    /// Returns a key for the request's run: a hash of the model and the messages before the first
    /// assistant message.
    pub(super) fn run(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.model.hash(&mut hasher);
        let start = self
            .messages
            .iter()
            .take_while(|message| !message.is_assistant());
        for message in start {
            (&message.role, message.content.map(RawValue::get)).hash(&mut hasher);
        }
        hasher.finish()
    }

    pub(super) fn streams(&self) -> bool {
        self.stream == Some(true)
    }

    pub(super) fn includes_usage(&self) -> bool {
        self.stream_options
            .as_ref()
            .is_some_and(|options| options.include_usage == Some(true))
    }
}

/// Unit of a response body: an event of a stream, or a whole body.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) bytes: Bytes,
    /// Usage reported by this part.
    pub(super) usage: Option<Usage>,
}

/// Returns the id of a response, which encodes its turn.
pub(super) fn response_id(turn: usize, attempt: usize) -> String {
    format!("resp-{turn}-{attempt}")
}

fn turn_of_response(id: &str) -> Option<usize> {
    let (turn, _attempt) = id.strip_prefix("resp-")?.split_once('-')?;
    turn.parse().ok()
}

/// Answer to one request.
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
    /// Returns the event that ends a stream with an error.
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

    /// Returns a named event, used by all dialects except Chat Completions.
    pub(super) fn named(&self, data: &Value, usage: Option<Usage>) -> Part {
        let name = data.get("type").and_then(Value::as_str).unwrap_or_default();
        let mut part = self.event(&data.to_string(), usage);
        part.bytes = Bytes::from([format!("event: {name}\n").as_bytes(), &part.bytes].concat());
        part
    }

    pub(super) fn event(&self, data: &str, usage: Option<Usage>) -> Part {
        let comment = match self.style.comments {
            true => ": keep-alive\n\n",
            false => "",
        };
        Part {
            bytes: Bytes::from(format!("{comment}data: {data}\n\n")),
            usage,
        }
    }

    /// Returns the id of a call, if it has one.
    pub(super) fn call_id(&self, index: usize, call: &ToolCall) -> Option<String> {
        match &call.id {
            CallId::Numbered => Some(format!("call_{}_{index}", self.turn_index)),
            CallId::Given(id) => Some(id.clone()),
            CallId::Missing => None,
        }
    }

    pub(super) fn finish_reason(&self) -> &str {
        let default = match self.turn.calls[..] {
            [] => "stop",
            _ => "tool_calls",
        };
        self.turn.finish_reason.as_deref().unwrap_or(default)
    }
}

pub(super) fn set(object: &mut Value, field: &str, value: impl Serialize) {
    if let Some(fields) = object.as_object_mut() {
        fields.insert(field.to_owned(), json!(value));
    }
}

/// Sets a field that has a value.
pub(super) fn set_some(object: &mut Value, field: &str, value: Option<impl Serialize>) {
    if let Some(value) = value {
        set(object, field, value);
    }
}

/// Splits `text` into pieces of `chars` characters, or into words with their trailing space.
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
