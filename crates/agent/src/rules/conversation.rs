//! The conversation of a run: its messages, their size, and the places where parts of it can be
//! replaced.

use cantle_core::content::{Content, MediaKind, Part};
use cantle_core::estimate::message_tokens;
use cantle_core::message::{
    AssistantBlock, AssistantMessage, Message, SharedMessage, ToolCallIds, UserKind, UserMessage,
};

use super::overflow::latest_turn;
use super::settings::ImageBounds;
use super::summary;

/// The text that replaces an old image.
const IMAGE_REMOVED: &str = "[an image was shown here; it is no longer kept]";

/// The messages of a run.
#[derive(Debug)]
pub(super) struct Conversation {
    messages: Vec<SharedMessage>,
    /// Parts that summaries replaced, oldest first.
    replaced: Vec<Vec<SharedMessage>>,
    /// Index of the task.
    task: usize,
    /// Index of the first message that can be dropped: after the task, or after the latest summary.
    first_own: usize,
    /// Size of the conversation: counted by the provider up to the latest turn, estimated since.
    tokens: u64,
    images: ImageBounds,
    /// Ids of all tool calls.
    call_ids: ToolCallIds,
    /// Indices of `messages` at which pending messages were inserted.
    injected_at: Vec<usize>,
    /// Indices in the ledger of the turns since `first_own`.
    ledger_entries: Vec<usize>,
}

/// A turn that was removed from the conversation.
pub(super) struct DroppedTurn {
    /// Its index in the ledger.
    pub(super) ledger_entry: Option<usize>,
    /// Messages of the user that were removed with it.
    pub(super) user_messages: Vec<Content>,
}

impl Conversation {
    /// A conversation whose last message is the task.
    pub(super) fn new(messages: Vec<SharedMessage>) -> Self {
        let mut conversation = Self {
            call_ids: ToolCallIds::of(&messages),
            replaced: Vec::new(),
            task: messages.len().saturating_sub(1),
            first_own: messages.len(),
            tokens: 0,
            images: ImageBounds::default(),
            injected_at: Vec::new(),
            ledger_entries: Vec::new(),
            messages,
        };
        conversation.measure();
        conversation
    }

    pub(super) fn messages(&self) -> &[SharedMessage] {
        &self.messages
    }

    /// The messages, and the parts that summaries replaced.
    pub(super) fn into_parts(self) -> (Vec<SharedMessage>, Vec<Vec<SharedMessage>>) {
        (self.messages, self.replaced)
    }

    /// The state for comparison: ids follow from the messages, and have no order.
    #[cfg(test)]
    pub(super) fn state(&self) -> String {
        let Self {
            messages,
            replaced,
            task,
            first_own,
            tokens,
            images,
            call_ids: _,
            injected_at,
            ledger_entries,
        } = self;
        let indices = (task, first_own, injected_at, ledger_entries);
        format!("{messages:?} {replaced:?} {tokens} {images:?} {indices:?}")
    }

    #[cfg(test)]
    pub(super) fn replaced(&self) -> &[Vec<SharedMessage>] {
        &self.replaced
    }

    pub(super) fn tokens(&self) -> u64 {
        self.tokens
    }

    pub(super) fn push(&mut self, message: Message) {
        self.tokens += message_tokens(&message);
        self.images += images(&message);
        self.messages.push(SharedMessage::new(message));
    }

    /// Adds a message of the user, which outlives the turn that follows it.
    pub(super) fn push_injected(&mut self, content: Content) {
        self.injected_at.push(self.messages.len());
        self.push(Message::User(UserMessage::new(UserKind::User, content)));
    }

    /// Adds a turn of the model. `tokens` is the provider's count of the whole conversation.
    pub(super) fn push_turn(&mut self, message: AssistantMessage, tokens: u64, entry: usize) {
        self.push(Message::Assistant(message));
        self.ledger_entries.push(entry);
        if tokens > 0 {
            self.tokens = tokens;
        }
    }

    /// Makes the ids of a turn's calls unique. Some models repeat ids within a turn, where results
    /// could not be assigned, or across turns, which other providers refuse.
    pub(super) fn make_call_ids_unique(&mut self, message: &mut AssistantMessage) {
        for block in &mut message.blocks {
            if let AssistantBlock::ToolCall(call) = block {
                self.call_ids.make_unique(call);
            }
        }
    }

    /// Removes the latest completed turn. `None` if there is none that may be removed.
    pub(super) fn drop_last_turn(&mut self) -> Option<DroppedTurn> {
        let start = latest_turn(&self.messages, self.first_own)?;
        let injected = self.injected_at.partition_point(|at| *at < start);
        let injected = self.injected_at.split_off(injected);
        let user_messages = injected.into_iter().filter_map(|at| {
            let Message::User(message) = &**self.messages.get(at)? else {
                return None;
            };
            Some(message.content.clone())
        });
        let dropped = DroppedTurn {
            user_messages: user_messages.collect(),
            ledger_entry: self.ledger_entries.pop(),
        };
        self.messages.truncate(start);
        self.measure();
        Some(dropped)
    }

    /// Whether the model has made a turn that a summary could replace.
    pub(super) fn can_be_summarized(&self) -> bool {
        summary::start(&self.messages).is_some()
    }

    /// Replaces everything but the instructions and the task by a summary. Returns the number of
    /// messages replaced.
    pub(super) fn summarize(
        &mut self,
        text: &str,
        files: &[String],
        finish_tools: &[String],
    ) -> Option<usize> {
        let start = summary::start(&self.messages)?;
        let replaced = self.messages.split_off(start);
        let task = self.task.checked_sub(start);
        let task = task.and_then(|task| replaced.get(task)).cloned();
        let summary = summary::message(&replaced, text);
        self.messages.push(SharedMessage::new(summary));
        if let Some(task) = task {
            self.task = self.messages.len();
            self.messages.push(task);
        }
        let reminder = summary::reminder(files, finish_tools);
        self.messages.push(SharedMessage::new(reminder));
        let count = replaced.len();
        self.replaced.push(replaced);
        self.first_own = self.messages.len();
        self.injected_at.clear();
        self.ledger_entries.clear();
        self.measure();
        Some(count)
    }

    /// Removes the oldest images if there are more than `bounds`, until half of the bounds remains:
    /// each removal loses the provider's prompt cache. Images of the task stay.
    pub(super) fn remove_old_images(&mut self, bounds: ImageBounds) {
        if !self.images.exceed(bounds) {
            return;
        }
        let target = ImageBounds {
            count: bounds.count / 2,
            bytes: bounds.bytes / 2,
        };
        let mut remaining = self.images;
        let mut has_changed = false;
        for (at, message) in self.messages.iter_mut().enumerate() {
            if !remaining.exceed(target) {
                break;
            }
            let here = images(message);
            if here.count == 0 || at == self.task {
                continue;
            }
            remaining.count -= here.count;
            remaining.bytes -= here.bytes;
            let mut bare = (**message).clone();
            if let Message::User(UserMessage { content, .. }) = &mut bare {
                remove_media(content);
            } else if let Message::Tool(message) = &mut bare {
                remove_media(&mut message.content);
            }
            *message = SharedMessage::new(bare);
            has_changed = true;
        }
        if has_changed {
            self.measure();
        }
    }

    /// Computes the size of the conversation anew.
    fn measure(&mut self) {
        self.tokens = self.messages.iter().map(|it| message_tokens(it)).sum();
        self.images = ImageBounds::default();
        for message in &self.messages {
            self.images += images(message);
        }
    }
}

/// The images that a message shows to the model.
fn images(message: &Message) -> ImageBounds {
    let content = match message {
        Message::User(message) => &message.content,
        Message::Tool(message) => &message.content,
        Message::System(_) | Message::Assistant(_) => return ImageBounds::default(),
    };
    ImageBounds {
        count: content.media().count(),
        bytes: content.media().map(|media| media.data().len()).sum(),
    }
}

fn remove_media(content: &mut Content) {
    let Content::Parts(parts) = content else {
        return;
    };
    for part in parts {
        if matches!(part, Part::Media(_)) {
            *part = Part::Text(IMAGE_REMOVED.to_owned());
        }
    }
}

/// Moves the images of a tool result into user messages, and leaves a reference in their place.
pub(super) fn extract_images(content: &mut Content, call_id: &str) -> Vec<UserMessage> {
    let Content::Parts(parts) = content else {
        return Vec::new();
    };
    let mut messages = Vec::new();
    for part in parts {
        if !matches!(part, Part::Media(media) if media.kind() == MediaKind::Image) {
            continue;
        }
        let reference = format!("The user will show you the image for tool call {call_id}.");
        let image = std::mem::replace(part, Part::Text(reference));
        let text = format!("Here is the image for tool call {call_id}");
        messages.push(UserMessage::new(
            UserKind::User,
            vec![Part::Text(text), image],
        ));
    }
    messages
}
