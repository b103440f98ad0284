//! The use of a running sandbox by a request, and the account of what it uses.

use std::ops::Deref;
use std::sync::Arc;

use cantle_core::sandbox::Sandbox;
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::error::EnvdError;
use crate::accounts::{
    Accounts, DESCRIPTORS_PER_COMMAND, Lease, MemoryAccount, MemoryCharge, Pool,
};
use cantle_core::principal::PrincipalId;

/// The account of the resources that requests to one sandbox use.
#[derive(Clone)]
pub(crate) struct SandboxAccount {
    memory: MemoryAccount,
    descriptors: Arc<Pool>,
    owner: PrincipalId,
}

impl SandboxAccount {
    pub(crate) fn new(accounts: &Accounts, owner: &PrincipalId, memory_bytes: usize) -> Self {
        Self {
            memory: MemoryAccount::new(accounts, owner).with_limit(memory_bytes),
            descriptors: Arc::clone(&accounts.descriptors),
            owner: owner.clone(),
        }
    }

    /// Returns a charge of no bytes.
    pub(crate) fn charge(&self) -> MemoryCharge {
        self.memory.charge()
    }

    /// Takes the descriptors of a command.
    pub(crate) fn take_descriptors(&self) -> Result<Lease, EnvdError> {
        let taken = self.descriptors.take(&self.owner, DESCRIPTORS_PER_COMMAND);
        taken.map_err(|_| {
            let message = "the server has reached its maximum number of open files: end commands";
            EnvdError::exhausted(message)
        })
    }
}

/// A reference to a sandbox in use; the sandbox is released after the last one is dropped.
pub(crate) struct SandboxUse {
    pub(crate) account: SandboxAccount,
    sandbox: Arc<dyn Sandbox>,
    _token: TaskTrackerToken,
}

impl SandboxUse {
    pub(crate) fn new(
        sandbox: Arc<dyn Sandbox>,
        account: SandboxAccount,
        token: TaskTrackerToken,
    ) -> Self {
        Self {
            account,
            sandbox,
            _token: token,
        }
    }
}

impl Deref for SandboxUse {
    type Target = dyn Sandbox;

    fn deref(&self) -> &Self::Target {
        &*self.sandbox
    }
}
