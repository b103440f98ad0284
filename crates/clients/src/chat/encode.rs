//! Encoding of Chat Completions requests.
//!
//! Every request contains the whole conversation. A message is therefore encoded once and its bytes are
//! [stored with it](cantle_core::message::EncodedForms); a body is their concatenation. Messages come
//! last, so that a request starts with the bytes of the previous one while the history only grows.

use std::borrow::Cow;
use std::collections::BTreeMap;

use bytes::Bytes;
use cantle_core::llm::{ChatRequest, LlmError, ToolSpecs};
use cantle_core::message::{
    AssistantBlock, AssistantMessage, EncodingKey, Message, SharedMessage, ToolCall,
};
use serde::{Serialize, Serializer};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::content::{ChatContentPart, add_text, media_part, parts, thinking_part};
use super::server::{Server, ServerQuirks, SignatureField};
use crate::http::{
    call_arguments, call_name, encode_list, marked_inputs, supports_strict_mode, unsupported_block,
};

/// End of a message with a cache mark on its last part.
const MARKED_END: &[u8] = b",\"cache_control\":{\"type\":\"ephemeral\"}}]}";
/// End of a message without a cache mark.
const UNMARKED_END: &[u8] = b"}]}";

/// Signature of calls that another model made, which Gemini does not verify.
/// <https://ai.google.dev/gemini-api/docs/thought-signatures#faqs>
const FOREIGN_SIGNATURE: &str = "skip_thought_signature_validator";

/// Encoder of requests for a server type.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChatEncoder {
    server: Server,
    quirks: ServerQuirks,
    cache_marks: bool,
    strict_tools: bool,
    omits_reasoning: bool,
}

impl ChatEncoder {
    pub(super) fn new(server: Server, model: &str, strict_tools: bool) -> Self {
        let mut quirks = server.quirks();
        let model = model.to_ascii_lowercase();
        // Gemini requires signatures since version 3; Vertex AI also has models of others.
        let mut older = ["gemini-1", "gemini-2"].into_iter();
        let is_older = older.any(|name| model.contains(name));
        quirks.signature_required &= model.contains("gemini") && !is_older;
        Self {
            server,
            quirks,
            cache_marks: quirks.cache_marks
                && (model.contains("claude") || model.contains("anthropic")),
            strict_tools: strict_tools && quirks.strict_tools,
            omits_reasoning: false,
        }
    }

    /// Returns an encoder that leaves out the reasoning of earlier turns.
    pub(super) fn without_reasoning(self) -> Self {
        Self {
            omits_reasoning: true,
            ..self
        }
    }

    /// Returns the key of encoded messages, with all that their encoding depends on.
    fn key(&self) -> EncodingKey {
        let dialect = match self.omits_reasoning {
            true => "chat without reasoning",
            false => "chat",
        };
        let required = u64::from(self.quirks.signature_required);
        EncodingKey::new(dialect, self.server as u64 * 2 + required)
    }

    /// Encodes a request. `params` is a JSON object without its closing brace; the output limit comes
    /// last because it changes.
    pub(super) fn body(
        &self,
        params: &[u8],
        request: &ChatRequest,
        limit: Option<u64>,
    ) -> Result<Vec<u8>, LlmError> {
        let mut body = vec![params];
        if !request.tools.is_empty() {
            let (forms, strict) = (request.tools.forms(), self.strict_tools);
            let key = EncodingKey::new("chat tools", strict.into());
            let tools = forms.get_or_try_encode(key, || encode_tools(&request.tools, strict))?;
            body.extend([b",\"tools\":[", &tools[..], b"],\"tool_choice\":\"auto\""]);
        }
        body.push(b",\"messages\":[");
        let marked = self.marked_messages(&request.messages);
        for (index, message) in request.messages.iter().enumerate() {
            if index > 0 {
                body.push(b",");
            }
            let forms = message.forms();
            let bytes = forms.get_or_try_encode(self.key(), || self.encode_message(message))?;
            match bytes.strip_suffix(UNMARKED_END) {
                Some(start) if marked.contains(&Some(index)) => body.extend([start, MARKED_END]),
                _ => body.push(bytes),
            }
        }
        let limit = limit.map(|limit| format!("],\"{}\":{limit}}}", self.quirks.token_limit));
        body.push(limit.as_deref().map_or(&b"]}"[..], str::as_bytes));
        Ok(body.concat())
    }

    /// Returns the indices of messages with a cache mark: the system prompt, the last message, and the
    /// last message of the previous request.
    fn marked_messages(&self, messages: &[SharedMessage]) -> [Option<usize>; 3] {
        if !self.cache_marks {
            return [None; 3];
        }
        let is_input = |message: &SharedMessage| !matches!(&**message, Message::Assistant(_));
        let [last, previous] = marked_inputs(messages, is_input);
        let is_not_system = |message: &SharedMessage| !matches!(&**message, Message::System(_));
        let system = messages
            .iter()
            .position(is_not_system)
            .unwrap_or(messages.len());
        [system.checked_sub(1), previous, last]
    }

    fn encode_message(&self, message: &SharedMessage) -> Result<Bytes, LlmError> {
        let quirks = &self.quirks;
        let encoded = match &**message {
            Message::System(message) => {
                RequestMessage::new("system", parts(&message.content, quirks)?)
            }
            Message::User(message) => RequestMessage::new("user", parts(&message.content, quirks)?),
            Message::Assistant(message) => self.assistant_message(message)?,
            Message::Tool(message) => {
                let name = message.name.as_deref().filter(|_| quirks.result_names);
                RequestMessage {
                    tool_call_id: Some(call_id(&message.tool_call_id, quirks)),
                    name: name.map(call_name),
                    ..RequestMessage::new("tool", parts(&message.content, quirks)?)
                }
            }
        };
        encode_list([encoded])
    }

    fn assistant_message<'a>(
        &self,
        message: &'a AssistantMessage,
    ) -> Result<RequestMessage<'a>, LlmError> {
        let quirks = &self.quirks;
        let mut encoded = RequestMessage::new("assistant", Vec::new());
        let mut reasoning = String::new();
        for block in &message.blocks {
            if self.omits_reasoning && is_reasoning(block) {
                continue;
            }
            let unsupported = || unsupported_block("Chat Completions", block, &message.id);
            match block {
                AssistantBlock::Text {
                    text,
                    signature: None,
                } => add_text(&mut encoded.content, text),
                AssistantBlock::Reasoning { content } => reasoning.push_str(content),
                AssistantBlock::SignedReasoning { signature, content }
                    if quirks.thinking_blocks =>
                {
                    reasoning.push_str(content);
                    encoded.thinking_blocks.push(RequestThinking::Thinking {
                        signature,
                        thinking: content,
                    });
                }
                AssistantBlock::RedactedReasoning { data } if quirks.thinking_blocks => {
                    let redacted = RequestThinking::RedactedThinking { data };
                    encoded.thinking_blocks.push(redacted);
                }
                AssistantBlock::Opaque { data } if quirks.reasoning_details => {
                    encoded.reasoning_details =
                        Some(reasoning_details(data).ok_or_else(unsupported)?);
                }
                AssistantBlock::ToolCall(call) => {
                    if call.signature.is_some() && quirks.signature == SignatureField::None {
                        return Err(unsupported());
                    }
                    encoded.tool_calls.push(RequestToolCall::new(call, quirks));
                }
                AssistantBlock::Media(media) => encoded.content.push(media_part(media, quirks)?),
                _ => return Err(unsupported()),
            }
        }
        // Gemini itself signs only the first of parallel calls.
        if quirks.signature_required
            && let Some(call) = encoded.tool_calls.first_mut()
            && call.extra_content.is_none()
        {
            call.extra_content = Some(google_signature(FOREIGN_SIGNATURE));
        }
        // `reasoning_details` contain the same text.
        if (quirks.reasoning_required || !reasoning.is_empty())
            && encoded.reasoning_details.is_none()
        {
            // DeepSeek V4 refuses an empty text: https://github.com/NousResearch/hermes-agent/pull/18263
            let sent = match &*reasoning {
                "" => " ",
                reasoning => reasoning,
            };
            let fields = quirks.reasoning.iter();
            encoded.reasoning = fields.map(|field| (*field, sent.to_owned())).collect();
        }
        if quirks.thinking_parts && !reasoning.is_empty() {
            encoded.content.insert(0, thinking_part(&reasoning));
        }
        Ok(encoded)
    }
}

/// Returns whether a block is reasoning in one of the formats of this dialect.
fn is_reasoning(block: &AssistantBlock) -> bool {
    matches!(
        block,
        AssistantBlock::Reasoning { .. }
            | AssistantBlock::SignedReasoning { .. }
            | AssistantBlock::RedactedReasoning { .. }
            | AssistantBlock::Opaque { .. }
    )
}

/// Returns the `reasoning_details` of an opaque block from OpenRouter.
fn reasoning_details(data: &str) -> Option<&RawValue> {
    #[derive(serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct OpaqueDetails<'a> {
        #[serde(borrow)]
        reasoning_details: &'a RawValue,
    }
    let details: OpaqueDetails<'_> = serde_json::from_str(data).ok()?;
    Some(details.reasoning_details)
}

fn encode_tools(specs: &ToolSpecs, strict: bool) -> Result<Bytes, LlmError> {
    #[derive(Serialize)]
    struct ChatTool<'a> {
        r#type: &'static str,
        function: ChatToolFunction<'a>,
    }
    #[derive(Serialize)]
    struct ChatToolFunction<'a> {
        name: &'a str,
        description: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        parameters: Option<&'a Value>,
        #[serde(skip_serializing_if = "Option::is_none")]
        strict: Option<bool>,
    }
    encode_list(specs.iter().map(|spec| {
        let parameters = spec.has_parameters().then(|| spec.parameters());
        let is_strict = strict && parameters.is_some_and(supports_strict_mode);
        ChatTool {
            r#type: "function",
            function: ChatToolFunction {
                name: spec.name(),
                description: spec.description(),
                parameters,
                strict: is_strict.then_some(true),
            },
        }
    }))
}

#[derive(Default, Serialize)]
struct RequestMessage<'a> {
    role: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_call_id: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<Cow<'a, str>>,
    // The last field of input messages, as `UNMARKED_END` assumes.
    #[serde(serialize_with = "parts_or_empty_text")]
    content: Vec<ChatContentPart<'a>>,
    /// Fields with server-specific names.
    #[serde(flatten)]
    reasoning: BTreeMap<&'static str, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_details: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    thinking_blocks: Vec<RequestThinking<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<RequestToolCall<'a>>,
}

impl<'a> RequestMessage<'a> {
    fn new(role: &'static str, content: Vec<ChatContentPart<'a>>) -> Self {
        Self {
            role,
            content,
            ..Self::default()
        }
    }
}

fn parts_or_empty_text<S: Serializer>(
    parts: &[ChatContentPart<'_>],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    match parts {
        [] => serializer.serialize_str(""),
        parts => parts.serialize(serializer),
    }
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum RequestThinking<'a> {
    Thinking {
        signature: &'a str,
        thinking: &'a str,
    },
    RedactedThinking {
        data: &'a str,
    },
}

#[derive(Serialize)]
struct RequestToolCall<'a> {
    id: Cow<'a, str>,
    r#type: &'static str,
    function: RequestFunction<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    provider_specific_fields: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    extra_content: Option<Value>,
}

#[derive(Serialize)]
struct RequestFunction<'a> {
    name: Cow<'a, str>,
    arguments: Cow<'a, str>,
}

impl<'a> RequestToolCall<'a> {
    fn new(call: &'a ToolCall, quirks: &ServerQuirks) -> Self {
        let signature = call.signature.as_deref();
        let (litellm, google) = match quirks.signature {
            SignatureField::None => (None, None),
            SignatureField::LiteLlm => (signature.map(thought_signature), None),
            SignatureField::Google => (None, signature.map(google_signature)),
        };
        // Generated ids are sent too: the provider only compares them with those of the results.
        Self {
            id: call_id(&call.id, quirks),
            r#type: "function",
            function: RequestFunction {
                name: call_name(&call.name),
                arguments: call_arguments(&call.arguments),
            },
            provider_specific_fields: litellm,
            extra_content: google,
        }
    }
}

fn thought_signature(signature: &str) -> Value {
    json!({ "thought_signature": signature })
}

fn google_signature(signature: &str) -> Value {
    json!({ "google": thought_signature(signature) })
}

/// Returns the id of a call as the server accepts it. It only links a call to its result.
fn call_id<'a>(id: &'a str, quirks: &ServerQuirks) -> Cow<'a, str> {
    let is_short = id.len() == 9 && id.bytes().all(|byte| byte.is_ascii_alphanumeric());
    if is_short || !quirks.short_call_ids {
        return Cow::Borrowed(id);
    }
    // FNV-1a, which always gives the same id.
    let mix = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    let hash = id.bytes().fold(0xcbf2_9ce4_8422_2325, mix);
    Cow::Owned(format!("{:09x}", hash >> 28))
}

#[cfg(test)]
mod tests;
