//! The execution of one tool call: arguments are parsed, the tool is run, and whatever happens becomes
//! a result.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cantle_core::content::{Content, ImageLimits, Part};
use cantle_core::event::Finish;
use cantle_core::message::ToolCall;
use cantle_core::sandbox::{Sandbox, SandboxExt as _, SandboxPath};
use cantle_core::tool::{ToolContext, ToolError, ToolErrorKind, ToolOutput};
use futures_util::FutureExt as _;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::resources::SessionResources;
use crate::error::RunError;
use crate::hooks::{AfterTool, AtFinish, Hooks, guarded};
use crate::rules::CallOutcome;
use crate::scope::{AgentTool, RunScope, SubAgentCall};
use crate::time::unix_seconds;

/// Maximum characters of a tool result.
const MAX_RESULT_CHARS: usize = 100_000;

/// Time in which a call may end by itself after its timeout.
const TIMEOUT_GRACE: Duration = Duration::from_secs(1);

/// The directory of results that are too long, below the working directory.
const RESULTS: &str = ".cantle/results";

/// A call that is being decided on or run.
#[derive(Clone, Debug)]
pub(super) struct ActiveCall {
    pub(super) call: Arc<ToolCall>,
    /// The note for the model if the arguments differ from its own.
    edit_note: Option<String>,
    pub(super) started: Instant,
    /// The sub-agent's side of the call, once it runs.
    pub(super) sub_agent: Option<Arc<SubAgentCall>>,
}

impl ActiveCall {
    pub(super) fn new(call: Arc<ToolCall>) -> Self {
        Self {
            call,
            edit_note: None,
            started: Instant::now(),
            sub_agent: None,
        }
    }

    /// Replaces the arguments.
    pub(super) fn edit(&mut self, arguments: String, by_hook: bool) {
        let editor = if by_hook { "The program" } else { "The user" };
        self.edit_note = Some(format!(
            "({editor} changed this call before it ran. Its arguments were: {arguments})\n"
        ));
        Arc::make_mut(&mut self.call).arguments = arguments;
    }

    /// Runs the call. A tool that fails, panics or hangs has that as its result; an error means that a
    /// hook panicked.
    pub(super) async fn execute(
        self,
        scope: Arc<RunScope>,
        resources: Arc<SessionResources>,
        cx: ToolContext,
    ) -> Result<CallOutcome, RunError> {
        let call = &*self.call;
        let finishes = resources.tools.is_finish(&call.name);
        let (mut arguments, mut repairs, mut is_repeatable) = (Value::Null, 0, false);
        let result = match resources.tools.get(&call.name) {
            Some(tool) => match tool.tool.parse(&call.arguments) {
                Ok(parsed) => {
                    repairs = parsed.repairs.len();
                    is_repeatable = tool.tool.properties().repeatable;
                    if finishes {
                        arguments.clone_from(&parsed.arguments);
                    }
                    self.call_in_time(tool, parsed.arguments, cx).await
                }
                Err(error) => Err(error.into()),
            },
            None => Err(ToolError::failed("The tool is not available.")),
        };
        let kind = result.as_ref().err().map(ToolError::kind);
        let sandbox_gone = match &result {
            Err(error) if error.kind() == ToolErrorKind::SandboxGone => Some(error.to_string()),
            _ => None,
        };
        let mut output = result.unwrap_or_else(|error| ToolOutput::failure(error.to_string()));
        if let Some(hooks) = &resources.agent.hooks {
            let finish =
                (finishes && output.success).then(|| Finish::new(&call.name, arguments.clone()));
            output = apply_hooks(&**hooks, call, output, finishes, finish).await?;
        }
        if let Some(note) = &self.edit_note {
            output.content.prepend(note);
        }
        let content = truncate(output.content, resources.sandbox.as_deref()).await;
        let content = scale_images(content).await;
        let mut outcome = CallOutcome::failure(content, self.started.elapsed(), unix_seconds());
        outcome.success = output.success;
        outcome.cancelled = !output.success && scope.cancellation.is_cancelled();
        outcome.arguments_valid = kind != Some(ToolErrorKind::InvalidArguments);
        outcome.repairs = u32::try_from(repairs).unwrap_or(u32::MAX);
        outcome.arguments = arguments;
        outcome.metadata = output.metadata;
        outcome.has_background_processes = output.left_running;
        outcome.sandbox_gone = sandbox_gone;
        match self.sub_agent.as_ref().and_then(|call| call.take_report()) {
            Some(report) => {
                outcome.suspended = report.suspended;
                outcome.sub_agent = Some(Box::new(report.ledger));
            }
            None => {
                outcome.suspended = !outcome.success && is_repeatable && scope.suspends_calls();
            }
        }
        Ok(outcome)
    }

    /// Calls the tool, within its timeout.
    async fn call_in_time(
        &self,
        tool: &AgentTool,
        arguments: Value,
        cx: ToolContext,
    ) -> Result<ToolOutput, ToolError> {
        let cancellation = cx.cancellation.clone();
        let called = async {
            match (&tool.sub_agent, &self.sub_agent) {
                (Some(agent), Some(call)) => agent.call(arguments, cx, Arc::clone(call)).await,
                _ => tool.tool.call(arguments, cx).await,
            }
        };
        let called = AssertUnwindSafe(called).catch_unwind().map(|ended| {
            ended.unwrap_or_else(|payload| Err(ToolError::from_panic(payload.as_ref())))
        });
        let Some(timeout) = tool.tool.properties().timeout else {
            return called.await;
        };
        tokio::pin!(called);
        if let Ok(result) = tokio::time::timeout(timeout, &mut called).await {
            return result;
        }
        // A tool that observes its token may return partial output.
        cancellation.cancel();
        let mut output = match tokio::time::timeout(TIMEOUT_GRACE, called).await {
            Ok(Ok(output)) => output,
            Ok(Err(error)) if error.kind() == ToolErrorKind::SandboxGone => return Err(error),
            Ok(Err(error)) if error.kind() != ToolErrorKind::Cancelled => {
                ToolOutput::failure(error.to_string())
            }
            Ok(Err(_)) | Err(_) => ToolOutput::failure(""),
        };
        let mut text = format!(
            "The tool was stopped: it did not end within {} s.",
            timeout.as_secs_f64()
        );
        if !output.content.is_empty() {
            text.push_str(" Its output until then:\n");
            text.push_str(&output.content.text());
        }
        output.content = text.into();
        output.success = false;
        Ok(output)
    }

    /// The outcome of this call if it did not end in time after its cancellation, or a hook panicked after it.
    pub(super) fn abandoned(
        &self,
        reason: &str,
        is_repeatable: bool,
        scope: &RunScope,
    ) -> CallOutcome {
        let text = format!("{reason} while this call was running.");
        let mut outcome = CallOutcome::failure(text, self.started.elapsed(), unix_seconds());
        outcome.cancelled = scope.cancellation.is_cancelled();
        outcome.suspended = is_repeatable && scope.suspends_calls();
        let ledger = self.sub_agent.as_ref().and_then(|call| call.take_ledger());
        outcome.sub_agent = ledger.map(Box::new);
        outcome
    }
}

/// Calls the hooks that follow a tool. `finish` is the finish call, if it succeeded.
async fn apply_hooks(
    hooks: &dyn Hooks,
    call: &ToolCall,
    mut output: ToolOutput,
    finishes: bool,
    finish: Option<Finish>,
) -> Result<ToolOutput, RunError> {
    if let Some(finish) = finish
        && let AtFinish::Refuse { feedback } =
            guarded("at_finish", hooks.at_finish(&finish)).await?
    {
        output = ToolOutput::failure(feedback);
    }
    let after = hooks.after_tool(call, &output.content, output.success);
    match guarded("after_tool", after).await? {
        AfterTool::Keep => {}
        AfterTool::Replace(content) => output.content = content,
        AfterTool::Answer { content, success } => {
            output.content = content;
            output.success = if finishes { output.success } else { success };
        }
    }
    Ok(output)
}

/// Scales images to the limits of models, once: the result is stored and sent as it is. An unreadable
/// image is replaced by the error.
pub(super) async fn scale_images(content: Content) -> Content {
    if content.media().next().is_none() {
        return content;
    }
    let scale = move || content.with_images_within(ImageLimits::default());
    match tokio::task::spawn_blocking(scale).await {
        Ok(content) => content,
        Err(error) => Content::Text(format!("The images could not be read: {error}")),
    }
}

/// Truncates texts that are too long for a model: head and tail remain, and the whole is saved in the
/// sandbox. Several texts share the limit.
async fn truncate(content: Content, sandbox: Option<&dyn Sandbox>) -> Content {
    match content {
        Content::Text(text) => Content::Text(truncate_text(text, MAX_RESULT_CHARS, sandbox).await),
        Content::Parts(mut parts) => {
            let is_text = |part: &&Part| matches!(part, Part::Text(_));
            let limit = MAX_RESULT_CHARS / parts.iter().filter(is_text).count().max(1);
            for part in &mut parts {
                if let Part::Text(text) = part {
                    *text = truncate_text(std::mem::take(text), limit, sandbox).await;
                }
            }
            Content::Parts(parts)
        }
    }
}

async fn truncate_text(text: String, limit: usize, sandbox: Option<&dyn Sandbox>) -> String {
    // The usual case needs no counting: there are at least as many bytes as characters.
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
    let saved = match sandbox {
        Some(sandbox) => save_result(text, sandbox).await,
        None => String::new(),
    };
    format!(
        "{head}\n… [the result has {count} characters; its middle is omitted here{saved}] …\n{tail}"
    )
}

/// Saves a text as a file, and returns a note with its path. The name is derived from the content, so
/// that equal results are equal for the model and share a file.
async fn save_result(text: String, sandbox: &dyn Sandbox) -> String {
    let hashed = tokio::task::spawn_blocking(move || {
        let mut digest = format!("{:x}", Sha256::digest(&text));
        digest.truncate(16);
        (format!("{RESULTS}/{digest}.txt"), text)
    });
    let Ok((path, text)) = hashed.await else {
        return String::new();
    };
    let Ok(path) = SandboxPath::new(path) else {
        return String::new();
    };
    match sandbox.write_bytes(&path, text.into()).await {
        Ok(()) => format!(", the whole of it is in the file `{path}`"),
        Err(error) => format!(", and it could not be saved as a file: {error}"),
    }
}
