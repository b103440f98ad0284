//! How large a conversation is, and what keeps it small: images that leave tool results, and old
//! images that leave the conversation.

use std::ops::AddAssign;

use cantle_core::content::{Content, Media, MediaKind, Part};
use cantle_core::message::{
    AssistantBlock, AssistantMessage, Message, SharedMessage, UserKind, UserMessage,
};
use cantle_core::usage::TokenUsage;

use super::Machine;

/// Tokens that an image is taken for where nobody counted: about a million pixels, as providers
/// count them.
const IMAGE_TOKENS: u64 = 1500;

/// What stands where an old image was.
const EVICTED: &str = "[an image was shown here; it is no longer kept]";

/// Images that one request may hold, or does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct ImageBounds {
    /// How many.
    pub(crate) count: usize,
    /// How many bytes, before they are encoded.
    pub(crate) bytes: usize,
}

impl ImageBounds {
    /// Whether these are more than `bounds`.
    pub(super) fn exceed(self, bounds: Self) -> bool {
        self.count > bounds.count || self.bytes > bounds.bytes
    }
}

impl AddAssign for ImageBounds {
    fn add_assign(&mut self, other: Self) {
        self.count += other.count;
        self.bytes += other.bytes;
    }
}

impl Machine {
    /// Keeps the images of the next request within their bounds; those of the task stay.
    pub(super) fn evict_images(&mut self) {
        if self.images.exceed(self.rules.images)
            && evict_images(&mut self.messages, self.task, self.rules.images)
        {
            self.recount();
        }
    }

    /// Sizes up the conversation after something was taken out of it.
    pub(super) fn recount(&mut self) {
        let messages = self.messages.iter();
        self.context_tokens = messages.map(|it| message_tokens(it)).sum();
        self.images = ImageBounds::default();
        for message in &self.messages {
            self.images += images(message);
        }
    }
}

/// Tokens of a text where nobody counted them: four bytes each.
fn estimate_tokens(bytes: usize) -> u64 {
    (bytes as u64).div_ceil(4)
}

/// What a call probably used: the conversation as input, and this much output.
pub(crate) fn estimate_usage(messages: &[SharedMessage], output_bytes: usize) -> TokenUsage {
    TokenUsage {
        input: messages.iter().map(|message| message_tokens(message)).sum(),
        answer: estimate_tokens(output_bytes),
        ..TokenUsage::default()
    }
}

/// Tokens that a message probably has.
pub(super) fn message_tokens(message: &Message) -> u64 {
    let content = match message {
        Message::System(message) => &message.content,
        Message::User(message) => &message.content,
        Message::Tool(message) => &message.content,
        Message::Assistant(message) => return estimate_tokens(output_bytes(message)),
    };
    match content {
        Content::Text(text) => estimate_tokens(text.len()),
        Content::Parts(parts) => parts
            .iter()
            .map(|part| match part {
                Part::Text(text) => estimate_tokens(text.len()),
                Part::Media(_) => IMAGE_TOKENS,
            })
            .sum(),
    }
}

/// The bytes of a model's turn that count as its output.
pub(crate) fn output_bytes(message: &AssistantMessage) -> usize {
    let block = |block: &AssistantBlock| match block {
        AssistantBlock::Text { text, .. } => text.len(),
        AssistantBlock::Reasoning { content } | AssistantBlock::SignedReasoning { content, .. } => {
            content.len()
        }
        AssistantBlock::ToolCall(call) => call.name.len() + call.arguments.len(),
        _ => 0,
    };
    message.blocks.iter().map(block).sum()
}

/// Moves images out of a tool result into user messages, and leaves a word in their place.
pub(super) fn take_media(content: &mut Content, call_id: &str) -> Vec<UserMessage> {
    let Content::Parts(parts) = content else {
        return Vec::new();
    };
    parts
        .iter_mut()
        .filter_map(|part| {
            let is_image = matches!(part, Part::Media(media) if media.kind() == MediaKind::Image);
            if !is_image {
                return None;
            }
            let placeholder = format!("The user will show you the image for tool call {call_id}.");
            let Part::Media(media) = std::mem::replace(part, Part::Text(placeholder)) else {
                return None;
            };
            Some(image_message(media, call_id))
        })
        .collect()
}

fn image_message(media: Media, call_id: &str) -> UserMessage {
    let text = format!("Here is the image for tool call {call_id}");
    UserMessage::new(UserKind::User, vec![Part::Text(text), Part::Media(media)])
}

/// Where more images have come together than a request may hold, takes the oldest out until half of
/// that is left: in batches, since each time the provider's prompt cache is lost. Those of the message
/// at `task` stay. Returns whether anything changed.
pub(super) fn evict_images(
    messages: &mut [SharedMessage],
    task: usize,
    bounds: ImageBounds,
) -> bool {
    let mut left = ImageBounds::default();
    for message in messages.iter() {
        left += images(message);
    }
    let wanted = ImageBounds {
        count: bounds.count / 2,
        bytes: bounds.bytes / 2,
    };
    let mut changed = false;
    for (at, message) in messages.iter_mut().enumerate() {
        if !left.exceed(wanted) {
            break;
        }
        let here = images(message);
        if here.count == 0 || at == task {
            continue;
        }
        left.count -= here.count;
        left.bytes -= here.bytes;
        let mut bare = (**message).clone();
        if let Some(Content::Parts(parts)) = shown_mut(&mut bare) {
            for part in parts
                .iter_mut()
                .filter(|part| matches!(part, Part::Media(_)))
            {
                *part = Part::Text(EVICTED.to_owned());
            }
        }
        *message = SharedMessage::new(bare);
        changed = true;
    }
    changed
}

/// The images of a message.
pub(super) fn images(message: &Message) -> ImageBounds {
    let mut images = ImageBounds::default();
    for media in shown(message).into_iter().flat_map(Content::media) {
        images.count += 1;
        images.bytes += media.data().len();
    }
    images
}

/// What a message shows the model that did not come from it.
fn shown(message: &Message) -> Option<&Content> {
    match message {
        Message::User(message) => Some(&message.content),
        Message::Tool(message) => Some(&message.content),
        Message::System(_) | Message::Assistant(_) => None,
    }
}

fn shown_mut(message: &mut Message) -> Option<&mut Content> {
    match message {
        Message::User(message) => Some(&mut message.content),
        Message::Tool(message) => Some(&mut message.content),
        Message::System(_) | Message::Assistant(_) => None,
    }
}
