//! Unique tool call ids.

use std::collections::HashSet;

use super::{Message, SharedMessage, ToolCall};

/// The tool call ids that a conversation already uses.
///
/// Some models repeat an id within a turn, which makes the results ambiguous, or in later turns (`call_0`
/// each time), which other providers refuse.
///
/// ```
/// use cantle_core::message::{ToolCall, ToolCallIds};
///
/// let mut ids = ToolCallIds::default();
/// let [mut first, mut second] =
///     ["ls", "cat"].map(|name| ToolCall::new(Some("call_0".to_owned()), name, "{}"));
/// ids.make_unique(&mut first);
/// ids.make_unique(&mut second);
/// assert_eq!((first.id.as_str(), second.id.as_str()), ("call_0", "call_0-2"));
/// ```
#[derive(Clone, Debug, Default)]
pub struct ToolCallIds(HashSet<String>);

impl ToolCallIds {
    /// Collects the ids of all calls in a conversation.
    pub fn of(messages: &[SharedMessage]) -> Self {
        let turns = messages.iter().filter_map(|message| match &**message {
            Message::Assistant(message) => Some(message),
            _ => None,
        });
        let calls = turns.flat_map(|turn| turn.tool_calls());
        Self(calls.map(|call| call.id.clone()).collect())
    }

    /// Records a call's id, after replacing an id that is already used.
    pub fn make_unique(&mut self, call: &mut ToolCall) {
        if self.0.insert(call.id.clone()) {
            return;
        }
        let mut count = 2;
        let mut id = format!("{}-{count}", call.id);
        while !self.0.insert(id.clone()) {
            count += 1;
            id = format!("{}-{count}", call.id);
        }
        call.id = id;
        call.has_provider_id = false;
    }
}
