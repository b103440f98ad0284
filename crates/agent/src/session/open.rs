//! Opening a session: providers, input files and skills, in this order.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize};

use cantle_core::ids::RunId;
use cantle_core::sandbox::{
    Sandbox, SandboxError, SandboxErrorKind, SandboxExt as _, SandboxHandle, SandboxPath,
};
use cantle_core::tool::{DynTool, OpenContext};
use serde_json::Value;
use tokio::sync::OnceCell;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::tool_sets::ToolSets;
use crate::definition::Definition;
use crate::error::{SessionError, SessionErrorKind};
use crate::inputs;
use crate::journal::RunStore;
use crate::run::{KeptSession, RunOptions, SessionResources};
use crate::skills::{SANDBOX_DIRECTORY, Skills};

/// The parts of a session to open.
pub(super) struct OpenRequest {
    pub(super) inputs: Vec<inputs::Input>,
    /// Whether the sandbox must be able to outlive the process.
    pub(super) durable: bool,
    /// The sandbox to reattach.
    pub(super) reattach: Option<SandboxHandle>,
    pub(super) skills: Option<Arc<Skills>>,
    pub(super) run_options: RunOptions,
}

/// A session that is open, but not configured yet.
pub(super) struct OpenSession {
    pub(super) resources: SessionResources,
    pub(super) sets: ToolSets,
    /// Cancels the session's runs.
    pub(super) guard: DropGuard,
    /// Whether the sandbox is that of an earlier session.
    is_reattached: bool,
}

impl OpenSession {
    /// Opens everything. After an error, everything that was opened is released.
    pub(super) async fn open(
        agent: &Arc<Definition>,
        request: &OpenRequest,
    ) -> Result<Self, SessionError> {
        let cancellation = CancellationToken::new();
        // Dropping this future cancels what is being opened.
        let guard = cancellation.clone().drop_guard();
        let mut sets = ToolSets::default();
        match open_resources(agent, &mut sets, request, cancellation).await {
            Ok(resources) => Ok(Self {
                resources,
                sets,
                guard,
                is_reattached: request.reattach.is_some(),
            }),
            Err(error) => {
                // The first error is the one to report. A reattached sandbox must stay.
                let _ = sets.release(request.reattach.is_some()).await;
                Err(error)
            }
        }
    }

    /// Keeps the session's runs, and its sandbox with them. `unfinished` of them exist already.
    pub(super) async fn keep(
        mut self,
        store: RunStore,
        note: Value,
        unfinished: usize,
    ) -> Result<Self, SessionError> {
        let mut handle = None;
        if let Some(sandbox) = &self.resources.sandbox {
            match sandbox.persist().await {
                Ok(persisted) => handle = Some(persisted),
                Err(error) if error.kind() == SandboxErrorKind::Unsupported => {
                    self.resources.warnings.push(format!(
                        "The files in the sandbox are lost when this program ends: the {} backend can't \
                         persist sandboxes. A run can be resumed only in a new one.",
                        sandbox.info().backend
                    ));
                }
                Err(error) => {
                    let message = format!("the sandbox can't be kept: {error}");
                    self.release().await;
                    return Err(
                        SessionError::new(SessionErrorKind::Sandbox, message).with_source(error)
                    );
                }
            }
        }
        self.resources.kept = Some(KeptSession {
            store,
            note,
            sandbox: handle,
            unfinished: AtomicUsize::new(unfinished),
        });
        Ok(self)
    }

    /// Whether the session opened a sandbox of its own.
    pub(super) fn has_own_sandbox(&self) -> bool {
        let parent = self.resources.run_options.parent.as_ref();
        self.resources.sandbox.is_some() && !parent.is_some_and(|parent| parent.shares_sandbox)
    }

    /// Closes everything after an error, except a sandbox that was reattached.
    pub(super) async fn release(self) {
        // The first error is the one to report.
        let _ = self.sets.release(self.is_reattached).await;
    }
}

/// Opens the providers, and copies files into the sandbox.
async fn open_resources(
    agent: &Arc<Definition>,
    sets: &mut ToolSets,
    request: &OpenRequest,
    cancellation: CancellationToken,
) -> Result<SessionResources, SessionError> {
    let mut cx = OpenContext::new(RunId::new());
    cx.cancellation = cancellation.clone();
    cx.principal.clone_from(&request.run_options.principal);
    cx.requirements = agent.requirements();
    cx.durable = request.durable;
    cx.reattach.clone_from(&request.reattach);
    if let Some(progress) = &request.run_options.progress {
        cx.progress = Arc::clone(progress);
    }
    let parent = request.run_options.parent.as_ref();
    if let Some(parent) = parent.filter(|parent| parent.shares_sandbox) {
        cx.sandbox.clone_from(&parent.sandbox);
    }
    let tools = open_providers(agent, sets, &mut cx).await?;
    let tools = agent
        .tool_table(tools)
        .map_err(|message| SessionError::new(SessionErrorKind::Tools, message))?;
    let checked = agent.approvals.check(tools.specs(), tools.is_forwarding());
    checked.map_err(|message| SessionError::new(SessionErrorKind::Approvals, message))?;
    let (input_files, mut warnings) = match &cx.sandbox {
        _ if request.inputs.is_empty() => Default::default(),
        Some(sandbox) => inputs::upload(&request.inputs, &**sandbox).await?,
        None => {
            let message = "input files need a sandbox: give the agent a `CodeExec` provider";
            return Err(SessionError::new(SessionErrorKind::Input, message));
        }
    };
    let mut skill_files = Vec::new();
    if let Some(skills) = &request.skills {
        warnings.extend(skills.warnings().iter().cloned());
        match &cx.sandbox {
            Some(sandbox) => skill_files = upload_skills(skills, &**sandbox).await?,
            None => warnings.push("The skills can't be used: there is no sandbox.".to_owned()),
        }
    }
    Ok(SessionResources {
        agent: Arc::clone(agent),
        tools,
        sandbox: cx.sandbox,
        sandbox_facts: OnceCell::new(),
        input_files,
        skill_files,
        warnings,
        cancellation,
        history: Arc::default(),
        kept: None,
        has_earlier_sandbox: AtomicBool::new(false),
        skills: request.skills.clone(),
        run_options: request.run_options.clone(),
    })
}

/// Opens the providers, that of the sandbox first, whose sandbox becomes that of the context. Returns their tools.
async fn open_providers(
    agent: &Definition,
    sets: &mut ToolSets,
    cx: &mut OpenContext,
) -> Result<Vec<DynTool>, SessionError> {
    let mut tools = Vec::new();
    for opens_sandbox in [true, false] {
        let providers = agent.providers.iter();
        for provider in providers.filter(|it| it.provides_sandbox() == opens_sandbox) {
            sets.open(&**provider, cx.clone()).await?;
            let Some(set) = sets.last() else { continue };
            tools.extend(set.tools());
            if let Some(sandbox) = set.sandbox()
                && cx.sandbox.replace(sandbox).is_some()
            {
                let message = "more than one provider opened a sandbox";
                return Err(SessionError::new(SessionErrorKind::Tools, message));
            }
        }
    }
    Ok(tools)
}

/// Copies the skills into a sandbox. Returns the paths of the files there.
async fn upload_skills(
    skills: &Skills,
    sandbox: &dyn Sandbox,
) -> Result<Vec<String>, SessionError> {
    let failed = |error: SandboxError| {
        let message = format!("the skills can't be copied into the sandbox: {error}");
        SessionError::new(SessionErrorKind::Input, message).with_source(error)
    };
    let target = SandboxPath::new(SANDBOX_DIRECTORY)
        .map_err(|error| SessionError::new(SessionErrorKind::Input, error.to_string()))?;
    let uploaded = sandbox.upload(skills.directory(), &target).await;
    let files = uploaded.map_err(failed)?.files;
    Ok(files.iter().map(|file| file.to.to_string()).collect())
}
