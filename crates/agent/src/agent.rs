//! Agents and their builder.

use std::fmt;
use std::num::NonZeroU32;
use std::sync::{Arc, OnceLock};

use cantle_core::ids::RunId;
use cantle_core::llm::LlmClient;
use cantle_core::tool::{AskUser, DynTool, NoUser, ToolProvider};

use crate::approval::Approvals;
use crate::definition::Definition;
use crate::error::{InvalidAgent, SessionError};
use crate::hooks::Hooks;
use crate::journal::RunStore;
use crate::rules::{ImageBounds, Rules, TextAnswers, default_max_repeats};
use crate::scope::AgentTool;
use crate::session::{ResumeOptions, Session, SessionOptions};
use crate::tool_table::{check_names, is_valid_name};

/// Default bounds of the images in one request: less than any provider accepts.
const IMAGES: ImageBounds = ImageBounds {
    count: 96,
    bytes: 24 * 1024 * 1024,
};

/// An agent: a model, tools and rules. Immutable and cheap to clone. Its sessions are independent of
/// each other.
#[derive(Clone)]
pub struct Agent(pub(crate) Arc<Definition>);

impl Agent {
    /// Returns a builder for an agent with this name and model.
    pub fn builder(name: impl Into<String>, client: impl LlmClient) -> AgentBuilder {
        let client: Arc<dyn LlmClient> = Arc::new(client);
        let model = client.model();
        let (context_window, max_output_tokens) = (model.context_window, model.max_output_tokens);
        AgentBuilder {
            definition: Definition {
                name: name.into(),
                client,
                system_prompt: None,
                describes_environment: true,
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
                    text_answers: TextAnswers::default(),
                    max_repeats: default_max_repeats(),
                    summarize_at: Some(0.7),
                    context_window,
                    max_output_tokens,
                    images: IMAGES,
                },
                approvals: Approvals::allowing(),
                hooks: None,
                tool_table: OnceLock::new(),
            },
        }
    }

    /// Returns the name.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Opens a session: opens the providers, and copies the input files into the sandbox.
    ///
    /// # Errors
    /// If an input file is missing, the output directory can't be written, or a provider can't be
    /// opened. Everything that was opened is closed again.
    pub async fn session(&self, options: SessionOptions) -> Result<Session, SessionError> {
        // On the heap while it opens: a caller's future may live as long as the session.
        Box::pin(Session::open(Arc::clone(&self.0), options)).await
    }

    /// Opens a session to resume a run that is kept in `store`: reattaches its sandbox and restores its
    /// conversation. [`Session::resume`] then continues the run. A finished run whose sandbox still
    /// exists finishes again with the same call, and its files are saved.
    ///
    /// # Errors
    /// [`SessionErrorKind::Journal`](crate::SessionErrorKind) if the run does not exist, is finished and has no
    /// sandbox any more, or is in use by another process; [`SessionErrorKind::Identity`](crate::SessionErrorKind) if
    /// another agent began it, with the differences;
    /// [`SessionErrorKind::Sandbox`](crate::SessionErrorKind) if its sandbox is gone, unless a new one
    /// is [allowed](ResumeOptions::fresh_sandbox).
    pub async fn resume(
        &self,
        store: &RunStore,
        run: RunId,
        options: ResumeOptions,
    ) -> Result<Session, SessionError> {
        Box::pin(Session::reopen(
            Arc::clone(&self.0),
            store.clone(),
            run,
            options,
        ))
        .await
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

/// Builds an [`Agent`].
#[must_use]
pub struct AgentBuilder {
    definition: Definition,
}

impl AgentBuilder {
    /// Sets the number of equal rounds of calls with equal results after which the run ends for lack of progress:
    /// 6 by default, `None` for never. The model is warned after half of them. Calls of 10 seconds and more don't
    /// count.
    pub fn max_repeats(mut self, repeats: Option<NonZeroU32>) -> Self {
        self.definition.rules.max_repeats = repeats;
        self
    }

    /// Sets the reaction to an answer of the model in text, without a tool call.
    pub fn text_answers(mut self, rule: TextAnswers) -> Self {
        self.definition.rules.text_answers = rule;
        self
    }

    /// Sets instructions for the model, which follow the general ones.
    pub fn system_prompt(mut self, instructions: impl Into<String>) -> Self {
        self.definition.system_prompt = Some(instructions.into());
        self
    }

    /// Adds a tool.
    pub fn tool(self, tool: impl Into<DynTool>) -> Self {
        self.add_tool(AgentTool::from(tool.into()))
    }

    pub(crate) fn add_tool(mut self, tool: AgentTool) -> Self {
        self.definition.tools.push(tool);
        self
    }

    /// Adds a provider of tools that need opened resources, such as a sandbox.
    pub fn provider(mut self, provider: impl ToolProvider + 'static) -> Self {
        self.definition.providers.push(Arc::new(provider));
        self
    }

    /// Adds a finish tool, whose success ends the run. At least one is required.
    pub fn finish(mut self, tool: impl Into<DynTool>) -> Self {
        self.definition.finish_tools.push(tool.into());
        self
    }

    /// Sets the user who can be asked questions during a run. Default: none.
    pub fn user(mut self, user: impl AskUser + 'static) -> Self {
        self.definition.user = Arc::new(user);
        self
    }

    /// Sets the maximum number of turns of a run. Default: 30.
    pub fn max_turns(mut self, turns: u32) -> Self {
        self.definition.rules.max_turns = turns;
        self
    }

    /// Sets the number of turns left from which on each turn begins with a warning. Default: 20.
    pub fn turn_warning_threshold(mut self, turns: u32) -> Self {
        self.definition.rules.turn_warning_threshold = turns;
        self
    }

    /// Sets whether images in tool results move to a user message, as most models need. Default: true.
    pub fn text_only_tool_responses(mut self, yes: bool) -> Self {
        self.definition.rules.text_only_tool_responses = yes;
        self
    }

    /// Sets whether a turn without calls is answered with a request to continue, so that no two assistant
    /// messages are adjacent. Default: true.
    pub fn block_successive_assistant_messages(mut self, yes: bool) -> Self {
        self.definition.rules.block_successive_assistant_messages = yes;
        self
    }

    /// Sets whether the latest turn is dropped after a context overflow. Default: true.
    pub fn recover_from_context_overflow(mut self, yes: bool) -> Self {
        self.definition.rules.recover_from_context_overflow = yes;
        self
    }

    /// Sets whether the model is asked to continue an answer that was cut off at the output limit. Calls
    /// of that answer don't run. Default: false, the run ends with an error.
    pub fn continue_cut_answers(mut self, yes: bool) -> Self {
        self.definition.rules.continue_cut_answers = yes;
        self
    }

    /// Sets the used part of the context window (0 to 1) from which on the conversation is summarized;
    /// `None` for never. Default: 0.7. If the size of the window is unknown, the conversation is
    /// summarized when it overflows.
    pub fn summarize_at(mut self, part: Option<f64>) -> Self {
        self.definition.rules.summarize_at = part;
        self
    }

    /// Sets the maximum number of images in one request, and their size in bytes; the oldest are removed
    /// in batches. Default: 96 and 24 MiB.
    pub fn max_images(mut self, count: usize, bytes: usize) -> Self {
        self.definition.rules.images = ImageBounds { count, bytes };
        self
    }

    /// Sets whether the first user message of a run begins with a description of its environment: date,
    /// turns, the sandbox's system, user, programs, Python and network, and the input files. Default: it does.
    pub fn describe_environment(mut self, describe: bool) -> Self {
        self.definition.describes_environment = describe;
        self
    }

    /// Sets the rules that allow, deny or ask about tool calls. Default: all are allowed.
    pub fn approvals(mut self, approvals: Approvals) -> Self {
        self.definition.approvals = approvals;
        self
    }

    /// Sets the hooks.
    pub fn hooks(mut self, hooks: impl Hooks + 'static) -> Self {
        self.definition.hooks = Some(Arc::new(hooks));
        self
    }

    /// Builds the agent.
    ///
    /// # Errors
    /// If the name doesn't match `^[a-zA-Z0-9_-]{1,128}$`, there is no finish tool, two tools
    /// have the same name, a tool's name is invalid, more than one provider opens a sandbox, or no
    /// turn is allowed.
    pub fn build(self) -> Result<Agent, InvalidAgent> {
        let definition = self.definition;
        if !is_valid_name(&definition.name, 128) {
            return Err(InvalidAgent(format!(
                "the agent's name `{}` must be 1 to 128 letters, digits, `_` or `-`",
                definition.name
            )));
        }
        if definition.finish_tools.is_empty() {
            let message = "an agent needs at least one finish tool; `Finish` is the usual one";
            return Err(InvalidAgent(message.to_owned()));
        }
        if definition.rules.max_turns == 0 {
            return Err(InvalidAgent("max_turns must be at least 1".to_owned()));
        }
        let sandboxes: Vec<_> = definition
            .providers
            .iter()
            .filter(|provider| provider.provides_sandbox())
            .map(|provider| provider.name())
            .collect();
        if sandboxes.len() > 1 {
            return Err(InvalidAgent(format!(
                "an agent has at most one sandbox, but several providers open one: {}",
                sandboxes.join(", ")
            )));
        }
        let tools = definition.tools.iter().map(|it| &it.tool);
        check_names(tools.chain(&definition.finish_tools)).map_err(InvalidAgent)?;
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
