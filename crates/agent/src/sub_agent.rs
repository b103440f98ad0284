//! Sub-agents: an agent as a tool of another one.
//!
//! A call opens a session of the sub-agent, with its own sandbox unless it shares the caller's; input
//! files are copied over, and the files it finishes with are copied back. What it does shows as events
//! of a run below the caller's, what it uses counts against the caller's budget, and its accounts are
//! in the caller's ledger. Where runs are kept, so is its own, beside its caller's: a call that was
//! killed goes on where it was.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cantle_core::event::{Finish, RunStatus};
use cantle_core::ids::RunId;
use cantle_core::ledger::Ledger;
use cantle_core::metadata::Metadata;
use cantle_core::sandbox::{Sandbox, SandboxExt as _, SandboxPath};
use cantle_core::tool::{DynTool, Tool, ToolContext, ToolError, ToolOutput};
use futures_util::StreamExt as _;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

use crate::agent::Agent;
use crate::budget::{Account, Budget};
use crate::error::SessionError;
use crate::hub::Hub;
use crate::journal::{KeptStatus, RunStore};
use crate::run::{Outcome, Run};
use crate::session::{ResumeOptions, Session, SessionOptions};
use crate::skills::Skills;

/// How deep agents may call agents, unless set.
const MAX_DEPTH: u32 = 4;

/// How an agent serves as a tool of another one.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SubAgent {
    agent: Agent,
    description: String,
    share_sandbox: bool,
    max_depth: u32,
    budget: Budget,
}

impl SubAgent {
    /// A tool of the agent's name; `description` tells the model what to ask it for.
    pub fn new(agent: &Agent, description: impl Into<String>) -> Self {
        Self {
            agent: agent.clone(),
            description: description.into(),
            share_sandbox: false,
            max_depth: MAX_DEPTH,
            budget: Budget::default(),
        }
    }

    /// The same in the caller's own sandbox: both see the same files. The sub-agent's provider of a
    /// sandbox then opens none, and only its tools reach it.
    #[must_use]
    pub fn share_sandbox(mut self) -> Self {
        self.share_sandbox = true;
        self
    }

    /// The same with another number of agents that may be above it. 4 unless set.
    #[must_use]
    pub fn max_depth(mut self, depth: u32) -> Self {
        self.max_depth = depth;
        self
    }

    /// The same with a budget for each call, within what is left to the caller.
    #[must_use]
    pub fn budget(mut self, budget: Budget) -> Self {
        self.budget = budget;
        self
    }
}

impl From<SubAgent> for DynTool {
    fn from(sub_agent: SubAgent) -> Self {
        Self::new(Callee(sub_agent))
    }
}

/// The tool.
struct Callee(SubAgent);

/// What the loop hands to a sub-agent's tool with a call.
#[derive(Debug)]
pub(crate) struct Caller {
    pub(crate) run: RunId,
    pub(crate) depth: u32,
    pub(crate) hub: Arc<Hub>,
    pub(crate) account: Arc<Account>,
    /// Where the journals of this call's runs are, where runs are kept.
    pub(crate) store: Option<RunStore>,
    pub(crate) skills: Option<Arc<Skills>>,
    /// What the sub-agent used, once it has ended.
    pub(crate) report: Mutex<Option<Ledger>>,
}

impl Caller {
    /// What the sub-agent used, where one was called and has ended.
    pub(crate) fn take_report(&self) -> Option<Ledger> {
        self.report().take()
    }

    fn report(&self) -> MutexGuard<'_, Option<Ledger>> {
        self.report.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a sub-agent's session gets from its caller.
#[derive(Clone, Debug)]
pub(crate) struct Lineage {
    pub(crate) run: RunId,
    pub(crate) depth: u32,
    pub(crate) account: Arc<Account>,
    /// The caller's sandbox, where files come from and go to.
    pub(crate) sandbox: Option<Arc<dyn Sandbox>>,
    pub(crate) shares_sandbox: bool,
    pub(crate) skills: Option<Arc<Skills>>,
}

#[derive(Deserialize, JsonSchema)]
struct Params {
    /// What to do, with everything it has to know: it sees nothing of your conversation.
    task: String,
    /// Files of yours that it gets, relative to your working directory.
    #[serde(default)]
    input_files: Vec<String>,
}

impl Tool for Callee {
    type Params = Params;

    fn name(&self) -> &str {
        self.0.agent.name()
    }

    fn description(&self) -> &str {
        &self.0.description
    }

    fn concurrency_safe(&self) -> bool {
        true
    }

    fn repeatable(&self) -> bool {
        // Its own journal knows what was done.
        true
    }

    fn timeout(&self) -> Option<std::time::Duration> {
        // It has turns, and budgets.
        None
    }

    async fn call(&self, params: Params, cx: ToolContext) -> Result<ToolOutput, ToolError> {
        let this = &self.0;
        let caller = cx
            .caller
            .clone()
            .and_then(|it| it.downcast::<Caller>().ok());
        let Some(caller) = caller else {
            return Err(ToolError::failed(
                "A sub-agent can only be called by an agent.",
            ));
        };
        if caller.depth >= this.max_depth {
            return Ok(failed(&format!(
                "agents are {} deep already, and may not be deeper. Do it yourself",
                caller.depth
            )));
        }
        if this.share_sandbox && cx.sandbox.is_none() {
            return Ok(failed("it works in your sandbox, and you have none"));
        }
        match this.begun(&caller).await? {
            Begun::Finished(finish) => Ok(response(&finish, &[], &[])),
            Begun::Open(run) => {
                let mut options = ResumeOptions::default().budget(this.budget);
                options.lineage = Some(this.lineage(&caller, &cx));
                let store = caller.store.as_ref().ok_or_else(no_store)?;
                let session = this.agent.resume(store, run, options).await;
                this.work(session, Vec::new(), None, &caller, &cx).await
            }
            Begun::Nothing => {
                let mut options = SessionOptions::default().budget(this.budget);
                options.lineage = Some(this.lineage(&caller, &cx));
                if let Some(store) = &caller.store {
                    options = options.kept_in(store.clone(), Value::Null);
                }
                let session = this.agent.session(options).await;
                let Params { task, input_files } = params;
                this.work(session, input_files, Some(task), &caller, &cx)
                    .await
            }
        }
    }
}

/// What another process did of a call.
enum Begun {
    Nothing,
    Open(RunId),
    Finished(Finish),
}

impl SubAgent {
    fn lineage(&self, caller: &Caller, cx: &ToolContext) -> Lineage {
        Lineage {
            run: caller.run,
            depth: caller.depth + 1,
            account: Arc::clone(&caller.account),
            sandbox: cx.sandbox.clone(),
            shares_sandbox: self.share_sandbox,
            skills: caller.skills.clone(),
        }
    }

    /// Looks whether another process began this call.
    async fn begun(&self, caller: &Caller) -> Result<Begun, ToolError> {
        let Some(store) = caller.store.clone() else {
            return Ok(Begun::Nothing);
        };
        let looked = tokio::task::spawn_blocking(move || {
            let (runs, _) = store.list()?;
            let Some(run) = runs.first() else {
                return Ok(Begun::Nothing);
            };
            Ok(match run.status {
                KeptStatus::Ended(RunStatus::Finished) => match store.finish(run.run)? {
                    Some(finish) => Begun::Finished(finish),
                    None => Begun::Nothing,
                },
                status if status.is_resumable() => Begun::Open(run.run),
                _ => Begun::Nothing,
            })
        });
        let failed = |error: &dyn std::fmt::Display| {
            ToolError::failed(format!("The sub-agent's journal can't be read: {error}"))
        };
        let begun: Result<Begun, crate::StoreError> = looked.await.map_err(|it| failed(&it))?;
        begun.map_err(|error| failed(&error))
    }

    /// Works on the task in a session, and closes it. Without a task, goes on with the session's run.
    async fn work(
        &self,
        session: Result<Session, SessionError>,
        input_files: Vec<String>,
        task: Option<String>,
        caller: &Caller,
        cx: &ToolContext,
    ) -> Result<ToolOutput, ToolError> {
        let session = match session {
            Ok(session) => session,
            Err(error) => return Ok(failed(&error.to_string())),
        };
        let outcome = self.outcome(&session, &input_files, task, caller, cx).await;
        let closed = session.close_for_good().await;
        let mut output = match outcome {
            Err(text) => failed(&text),
            Ok(outcome) => {
                let output = said(&outcome);
                *caller.report() = Some(outcome.ledger);
                output
            }
        };
        if let Err(error) = closed {
            let text = format!("{}\n{error}", output.content.text());
            output.content = text.into();
        }
        Ok(output.with_metadata(Metadata::uses(1)))
    }

    async fn outcome(
        &self,
        session: &Session,
        input_files: &[String],
        task: Option<String>,
        caller: &Caller,
        cx: &ToolContext,
    ) -> Result<Outcome, String> {
        if !self.share_sandbox {
            hand_in(input_files, cx.sandbox.as_deref(), session).await?;
        }
        let run = match task {
            Some(task) => session.run(task),
            None => session.resume(),
        };
        let run = run.map_err(|error| error.to_string())?;
        Ok(watch(run, caller, cx).await)
    }
}

fn no_store() -> ToolError {
    ToolError::failed("The sub-agent's journal is gone.")
}

/// Copies the caller's files to where they are in the sub-agent's sandbox.
async fn hand_in(
    files: &[String],
    from: Option<&dyn Sandbox>,
    session: &Session,
) -> Result<(), String> {
    if files.is_empty() {
        return Ok(());
    }
    let from = from.ok_or("you have no sandbox, so there are no files to hand over")?;
    let to = session
        .sandbox()
        .ok_or("it has no sandbox, so it can't be given files")?;
    let mut problems = Vec::new();
    for file in files {
        let copied = match SandboxPath::new(file) {
            Ok(path) => {
                let target = path
                    .strip_root(&from.info().working_directory)
                    .unwrap_or_else(|| path.clone());
                from.copy_to(&path, &**to, &target)
                    .await
                    .map_err(|error| error.to_string())
            }
            Err(error) => Err(error.to_string()),
        };
        problems.extend(copied.err().map(|error| format!("`{file}`: {error}")));
    }
    if problems.is_empty() {
        return Ok(());
    }
    Err(format!(
        "these input files could not be handed over, so it did not begin: {}",
        problems.join("; ")
    ))
}

/// Passes on what a run tells until it ends.
async fn watch(mut run: Run, caller: &Caller, cx: &ToolContext) -> Outcome {
    let control = run.control();
    loop {
        tokio::select! {
            event = run.next() => match event {
                Some(event) => caller.hub.forward(&event),
                None => break,
            },
            () = cx.cancellation.cancelled(), if !control.is_cancelled() => control.cancel(),
        }
    }
    run.outcome().await
}

/// What the caller's model reads.
fn said(outcome: &Outcome) -> ToolOutput {
    match (&outcome.finish, &outcome.error) {
        (Some(finish), None) => {
            let saved = outcome.outputs.saved.iter().map(|file| file.source.clone());
            let refused = outcome.outputs.refused.iter();
            let refused = refused.map(|refusal| format!("{}: {}", refusal.source, refusal.reason));
            response(
                finish,
                &saved.collect::<Vec<_>>(),
                &refused.collect::<Vec<_>>(),
            )
        }
        (_, Some(error)) => {
            let mut text = error.to_string();
            if let Some(last) = outcome
                .history
                .iter()
                .rev()
                .find_map(|message| match &**message {
                    cantle_core::message::Message::Assistant(message) => {
                        Some(message.text()).filter(|text| !text.trim().is_empty())
                    }
                    _ => None,
                })
            {
                text = format!("{text}. The last it said: {last}");
            }
            failed(&text)
        }
        (None, None) => failed("it ended without a result"),
    }
}

fn response(finish: &Finish, saved: &[String], refused: &[String]) -> ToolOutput {
    let reason = finish.params.get("reason").and_then(Value::as_str);
    let only_reason = finish
        .params
        .as_object()
        .is_some_and(|params| params.keys().all(|key| key == "reason" || key == "paths"));
    let response = match reason.filter(|_| only_reason) {
        Some(reason) => reason.to_owned(),
        None => finish.params.to_string(),
    };
    let mut text =
        format!("<sub_agent_result>\n<response>{response}</response>\n<finished>True</finished>\n");
    for (tag, files) in [("files_available", saved), ("files_failed", refused)] {
        if !files.is_empty() {
            text.push_str(&format!("<{tag}>\n{}\n</{tag}>\n", files.join("\n")));
        }
    }
    text.push_str("</sub_agent_result>");
    ToolOutput::text(text)
}

fn failed(why: &str) -> ToolOutput {
    ToolOutput::failure(format!(
        "<sub_agent_result>\n<error>{why}</error>\n<finished>False</finished>\n</sub_agent_result>"
    ))
}
