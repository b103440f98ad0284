//! One tool call: arguments read, the tool run, and whatever happens made into a result.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use cantle_core::content::{Content, ImageLimits, Part};
use cantle_core::event::Finish;
use cantle_core::message::ToolCall;
use cantle_core::sandbox::{Sandbox, SandboxPath, WriteOptions};
use cantle_core::tool::{DynTool, ToolContext, ToolError, ToolErrorKind, ToolOutput};
use futures_util::FutureExt as _;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::error::RunError;
use crate::hooks::{AfterTool, AtFinish, Hooks, guarded};
use crate::journal::hex;
use crate::machine::CallOutcome;
use crate::sub_agent::Caller;
use crate::time::unix_seconds;

/// Characters of one tool result that the model sees.
const MAX_RESULT_CHARS: usize = 100_000;

/// How long a call whose time is over may take to end by itself.
const TIMEOUT_GRACE: Duration = Duration::from_secs(1);

/// Where results are kept that are too long to be shown, below the working directory.
const RESULTS: &str = ".cantle/results";

/// A call, and all that it is run with.
pub(crate) struct Call {
    pub(crate) tool: DynTool,
    pub(crate) call: ToolCall,
    pub(crate) cx: ToolContext,
    pub(crate) hooks: Option<Arc<dyn Hooks>>,
    /// Whether its success ends the run.
    pub(crate) finishes: bool,
    /// Whether its arguments are others than the model's.
    pub(crate) edited: bool,
    /// What a sub-agent gets, and where it leaves its accounts.
    pub(crate) caller: Arc<Caller>,
}

impl Call {
    /// Runs it. A tool that errs, panics or hangs has that as its result; only a hook that panics is an
    /// error.
    pub(crate) async fn run(self) -> Result<CallOutcome, RunError> {
        let started = Instant::now();
        let Self {
            tool,
            call,
            cx,
            hooks,
            finishes,
            edited,
            caller,
        } = self;
        let (sandbox, repeatable) = (cx.sandbox.clone(), tool.repeatable());
        let (arguments, repairs, result) = match tool.parse(&call.arguments) {
            Ok(parsed) => {
                let repairs = parsed.repairs.len();
                let result = in_time(&tool, parsed.arguments.clone(), cx).await;
                (parsed.arguments, repairs, result)
            }
            Err(error) => (Value::Null, 0, Err(error.into())),
        };
        let kind = result.as_ref().err().map(ToolError::kind);
        let sandbox_gone = match &result {
            Err(error) if error.kind() == ToolErrorKind::SandboxGone => Some(error.to_string()),
            _ => None,
        };
        let mut output = result.unwrap_or_else(|error| ToolOutput::failure(error.to_string()));
        if let Some(hooks) = &hooks {
            if finishes && output.success {
                let finish = Finish::new(&call.name, arguments.clone());
                let decided = guarded("at_finish", hooks.at_finish(&finish)).await?;
                if let AtFinish::Refuse { feedback } = decided {
                    output = ToolOutput::failure(feedback);
                }
            }
            let after = hooks.after_tool(&call, &output.content, output.success);
            match guarded("after_tool", after).await? {
                AfterTool::Keep => {}
                AfterTool::Replace(content) => output.content = content,
                AfterTool::Answer { content, success } => {
                    output.content = content;
                    output.success = if finishes { output.success } else { success };
                }
            }
        }
        if edited {
            output.content = with_note(output.content, &call.arguments);
        }
        let content = bounded(output.content, sandbox.as_deref()).await;
        let content = images_within(content).await;
        let mut outcome = CallOutcome::failure(content, started.elapsed(), unix_seconds());
        outcome.success = output.success;
        outcome.arguments_valid = kind != Some(ToolErrorKind::InvalidArguments);
        outcome.repairs = u32::try_from(repairs).unwrap_or(u32::MAX);
        // Only a finish call's are ever looked at again.
        outcome.arguments = if finishes { arguments } else { Value::Null };
        outcome.metadata = output.metadata;
        outcome.left_running = output.left_running;
        outcome.sandbox_gone = sandbox_gone;
        match caller.take_report() {
            Some(report) => {
                outcome.open = report.open;
                outcome.sub_agent = Some(Box::new(report.ledger));
            }
            None => outcome.open = !outcome.success && repeatable && caller.leaves_open(),
        }
        Ok(outcome)
    }
}

/// Calls a tool, for as long as it may take.
async fn in_time(
    tool: &DynTool,
    arguments: Value,
    cx: ToolContext,
) -> Result<ToolOutput, ToolError> {
    let cancellation = cx.cancellation.clone();
    let call = AssertUnwindSafe(tool.call(arguments, cx)).catch_unwind();
    let call = call
        .map(|ended| ended.unwrap_or_else(|payload| Err(ToolError::of_panic(payload.as_ref()))));
    let Some(timeout) = tool.timeout() else {
        return call.await;
    };
    tokio::pin!(call);
    if let Ok(result) = tokio::time::timeout(timeout, &mut call).await {
        return result;
    }
    // A tool that listens may still say what it has.
    cancellation.cancel();
    let mut output = match tokio::time::timeout(TIMEOUT_GRACE, call).await {
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
        text.push_str(" It said until then:\n");
        text.push_str(&output.content.text());
    }
    output.content = text.into();
    output.success = false;
    Ok(output)
}

/// The result of a call that did not end in time after it was told to.
pub(crate) fn abandoned(
    why: &str,
    duration: Duration,
    repeatable: bool,
    caller: Option<&Caller>,
) -> CallOutcome {
    let text = format!("{why} while this call was running.");
    let mut outcome = CallOutcome::failure(text, duration, unix_seconds());
    if let Some(caller) = caller {
        outcome.open = repeatable && caller.leaves_open();
        outcome.sub_agent = caller.progress.ledger().map(Box::new);
    }
    outcome
}

/// Tells the model that its call was made with other arguments, which its own words don't show.
fn with_note(content: Content, arguments: &str) -> Content {
    let note =
        format!("(The call was changed before it was made. Its arguments were: {arguments})\n");
    match content {
        Content::Text(text) => Content::Text(note + &text),
        Content::Parts(mut parts) => {
            parts.insert(0, Part::Text(note));
            Content::Parts(parts)
        }
    }
}

/// Brings images within what models take, once: what comes out is kept and sent as it is. An image
/// that can't be read has its reason in its place.
pub(crate) async fn images_within(content: Content) -> Content {
    if content.media().next().is_none() {
        return content;
    }
    let within = move || content.with_images_within(ImageLimits::default());
    match tokio::task::spawn_blocking(within).await {
        Ok(content) => content,
        Err(error) => Content::Text(format!("The images could not be read: {error}")),
    }
}

/// Cuts what is too long for a model: of each text its first and last half stay, and the whole is
/// kept as a file where there is a sandbox. Several texts share the limit.
async fn bounded(content: Content, sandbox: Option<&dyn Sandbox>) -> Content {
    match content {
        Content::Text(text) => Content::Text(bounded_text(text, MAX_RESULT_CHARS, sandbox).await),
        Content::Parts(parts) => {
            let is_text = |part: &&Part| matches!(part, Part::Text(_));
            let limit = MAX_RESULT_CHARS / parts.iter().filter(is_text).count().max(1);
            let mut bounded = Vec::with_capacity(parts.len());
            for part in parts {
                bounded.push(match part {
                    Part::Text(text) => Part::Text(bounded_text(text, limit, sandbox).await),
                    media @ Part::Media(_) => media,
                });
            }
            Content::Parts(bounded)
        }
    }
}

async fn bounded_text(text: String, limit: usize, sandbox: Option<&dyn Sandbox>) -> String {
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
    let kept = match sandbox {
        Some(sandbox) => keep(text, sandbox).await,
        None => String::new(),
    };
    format!(
        "{head}\n… [the result has {count} characters; its middle is left out here{kept}] …\n{tail}"
    )
}

/// Keeps a text as a file, and says where. The file is named by what is in it: the same result is the
/// same words for the model and one file, whatever the call's id and whoever shares the sandbox.
async fn keep(text: String, sandbox: &dyn Sandbox) -> String {
    let named = tokio::task::spawn_blocking(move || {
        let digest: String = hex(&Sha256::digest(&text)).chars().take(16).collect();
        (format!("{RESULTS}/{digest}.txt"), text)
    });
    let Ok((Ok(path), text)) = named
        .await
        .map(|(path, text)| (SandboxPath::new(path), text))
    else {
        return String::new();
    };
    let data = futures_util::stream::iter([Ok(Bytes::from(text))]);
    match sandbox
        .write(&path, WriteOptions::default(), Box::pin(data))
        .await
    {
        Ok(()) => format!(", the whole of it is in the file `{path}`"),
        Err(error) => format!(", and it could not be kept as a file: {error}"),
    }
}
