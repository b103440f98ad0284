//! Replaying a journal.

use std::collections::HashMap;
use std::sync::Arc;

use cantle_core::message::{Message, SharedMessage};

use crate::rules::{Fact, Machine, Rules, ToolTraits};

/// Returns the state of a run after these facts.
pub(crate) fn replay(
    rules: Rules,
    tools: Arc<HashMap<String, ToolTraits>>,
    messages: Vec<Message>,
    facts: Vec<Fact>,
) -> Machine {
    let messages = messages.into_iter().map(SharedMessage::new).collect();
    let mut machine = Machine::new(rules, tools, messages);
    for fact in facts {
        machine.apply(fact);
    }
    machine
}
