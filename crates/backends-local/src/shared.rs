//! The state that a sandbox shares with its commands.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

#[cfg(confined)]
use cantle_core::sandbox::Connections;
use cantle_core::sandbox::{SandboxError, SandboxErrorKind, SandboxHandle, SandboxInfo, Survival};
#[cfg(confined)]
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::engine::Engine;
use crate::files::Root;
use crate::handle::HandleToken;
use crate::limits::BackendLimits;
#[cfg(confined)]
use crate::notices::Notices;

/// Time in which all processes of a closed sandbox must have ended.
const END_DEADLINE: Duration = Duration::from_secs(5);

/// The state that a sandbox shares with its commands.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) info: SandboxInfo,
    pub(crate) root: Arc<Root>,
    /// The variables of every command.
    pub(crate) environment: BTreeMap<OsString, OsString>,
    pub(crate) shell: PathBuf,
    pub(crate) limits: BackendLimits,
    pub(crate) engine: Engine,
    #[cfg(confined)]
    pub(crate) connections: Connections,
    #[cfg(confined)]
    pub(crate) notices: Arc<Notices>,
    /// A place for each directory that may be watched.
    #[cfg(confined)]
    pub(crate) watch_places: Arc<Semaphore>,
    pub(crate) numbers: AtomicU32,
    pub(crate) state: Mutex<SandboxState>,
}

#[derive(Debug, Default)]
pub(crate) struct SandboxState {
    closed: bool,
    /// Whether the files survive a drop.
    kept: bool,
    /// Tasks that drain the output of background processes and measure their usage.
    background_tasks: JoinSet<()>,
    /// Notes for the result of the next command.
    notes: Vec<String>,
}

impl SandboxState {
    pub(crate) fn new(is_kept: bool) -> Self {
        Self {
            kept: is_kept,
            ..Self::default()
        }
    }
}

impl Shared {
    pub(crate) fn is_closed(&self) -> bool {
        self.state.lock().closed
    }

    pub(crate) fn check_open(&self) -> Result<(), SandboxError> {
        if self.is_closed() {
            let message = "the sandbox is closed";
            return Err(SandboxError::new(SandboxErrorKind::Closed, message));
        }
        Ok(())
    }

    /// Returns a number that is unique among the commands of this sandbox.
    pub(crate) fn next_number(&self) -> u32 {
        self.numbers.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Returns the error for a sandbox whose supervisor does not respond.
    #[cfg(confined)]
    pub(crate) fn gone(&self) -> SandboxError {
        match self.check_open() {
            Err(closed) => closed,
            Ok(()) => SandboxError::gone("the sandbox has ended: its supervisor was killed"),
        }
    }

    /// Runs a task for processes that a command left behind, until it is done or the sandbox is dropped.
    pub(crate) fn spawn_tracked(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut state = self.state.lock();
        while state.background_tasks.try_join_next().is_some() {}
        state.background_tasks.spawn(task);
    }

    /// Adds a note to the result of the next command.
    pub(crate) fn note(&self, note: String) {
        self.state.lock().notes.push(note);
    }

    /// Takes the notes for the result of a command.
    pub(crate) fn take_notes(&self) -> Vec<String> {
        std::mem::take(&mut self.state.lock().notes)
    }

    /// Marks the sandbox as closed; returns whether it was open.
    pub(crate) fn begin_closing(&self) -> bool {
        !std::mem::replace(&mut self.state.lock().closed, true)
    }

    /// Whether the files survive a drop.
    pub(crate) fn is_kept(&self) -> bool {
        self.state.lock().kept
    }

    /// Marks the directory as kept and returns its handle.
    pub(crate) fn keep(&self) -> Result<SandboxHandle, SandboxError> {
        if self.info.survival == Survival::Nothing {
            let message = "this sandbox can't be kept: it was not opened as a durable one";
            return Err(SandboxError::unsupported(message));
        }
        let token = HandleToken {
            directory: self.root.host_paths().base(),
        };
        let token = serde_json::to_string(&token).map_err(|error| {
            let message = "the path of the sandbox's directory is not valid UTF-8";
            SandboxError::invalid_input(message).with_source(error)
        })?;
        self.root.keep()?;
        self.state.lock().kept = true;
        Ok(SandboxHandle::new(&*self.info.backend, token))
    }

    /// Kills all processes, and removes the directory unless it is kept. Blocks.
    pub(crate) fn tear_down(&self, keep: bool) -> Result<(), SandboxError> {
        let ended = self.engine.end(Instant::now() + END_DEADLINE);
        self.root.leave_image();
        let removed = if keep {
            self.root.release();
            Ok(())
        } else {
            self.root.delete()
        };
        if ended {
            return removed;
        }
        let mut message = "a process in the sandbox can't be killed".to_owned();
        if let Err(error) = removed {
            message = format!("{message}; {error}");
        }
        Err(SandboxError::new(
            SandboxErrorKind::PermissionDenied,
            message,
        ))
    }
}
