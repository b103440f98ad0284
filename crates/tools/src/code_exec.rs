//! Running commands: the provider that opens a sandbox, and the tool `code_exec`.

mod allowed;
mod pieces;
mod refusal;
mod words;

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use cantle_core::metadata::Metadata;
use cantle_core::policy::Policy;
use cantle_core::sandbox::{
    Backend, Background, Channel, ExitStatus, RenderLimits, Sandbox, SandboxContext,
    SandboxExt as _, SpawnRequest, Spill, render_command,
};
use cantle_core::tool::{
    DynTool, OpenContext, ProviderError, Tool, ToolContext, ToolError, ToolOutput, ToolProvider,
    ToolSet,
};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use self::allowed::AllowedCommands;
pub use self::allowed::InvalidPattern;
use self::pieces::TextPieces;
use self::refusal::Refusal;

const NAME: &str = "code_exec";
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(300);

/// Gives a session a sandbox, and the model the tool `code_exec` that runs bash commands in it.
///
/// Each session opens a sandbox of its own from the backend, and closes it at its end.
///
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
///
/// use cantle_backends_local::LocalBackend;
/// use cantle_core::tool::ToolProvider as _;
/// use cantle_tools::CodeExec;
///
/// let backend = Arc::new(LocalBackend::new());
/// let provider = CodeExec::new(backend).timeout(Duration::from_secs(60));
/// assert!(provider.provides_sandbox());
/// ```
#[derive(Clone, Debug)]
pub struct CodeExec {
    backend: Arc<dyn Backend>,
    policy: Policy,
    timeout: Duration,
    background: Background,
    allowed: Option<AllowedCommands>,
}

impl CodeExec {
    /// Commands in sandboxes of `backend`: unconfined, up to 300 s each, and what they leave in the
    /// background runs on until the session ends.
    #[must_use]
    pub fn new(backend: Arc<dyn Backend>) -> Self {
        Self {
            backend,
            policy: Policy::workspace(),
            timeout: DEFAULT_TIMEOUT,
            background: Background::Keep,
            allowed: None,
        }
    }

    /// The same with another policy for the sandbox.
    #[must_use]
    pub fn policy(mut self, policy: Policy) -> Self {
        self.policy = policy;
        self
    }

    /// The same with another time that one command may take.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// The same with another fate for processes that a command leaves running.
    #[must_use]
    pub fn background(mut self, background: Background) -> Self {
        self.background = background;
        self
    }

    /// The same with commands that begin like one of these patterns (regular expressions), and no
    /// others.
    ///
    /// They run without a shell: a command is split into words as bash would, nothing is expanded,
    /// and what only a shell can do (`;`, `|`, `>`, `$(…)`, leading assignments) is refused unless it
    /// is quoted. A pattern is matched from the start against the words joined by single spaces, each
    /// in single quotes where it needs any; it need not match to the end, so that `git status( |$)`
    /// says more than `git status`.
    ///
    /// This is advice to the model, which is told the patterns and why a command was refused. It is
    /// no boundary: allowed programs can start others. What keeps code in is the sandbox's
    /// [policy](Self::policy).
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use cantle_backends_local::LocalBackend;
    /// use cantle_tools::CodeExec;
    ///
    /// let backend = Arc::new(LocalBackend::new());
    /// let provider = CodeExec::new(backend).allowed_commands(["ls( |$)", "git (status|log|diff)( |$)"])?;
    /// # Ok::<(), cantle_tools::InvalidPattern>(())
    /// ```
    ///
    /// # Errors
    /// Where a pattern is no regular expression.
    pub fn allowed_commands<P: AsRef<str>>(
        mut self,
        patterns: impl IntoIterator<Item = P>,
    ) -> Result<Self, InvalidPattern> {
        self.allowed = Some(AllowedCommands::new(patterns)?);
        Ok(self)
    }
}

#[async_trait]
impl ToolProvider for CodeExec {
    fn name(&self) -> &str {
        NAME
    }

    fn provides_sandbox(&self) -> bool {
        true
    }

    fn identity(&self) -> Value {
        json!({
            "backend": self.backend.name(),
            "policy": self.policy,
            "allowed_commands": self.allowed.as_ref().map(ToString::to_string),
        })
    }

    async fn open(&self, cx: OpenContext) -> Result<Box<dyn ToolSet>, ProviderError> {
        // A sandbox that is there already is somebody else's: it is used, and stays.
        if let Some(sandbox) = cx.sandbox {
            return Ok(Box::new(Shared(DynTool::new(RunCommand::new(
                sandbox, self,
            )))));
        }
        let mut context = SandboxContext::new(cx.run, self.policy.clone());
        context.durable = cx.durable;
        context.progress = Arc::clone(&cx.progress);
        let sandbox = match &cx.reattach {
            Some(handle) => self.backend.reattach(handle, context).await?,
            None => self.backend.open(context).await?,
        };
        Ok(Box::new(Opened {
            tool: DynTool::new(RunCommand::new(Arc::clone(&sandbox), self)),
            sandbox,
        }))
    }
}

/// Commands in a sandbox that was there before.
struct Shared(DynTool);

#[async_trait]
impl ToolSet for Shared {
    fn tools(&self) -> Vec<DynTool> {
        vec![self.0.clone()]
    }

    async fn close(self: Box<Self>) -> Result<(), ProviderError> {
        Ok(())
    }
}

struct Opened {
    sandbox: Arc<dyn Sandbox>,
    tool: DynTool,
}

#[async_trait]
impl ToolSet for Opened {
    fn tools(&self) -> Vec<DynTool> {
        vec![self.tool.clone()]
    }

    fn sandbox(&self) -> Option<Arc<dyn Sandbox>> {
        Some(Arc::clone(&self.sandbox))
    }

    async fn close(self: Box<Self>) -> Result<(), ProviderError> {
        Ok(self.sandbox.close().await?)
    }

    async fn suspend(self: Box<Self>) -> Result<(), ProviderError> {
        // A sandbox that was persisted stays where it is when it is dropped.
        Ok(())
    }
}

struct RunCommand {
    sandbox: Arc<dyn Sandbox>,
    policy: Policy,
    timeout: Duration,
    background: Background,
    allowed: Option<AllowedCommands>,
    limits: RenderLimits,
    description: String,
}

#[derive(Deserialize, JsonSchema)]
struct Params {
    /// The command.
    cmd: String,
}

impl RunCommand {
    fn new(sandbox: Arc<dyn Sandbox>, configuration: &CodeExec) -> Self {
        let limits = RenderLimits::default();
        Self {
            sandbox,
            policy: configuration.policy.clone(),
            timeout: configuration.timeout,
            background: configuration.background,
            allowed: configuration.allowed.clone(),
            limits,
            description: description(configuration, limits),
        }
    }

    fn request(&self, params: Params, cx: &ToolContext) -> Result<SpawnRequest, Refusal> {
        if let Some(refusal) = Refusal::of_text(&params.cmd) {
            return Err(refusal);
        }
        let request = match &self.allowed {
            Some(allowed) => SpawnRequest::argv(allowed.argv(&params.cmd)?),
            None => SpawnRequest::shell(params.cmd),
        };
        // A character has at least one byte, so whatever is not shown whole has a file.
        let shown = u64::try_from(self.limits.channel_chars).unwrap_or(u64::MAX);
        Ok(request
            .with_timeout(self.timeout)
            .with_background(self.background)
            .with_cancellation(cx.cancellation.clone())
            .with_spill(Spill::after(shown)))
    }
}

fn description(configuration: &CodeExec, limits: RenderLimits) -> String {
    let mut text = String::new();
    match &configuration.allowed {
        None => text.push_str(
            "Runs a bash command, which may have several lines, and returns its exit code, stdout \
             and stderr. It starts in your working directory: use relative paths. Each call is a new \
             shell: files stay, but `cd`, variables and functions are gone in the next call. ",
        ),
        Some(allowed) => {
            let _ = write!(
                text,
                "Runs one program and returns its exit code, stdout and stderr. There is no shell: \
                 quotes work as in bash, but there are no variables, wildcards, pipes, redirection \
                 or several commands. Only commands that begin like one of these patterns are run: \
                 {allowed}. It starts in your working directory: use relative paths. "
            );
        }
    }
    let seconds = configuration.timeout.as_secs_f64();
    let _ = write!(
        text,
        "Standard input is empty. A command is stopped after {seconds} s. "
    );
    text.push_str(match (configuration.background, &configuration.allowed) {
        (Background::Keep, None) => {
            "For what takes longer, start it in the background (`command > log 2>&1 &`): it runs \
             on after the call, until the task ends. "
        }
        (Background::Keep, Some(_)) => {
            "What it leaves running in the background runs on after the call, until the task ends. "
        }
        (Background::Kill, _) => {
            "What it leaves running in the background is stopped when it ends. "
        }
    });
    let _ = write!(
        text,
        "Of stdout and stderr you see up to {} characters each, the middle left out; what is \
         longer is also kept in a file, whose path you are told.",
        limits.channel_chars
    );
    text
}

impl Tool for RunCommand {
    type Params = Params;

    fn name(&self) -> &str {
        NAME
    }

    fn description(&self) -> &str {
        &self.description
    }

    fn timeout(&self) -> Option<Duration> {
        // Each command has its own, and keeps what it wrote by then.
        None
    }

    async fn call(&self, params: Params, cx: ToolContext) -> Result<ToolOutput, ToolError> {
        let request = match self.request(params, &cx) {
            Ok(request) => request,
            Err(refusal) => return Ok(refusal.into()),
        };
        let (mut stdout, mut stderr) = (TextPieces::default(), TextPieces::default());
        let mut output = self
            .sandbox
            .run_watched(request, &mut |chunk| {
                let pieces = match chunk.channel {
                    Channel::Stdout => &mut stdout,
                    Channel::Stderr => &mut stderr,
                };
                let text = pieces.push(&chunk.bytes);
                if !text.is_empty() {
                    cx.progress.output(&text);
                }
            })
            .await?;
        output.note_boundary(&self.policy, self.sandbox.info());
        let text = render_command(&output, self.limits);
        let mut result = ToolOutput::text(text).with_metadata(Metadata::uses(1));
        result.left_running = !output.exit.background.is_empty();
        // A command that fails did run, and what it says is the answer.
        result.success = matches!(
            output.exit.status,
            ExitStatus::Code(_) | ExitStatus::Signal(_)
        );
        Ok(result)
    }
}
