//! The state that everything working on one run shares, and the calls that cross from one run to
//! another.

mod background;
mod run_scope;
mod sub_agent;

pub(crate) use self::background::{Background, BackgroundStatus, SubAgentReport};
pub(crate) use self::run_scope::{OutputDir, RunScope};
pub(crate) use self::sub_agent::{AgentTool, ParentRun, SubAgentCall, SubAgentTool};
