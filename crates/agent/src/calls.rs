//! One tool call: arguments read, the tool run, and whatever happens made into a result.

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::time::Instant;

use cantle_core::content::{Content, Part};
use cantle_core::message::ToolCall;
use cantle_core::tool::{DynTool, ToolContext, ToolError, ToolErrorKind, ToolOutput};
use futures_util::FutureExt as _;
use serde_json::Value;

use crate::machine::CallOutcome;
use crate::time::unix_seconds;

/// Characters of one tool result that the model sees.
const MAX_RESULT_CHARS: usize = 100_000;

/// Runs a call. Never fails: a tool that errs or panics has that as its result.
pub(crate) async fn run(tool: DynTool, call: ToolCall, cx: ToolContext) -> CallOutcome {
    let started = Instant::now();
    let (arguments, result) = match tool.parse(&call.arguments) {
        Ok(arguments) => {
            let running = AssertUnwindSafe(tool.call(arguments.clone(), cx)).catch_unwind();
            let result = running.await.unwrap_or_else(|payload| {
                Err(ToolError::panicked(panic_message(payload.as_ref())))
            });
            (arguments, result)
        }
        Err(error) => (Value::Null, Err(error.into())),
    };
    let kind = result.as_ref().err().map(ToolError::kind);
    let sandbox_gone = match &result {
        Err(error) if error.kind() == ToolErrorKind::SandboxGone => Some(error.to_string()),
        _ => None,
    };
    let output = result.unwrap_or_else(|error| ToolOutput::failure(error.to_string()));
    CallOutcome {
        content: bounded(output.content),
        success: output.success,
        arguments_valid: kind != Some(ToolErrorKind::InvalidArguments),
        arguments,
        metadata: output.metadata,
        duration: started.elapsed(),
        time: unix_seconds(),
        sandbox_gone,
    }
}

/// The result of a call that did not end in time after the run was cancelled.
pub(crate) fn abandoned(duration: std::time::Duration) -> CallOutcome {
    CallOutcome {
        content: "The run was cancelled while this call was running.".into(),
        success: false,
        arguments_valid: true,
        arguments: Value::Null,
        metadata: None,
        duration,
        time: unix_seconds(),
        sandbox_gone: None,
    }
}

fn panic_message(payload: &(dyn Any + Send)) -> &str {
    let text = payload.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| payload.downcast_ref::<&str>().copied())
        .unwrap_or("unknown")
}

/// Cuts what is too long for a model: of each text its first and last half stay. Several texts
/// share the limit.
fn bounded(content: Content) -> Content {
    match content {
        Content::Text(text) => Content::Text(bounded_text(text, MAX_RESULT_CHARS)),
        Content::Parts(parts) => {
            let texts = parts
                .iter()
                .filter(|part| matches!(part, Part::Text(_)))
                .count();
            let limit = MAX_RESULT_CHARS / texts.max(1);
            let bounded = parts.into_iter().map(|part| match part {
                Part::Text(text) => Part::Text(bounded_text(text, limit)),
                media @ Part::Media(_) => media,
            });
            Content::Parts(bounded.collect())
        }
    }
}

fn bounded_text(text: String, limit: usize) -> String {
    // Fewer bytes than characters allowed: the usual case, told without counting.
    if text.len() <= limit {
        return text;
    }
    let count = text.chars().count();
    if count <= limit {
        return text;
    }
    let half = limit / 2;
    let head: String = text.chars().take(half).collect();
    let tail: String = text.chars().skip(count - half).collect();
    format!("{head}\n… [the result has {count} characters; its middle is left out here] …\n{tail}")
}
