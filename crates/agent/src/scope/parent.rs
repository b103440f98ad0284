//! The run that called a sub-agent.

use std::sync::Arc;

use cantle_core::sandbox::Sandbox;

use super::run_scope::RunScope;

/// The calling run, as a sub-agent's session sees it.
#[derive(Clone, Debug)]
pub(crate) struct ParentRun {
    pub(crate) scope: Arc<RunScope>,
    /// The calling run's sandbox, from which files come and to which they are delivered.
    pub(crate) sandbox: Option<Arc<dyn Sandbox>>,
    /// Whether the sub-agent works in that sandbox.
    pub(crate) shares_sandbox: bool,
}
