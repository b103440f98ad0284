//! Ids of calls: one for each, whatever a model says.

use std::collections::HashSet;

use cantle_core::message::{AssistantBlock, AssistantMessage, Message, SharedMessage};

use super::Machine;

impl Machine {
    /// Some models repeat an id, within a turn (where results could not be told apart) or over turns
    /// (`call_0` each time, which other providers refuse). The later one gets a name of its own.
    pub(super) fn repair_ids(&mut self, message: &mut AssistantMessage) {
        for block in &mut message.blocks {
            let AssistantBlock::ToolCall(call) = block else {
                continue;
            };
            if self.call_ids.insert(call.id.clone()) {
                continue;
            }
            let mut count = 2;
            let mut id = format!("{}-{count}", call.id);
            while !self.call_ids.insert(id.clone()) {
                count += 1;
                id = format!("{}-{count}", call.id);
            }
            call.id = id;
            call.has_provider_id = false;
        }
    }
}

/// The ids of all calls in a conversation.
pub(super) fn messages_call_ids(messages: &[SharedMessage]) -> HashSet<String> {
    let turns = messages.iter().filter_map(|message| match &**message {
        Message::Assistant(message) => Some(message),
        _ => None,
    });
    turns
        .flat_map(|turn| turn.tool_calls().map(|call| call.id.clone()))
        .collect()
}
