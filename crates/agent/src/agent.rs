//! The definition of an agent: a model, tools and rules. Immutable, shared by any number of
//! sessions.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use cantle_core::llm::LlmClient;
use cantle_core::tool::{AskUser, DynTool, NoUser, ToolProvider};

use cantle_core::ids::RunId;
use cantle_core::sandbox::SandboxHandle;

use crate::approval::Approvals;
use crate::error::{AgentError, SessionError};
use crate::hooks::Hooks;
use crate::journal::RunStore;
use crate::machine::{ImageBounds, Rules};
use crate::session::{ResumeOptions, Session, SessionOptions};

/// Images that a request holds at most, unless set: fewer than any provider takes.
const IMAGES: ImageBounds = ImageBounds {
    count: 96,
    bytes: 24 * 1024 * 1024,
};

/// An agent: what every session of it has in common. Cheap to clone; a thousand sessions of one
/// agent, each with its own files, never meet.
#[derive(Clone)]
pub struct Agent(Arc<Definition>);

pub(crate) struct Definition {
    pub(crate) name: String,
    pub(crate) client: Arc<dyn LlmClient>,
    pub(crate) system_prompt: Option<String>,
    pub(crate) tools: Vec<DynTool>,
    pub(crate) finish_tools: Vec<DynTool>,
    pub(crate) providers: Vec<Arc<dyn ToolProvider>>,
    pub(crate) user: Arc<dyn AskUser>,
    pub(crate) rules: Rules,
    pub(crate) approvals: Approvals,
    pub(crate) hooks: Option<Arc<dyn Hooks>>,
    pub(crate) open_deadline: Duration,
    pub(crate) close_deadline: Duration,
}

impl Agent {
    /// Begins the definition of an agent with this name and model.
    pub fn builder(name: impl Into<String>, client: impl LlmClient) -> AgentBuilder {
        let client: Arc<dyn LlmClient> = Arc::new(client);
        let model = client.model();
        let (context_window, max_output_tokens) = (model.context_window, model.max_output_tokens);
        AgentBuilder {
            definition: Definition {
                name: name.into(),
                client,
                system_prompt: None,
                tools: Vec::new(),
                finish_tools: Vec::new(),
                providers: Vec::new(),
                user: Arc::new(NoUser),
                rules: Rules {
                    max_turns: 30,
                    turn_warning_threshold: 20,
                    text_only_tool_responses: true,
                    block_successive_assistant_messages: true,
                    recover_from_context_overflow: true,
                    continue_cut_answers: false,
                    summarize_at: Some(0.7),
                    context_window,
                    max_output_tokens,
                    images: IMAGES,
                },
                approvals: Approvals::allowing(),
                hooks: None,
                open_deadline: Duration::from_secs(600),
                close_deadline: Duration::from_secs(30),
            },
        }
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Opens a session: the providers' resources, and the input files in the sandbox.
    ///
    /// # Errors
    /// Where an input file is missing, the output directory can't be written, or a provider can't
    /// be opened. What was opened by then is closed again.
    pub async fn session(&self, options: SessionOptions) -> Result<Session, SessionError> {
        Session::open(Arc::clone(&self.0), options).await
    }

    /// Opens a session to go on with a run that is kept in `store`: its sandbox is opened again, its
    /// conversation is as it was. [`Session::resume`] then goes on. One that finished while its sandbox was
    /// still there finishes again with the same call, and its files are saved.
    ///
    /// # Errors
    /// [`SessionErrorKind::Journal`](crate::SessionErrorKind) where there is no such run, it is
    /// finished, or another process works on it;
    /// [`SessionErrorKind::Identity`](crate::SessionErrorKind) where this agent is not the one that
    /// began it, with the differences; [`SessionErrorKind::Sandbox`](crate::SessionErrorKind) where
    /// its sandbox is gone, unless a fresh one is [asked for](ResumeOptions::fresh_sandbox).
    pub async fn resume(
        &self,
        store: &RunStore,
        run: RunId,
        options: ResumeOptions,
    ) -> Result<Session, SessionError> {
        Session::reopen(Arc::clone(&self.0), store.clone(), run, options).await
    }

    /// Removes the sandbox that a run of this agent left. One that is gone is no error.
    pub(crate) async fn discard(&self, sandbox: SandboxHandle) -> Result<(), SessionError> {
        Session::discard(Arc::clone(&self.0), sandbox).await
    }
}

impl fmt::Debug for Agent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Agent")
            .field("name", &self.0.name)
            .field("model", &self.0.client.model().slug)
            .field("tools", &self.0.tools)
            .field("finish_tools", &self.0.finish_tools)
            .field("providers", &self.0.providers)
            .finish_non_exhaustive()
    }
}

/// Puts an [`Agent`] together.
pub struct AgentBuilder {
    definition: Definition,
}

impl AgentBuilder {
    /// Instructions for the model, after the general ones.
    #[must_use]
    pub fn system_prompt(mut self, instructions: impl Into<String>) -> Self {
        self.definition.system_prompt = Some(instructions.into());
        self
    }

    /// A tool that needs nothing opened.
    #[must_use]
    pub fn tool(mut self, tool: impl Into<DynTool>) -> Self {
        self.definition.tools.push(tool.into());
        self
    }

    /// Tools that need something opened, a sandbox for instance.
    #[must_use]
    pub fn provider(mut self, provider: impl ToolProvider + 'static) -> Self {
        self.definition.providers.push(Arc::new(provider));
        self
    }

    /// A tool whose success ends the run. At least one; with several, any of them does.
    #[must_use]
    pub fn finish(mut self, tool: impl Into<DynTool>) -> Self {
        self.definition.finish_tools.push(tool.into());
        self
    }

    /// Who can be asked while a run goes on. Nobody, unless set.
    #[must_use]
    pub fn user(mut self, user: impl AskUser + 'static) -> Self {
        self.definition.user = Arc::new(user);
        self
    }

    /// Turns (model calls with their tool calls) that one run may take. 30 unless set.
    #[must_use]
    pub fn max_turns(mut self, turns: u32) -> Self {
        self.definition.rules.max_turns = turns;
        self
    }

    /// With this many turns left or fewer, each turn begins with a warning. 20 unless set.
    #[must_use]
    pub fn turn_warning_threshold(mut self, turns: u32) -> Self {
        self.definition.rules.turn_warning_threshold = turns;
        self
    }

    /// Whether images in tool results move to a user message, as most models want. Yes unless set.
    #[must_use]
    pub fn text_only_tool_responses(mut self, yes: bool) -> Self {
        self.definition.rules.text_only_tool_responses = yes;
        self
    }

    /// Whether a model that calls nothing is told to go on, so that no two assistant messages
    /// follow each other. Yes unless set.
    #[must_use]
    pub fn block_successive_assistant_messages(mut self, yes: bool) -> Self {
        self.definition.rules.block_successive_assistant_messages = yes;
        self
    }

    /// Whether the latest turn is taken back where the context overflows. Yes unless set.
    #[must_use]
    pub fn recover_from_context_overflow(mut self, yes: bool) -> Self {
        self.definition.rules.recover_from_context_overflow = yes;
        self
    }

    /// Whether the model is told to go on where its answer was cut off at the output limit. Calls of
    /// that answer don't run. No unless set: the run ends with an error then.
    #[must_use]
    pub fn continue_cut_answers(mut self, yes: bool) -> Self {
        self.definition.rules.continue_cut_answers = yes;
        self
    }

    /// The part of the context window (0 to 1) that is used before the conversation is summarized;
    /// `None` for never. 0.7 unless set. Where the window is not known, a summary is made once it
    /// overflows.
    #[must_use]
    pub fn summarize_at(mut self, part: Option<f64>) -> Self {
        self.definition.rules.summarize_at = part;
        self
    }

    /// Images that one request may hold, and their bytes; the oldest go in batches. 96 and 24 MiB
    /// unless set.
    #[must_use]
    pub fn max_images(mut self, count: usize, bytes: usize) -> Self {
        self.definition.rules.images = ImageBounds { count, bytes };
        self
    }

    /// Which tool calls are allowed, denied or asked about. All are allowed unless set.
    #[must_use]
    pub fn approvals(mut self, approvals: Approvals) -> Self {
        self.definition.approvals = approvals;
        self
    }

    /// Code of yours that looks on and decides.
    #[must_use]
    pub fn hooks(mut self, hooks: impl Hooks + 'static) -> Self {
        self.definition.hooks = Some(Arc::new(hooks));
        self
    }

    /// How long one provider may take to open and to close. 600 s and 30 s unless set.
    #[must_use]
    pub fn provider_deadlines(mut self, open: Duration, close: Duration) -> Self {
        self.definition.open_deadline = open;
        self.definition.close_deadline = close;
        self
    }

    /// The finished definition.
    ///
    /// # Errors
    /// Where the name doesn't match `^[a-zA-Z0-9_-]{1,128}$`, there is no finish tool, two tools
    /// have one name, a tool's name is no name, more than one provider brings a sandbox, or no turn
    /// is allowed.
    pub fn build(self) -> Result<Agent, AgentError> {
        let definition = self.definition;
        if !is_name(&definition.name, 128) {
            return Err(AgentError::new(format!(
                "the agent's name `{}` must be 1 to 128 letters, digits, `_` or `-`",
                definition.name
            )));
        }
        if definition.finish_tools.is_empty() {
            return Err(AgentError::new(
                "an agent needs at least one finish tool; `Finish` is the usual one",
            ));
        }
        if definition.rules.max_turns == 0 {
            return Err(AgentError::new("max_turns must be at least 1"));
        }
        let sandboxes: Vec<_> = definition
            .providers
            .iter()
            .filter(|provider| provider.provides_sandbox())
            .map(|provider| provider.name())
            .collect();
        if sandboxes.len() > 1 {
            return Err(AgentError::new(format!(
                "an agent has at most one sandbox, but several providers bring one: {}",
                sandboxes.join(", ")
            )));
        }
        let tools = definition.tools.iter().chain(&definition.finish_tools);
        check_tool_names(tools).map_err(AgentError::new)?;
        Ok(Agent(Arc::new(definition)))
    }
}

impl fmt::Debug for AgentBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AgentBuilder")
            .field("name", &self.definition.name)
            .finish_non_exhaustive()
    }
}

/// Tool names must be names and differ from each other.
pub(crate) fn check_tool_names<'t>(tools: impl Iterator<Item = &'t DynTool>) -> Result<(), String> {
    let mut seen = std::collections::HashSet::new();
    for tool in tools {
        let name = tool.name();
        if !is_name(name, 64) {
            return Err(format!(
                "the tool name `{name}` must be 1 to 64 letters, digits, `_` or `-`"
            ));
        }
        if !seen.insert(name) {
            return Err(format!("two tools are called `{name}`"));
        }
    }
    Ok(())
}

fn is_name(name: &str, max: usize) -> bool {
    (1..=max).contains(&name.len())
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-')
}
