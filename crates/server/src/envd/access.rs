//! The use of a running sandbox by a request.

use std::ops::Deref;
use std::sync::Arc;

use cantle_core::sandbox::Sandbox;
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::accounts::Account;

/// A reference to a sandbox in use; the sandbox is released after the last one is dropped.
pub(crate) struct SandboxUse {
    pub(crate) account: Account,
    pub(super) sandbox: Arc<dyn Sandbox>,
    pub(super) _token: TaskTrackerToken,
}

impl Deref for SandboxUse {
    type Target = dyn Sandbox;

    fn deref(&self) -> &Self::Target {
        &*self.sandbox
    }
}
