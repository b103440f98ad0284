//! The tool `code_exec`, and the provider that opens its sandbox.

mod allowed;
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
    SandboxExt as _, SpawnRequest, Spill, Utf8Decoder, render_command,
};
use cantle_core::tool::{
    DynTool, OpenContext, ProviderError, Requirements, ToolContext, ToolError, ToolOutput,
    ToolProvider, ToolSet,
};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use self::allowed::AllowedCommands;
pub use self::allowed::InvalidPattern;

const NAME: &str = "code_exec";
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(300);

/// Provides a sandbox and the tool `code_exec`, which runs bash commands in it.
///
/// Each session opens its own sandbox and closes it at its end.
///
/// ```
/// use std::time::Duration;
///
/// use cantle_backends_local::LocalBackend;
/// use cantle_core::tool::ToolProvider as _;
/// use cantle_tools::CodeExec;
///
/// let provider = CodeExec::new(LocalBackend::new()).timeout(Duration::from_secs(60));
/// assert!(provider.provides_sandbox());
/// ```
#[must_use]
#[derive(Clone, Debug)]
pub struct CodeExec {
    backend: Arc<dyn Backend>,
    policy: Policy,
    timeout: Duration,
    background: Background,
    allowed: Option<AllowedCommands>,
    parallel: bool,
    name: String,
    /// Replaces the generated description.
    description: Option<String>,
}

impl CodeExec {
    /// Creates a provider of sandboxes of `backend`, with the policy [`Policy::workspace`], a timeout of
    /// 300 s per command, and background processes that run until the session ends.
    pub fn new(backend: impl Backend + 'static) -> Self {
        Self {
            backend: Arc::new(backend),
            policy: Policy::workspace(),
            timeout: DEFAULT_TIMEOUT,
            background: Background::Keep,
            allowed: None,
            parallel: false,
            name: NAME.to_owned(),
            description: None,
        }
    }

    /// Sets the sandbox's policy.
    pub fn policy(mut self, policy: Policy) -> Self {
        self.policy = policy;
        self
    }

    /// Sets the timeout of a command.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Sets whether background processes outlive their command.
    pub fn background(mut self, background: Background) -> Self {
        self.background = background;
        self
    }

    /// Lets the commands of one turn run side by side, in the same files. By default they run one after
    /// another, in the order of their calls.
    pub fn parallel(mut self, parallel: bool) -> Self {
        self.parallel = parallel;
        self
    }

    /// Sets the tool's name. Default: `code_exec`.
    pub fn tool_name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Replaces the tool's description for the model, which states how commands run, their timeout and
    /// how much of the output the model sees.
    pub fn description(mut self, description: impl Into<String>) -> Self {
        self.description = Some(description.into());
        self
    }

    /// Restricts commands to those that start with one of these patterns (regular expressions).
    ///
    /// Commands then run without a shell: they are split into words as in bash, without expansion, and
    /// unquoted shell syntax (`;`, `|`, `>`, `$(…)`, leading assignments) is refused. A pattern is
    /// matched from the start against the words joined by single spaces, single-quoted if necessary. It
    /// need not match to the end, so `git status( |$)` is stricter than `git status`.
    ///
    /// This guides the model, which sees the patterns and the reason for a refusal. It is not a security
    /// boundary, because allowed programs can start others; that is the sandbox's
    /// [policy](Self::policy).
    ///
    /// ```
    /// # use cantle_backends_local::LocalBackend;
    /// use cantle_tools::CodeExec;
    ///
    /// let provider = CodeExec::new(LocalBackend::new())
    ///     .allowed_commands(["ls( |$)", "git (status|log|diff)( |$)"])?;
    /// # Ok::<(), cantle_tools::InvalidPattern>(())
    /// ```
    ///
    /// # Errors
    /// If a pattern is not a valid regular expression.
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
            // A changed default does not prevent resuming, but a changed setting does.
            "set": self.policy.differing_fields(),
            "allowed_commands": self.allowed.as_ref().map(|allowed| allowed.list(usize::MAX)),
        })
    }

    fn requirements(&self) -> Requirements {
        Requirements::new()
    }

    async fn open(&self, cx: OpenContext) -> Result<Box<dyn ToolSet>, ProviderError> {
        let (sandbox, owned) = if let Some(sandbox) = cx.sandbox {
            // An existing sandbox belongs to another provider, which closes it.
            (sandbox, None)
        } else {
            let mut policy = self.policy.clone();
            cx.requirements.add_to(&mut policy);
            let mut context = SandboxContext::new(cx.run, policy);
            context.principal = cx.principal;
            context.durable = cx.durable;
            context.progress = cx.progress;
            let sandbox = match &cx.reattach {
                Some(handle) => self.backend.reattach(handle, context).await?,
                None => self.backend.open(context).await?,
            };
            (Arc::clone(&sandbox), Some(sandbox))
        };
        let tool = self.tool(sandbox);
        Ok(Box::new(CommandTools { tool, owned }))
    }
}

/// The tool, and the sandbox that this set opened; `None` if another provider closes it.
struct CommandTools {
    tool: DynTool,
    owned: Option<Arc<dyn Sandbox>>,
}

#[async_trait]
impl ToolSet for CommandTools {
    fn tools(&self) -> Vec<DynTool> {
        vec![self.tool.clone()]
    }

    fn sandbox(&self) -> Option<Arc<dyn Sandbox>> {
        self.owned.clone()
    }

    async fn close(self: Box<Self>) -> Result<(), ProviderError> {
        match &self.owned {
            Some(sandbox) => Ok(sandbox.close().await?),
            None => Ok(()),
        }
    }

    async fn suspend(self: Box<Self>) -> Result<(), ProviderError> {
        // Dropping a persisted sandbox keeps it.
        Ok(())
    }
}

#[derive(Deserialize, JsonSchema)]
struct Params {
    /// The command.
    cmd: String,
}

impl CodeExec {
    /// Returns the tool that runs commands in this sandbox.
    fn tool(&self, sandbox: Arc<dyn Sandbox>) -> DynTool {
        let description = self.description.clone();
        let description = description.unwrap_or_else(|| description_of(self));
        let (name, configuration) = (self.name.clone(), Arc::new(self.clone()));
        DynTool::from_fn(name, description, move |params: Params, cx| {
            run(Arc::clone(&configuration), Arc::clone(&sandbox), params, cx)
        })
        .with_concurrency_safe(self.parallel)
        // Each command has its own, and keeps what it wrote by then.
        .with_timeout(None)
    }

    /// Returns the request for a command, or its refusal.
    fn request(&self, params: Params, cx: &ToolContext) -> Result<SpawnRequest, String> {
        refusal::check_text(&params.cmd)?;
        let request = match &self.allowed {
            Some(allowed) => SpawnRequest::argv(allowed.argv(&params.cmd)?),
            None => SpawnRequest::shell(params.cmd),
        };
        // A character has at least one byte, so all truncated output is spilled to a file.
        let shown = RenderLimits::default().channel_chars;
        Ok(request
            .with_timeout(self.timeout)
            .with_background(self.background)
            .with_cancellation(cx.cancellation.clone())
            .with_spill(Spill::after(u64::try_from(shown).unwrap_or(u64::MAX))))
    }
}

fn description_of(configuration: &CodeExec) -> String {
    let mut text = String::new();
    match &configuration.allowed {
        None => text.push_str(
            "Runs a bash command (several lines are fine) and returns its exit code, stdout and stderr. \
             Each call is a new shell in the working directory: files stay, but `cd`, variables and \
             functions do not. ",
        ),
        Some(allowed) => {
            let _ = write!(
                text,
                "Runs one program in the working directory and returns its exit code, stdout and stderr. \
                 There is no shell: quotes work as in bash, but there are no variables, wildcards, pipes, \
                 redirection or several commands. Only commands that begin like one of these patterns \
                 are run: {allowed}. "
            );
        }
    }
    let seconds = configuration.timeout.as_secs_f64();
    let _ = write!(
        text,
        "Standard input is empty. A command is stopped after {seconds} s. "
    );
    if configuration.parallel {
        text.push_str("Commands that you call in one turn run side by side. ");
    }
    text.push_str(match (configuration.background, &configuration.allowed) {
        (Background::Keep, None) => {
            "Start longer work in the background (`command > log 2>&1 &`): it goes on after the call. "
        }
        (Background::Keep, Some(_)) => {
            "Background processes go on after the call. "
        }
        (Background::Kill, _) => {
            "Background processes are stopped when it ends. "
        }
    });
    let _ = write!(
        text,
        "Longer output than {} characters is cut in the middle; the result names a file that has all of it.",
        RenderLimits::default().channel_chars
    );
    text
}

async fn run(
    configuration: Arc<CodeExec>,
    sandbox: Arc<dyn Sandbox>,
    params: Params,
    cx: ToolContext,
) -> Result<ToolOutput, ToolError> {
    let request = match configuration.request(params, &cx) {
        Ok(request) => request,
        Err(refusal) => {
            return Ok(ToolOutput::failure(refusal).with_metadata(Metadata::uses(1)));
        }
    };
    let (mut stdout, mut stderr) = (Utf8Decoder::default(), Utf8Decoder::default());
    let mut output = sandbox
        .run_with_observer(request, &mut |chunk| {
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
    output.add_policy_notes(&configuration.policy, sandbox.info());
    let text = render_command(&output, RenderLimits::default());
    let mut result = ToolOutput::text(text).with_metadata(Metadata::uses(1));
    result.left_running = !output.exit.background.is_empty();
    // A command that fails did run, and its output is the answer.
    result.success = matches!(
        output.exit.status,
        ExitStatus::Code(_) | ExitStatus::Signal(_)
    );
    Ok(result)
}
