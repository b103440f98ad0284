//! The resources of a session, which its runs use.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize};

use cantle_core::message::SharedMessage;
use cantle_core::sandbox::{Sandbox, SandboxHandle};
use serde_json::{Map, Value, json};
use tokio::sync::{Mutex, OnceCell};
use tokio_util::sync::CancellationToken;

use super::options::RunOptions;
use crate::definition::Definition;
use crate::environment::SandboxFacts;
use crate::journal::{Identity, Journal, JournalContent, RunStore};
use crate::skills::Skills;
use crate::tool_table::ToolTable;

/// Everything that a session opened, shared with its runs.
pub(crate) struct SessionResources {
    pub(crate) agent: Arc<Definition>,
    pub(crate) tools: Arc<ToolTable>,
    pub(crate) sandbox: Option<Arc<dyn Sandbox>>,
    /// Facts about the sandbox, once a run asked for them.
    pub(crate) sandbox_facts: OnceCell<SandboxFacts>,
    /// Paths of the input files in the sandbox.
    pub(crate) input_files: Vec<String>,
    /// Paths of the skills' files in the sandbox.
    pub(crate) skill_files: Vec<String>,
    /// Warnings that every run emits.
    pub(crate) warnings: Vec<String>,
    pub(crate) cancellation: CancellationToken,
    /// The conversation without the system message. A run holds the lock until it ends.
    pub(crate) history: Arc<Mutex<Vec<SharedMessage>>>,
    pub(crate) kept: Option<KeptSession>,
    /// Whether the sandbox still belongs to an earlier run, since none has begun in this session.
    pub(crate) has_earlier_sandbox: AtomicBool,
    pub(crate) skills: Option<Arc<Skills>>,
    /// The options of its runs.
    pub(crate) run_options: RunOptions,
}

impl SessionResources {
    /// Returns the identity of the session's runs. It may be large, and is needed only for the header of a journal.
    pub(crate) fn identity(&self) -> Identity {
        let Self { agent, tools, .. } = self;
        let providers = agent.providers.iter();
        let mut providers: Map<String, Value> = providers
            .map(|provider| (provider.name().to_owned(), provider.identity()))
            .collect();
        let requirements = agent.requirements();
        if !requirements.is_empty() {
            providers.insert("requirements".to_owned(), json!(requirements));
        }
        Identity::new(
            &agent.name,
            agent.client.model(),
            agent.system_prompt.as_deref(),
            tools.specs(),
            |name| tools.is_finish(name),
            &providers,
        )
    }
}

/// A session whose runs are kept.
pub(crate) struct KeptSession {
    pub(crate) store: RunStore,
    /// Data for the caller that resumes a run.
    pub(crate) note: Value,
    /// The sandbox, if it outlives the process.
    pub(crate) sandbox: Option<SandboxHandle>,
    /// Number of runs that can be resumed. While there are any, the sandbox stays.
    pub(crate) unfinished: AtomicUsize,
}

/// The run for which a session was opened.
pub(crate) struct ResumedRun {
    pub(crate) content: JournalContent,
    pub(crate) journal: Journal,
    /// Whether the sandbox is a new one.
    pub(crate) has_new_sandbox: bool,
}
