//! The configuration of a sub-agent.

use crate::agent::Agent;
use crate::budget::Budget;

/// Default maximum number of agents above a sub-agent.
const MAX_DEPTH: u32 = 4;

/// An agent that another agent can call, see [`AgentBuilder::sub_agent`](crate::AgentBuilder::sub_agent).
#[must_use]
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SubAgent {
    pub(super) agent: Agent,
    pub(super) description: String,
    pub(super) shares_sandbox: bool,
    pub(super) in_background: bool,
    pub(super) max_depth: u32,
    pub(super) budget: Budget,
}

impl SubAgent {
    /// A tool with the agent's name. `description` tells the model what it can do.
    pub fn new(agent: &Agent, description: impl Into<String>) -> Self {
        Self {
            agent: agent.clone(),
            description: description.into(),
            shares_sandbox: false,
            in_background: false,
            max_depth: MAX_DEPTH,
            budget: Budget::default(),
        }
    }

    /// Runs the sub-agent in the caller's sandbox: both see the same files. The sub-agent's sandbox
    /// provider then opens none, and only its tools use the caller's.
    pub fn share_sandbox(mut self) -> Self {
        self.shares_sandbox = true;
        self
    }

    /// Runs the sub-agent in the background: a call only starts it, and the caller continues. The
    /// parameter `action` selects the operation: `start` gives a task and files to a new sub-agent and
    /// returns its id; `look` returns the status (turns, tokens, cost, latest text, or the result);
    /// `wait` waits until one has ended; `stop` cancels one. The caller's model is informed when one has
    /// ended. Those that work when the caller's run ends are stopped; if that run can be resumed, they
    /// continue with it.
    pub fn background(mut self) -> Self {
        self.in_background = true;
        self
    }

    /// Sets the maximum number of agents above it. Default: 4.
    pub fn max_depth(mut self, depth: u32) -> Self {
        self.max_depth = depth;
        self
    }

    /// Sets the budget of each call, within the caller's.
    pub fn budget(mut self, budget: Budget) -> Self {
        self.budget = budget;
        self
    }
}
