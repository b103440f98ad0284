//! The events of facts: the same while a run is driven and when its journal is read.
//!
//! Events that follow from several facts are [actions](crate::rules::Action::Emit).

use std::time::Duration;

use cantle_core::event::EventKind;
use cantle_core::message::ToolCall;
use serde_json::Value;

use super::Machine;
use crate::rules::fact::{CallOutcome, Fact};

impl Machine {
    /// Returns the event of a fact that will be applied next, if the fact has one of its own. The start of a
    /// call has [one](tool_started), too, which is emitted once the fact is on disk.
    pub(crate) fn event(&self, fact: &Fact) -> Option<EventKind> {
        match fact {
            Fact::ModelAnswered {
                message,
                stop,
                call,
            } => Some(EventKind::ModelAnswered {
                turn: self.turns() + 1,
                text: message.text(),
                tool_calls: message.tool_calls().count(),
                usage: call.usage,
                usage_estimated: call.estimated,
                cost_usd: call.cost_usd,
                list_price_date: call.list_price_date.clone(),
                served_by: call.served_by.clone(),
                stop: Some(stop.clone()),
                duration: call.duration,
            }),
            Fact::AttemptFailed {
                after,
                reason,
                discarded,
                call,
                ..
            } => Some(EventKind::ModelRetry {
                attempt: self.failed_attempts + 2,
                after: *after,
                reason: reason.clone(),
                discarded: discarded.clone(),
                usage: call.usage,
                cost_usd: call.cost_usd,
            }),
            Fact::HookMessage { content } => Some(EventKind::UserMessage {
                text: content.text(),
            }),
            Fact::CallFinished { index, outcome } => {
                let call = self.call(*index)?;
                Some(match self.has_started(*index) {
                    true => tool_finished(&call, outcome),
                    false => tool_refused(&call, &outcome.content.text()),
                })
            }
            Fact::Resumed { .. } => Some(EventKind::RunResumed {
                turns: self.turns(),
                ledger: self.ledger().clone(),
            }),
            _ => None,
        }
    }
}

/// The event of a call that starts.
pub(crate) fn tool_started(call: &ToolCall) -> EventKind {
    EventKind::ToolStarted {
        call_id: call.id.clone(),
        tool: call.name.clone(),
        arguments: display_arguments(call),
    }
}

/// The event of a call that started and ended.
pub(super) fn tool_finished(call: &ToolCall, outcome: &CallOutcome) -> EventKind {
    EventKind::ToolFinished {
        call_id: call.id.clone(),
        tool: call.name.clone(),
        result: outcome.content.text(),
        success: outcome.success,
        arguments_valid: outcome.arguments_valid,
        arguments: None,
        metadata: outcome.metadata.clone(),
        duration: outcome.duration,
    }
}

/// The event of a call that was answered without running.
pub(super) fn tool_refused(call: &ToolCall, result: &str) -> EventKind {
    EventKind::ToolFinished {
        call_id: call.id.clone(),
        tool: call.name.clone(),
        result: result.to_owned(),
        success: false,
        arguments_valid: true,
        arguments: Some(display_arguments(call)),
        metadata: None,
        duration: Duration::ZERO,
    }
}

/// Returns arguments for display: as JSON if they are, else the model's text.
fn display_arguments(call: &ToolCall) -> Value {
    serde_json::from_str(&call.arguments).unwrap_or_else(|_| Value::String(call.arguments.clone()))
}
