//! Putting a session together: what it opens, in which order, and what is done where that fails.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use cantle_core::ids::RunId;
use cantle_core::llm::ToolSpecs;
use cantle_core::message::SharedMessage;
use cantle_core::policy::PolicyField;
use cantle_core::sandbox::{
    EnforcedBy, Isolation, Sandbox, SandboxError, SandboxErrorKind, SandboxExt as _, SandboxHandle,
    SandboxPath,
};
use cantle_core::tool::{DynTool, OpenContext, Progress, ProviderError, ToolProvider, ToolSet};
use serde_json::Value;
use tokio::sync::Mutex;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{Keeping, Resumable, Session, Shared};
use crate::agent::{Definition, check_tool_names};
use crate::budget::Budget;
use crate::error::{SessionError, SessionErrorKind};
use crate::inputs;
use crate::journal::{Identity, RunStore};
use crate::machine::ToolTraits;
use crate::skills::{SANDBOX_DIRECTORY, Skills};
use crate::sub_agent::Lineage;

/// What a session is to open.
pub(super) struct Opening {
    pub(super) inputs: Vec<inputs::Input>,
    /// Whether its sandbox must be able to outlive the process.
    pub(super) durable: bool,
    /// The sandbox to open again.
    pub(super) reattach: Option<SandboxHandle>,
    /// The skills to bring along.
    pub(super) skills: Option<Arc<Skills>>,
    /// Who is told what takes long.
    pub(super) progress: Option<Arc<dyn Progress>>,
    pub(super) lineage: Option<Lineage>,
}

/// A session that is open, and lacks only what its kind decides.
pub(super) struct Assembly {
    agent: Arc<Definition>,
    opened: Opened,
    prepared: Prepared,
    cancellation: CancellationToken,
    guard: DropGuard,
    output_dir: Option<PathBuf>,
    pub(super) identity: Identity,
    pub(super) input_files: Vec<String>,
    pub(super) history: Vec<SharedMessage>,
    pub(super) budget: Budget,
    pub(super) answers_approvals: bool,
    keeping: Option<Keeping>,
    skills: Option<Arc<Skills>>,
    lineage: Option<Lineage>,
}

impl Assembly {
    /// Opens everything; what was opened is released where the rest can't be.
    pub(super) async fn open(
        agent: Arc<Definition>,
        opening: &Opening,
        output_dir: Option<PathBuf>,
    ) -> Result<Self, SessionError> {
        let mut opened = Opened::default();
        let cancellation = CancellationToken::new();
        // Until the session is whole, giving it up cancels what is being opened.
        let guard = cancellation.clone().drop_guard();
        let prepared = match prepare(&agent, &mut opened, opening, &cancellation).await {
            Ok(prepared) => prepared,
            Err(error) => {
                // The error that matters is the first one. What was there before must stay.
                let _ = match opening.reattach {
                    Some(_) => opened.suspend(agent.close_deadline).await,
                    None => opened.close(agent.close_deadline).await,
                };
                return Err(error);
            }
        };
        Ok(Self {
            identity: Identity::new(&agent, &prepared.tools),
            input_files: prepared.input_files.clone(),
            agent,
            opened,
            prepared,
            cancellation,
            guard,
            output_dir,
            history: Vec::new(),
            budget: Budget::default(),
            answers_approvals: false,
            keeping: None,
            skills: opening.skills.clone(),
            lineage: opening.lineage.clone(),
        })
    }

    /// Arranges for its runs to be kept, and its sandbox with them.
    /// `unfinished` of them are there already.
    pub(super) async fn keep(
        mut self,
        store: RunStore,
        note: Value,
        unfinished: usize,
    ) -> Result<Self, SessionError> {
        let mut handle = None;
        if let Some(sandbox) = &self.prepared.sandbox {
            match sandbox.persist().await {
                Ok(persisted) => handle = Some(persisted),
                Err(error) if error.kind() == SandboxErrorKind::Unsupported => {
                    self.prepared.warnings.push(format!(
                        "The files in the sandbox are gone when this program ends: the {} backend \
                         keeps none. A run can be resumed only in a fresh sandbox.",
                        sandbox.info().backend
                    ));
                }
                Err(error) => {
                    let message = format!("the sandbox can't be kept: {error}");
                    self.suspend().await;
                    return Err(
                        SessionError::new(SessionErrorKind::Sandbox, message).with_source(error)
                    );
                }
            }
        }
        self.keeping = Some(Keeping {
            store,
            note,
            sandbox: handle,
            unfinished: AtomicUsize::new(unfinished),
        });
        Ok(self)
    }

    /// Whether it opened a sandbox that is not its caller's.
    pub(super) fn has_own_sandbox(&self) -> bool {
        let shares = |lineage: &Lineage| lineage.shares_sandbox;
        self.prepared.sandbox.is_some() && !self.lineage.as_ref().is_some_and(shares)
    }

    /// Gives it up, and leaves nothing.
    pub(super) async fn close(self) -> Result<(), SessionError> {
        self.opened.close(self.agent.close_deadline).await
    }

    /// Gives it up, and leaves what outlives the process.
    pub(super) async fn suspend(self) {
        // There is an error already that says why.
        let _ = self.opened.suspend(self.agent.close_deadline).await;
    }

    /// The session.
    pub(super) fn finish(self, resumable: Option<Resumable>) -> Session {
        let Prepared {
            tools,
            sandbox,
            mut warnings,
            ..
        } = self.prepared;
        if self.lineage.is_none() {
            warnings.extend(standing_warnings(
                sandbox.as_deref(),
                self.output_dir.is_some(),
            ));
        }
        let traits = |tool: &DynTool, finishes| {
            let traits = ToolTraits {
                finishes,
                concurrency_safe: tool.concurrency_safe(),
                polls: tool.polls(),
                resumes: tool.repeatable(),
            };
            (tool.name().to_owned(), traits)
        };
        let finish_tools = &self.agent.finish_tools;
        let ordinary = tools.iter().map(|tool| traits(tool, false));
        let traits: HashMap<String, ToolTraits> = ordinary
            .chain(finish_tools.iter().map(|tool| traits(tool, true)))
            .collect();
        let all: Vec<DynTool> = tools.iter().chain(finish_tools).cloned().collect();
        let specs = all.iter().map(|tool| tool.spec().clone()).collect();
        let named = all.into_iter().map(|tool| (tool.name().to_owned(), tool));
        let shared = Shared {
            specs: ToolSpecs::new(specs),
            traits,
            tools: Arc::new(named.collect()),
            agent: self.agent,
            sandbox,
            input_files: self.input_files,
            output_dir: self.output_dir,
            warnings,
            cancellation: self.cancellation,
            history: Arc::new(Mutex::new(self.history)),
            budget: self.budget,
            answers_approvals: self.answers_approvals,
            identity: self.identity,
            keeping: self.keeping,
            skills: self.skills,
            lineage: self.lineage,
        };
        Session {
            shared: Arc::new(shared),
            _cancel_runs: self.guard,
            opened: self.opened,
            resumable: std::sync::Mutex::new(resumable),
        }
    }
}

/// Tool sets with the names of their providers, in the order they were opened.
#[derive(Default)]
pub(super) struct Opened(Vec<(String, Box<dyn ToolSet>)>);

impl Opened {
    /// Closes all in reverse order, each with its deadline, and reports all errors.
    pub(super) async fn close(self, deadline: Duration) -> Result<(), SessionError> {
        self.release(deadline, |set| set.close()).await
    }

    /// The same, and what outlives this process stays.
    pub(super) async fn suspend(self, deadline: Duration) -> Result<(), SessionError> {
        self.release(deadline, |set| set.suspend()).await
    }

    async fn release<F>(
        self,
        deadline: Duration,
        release: impl Fn(Box<dyn ToolSet>) -> F,
    ) -> Result<(), SessionError>
    where
        F: Future<Output = Result<(), ProviderError>>,
    {
        let mut problems = Vec::new();
        for (name, set) in self.0.into_iter().rev() {
            match tokio::time::timeout(deadline, release(set)).await {
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
    opening: &Opening,
    cancellation: &CancellationToken,
) -> Result<Prepared, SessionError> {
    let inputs = &opening.inputs;
    let mut cx = OpenContext::new(RunId::new());
    cx.cancellation = cancellation.clone();
    cx.durable = opening.durable;
    cx.reattach.clone_from(&opening.reattach);
    if let Some(progress) = &opening.progress {
        cx.progress = Arc::clone(progress);
    }
    let lineage = opening.lineage.as_ref();
    if let Some(lineage) = lineage.filter(|lineage| lineage.shares_sandbox) {
        cx.sandbox.clone_from(&lineage.sandbox);
    }
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

    let (input_files, mut warnings) = match &cx.sandbox {
        _ if inputs.is_empty() => Default::default(),
        Some(sandbox) => inputs::upload(inputs, &**sandbox).await?,
        None => {
            let message = "input files need a sandbox: give the agent a `CodeExec` provider";
            return Err(SessionError::new(SessionErrorKind::Input, message));
        }
    };
    if let Some(skills) = &opening.skills {
        warnings.extend(skills.warnings().iter().cloned());
        match &cx.sandbox {
            Some(sandbox) => upload_skills(skills, &**sandbox).await?,
            None => warnings.push("The skills can't be used: there is no sandbox.".to_owned()),
        }
    }
    Ok(Prepared {
        tools,
        sandbox: cx.sandbox,
        input_files,
        warnings,
    })
}

async fn upload_skills(skills: &Skills, sandbox: &dyn Sandbox) -> Result<(), SessionError> {
    let failed = |error: SandboxError| {
        let message = format!("the skills can't be copied into the sandbox: {error}");
        SessionError::new(SessionErrorKind::Input, message).with_source(error)
    };
    let to = SandboxPath::new(SANDBOX_DIRECTORY)
        .map_err(|error| SessionError::new(SessionErrorKind::Input, error.to_string()))?;
    sandbox
        .upload(skills.directory(), &to)
        .await
        .map(drop)
        .map_err(failed)
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
pub(super) fn check_output_dir(directory: &Path) -> Result<(), SessionError> {
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

pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, SessionError> + Send + 'static,
) -> Result<T, SessionError> {
    let result = tokio::task::spawn_blocking(work).await;
    result.unwrap_or_else(|error| {
        let message = format!("failed to look at the files: {error}");
        Err(SessionError::new(SessionErrorKind::Input, message).with_source(error))
    })
}
