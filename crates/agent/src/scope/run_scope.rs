//! The shared state of one run.

use std::collections::HashSet;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cantle_core::ids::RunId;
use cantle_core::sandbox::OutputOptions;
use tokio::sync::Mutex;
use tokio::sync::mpsc::UnboundedSender;
use tokio_util::sync::CancellationToken;

use super::background::Background;
use crate::approval::ApprovalRequests;
use crate::budget::Account;
use crate::hub::Hub;
use crate::journal::RunStore;
use crate::rules::{Fact, StandingApproval};
use crate::skills::Skills;

/// The shared state of one run. Sub-agents reach it through their [`SubAgentCall`].
pub(crate) struct RunScope {
    pub(crate) run: RunId,
    /// Number of runs above this one.
    pub(crate) depth: u32,
    pub(crate) hub: Hub,
    pub(crate) budget: Arc<Account>,
    pub(crate) cancellation: CancellationToken,
    /// Whether the run was cancelled and will not be resumed.
    pub(crate) is_cancelled_for_good: AtomicBool,
    /// The store of this run's journal, if it is kept. Journals of sub-agents lie below it.
    pub(crate) store: Option<RunStore>,
    /// Approval requests to the holder of the top run; `None` if the holder does not answer them.
    pub(crate) requests: Option<Arc<ApprovalRequests>>,
    /// Approvals that hold for later calls of this run. Locked while the agent's user decides on a call.
    pub(crate) standing_approvals: Mutex<HashSet<StandingApproval>>,
    pub(crate) skills: Option<Arc<Skills>>,
    /// The directory of the host where its files are saved.
    pub(crate) outputs: Option<OutputDir>,
    /// The channel of facts from outside: user messages, and ends of background sub-agents.
    /// Boxed, because a channel allocates the space of many messages at once.
    pub(crate) facts: UnboundedSender<Box<Fact>>,
    /// The background sub-agents that this run started.
    pub(crate) background: Background,
}

/// A directory of the host where output files are saved.
#[derive(Clone, Debug)]
pub(crate) struct OutputDir {
    pub(crate) path: PathBuf,
    pub(crate) options: OutputOptions,
}

impl RunScope {
    /// Cancels the run, which will not be resumed.
    pub(crate) fn cancel_for_good(&self) {
        self.is_cancelled_for_good.store(true, Ordering::Release);
        self.cancellation.cancel();
    }

    /// Whether the run can be resumed after its end.
    pub(crate) fn can_resume(&self) -> bool {
        self.store.is_some() && !self.is_cancelled_for_good.load(Ordering::Acquire)
    }

    /// Whether calls that stop with the run are suspended: it was cancelled and can be resumed.
    pub(crate) fn suspends_calls(&self) -> bool {
        self.cancellation.is_cancelled() && self.can_resume()
    }
}

impl fmt::Debug for RunScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunScope")
            .field("run", &self.run)
            .field("depth", &self.depth)
            .finish_non_exhaustive()
    }
}
