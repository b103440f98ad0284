//! The tool `python`: code of a model in the session's sandbox, with variables that are kept.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use cantle_core::code::{CodeRequest, RichResult};
use cantle_core::content::{Content, Media, Part};
use cantle_core::escape::join_up_to;
use cantle_core::metadata::Metadata;
use cantle_core::sandbox::{
    Captured, Channel, CommandOutput, Exit, ExitStatus, FileKind, RenderLimits, SandboxContext,
    SandboxError, SandboxExt as _, SandboxPath, Utf8Decoder, Walk, render_channel,
};
use cantle_core::tool::{
    DynTool, OpenContext, ProviderError, Requirements, ToolContext, ToolError, ToolOutput,
    ToolProvider, ToolSet, tool_set,
};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use crate::execution::{Execution, ExecutionOutcome};
use crate::interpreter::{Interpreter, PythonSession};
use crate::kernel::LOST_VARIABLES;
use crate::packages::PackageSet;

const NAME: &str = "python";
/// The context of the model.
const CONTEXT: &str = "main";
/// Maximum number of images of one call.
const MAX_IMAGES: usize = 8;
/// Maximum number of changed files that are named, and of characters of each name.
const MAX_FILES: usize = 20;
const MAX_NAME_CHARS: usize = 200;
/// Maximum number of packages that the description names.
const MAX_PACKAGES: usize = 60;

/// Provides the tool `python`, which executes code and keeps its variables from call to call.
///
/// It works in the session's sandbox, so that commands and code see the same files; without one, in a sandbox that it
/// opens with the interpreter's backend and policy.
///
/// ```
/// use cantle_backends_local::LocalBackend;
/// use cantle_core::tool::ToolProvider as _;
/// use cantle_python::{Interpreter, PythonTool};
///
/// let provider = PythonTool::new(Interpreter::new(LocalBackend::new())).images(true);
/// assert_eq!(provider.name(), "python");
/// ```
#[must_use]
#[derive(Clone, Debug)]
pub struct PythonTool {
    interpreter: Interpreter,
    images: bool,
}

impl PythonTool {
    /// Creates a provider that shows the model no images.
    pub fn new(interpreter: Interpreter) -> Self {
        Self {
            interpreter,
            images: false,
        }
    }

    /// Sets whether figures and other images are shown to the model, which must accept them.
    pub fn images(mut self, images: bool) -> Self {
        self.images = images;
        self
    }
}

#[async_trait]
impl ToolProvider for PythonTool {
    fn name(&self) -> &str {
        NAME
    }

    fn provides_sandbox(&self) -> bool {
        false
    }

    fn identity(&self) -> Value {
        let mut identity = json!({
            "python": self.interpreter.python,
            "allowed_imports": self.interpreter.allowed_imports.as_deref(),
        });
        // Absent in earlier journals.
        if let (Some(packages), Some(identity)) =
            (&self.interpreter.packages, identity.as_object_mut())
        {
            identity.insert("packages".to_owned(), packages.key().into());
        }
        identity
    }

    fn requirements(&self) -> Requirements {
        self.interpreter.requirements()
    }

    async fn open(&self, cx: OpenContext) -> Result<Box<dyn ToolSet>, ProviderError> {
        let (sandbox, is_owned) = match cx.sandbox {
            Some(sandbox) => (sandbox, false),
            None => {
                let mut policy = self.interpreter.policy.clone();
                self.interpreter.requirements().add_to(&mut policy);
                let mut context = SandboxContext::new(cx.run, policy).with_progress(cx.progress);
                context.principal = cx.principal;
                (self.interpreter.backend.open(context).await?, true)
            }
        };
        let session = Arc::new(self.interpreter.attach(sandbox));
        let mut description = description(&self.interpreter);
        if let Some(packages) = &self.interpreter.packages {
            let python = session.python().await?.map_err(ProviderError::new)?;
            describe_packages(&mut description, packages, &python.program);
        }
        let marker = SandboxPath::new(format!(".cantle/python-{}", cx.run));
        let tool = Arc::new(RunPython {
            session: Arc::clone(&session),
            images: self.images,
            marker: marker.ok(),
            had_predecessor: OnceCell::new(),
        });
        let tool = DynTool::from_fn(NAME, description, move |params, cx| {
            let tool = Arc::clone(&tool);
            async move { tool.call(params, cx).await }
        })
        // Each execution has its own, and keeps what it wrote by then.
        .with_timeout(None);
        // A sandbox of its own is not the session's, but is closed with the tool.
        Ok(tool_set(vec![tool], move || async move {
            match is_owned {
                true => session.close().await?,
                false => session.remove(CONTEXT).await,
            }
            Ok(())
        }))
    }
}

struct RunPython {
    session: Arc<PythonSession>,
    images: bool,
    /// A file whose existence means that the run had an interpreter in this sandbox.
    marker: Option<SandboxPath>,
    /// Whether there was one when the first call began: the run was resumed.
    had_predecessor: OnceCell<bool>,
}

#[derive(Deserialize, JsonSchema)]
struct Params {
    /// The code.
    code: String,
    /// Time limit in place of the interpreter's, for programs that call the tool. The schema does not have it.
    #[serde(default)]
    #[schemars(skip)]
    timeout: Option<Duration>,
}

fn description(interpreter: &Interpreter) -> String {
    let mut text = format!(
        "Executes Python code and returns what it prints, the value of its last expression, figures of matplotlib, and \
         the traceback of an exception. Variables, functions and imports are kept from call to call. Relative paths \
         begin in the working directory, whose files are those of commands. `await` works at the top level; `input()` \
         does not. The result names files that a call created or changed. Code is interrupted after {} s, and variables stay. ",
        interpreter.timeout.as_secs_f64()
    );
    if let Some(modules) = interpreter.allowed_imports.as_deref() {
        let _ = match modules {
            [] => write!(text, "No module may be imported. "),
            modules => write!(
                text,
                "Only these modules may be imported: {}. ",
                modules.join(", ")
            ),
        };
    }
    let _ = write!(
        text,
        "Longer output than {} characters is cut in the middle; the result names a file that has all of it.",
        RenderLimits::default().channel_chars
    );
    text
}

/// Names packages, and the Python with which commands reach them.
fn describe_packages(description: &mut String, packages: &PackageSet, python: &str) {
    let names = packages.packages().take(MAX_PACKAGES);
    let names: Vec<_> = names
        .map(|(name, version)| format!("{name} {version}"))
        .collect();
    let _ = write!(
        description,
        " These packages are installed: {}; commands reach them with `{python}`.",
        names.join(", ").replace(" ,", ",")
    );
}

impl RunPython {
    /// Returns whether an earlier process of this run had an interpreter in this sandbox.
    async fn had_predecessor(&self) -> Result<bool, SandboxError> {
        let Some(marker) = &self.marker else {
            return Ok(false);
        };
        let sandbox = self.session.sandbox();
        let is_there = sandbox.is_file(marker).await?;
        if !is_there {
            // A working directory that can't be written has no marker, and loses no files either.
            let _ = sandbox.write_bytes(marker, Bytes::new()).await;
        }
        Ok(is_there)
    }

    /// Renders an execution for the model.
    fn render(&self, execution: &Execution, files: Option<String>) -> (String, Vec<Media>) {
        let mut elements: Vec<(&str, String)> = Vec::new();
        if !matches!(
            execution.outcome,
            ExecutionOutcome::Completed | ExecutionOutcome::Raised
        ) {
            elements.push(("outcome", outcome(execution)));
        }
        for (name, captured, file) in [
            ("stdout", &execution.stdout, &execution.stdout_file),
            ("stderr", &execution.stderr, &execution.stderr_file),
        ] {
            if captured.total_bytes() > 0 {
                let text = render_channel(captured, file.as_ref(), RenderLimits::default());
                elements.push((name, text));
            }
        }
        let mut images = Vec::new();
        for result in &execution.results {
            let text = short(result.text().unwrap_or_default());
            match result_image(result).filter(|_| self.images && images.len() < MAX_IMAGES) {
                Some(image) => {
                    images.push(image);
                    elements.push(("result", format!("{text}\n(image {})", images.len())));
                }
                None if result.formats.contains_key("png") => {
                    let advice = "(an image, which is not shown; save it to a file to deliver it)";
                    elements.push(("result", format!("{text}\n{advice}")));
                }
                None => elements.push(("result", text)),
            }
        }
        if let Some(error) = &execution.error {
            elements.push(("error", short(&error.traceback)));
        }
        elements.extend(files.map(|files| ("files", files)));
        let notes = self.notes(execution);
        if !notes.is_empty() {
            elements.push(("advice", notes.join("\n")));
        }
        if elements.is_empty() {
            elements.push(("outcome", "The code ended without output.".to_owned()));
        }
        let mut text = String::from("<python_results>");
        for (name, content) in elements {
            let _ = write!(
                text,
                "\n<{name}>{}</{name}>",
                content.trim_end_matches('\n')
            );
        }
        text.push_str("\n</python_results>");
        (text, images)
    }

    /// Returns the notes, with those on the policy that the error messages indicate.
    fn notes(&self, execution: &Execution) -> Vec<String> {
        let mut errors = execution.stderr.text();
        errors.push_str(execution.error.as_ref().map_or("", |it| &it.traceback));
        let exit = Exit::new(ExitStatus::Code(0), execution.duration);
        let mut output = CommandOutput::new(exit, Captured::default(), Captured::complete(errors));
        let policy = &self.session.settings.policy;
        output.add_policy_notes(policy, self.session.sandbox().info());
        let notes = execution.notes.iter().cloned();
        notes.chain(output.exit.notes).collect()
    }
}

/// Cuts a long text in the middle.
fn short(text: &str) -> String {
    let captured = Captured::complete(text.to_owned());
    render_channel(&captured, None, RenderLimits::default())
}

/// Describes an outcome that is no ordinary end.
fn outcome(execution: &Execution) -> String {
    let seconds = execution.duration.as_secs_f64();
    match execution.outcome {
        ExecutionOutcome::TimedOut => format!(
            "The code was stopped after {seconds:.1} s, the time limit; its output so far is kept. Do the work in smaller steps."
        ),
        ExecutionOutcome::LimitReached => {
            "The code was stopped at a limit of the policy.".to_owned()
        }
        ExecutionOutcome::Killed => "The interpreter ended before the code did.".to_owned(),
        ExecutionOutcome::Cancelled => {
            "The code was stopped because the call was cancelled.".to_owned()
        }
        ExecutionOutcome::SetupFailed => {
            "Python can't be used here; nothing was executed.".to_owned()
        }
        _ => "The code was refused; nothing was executed.".to_owned(),
    }
}

/// Names the files that a call created or changed, except our own.
fn changed_files(before: &Walk, after: &Walk) -> Option<String> {
    let changed = after.changed_since(before);
    let files = changed.filter(|(path, entry)| {
        entry.kind == FileKind::File && !path.relative_bytes().starts_with(b".cantle/")
    });
    let names = files.map(|(path, entry)| {
        let name = path.to_string();
        let name: String = name.escape_debug().take(MAX_NAME_CHARS).collect();
        format!("{name} ({} bytes)", entry.size_bytes)
    });
    let names = join_up_to(MAX_FILES, names);
    (!names.is_empty()).then(|| format!("Created or changed: {names}"))
}

/// Returns the image of a result.
fn result_image(result: &RichResult) -> Option<Media> {
    let encoded = ["png", "jpeg"]
        .iter()
        .find_map(|name| result.formats.get(*name)?.as_str())?;
    Media::image(BASE64.decode(encoded.trim()).ok()?).ok()
}

impl RunPython {
    async fn call(&self, params: Params, cx: ToolContext) -> Result<ToolOutput, ToolError> {
        let is_first = !self.had_predecessor.initialized();
        let had_predecessor = self
            .had_predecessor
            .get_or_try_init(|| self.had_predecessor());
        let had_predecessor = *had_predecessor.await?;
        let (mut stdout, mut stderr) = (Utf8Decoder::default(), Utf8Decoder::default());
        let mut observer = |channel: Channel, bytes: &Bytes| {
            let decoder = match channel {
                Channel::Stdout => &mut stdout,
                Channel::Stderr => &mut stderr,
            };
            let text = decoder.push(bytes);
            if !text.is_empty() {
                cx.progress.output(&text);
            }
        };
        let timeout = params.timeout.unwrap_or(self.session.settings.timeout);
        let cancellation = cx.cancellation.clone();
        let request = CodeRequest::new(CONTEXT, params.code, timeout, cancellation);
        let before = self.session.listing().await?;
        let executed = self.session.execute_request(request, &mut observer);
        let mut execution = executed.await?;
        let after = match (&before, execution.outcome) {
            (None, _) | (_, ExecutionOutcome::Refused | ExecutionOutcome::SetupFailed) => None,
            _ => self.session.listing().await?,
        };
        let files = before.zip(after);
        let files = files.and_then(|(before, after)| changed_files(&before, &after));
        if is_first && had_predecessor {
            execution.notes.insert(0, LOST_VARIABLES.to_owned());
        }
        let (text, images) = self.render(&execution, files);
        let content = match images.is_empty() {
            true => Content::Text(text),
            false => {
                let images = images.into_iter().map(Part::Media);
                Content::Parts(std::iter::once(Part::Text(text)).chain(images).collect())
            }
        };
        let mut output = ToolOutput::new(content).with_metadata(Metadata::uses(1));
        // Code that fails did run, and what it says is the answer.
        output.success = matches!(
            execution.outcome,
            ExecutionOutcome::Completed | ExecutionOutcome::Raised | ExecutionOutcome::Killed
        );
        Ok(output)
    }
}
