//! Recorded results of tools, looked up by the call.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, PoisonError};

use cantle_core::content::Content;
use cantle_core::message::{Message, ToolCall};
use serde_json::Value;

use super::difference::shown;
use crate::record::ResultLine;

/// What a tool call came to when it was recorded.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct RecordedResult {
    /// What the model was told.
    pub content: Content,
    /// Whether the tool did what it was asked to.
    pub success: bool,
    /// Whether the tool was run. What was refused, or stopped with the run, has no result but the
    /// words that stand in its place in the conversation.
    pub ran: bool,
}

impl RecordedResult {
    /// How another result differs from this one first; `None` where they are the same.
    #[must_use]
    pub fn difference(&self, content: &Content, success: bool) -> Option<String> {
        if self.content != *content {
            let json = |content| serde_json::to_vec(content).unwrap_or_default();
            return Some(shown(&json(&self.content), &json(content)));
        }
        let word = |success| if success { "success" } else { "failure" };
        (self.success != success).then(|| {
            let (then, now) = (word(self.success), word(success));
            format!("its end\n  recorded: {then}\n  now:      {now}")
        })
    }
}

/// A call, and what it is told apart by.
type Key = (String, String, String);

#[derive(Debug, Default)]
pub(super) struct Results {
    /// In the order in which they were recorded; the last one stays for any more.
    written: Mutex<HashMap<Key, VecDeque<RecordedResult>>>,
    /// What conversations say instead, by call.
    told: HashMap<String, RecordedResult>,
}

impl Results {
    pub(super) fn add(&mut self, line: ResultLine) {
        let result = RecordedResult {
            content: line.content,
            success: line.success,
            ran: true,
        };
        let written = self.written.get_mut();
        let written = written.unwrap_or_else(PoisonError::into_inner);
        let results = written.entry((line.id, line.tool, line.arguments));
        results.or_default().push_back(result);
    }

    pub(super) fn add_told(&mut self, message: &Value) {
        if let Ok(Message::Tool(message)) = serde_json::from_value(message.clone()) {
            let result = RecordedResult {
                content: message.content,
                success: message.success,
                ran: false,
            };
            self.told.insert(message.tool_call_id, result);
        }
    }

    pub(super) fn of(&self, call: &ToolCall) -> Option<RecordedResult> {
        let key = (call.id.clone(), call.name.clone(), call.arguments.clone());
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        match written.get_mut(&key) {
            Some(results) if results.len() > 1 => results.pop_front(),
            Some(results) => results.front().cloned(),
            None => self.told.get(&call.id).cloned(),
        }
    }
}
