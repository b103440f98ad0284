//! Messages: the entries of a conversation, and the JSON they are kept in.
//!
//! A message is plain data. Once it is part of a conversation it never changes, so it is shared as
//! a [`SharedMessage`], which also carries the forms that clients have encoded it into. The JSON is
//! that of Stirrup 0.2 with additions only; [`history`] reads its older shape too.

mod block;
mod forms;
pub mod history;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

pub use self::block::{AssistantBlock, ToolCall};
pub use self::forms::{EncodedForms, EncodingKey, SharedMessage};
use crate::content::Content;
use crate::ids::fresh_id;
use crate::usage::TokenUsage;

/// One entry of a conversation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "role", rename_all = "lowercase")]
#[expect(
    clippy::exhaustive_enums,
    reason = "every client must place every role"
)]
pub enum Message {
    /// Instructions from whoever runs the agent.
    System(SystemMessage),
    /// What the user, or the loop in the user's place, says to the model.
    User(UserMessage),
    /// One turn of the model.
    Assistant(AssistantMessage),
    /// The result of one tool call.
    Tool(ToolMessage),
}

impl Message {
    /// A system message.
    pub fn system(content: impl Into<Content>) -> Self {
        Self::System(SystemMessage::new(content))
    }

    /// A plain user message.
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

/// Instructions that stand before the conversation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct SystemMessage {
    /// The instructions.
    pub content: Content,
}

impl SystemMessage {
    /// Instructions with this content.
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
    /// Who really wrote it, and why.
    #[serde(flatten)]
    pub kind: UserKind,
    /// What it says.
    pub content: Content,
}

impl UserMessage {
    /// A message of `kind`.
    pub fn new(kind: UserKind, content: impl Into<Content>) -> Self {
        Self {
            kind,
            content: content.into(),
        }
    }
}

/// Why there is a message in the user's role.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[non_exhaustive]
pub enum UserKind {
    /// The user said it, or the loop in the user's place.
    User,
    /// It stands for a part of the conversation that was summarized away.
    Summary {
        /// The ids of the assistant messages it stands for, chained over several summaries.
        #[serde(default)]
        replaced_ids: Vec<String>,
    },
    /// The loop warns that turns are running out.
    TurnWarning,
}

/// One turn of the model: its blocks in the order it produced them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct AssistantMessage {
    /// This message's own identity.
    #[serde(default = "fresh_id")]
    pub id: String,
    /// The provider's name for the response, where it can continue from it.
    #[serde(default)]
    pub provider_response_id: Option<String>,
    /// Text, reasoning, tool calls and media, in order.
    #[serde(default)]
    pub blocks: Vec<AssistantBlock>,
    /// Tokens of the call that produced it; all zero where the provider did not say.
    #[serde(default)]
    pub token_usage: TokenUsage,
    /// What came with the answer besides (see [`TurnEnd::extra`](crate::llm::TurnEnd::extra)), and the
    /// integrator's own data; never sent to a provider.
    #[serde(default)]
    pub metadata: Map<String, Value>,
    /// When the request was sent, in seconds on the writer's clock (ours: since the Unix epoch).
    #[serde(default)]
    pub request_start_time: Option<f64>,
    /// When the answer was complete, on the same clock.
    #[serde(default)]
    pub request_end_time: Option<f64>,
}

impl AssistantMessage {
    /// A turn with these blocks and a fresh id.
    #[must_use]
    pub fn new(blocks: Vec<AssistantBlock>) -> Self {
        Self {
            id: fresh_id(),
            provider_response_id: None,
            blocks,
            token_usage: TokenUsage::default(),
            metadata: Map::new(),
            request_start_time: None,
            request_end_time: None,
        }
    }

    /// The tool calls among the blocks, in order.
    pub fn tool_calls(&self) -> impl Iterator<Item = &ToolCall> {
        self.blocks.iter().filter_map(|block| match block {
            AssistantBlock::ToolCall(call) => Some(call),
            _ => None,
        })
    }

    /// All answer text, joined without a separator.
    #[must_use]
    pub fn text(&self) -> String {
        self.blocks
            .iter()
            .filter_map(|block| match block {
                AssistantBlock::Text { text, .. } => Some(text.as_str()),
                _ => None,
            })
            .collect()
    }

    /// Output tokens per second from request to end; `None` where either is unknown or zero.
    #[must_use]
    pub fn output_tokens_per_second(&self) -> Option<f64> {
        let duration = self.request_end_time? - self.request_start_time?;
        let output = self.token_usage.output_total();
        // Token counts are far below 2^52, where the conversion is exact.
        (duration > 0.0 && output > 0).then(|| output as f64 / duration)
    }
}

/// The result of one tool call, as the model sees it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ToolMessage {
    /// What the tool said.
    pub content: Content,
    /// The call this answers.
    pub tool_call_id: String,
    /// The tool's name.
    #[serde(default)]
    pub name: Option<String>,
    /// Whether the arguments were what the tool takes.
    #[serde(default = "yes")]
    pub args_was_valid: bool,
    /// Whether the tool did what it was asked to.
    #[serde(default)]
    pub success: bool,
    /// When the tool started, in seconds on the writer's clock (ours: since the Unix epoch).
    #[serde(default)]
    pub tool_start_time: Option<f64>,
    /// When it ended, on the same clock.
    #[serde(default)]
    pub tool_end_time: Option<f64>,
}

fn yes() -> bool {
    true
}

impl ToolMessage {
    /// The answer to `call`, unsuccessful until said otherwise.
    pub fn new(call: &ToolCall, content: impl Into<Content>) -> Self {
        Self {
            content: content.into(),
            tool_call_id: call.id.clone(),
            name: Some(call.name.clone()),
            args_was_valid: true,
            success: false,
            tool_start_time: None,
            tool_end_time: None,
        }
    }
}
