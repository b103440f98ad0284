//! The blocks of a model's turn.

use serde::{Deserialize, Serialize};

use super::yes;
use crate::content::{Media, MediaKind};
use crate::ids::unique_id;

/// One block of a model's turn. A client that can't encode a block rejects the request instead of
/// dropping the block.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[non_exhaustive]
pub enum AssistantBlock {
    /// Answer text.
    Text {
        /// The text.
        text: String,
        /// Opaque provider state that belongs to this block.
        signature: Option<String>,
    },
    /// Plain reasoning, without provider state.
    Reasoning {
        /// The reasoning.
        content: String,
    },
    /// Reasoning with a signature, which must be sent back unchanged.
    SignedReasoning {
        /// The provider's signature.
        signature: String,
        /// The reasoning; may be empty.
        #[serde(default)]
        content: String,
    },
    /// Reasoning withheld by the provider; `data` must be sent back unchanged.
    RedactedReasoning {
        /// The provider's opaque payload.
        data: String,
    },
    /// Reasoning stored by the provider under an id.
    ReasoningRef {
        /// The provider's id.
        id: String,
        /// The reasoning, if it was disclosed.
        content: Option<String>,
        /// Summaries of the reasoning, if any.
        #[serde(default)]
        summary: Vec<String>,
    },
    /// Reasoning in an encrypted payload.
    EncryptedReasoning {
        /// The provider's id.
        id: String,
        /// The payload.
        encrypted_content: String,
        /// The reasoning, if it was disclosed.
        content: Option<String>,
        /// Summaries of the reasoning, if any.
        #[serde(default)]
        summary: Vec<String>,
    },
    /// A provider-specific block as raw JSON, sent back unchanged.
    Opaque {
        /// The raw JSON.
        data: String,
    },
    /// A request to run a tool.
    ToolCall(ToolCall),
    /// An image, video or audio clip from the model.
    #[serde(untagged)]
    Media(Media),
}

impl AssistantBlock {
    /// Creates a text block without a signature.
    pub fn text(text: impl Into<String>) -> Self {
        Self::Text {
            text: text.into(),
            signature: None,
        }
    }

    /// Returns the block's name in the history's JSON, e.g. `signed_reasoning`.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Text { .. } => "text",
            Self::Reasoning { .. } => "reasoning",
            Self::SignedReasoning { .. } => "signed_reasoning",
            Self::RedactedReasoning { .. } => "redacted_reasoning",
            Self::ReasoningRef { .. } => "reasoning_ref",
            Self::EncryptedReasoning { .. } => "encrypted_reasoning",
            Self::Opaque { .. } => "opaque",
            Self::ToolCall(_) => "tool_call",
            Self::Media(media) => match media.kind() {
                MediaKind::Image => "image_content_block",
                MediaKind::Video => "video_content_block",
                MediaKind::Audio => "audio_content_block",
            },
        }
    }
}

/// A model's request to run a tool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "ToolCallJson")]
#[non_exhaustive]
pub struct ToolCall {
    /// The call's id, which its result refers to.
    #[serde(rename = "tool_call_id")]
    pub id: String,
    /// Whether the provider assigned the id. Providers that validate ids don't get generated ones.
    #[serde(rename = "has_provider_tool_call_id")]
    pub has_provider_id: bool,
    /// The tool's name.
    pub name: String,
    /// The arguments as the model wrote them, possibly invalid JSON.
    pub arguments: String,
    /// Opaque state of the provider that belongs to exactly this call.
    pub signature: Option<String>,
}

impl ToolCall {
    /// Creates a call from a provider's response. Without an id, or with an empty one, it gets a new one.
    pub fn new(
        provider_id: Option<String>,
        name: impl Into<String>,
        arguments: impl Into<String>,
    ) -> Self {
        let provider_id = provider_id.filter(|id| !id.is_empty());
        Self {
            has_provider_id: provider_id.is_some(),
            id: provider_id.unwrap_or_else(unique_id),
            name: name.into(),
            arguments: arguments.into(),
            signature: None,
        }
    }
}

/// [`ToolCall`] as it is read: without an id, a call gets a new one.
#[derive(Deserialize)]
struct ToolCallJson {
    signature: Option<String>,
    name: String,
    arguments: String,
    tool_call_id: Option<String>,
    #[serde(default = "yes")]
    has_provider_tool_call_id: bool,
}

impl From<ToolCallJson> for ToolCall {
    fn from(json: ToolCallJson) -> Self {
        let mut call = Self::new(json.tool_call_id, json.name, json.arguments);
        call.has_provider_id &= json.has_provider_tool_call_id;
        call.signature = json.signature;
        call
    }
}
