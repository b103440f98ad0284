//! Recorded tool results, indexed by call.

use std::collections::{HashMap, VecDeque};

use cantle_core::content::Content;
use cantle_core::message::{Message, ToolCall};
use parking_lot::Mutex;
use serde_json::Value;

use super::difference::describe_difference;
use crate::recording::ResultLine;

/// The recorded result of a tool call.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct RecordedResult {
    /// Content for the model.
    pub content: Content,
    /// Whether the tool succeeded.
    pub success: bool,
    /// Whether the tool was executed. If not, because the call was refused or interrupted, `content` is
    /// the message that the conversation has instead of a result.
    pub was_executed: bool,
}

impl RecordedResult {
    /// Describes the first difference from another result; `None` if they are equal.
    pub fn difference(&self, content: &Content, success: bool) -> Option<String> {
        if self.content != *content {
            let json = |content| serde_json::to_vec(content).unwrap_or_default();
            return Some(describe_difference(&json(&self.content), &json(content)));
        }
        let name = |success| if success { "success" } else { "failure" };
        (self.success != success).then(|| {
            let (recorded, current) = (name(self.success), name(success));
            format!("its outcome\n  recorded: {recorded}\n  now:      {current}")
        })
    }
}

/// Id, tool name and arguments of a call.
type CallKey = (String, String, String);

#[derive(Debug, Default)]
pub(super) struct ResultIndex {
    /// Results of each call in recorded order; the last one is repeated.
    executed: Mutex<HashMap<CallKey, VecDeque<RecordedResult>>>,
    /// Tool messages of calls that were not executed, by call id.
    messages: HashMap<String, RecordedResult>,
}

impl ResultIndex {
    pub(super) fn add(&mut self, line: ResultLine) {
        let result = RecordedResult {
            content: line.content,
            success: line.success,
            was_executed: true,
        };
        let executed = self.executed.get_mut();
        let results = executed.entry((line.id, line.tool, line.arguments));
        results.or_default().push_back(result);
    }

    pub(super) fn add_message(&mut self, message: &Value) {
        if let Ok(Message::Tool(message)) = serde_json::from_value(message.clone()) {
            let result = RecordedResult {
                content: message.content,
                success: message.success,
                was_executed: false,
            };
            self.messages.insert(message.tool_call_id, result);
        }
    }

    pub(super) fn next(&self, call: &ToolCall) -> Option<RecordedResult> {
        let key = (call.id.clone(), call.name.clone(), call.arguments.clone());
        let mut executed = self.executed.lock();
        match executed.get_mut(&key) {
            Some(results) if results.len() > 1 => results.pop_front(),
            Some(results) => results.front().cloned(),
            None => self.messages.get(&call.id).cloned(),
        }
    }
}
