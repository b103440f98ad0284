//! Unique tool call ids.

use std::collections::HashMap;

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
pub struct ToolCallIds(
    /// By id, the number that its latest repetition got.
    HashMap<String, u64>,
);

impl ToolCallIds {
    /// Collects the ids of all calls in a conversation.
    pub fn of(messages: &[SharedMessage]) -> Self {
        let turns = messages.iter().filter_map(|message| match &**message {
            Message::Assistant(message) => Some(message),
            _ => None,
        });
        let calls = turns.flat_map(|turn| turn.tool_calls());
        Self(calls.map(|call| (call.id.clone(), 1)).collect())
    }

    /// Records a call's id, after replacing an id that is already used.
    pub fn make_unique(&mut self, call: &mut ToolCall) {
        let Some(&latest) = self.0.get(&call.id) else {
            self.0.insert(call.id.clone(), 1);
            return;
        };
        let mut number = latest;
        let id = loop {
            number += 1;
            let id = format!("{}-{number}", call.id);
            if !self.0.contains_key(&id) {
                break id;
            }
        };
        self.0.insert(id.clone(), 1);
        self.0.insert(std::mem::replace(&mut call.id, id), number);
        call.has_provider_id = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_repetitions_are_numbered_in_linear_time() {
        let mut ids = ToolCallIds::default();
        let mut unique = |id: &str| {
            let mut call = ToolCall::new(Some(id.to_owned()), "ls", "{}");
            ids.make_unique(&mut call);
            call.id
        };
        unique("a-3");
        assert_eq!(
            ["a", "a", "a", "a-3"].map(&mut unique),
            ["a", "a-2", "a-4", "a-3-2"]
        );
        let last = (0..20_000).map(|_| unique("call_0")).last();
        assert_eq!(last.as_deref(), Some("call_0-20000"));
    }
}
