//! Sessions: what one use of an agent has open, and the runs that follow each other in it.

use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use cantle_core::content::Content;
use cantle_core::ids::RunId;
use cantle_core::llm::ToolSpecs;
use cantle_core::message::{Message, SharedMessage};
use cantle_core::policy::PolicyField;
use cantle_core::sandbox::{EnforcedBy, Isolation, Sandbox};
use cantle_core::tool::{DynTool, OpenContext, ProviderError, ToolProvider, ToolSet};
use tokio::sync::Mutex;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::agent::{Definition, check_tool_names};
use crate::error::{SessionError, SessionErrorKind};
use crate::inputs;
use crate::machine::ToolTraits;
use crate::run::Run;

/// What one session has of its own.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct SessionOptions {
    /// Files, directories and patterns on the host that are copied into the sandbox.
    pub input_files: Vec<PathBuf>,
    /// Where the files that a finished run names are saved.
    pub output_dir: Option<PathBuf>,
    /// A conversation to go on from. A system message at its start gives way to ours.
    pub history: Vec<Message>,
}

impl SessionOptions {
    /// The same with another input: a file, a directory (`data` comes as `data/…`, `data/` as what
    /// is in it) or a pattern (`*.csv`, `src/**/*.rs`).
    #[must_use]
    pub fn input_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.input_files.push(path.into());
        self
    }

    /// The same with an output directory; it is made where it does not exist.
    #[must_use]
    pub fn output_dir(mut self, directory: impl Into<PathBuf>) -> Self {
        self.output_dir = Some(directory.into());
        self
    }

    /// The same with a conversation to go on from.
    #[must_use]
    pub fn history(mut self, messages: Vec<Message>) -> Self {
        self.history = messages;
        self
    }
}

/// One use of an agent: its sandbox and tools are open, and tasks run in it one after another, each
/// continuing the conversation.
///
/// [`close`](Self::close) it when done; dropping it is the fall-back, which can't wait and can't
/// report what went wrong.
pub struct Session {
    shared: Arc<Shared>,
    /// Declared before `opened`: runs are cancelled before what they use is dropped.
    _cancel_runs: DropGuard,
    opened: Opened,
}

/// What runs of a session need, whether or not somebody still holds the session.
pub(crate) struct Shared {
    pub(crate) agent: Arc<Definition>,
    pub(crate) tools: Arc<HashMap<String, DynTool>>,
    pub(crate) specs: ToolSpecs,
    pub(crate) traits: HashMap<String, ToolTraits>,
    pub(crate) sandbox: Option<Arc<dyn Sandbox>>,
    pub(crate) input_files: Vec<String>,
    pub(crate) output_dir: Option<PathBuf>,
    pub(crate) warnings: Vec<String>,
    pub(crate) cancellation: CancellationToken,
    /// The conversation without the system message. A run holds the lock until it is over.
    pub(crate) history: Arc<Mutex<Vec<SharedMessage>>>,
}

impl Session {
    pub(crate) async fn open(
        agent: Arc<Definition>,
        options: SessionOptions,
    ) -> Result<Self, SessionError> {
        // What a person got wrong is found before anything is opened.
        let SessionOptions {
            input_files,
            output_dir,
            history,
        } = options;
        let inputs = blocking(move || {
            if let Some(directory) = &output_dir {
                check_output_dir(directory)?;
            }
            Ok((inputs::resolve(&input_files)?, output_dir))
        });
        let (inputs, output_dir) = inputs.await?;

        let mut opened = Opened::default();
        let cancellation = CancellationToken::new();
        // Until the session is whole, giving it up cancels what is being opened.
        let guard = cancellation.clone().drop_guard();
        let prepared = prepare(&agent, &mut opened, &inputs, &cancellation).await;
        let prepared = match prepared {
            Ok(prepared) => prepared,
            Err(error) => {
                // The error that matters is the first one.
                let _ = opened.close(agent.close_deadline).await;
                return Err(error);
            }
        };
        let mut warnings = prepared.warnings;
        warnings.extend(standing_warnings(
            prepared.sandbox.as_deref(),
            output_dir.is_some(),
        ));

        let finish = agent.finish_tools.iter().map(|tool| (tool, true));
        let all: Vec<(DynTool, bool)> = prepared
            .tools
            .iter()
            .map(|tool| (tool, false))
            .chain(finish)
            .map(|(tool, finishes)| (tool.clone(), finishes))
            .collect();
        let traits = |(tool, finishes): &(DynTool, bool)| {
            let concurrency_safe = tool.concurrency_safe();
            (
                tool.name().to_owned(),
                ToolTraits {
                    finishes: *finishes,
                    concurrency_safe,
                },
            )
        };
        let history = history
            .into_iter()
            .enumerate()
            .filter(|(index, message)| *index > 0 || !matches!(message, Message::System(_)))
            .map(|(_, message)| SharedMessage::new(message))
            .collect();
        let shared = Shared {
            specs: ToolSpecs::new(all.iter().map(|(tool, _)| tool.spec().clone()).collect()),
            traits: all.iter().map(traits).collect(),
            tools: Arc::new(
                all.into_iter()
                    .map(|(tool, _)| (tool.name().to_owned(), tool))
                    .collect(),
            ),
            agent,
            sandbox: prepared.sandbox,
            input_files: prepared.input_files,
            output_dir,
            warnings,
            cancellation,
            history: Arc::new(Mutex::new(history)),
        };
        Ok(Self {
            shared: Arc::new(shared),
            _cancel_runs: guard,
            opened,
        })
    }

    /// Starts working on a task. Runs of a session follow each other: each one sees the
    /// conversation and the files that those before it left.
    ///
    /// # Errors
    /// [`SessionErrorKind::Busy`] while another run of this session goes on.
    pub fn run(&self, task: impl Into<Content>) -> Result<Run, SessionError> {
        let history = Arc::clone(&self.shared.history)
            .try_lock_owned()
            .map_err(|_| {
                SessionError::new(
                    SessionErrorKind::Busy,
                    "another run of this session goes on",
                )
            })?;
        Ok(Run::start(Arc::clone(&self.shared), history, task.into()))
    }

    /// The sandbox, where the session has one.
    #[must_use]
    pub fn sandbox(&self) -> Option<&Arc<dyn Sandbox>> {
        self.shared.sandbox.as_ref()
    }

    /// Cancels a run that goes on, and closes everything in reverse order.
    ///
    /// # Errors
    /// Where something could not be closed; the message names everything that may be left.
    pub async fn close(self) -> Result<(), SessionError> {
        self.shared.cancellation.cancel();
        // The lock is free once the run is over. A run that hangs in a tool must not keep the rest
        // from being closed.
        let deadline = self.shared.agent.close_deadline;
        let _ = tokio::time::timeout(deadline, self.shared.history.lock()).await;
        self.opened.close(deadline).await
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("agent", &self.shared.agent.name)
            .field("sandbox", &self.shared.sandbox)
            .finish_non_exhaustive()
    }
}

/// Tool sets with the names of their providers, in the order they were opened.
#[derive(Default)]
struct Opened(Vec<(String, Box<dyn ToolSet>)>);

impl Opened {
    /// Closes all in reverse order, each with its deadline, and reports all errors.
    async fn close(self, deadline: Duration) -> Result<(), SessionError> {
        let mut problems = Vec::new();
        for (name, set) in self.0.into_iter().rev() {
            match tokio::time::timeout(deadline, set.close()).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => problems.push(format!("{name}: {error}")),
                Err(_) => problems.push(format!(
                    "{name}: not closed within {} s",
                    deadline.as_secs()
                )),
            }
        }
        if problems.is_empty() {
            return Ok(());
        }
        let message = format!("failed to close the session: {}", problems.join("; "));
        Err(SessionError::new(SessionErrorKind::Provider, message))
    }
}

struct Prepared {
    tools: Vec<DynTool>,
    sandbox: Option<Arc<dyn Sandbox>>,
    input_files: Vec<String>,
    warnings: Vec<String>,
}

/// Opens the providers, the one with the sandbox first, and copies the input files.
async fn prepare(
    agent: &Definition,
    opened: &mut Opened,
    inputs: &[inputs::Input],
    cancellation: &CancellationToken,
) -> Result<Prepared, SessionError> {
    let mut cx = OpenContext::new(RunId::new());
    cx.cancellation = cancellation.clone();
    let mut tools = agent.tools.clone();
    let first = agent
        .providers
        .iter()
        .filter(|provider| provider.provides_sandbox());
    let rest = agent
        .providers
        .iter()
        .filter(|provider| !provider.provides_sandbox());
    for provider in first.chain(rest) {
        let set = open_one(&**provider, cx.clone(), agent.open_deadline).await?;
        tools.extend(set.tools());
        let sandbox = set.sandbox();
        opened.0.push((provider.name().to_owned(), set));
        if let Some(sandbox) = sandbox
            && cx.sandbox.replace(sandbox).is_some()
        {
            let message = "more than one provider brought a sandbox";
            return Err(SessionError::new(SessionErrorKind::Tools, message));
        }
    }
    check_tool_names(tools.iter().chain(&agent.finish_tools))
        .map_err(|message| SessionError::new(SessionErrorKind::Tools, message))?;

    let (input_files, warnings) = match &cx.sandbox {
        _ if inputs.is_empty() => Default::default(),
        Some(sandbox) => inputs::upload(inputs, &**sandbox).await?,
        None => {
            let message = "input files need a sandbox: give the agent a `CodeExec` provider";
            return Err(SessionError::new(SessionErrorKind::Input, message));
        }
    };
    Ok(Prepared {
        tools,
        sandbox: cx.sandbox,
        input_files,
        warnings,
    })
}

async fn open_one(
    provider: &dyn ToolProvider,
    cx: OpenContext,
    deadline: Duration,
) -> Result<Box<dyn ToolSet>, SessionError> {
    let failed = |error: ProviderError| {
        let kind = match error.sandbox_error() {
            Some(_) => SessionErrorKind::Sandbox,
            None => SessionErrorKind::Provider,
        };
        let advice = error
            .sandbox_error()
            .and_then(|error| error.advice())
            .unwrap_or_default();
        let message = format!("failed to open {}: {error}. {advice}", provider.name());
        let message = message.trim_end_matches([' ', '.']).to_owned();
        SessionError::new(kind, message).with_source(error)
    };
    match tokio::time::timeout(deadline, provider.open(cx)).await {
        Ok(set) => set.map_err(failed),
        Err(_) => {
            let message = format!("it was not open within {} s", deadline.as_secs());
            Err(failed(ProviderError::new(message)))
        }
    }
}

/// What a person should know whenever such a session is used.
fn standing_warnings(sandbox: Option<&dyn Sandbox>, has_output_dir: bool) -> Vec<String> {
    let mut warnings = Vec::new();
    let Some(sandbox) = sandbox else {
        warnings
            .push("The agent can't run code: it has no sandbox, and can't save files.".to_owned());
        return warnings;
    };
    if sandbox.info().isolation == Isolation::None {
        warnings.push(format!(
            "Commands are not isolated: the {} backend runs them with your rights on this machine.",
            sandbox.info().backend
        ));
    }
    let enforcement = sandbox.info().enforcement.iter();
    for it in enforcement.filter(|it| it.by == EnforcedBy::NotEnforced) {
        let meaning = without(it.field);
        warnings.push(format!(
            "The policy's {} is not enforced: {meaning}.",
            it.field
        ));
    }
    if !has_output_dir {
        warnings.push(
            "There is no output directory: files that the agent makes are gone with the session."
                .to_owned(),
        );
    }
    warnings
}

/// What it means that a field of the policy is not enforced.
fn without(field: PolicyField) -> &'static str {
    match field {
        PolicyField::ReadRoots => "commands may read what you can",
        PolicyField::WriteRoots => "commands may write where you can",
        PolicyField::WorkingDirectory => "commands may change files there",
        PolicyField::Network => "commands may reach what this machine can",
        PolicyField::Subprocesses => "commands may start other programs",
        PolicyField::Environment => "commands don't have its variables",
        _ => "commands may use what there is",
    }
}

/// Makes the output directory and proves that it can be written.
fn check_output_dir(directory: &Path) -> Result<(), SessionError> {
    let failed = |error: std::io::Error| {
        let message = format!(
            "the output directory `{}` can't be written: {error}",
            directory.display()
        );
        SessionError::new(SessionErrorKind::Output, message).with_source(error)
    };
    if directory.exists() && !directory.is_dir() {
        return Err(failed(std::io::ErrorKind::NotADirectory.into()));
    }
    std::fs::create_dir_all(directory).map_err(failed)?;
    let probe = directory.join(format!(".cantle-{}", RunId::new()));
    std::fs::write(&probe, b"").map_err(failed)?;
    std::fs::remove_file(&probe).map_err(failed)
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, SessionError> + Send + 'static,
) -> Result<T, SessionError> {
    let result = tokio::task::spawn_blocking(work).await;
    result.unwrap_or_else(|error| {
        let message = format!("failed to look at the files: {error}");
        Err(SessionError::new(SessionErrorKind::Input, message).with_source(error))
    })
}
