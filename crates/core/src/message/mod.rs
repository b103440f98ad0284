//! Messages of a conversation and their JSON format.
//!
//! A message is plain data. In a conversation it is immutable and shared as a [`SharedMessage`], which
//! also caches the bytes that clients encode it into. The JSON format is that of Stirrup 0.2 with
//! additions; [`history`] also reads the 0.1 format.

mod block;
mod call_ids;
pub mod environment;
mod forms;
pub mod history;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

pub use self::block::{AssistantBlock, ToolCall};
pub use self::call_ids::ToolCallIds;
pub use self::forms::{EncodedForms, EncodingKey, SharedMessage};
use crate::content::Content;
use crate::ids::unique_id;
use crate::usage::TokenUsage;

/// A message of a conversation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "role", rename_all = "lowercase")]
#[expect(
    clippy::exhaustive_enums,
    reason = "every client must place every role"
)]
pub enum Message {
    /// System instructions.
    System(SystemMessage),
    /// A message from the user, or from the loop in the user's role.
    User(UserMessage),
    /// One turn of the model.
    Assistant(AssistantMessage),
    /// The result of one tool call.
    Tool(ToolMessage),
}

impl Message {
    /// Creates a system message.
    pub fn system(content: impl Into<Content>) -> Self {
        Self::System(SystemMessage::new(content))
    }

    /// Creates a user message.
    pub fn user(content: impl Into<Content>) -> Self {
        Self::User(UserMessage::new(UserKind::User, content))
    }
}

impl From<AssistantMessage> for Message {
    fn from(message: AssistantMessage) -> Self {
        Self::Assistant(message)
    }
}

impl From<ToolMessage> for Message {
    fn from(message: ToolMessage) -> Self {
        Self::Tool(message)
    }
}

/// System instructions, which precede the conversation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct SystemMessage {
    /// The instructions.
    pub content: Content,
}

impl SystemMessage {
    /// Creates a system message.
    pub fn new(content: impl Into<Content>) -> Self {
        Self {
            content: content.into(),
        }
    }
}

/// A message in the user's role.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct UserMessage {
    /// The origin of the message.
    #[serde(flatten)]
    pub kind: UserKind,
    /// The content.
    pub content: Content,
}

impl UserMessage {
    /// Creates a message.
    pub fn new(kind: UserKind, content: impl Into<Content>) -> Self {
        Self {
            kind,
            content: content.into(),
        }
    }
}

/// The origin of a message in the user's role.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[non_exhaustive]
pub enum UserKind {
    /// The user, or the loop in the user's place.
    User,
    /// A summary that replaces a part of the conversation.
    Summary {
        /// Ids of the replaced assistant messages, including those of earlier summaries.
        #[serde(default)]
        replaced_ids: Vec<String>,
    },
    /// A warning that few turns are left.
    TurnWarning,
}

/// One turn of the model: its blocks in the order it produced them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct AssistantMessage {
    /// The message's id.
    #[serde(default = "unique_id")]
    pub id: String,
    /// The provider's id of the response, if requests can refer to it.
    pub provider_response_id: Option<String>,
    /// Text, reasoning, tool calls and media, in order.
    #[serde(default)]
    pub blocks: Vec<AssistantBlock>,
    /// Usage of the model call; zero if the provider reported none.
    #[serde(default)]
    pub token_usage: TokenUsage,
    /// Additional response data (see [`TurnEnd::extra`](crate::llm::TurnEnd::extra)) and the
    /// application's own data; never sent to a provider.
    #[serde(default)]
    pub metadata: Map<String, Value>,
    /// When the request was sent, in seconds on the writer's clock (ours: since the Unix epoch).
    pub request_start_time: Option<f64>,
    /// When the answer was complete, on the same clock.
    pub request_end_time: Option<f64>,
}

impl AssistantMessage {
    /// Creates a turn with a new id.
    pub fn new(blocks: Vec<AssistantBlock>) -> Self {
        Self {
            id: unique_id(),
            provider_response_id: None,
            blocks,
            token_usage: TokenUsage::default(),
            metadata: Map::new(),
            request_start_time: None,
            request_end_time: None,
        }
    }

    /// Iterates over the tool calls, in order.
    pub fn tool_calls(&self) -> impl Iterator<Item = &ToolCall> {
        self.blocks.iter().filter_map(|block| match block {
            AssistantBlock::ToolCall(call) => Some(call),
            _ => None,
        })
    }

    /// Returns the concatenated text blocks.
    pub fn text(&self) -> String {
        self.blocks
            .iter()
            .filter_map(|block| match block {
                AssistantBlock::Text { text, .. } => Some(text.as_str()),
                _ => None,
            })
            .collect()
    }

    /// Returns output tokens per second; `None` if tokens or duration are unknown or zero.
    pub fn output_tokens_per_second(&self) -> Option<f64> {
        let duration = self.request_end_time? - self.request_start_time?;
        let output = self.token_usage.output_total();
        // Token counts are far below 2^52, where the conversion is exact.
        (duration > 0.0 && output > 0).then(|| output as f64 / duration)
    }
}

/// The result of one tool call, for the model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ToolMessage {
    /// The content.
    pub content: Content,
    /// The id of the call.
    pub tool_call_id: String,
    /// The tool's name.
    pub name: Option<String>,
    /// Whether the arguments were valid.
    #[serde(default = "yes", rename = "args_was_valid")]
    pub arguments_valid: bool,
    /// Whether the call succeeded.
    #[serde(default)]
    pub success: bool,
    /// When the tool started, in seconds on the writer's clock (ours: since the Unix epoch).
    pub tool_start_time: Option<f64>,
    /// When it ended, on the same clock.
    pub tool_end_time: Option<f64>,
}

fn yes() -> bool {
    true
}

impl ToolMessage {
    /// Creates an unsuccessful result of `call`.
    pub fn new(call: &ToolCall, content: impl Into<Content>) -> Self {
        Self {
            content: content.into(),
            tool_call_id: call.id.clone(),
            name: Some(call.name.clone()),
            arguments_valid: true,
            success: false,
            tool_start_time: None,
            tool_end_time: None,
        }
    }
}
