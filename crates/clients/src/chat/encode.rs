//! Requests as bytes.
//!
//! A conversation is sent again and again, a little longer each time. So a message is encoded once
//! and its bytes stay [with it](cantle_core::message::EncodedForms); a body is those bytes, put one
//! behind the other. The messages come last in it: as long as the history only grows, every request
//! begins with all of the one before, byte for byte.

use bytes::Bytes;
use cantle_core::llm::{ChatRequest, LlmError, ToolSpecs};
use cantle_core::message::{
    AssistantBlock, AssistantMessage, EncodingKey, Message, SharedMessage, ToolCall,
};
use serde::ser::SerializeMap as _;
use serde::{Serialize, Serializer};
use serde_json::Value;
use serde_json::value::RawValue;

use super::content::{WirePart, add_text, media_part, parts};
use super::server::{Habits, Server, Signature};
use crate::http::{OneBehindTheOther, can_be_strict, not_for_here, unencodable};

const BEFORE_MESSAGES: &[u8] = b",\"messages\":[";
const END: &[u8] = b"]}";

/// Goes into a message in the place of what closes its last part, its content and itself.
const MARK: &[u8] = b",\"cache_control\":{\"type\":\"ephemeral\"}}]}";
const UNMARKED: &[u8] = b"}]}";

/// What decides how requests are written.
#[derive(Debug)]
pub(super) struct Encoding {
    key: EncodingKey,
    habits: Habits,
    /// Whether cache marks are set.
    marks: bool,
    /// Whether tools are held to strictly, where their schemas allow it.
    strict: bool,
}

impl Encoding {
    /// For a server, and a model behind it.
    pub(super) fn new(server: Server, model: &str) -> Self {
        let habits = server.habits();
        let model = model.to_ascii_lowercase();
        Self {
            // How a message is encoded depends on the server, and on nothing else.
            key: EncodingKey::new("chat", server as u64),
            strict: false,
            habits,
            marks: habits.cache_marks && (model.contains("claude") || model.contains("anthropic")),
        }
    }

    /// The same with tools held to strictly, where the server can do that.
    pub(super) fn strict_tools(mut self, strict: bool) -> Self {
        self.strict = strict && self.habits.strict_tools;
        self
    }

    /// The body of a request. `head` is an object without its closing brace: the model and the
    /// options. `limit` is the rest of those, put last because it changes.
    ///
    /// # Errors
    /// [`Unsupported`](cantle_core::llm::LlmErrorKind::Unsupported) where a message holds what this
    /// dialect can't carry.
    pub(super) fn body(
        &self,
        head: &[u8],
        request: &ChatRequest,
        limit: Option<u64>,
    ) -> Result<Vec<u8>, LlmError> {
        let tools: &[u8] = if request.tools.is_empty() {
            &[]
        } else {
            let forms = request.tools.forms();
            let key = EncodingKey::new("chat tools", self.strict.into());
            forms.get_or_try_encode(key, || tools(&request.tools, self.strict))?
        };
        let mut body = OneBehindTheOther::default();
        body.push(head);
        body.push(tools);
        body.push(BEFORE_MESSAGES);
        let marked = self.marked(&request.messages);
        for (index, message) in request.messages.iter().enumerate() {
            if index > 0 {
                body.push(b",");
            }
            let forms = message.forms();
            let bytes = forms.get_or_try_encode(self.key, || self.message(message))?;
            match bytes.strip_suffix(UNMARKED) {
                Some(unclosed) if marked.contains(&Some(index)) => {
                    body.push(unclosed);
                    body.push(MARK);
                }
                _ => body.push(bytes),
            }
        }
        let limit = limit.map(|limit| format!("],\"{}\":{limit}}}", self.habits.token_limit));
        body.push(limit.as_deref().map_or(END, str::as_bytes));
        Ok(body.join())
    }

    /// Behind which messages a cache mark stands: the system prompt, the last one, and that which
    /// was the last one when the latest turn was asked for.
    fn marked(&self, messages: &[SharedMessage]) -> [Option<usize>; 3] {
        if !self.marks {
            return [None; 3];
        }
        let ours = |message: &SharedMessage| !matches!(&**message, Message::Assistant(_));
        let latest_turn = messages.iter().rposition(|message| !ours(message));
        let before = latest_turn.and_then(|turn| messages.get(..turn)?.iter().rposition(ours));
        let leading = |message: &SharedMessage| !matches!(&**message, Message::System(_));
        let system = messages.iter().position(leading).unwrap_or(messages.len());
        [
            system.checked_sub(1),
            before,
            messages.iter().rposition(ours),
        ]
    }

    fn message(&self, message: &SharedMessage) -> Result<Bytes, LlmError> {
        let habits = &self.habits;
        let wire = match &**message {
            Message::System(message) => {
                WireMessage::new("system", parts(&message.content, habits)?)
            }
            Message::User(message) => WireMessage::new("user", parts(&message.content, habits)?),
            Message::Assistant(message) => self.turn(message)?,
            Message::Tool(message) => WireMessage {
                tool_call_id: Some(&message.tool_call_id),
                name: message.name.as_deref().filter(|_| habits.result_names),
                ..WireMessage::new("tool", parts(&message.content, habits)?)
            },
        };
        let bytes = serde_json::to_vec(&wire).map_err(unencodable)?;
        // It lives as long as the message, so without room to grow.
        Ok(bytes.into_boxed_slice().into())
    }

    fn turn<'a>(&self, message: &'a AssistantMessage) -> Result<WireMessage<'a>, LlmError> {
        let habits = &self.habits;
        let mut wire = WireMessage::new("assistant", Vec::new());
        let mut content = Vec::new();
        let mut reasoning = String::new();
        for block in &message.blocks {
            let refused = || not_for_here("Chat Completions", block, &message.id);
            match block {
                AssistantBlock::Text {
                    text,
                    signature: None,
                } => add_text(&mut content, text),
                AssistantBlock::Reasoning { content } => reasoning.push_str(content),
                AssistantBlock::SignedReasoning { signature, content }
                    if habits.thinking_blocks =>
                {
                    reasoning.push_str(content);
                    wire.thinking_blocks.push(WireThinking::Thinking {
                        signature,
                        thinking: content,
                    });
                }
                AssistantBlock::RedactedReasoning { data } if habits.thinking_blocks => {
                    let redacted = WireThinking::RedactedThinking { data };
                    wire.thinking_blocks.push(redacted);
                }
                AssistantBlock::Opaque { data } if habits.reasoning_details => {
                    wire.reasoning_details = Some(details(data).ok_or_else(refused)?);
                }
                AssistantBlock::ToolCall(call) => {
                    if call.signature.is_some() && habits.signature == Signature::None {
                        return Err(refused());
                    }
                    wire.tool_calls.push(WireCall::new(call, habits.signature));
                }
                AssistantBlock::Media(media) => content.push(media_part(media, habits)?),
                _ => return Err(refused()),
            }
        }
        if !content.is_empty() {
            wire.content = WireContent::Parts(content);
        }
        let wanted = habits.reasoning_with_calls && !wire.tool_calls.is_empty();
        // Beside the details it would be the same once more.
        if (!reasoning.is_empty() || wanted) && wire.reasoning_details.is_none() {
            let fields = habits.reasoning.iter();
            wire.reasoning = Fields(fields.map(|field| (*field, reasoning.clone())).collect());
        }
        Ok(wire)
    }
}

/// The details in a block that a turn from OpenRouter has them in.
fn details(data: &str) -> Option<&RawValue> {
    #[derive(serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Details<'a> {
        #[serde(borrow)]
        reasoning_details: &'a RawValue,
    }
    let details: Details<'_> = serde_json::from_str(data).ok()?;
    Some(details.reasoning_details)
}

fn tools(specs: &ToolSpecs, strict: bool) -> Result<Bytes, LlmError> {
    #[derive(Serialize)]
    struct Tool<'a> {
        r#type: &'static str,
        function: Function<'a>,
    }
    #[derive(Serialize)]
    struct Function<'a> {
        name: &'a str,
        description: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        parameters: Option<&'a Value>,
        #[serde(skip_serializing_if = "Option::is_none")]
        strict: Option<bool>,
    }
    let tools: Vec<_> = specs
        .iter()
        .map(|spec| Tool {
            r#type: "function",
            function: Function {
                name: spec.name(),
                description: spec.description(),
                parameters: spec.has_parameters().then(|| spec.parameters()),
                strict: (strict && spec.has_parameters() && can_be_strict(spec.parameters()))
                    .then_some(true),
            },
        })
        .collect();
    let mut field = b",\"tools\":".to_vec();
    serde_json::to_writer(&mut field, &tools).map_err(unencodable)?;
    field.extend_from_slice(b",\"tool_choice\":\"auto\"");
    Ok(field.into())
}

#[derive(Serialize)]
struct WireMessage<'a> {
    role: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_call_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    // The last field of all but turns, so that a cache mark finds its place.
    content: WireContent<'a>,
    #[serde(flatten)]
    reasoning: Fields,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_details: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    thinking_blocks: Vec<WireThinking<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<WireCall<'a>>,
}

/// Fields whose names a server decides.
struct Fields(Vec<(&'static str, String)>);

impl Serialize for Fields {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (name, value) in &self.0 {
            map.serialize_entry(name, value)?;
        }
        map.end()
    }
}

impl<'a> WireMessage<'a> {
    fn new(role: &'static str, content: Vec<WirePart<'a>>) -> Self {
        Self {
            role,
            content: if content.is_empty() {
                WireContent::Empty("")
            } else {
                WireContent::Parts(content)
            },
            reasoning: Fields(Vec::new()),
            reasoning_details: None,
            thinking_blocks: Vec::new(),
            tool_calls: Vec::new(),
            tool_call_id: None,
            name: None,
        }
    }
}

#[derive(Serialize)]
#[serde(untagged)]
enum WireContent<'a> {
    Empty(&'static str),
    Parts(Vec<WirePart<'a>>),
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum WireThinking<'a> {
    Thinking {
        signature: &'a str,
        thinking: &'a str,
    },
    RedactedThinking {
        data: &'a str,
    },
}

#[derive(Serialize)]
struct WireCall<'a> {
    id: &'a str,
    r#type: &'static str,
    function: WireFunction<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    provider_specific_fields: Option<WireSigned<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    extra_content: Option<WireExtra<'a>>,
}

#[derive(Serialize)]
struct WireFunction<'a> {
    name: &'a str,
    arguments: &'a str,
}

#[derive(Serialize)]
struct WireSigned<'a> {
    thought_signature: &'a str,
}

#[derive(Serialize)]
struct WireExtra<'a> {
    google: WireSigned<'a>,
}

impl<'a> WireCall<'a> {
    fn new(call: &'a ToolCall, place: Signature) -> Self {
        let signed = |wanted| {
            let signature = call.signature.as_deref().filter(|_| place == wanted);
            signature.map(|thought_signature| WireSigned { thought_signature })
        };
        // An id that we made goes out like any other: here the provider only compares it with that
        // of the result, which is the same.
        Self {
            id: &call.id,
            r#type: "function",
            function: WireFunction {
                name: &call.name,
                arguments: &call.arguments,
            },
            provider_specific_fields: signed(Signature::LiteLlm),
            extra_content: signed(Signature::Google).map(|google| WireExtra { google }),
        }
    }
}

#[cfg(test)]
mod tests;
