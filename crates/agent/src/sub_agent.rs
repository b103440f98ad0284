//! Sub-agents: an agent as a tool of another one.
//!
//! A call opens a session of the sub-agent, with its own sandbox unless it shares the caller's; input
//! files are copied over, and the files it finishes with are copied back. What it does shows as events
//! of a run below the caller's, what it uses counts against the caller's budget, and its accounts are
//! in the caller's ledger. Where runs are kept, so is its own, beside its caller's: a call that was
//! killed or cancelled goes on where it was.
//!
//! In the background, a call only begins one; other calls of the same tool look at it, wait for it and
//! stop it.

mod background;
mod call;
mod orders;
mod progress;
mod words;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use cantle_core::ids::RunId;
use cantle_core::ledger::Ledger;
use cantle_core::sandbox::Sandbox;
use cantle_core::tool::DynTool;

use self::call::Callee;
use self::orders::Conductor;
use self::progress::Progress;
use crate::agent::Agent;
use crate::approval::Questions;
use crate::budget::{Account, Budget};
use crate::hub::Hub;
use crate::journal::RunStore;
use crate::run::Ending;
use crate::skills::Skills;

pub(crate) use self::background::Background;

/// How deep agents may call agents, unless set.
const MAX_DEPTH: u32 = 4;

/// How an agent serves as a tool of another one.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SubAgent {
    agent: Agent,
    description: String,
    share_sandbox: bool,
    in_background: bool,
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
            in_background: false,
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

    /// The same in the background: a call of the tool only begins one, and the caller goes on. With
    /// `action` the model says what it wants: `start` gives a task and files to a new one and returns
    /// its id; `look` says how one stands (turns, tokens, cost, its latest words, or its result); `wait`
    /// waits until one has ended, for a time; `stop` ends one. The caller's model is told when one has
    /// ended. Those that still work when the caller's run ends are stopped; where that run can be
    /// resumed, they go on with it.
    #[must_use]
    pub fn background(mut self) -> Self {
        self.in_background = true;
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
        if sub_agent.in_background {
            Self::new(Conductor(sub_agent))
        } else {
            Self::new(Callee(sub_agent))
        }
    }
}

/// What the loop hands to a sub-agent's tool with a call.
#[derive(Debug)]
pub(crate) struct Caller {
    pub(crate) run: RunId,
    pub(crate) depth: u32,
    pub(crate) hub: Arc<Hub>,
    pub(crate) account: Arc<Account>,
    pub(crate) call_id: String,
    /// Where the caller's journal is, where runs are kept.
    pub(crate) kept_in: Option<RunStore>,
    pub(crate) skills: Option<Arc<Skills>>,
    /// Whether and how the caller's run was told to end.
    pub(crate) ending: Ending,
    /// Where questions are put to whoever holds the caller's run, if somebody does.
    pub(crate) questions: Option<Arc<Questions>>,
    /// The sub-agents that work for the caller in the background.
    pub(crate) background: Weak<Background>,
    /// What the sub-agent is seen to do.
    pub(crate) progress: Arc<Progress>,
    /// What the sub-agent used, once it has ended.
    pub(crate) report: Mutex<Option<Report>>,
}

/// What a sub-agent that was called used.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) ledger: Ledger,
    /// Whether it was stopped with its caller, and goes on with it.
    pub(crate) open: bool,
}

impl Caller {
    /// Whether runs are kept.
    pub(crate) fn is_kept(&self) -> bool {
        self.kept_in.is_some()
    }

    /// Where the journals of this call's runs are, where runs are kept. Few calls have any.
    pub(crate) fn store(&self) -> Option<RunStore> {
        let store = self.kept_in.as_ref()?;
        Some(store.of_call(self.run, &self.call_id))
    }

    /// What the sub-agent used, where one was called and has ended.
    pub(crate) fn take_report(&self) -> Option<Report> {
        self.report().take()
    }

    fn report(&self) -> MutexGuard<'_, Option<Report>> {
        self.report.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the caller's run was told to end and can be resumed, so that what is open stays open.
    pub(crate) fn leaves_open(&self) -> bool {
        self.is_kept() && self.ending.leaves_open()
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
    /// Where questions are put to whoever holds the caller's run, if somebody does.
    pub(crate) questions: Option<Arc<Questions>>,
}
