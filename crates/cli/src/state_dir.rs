//! The state directory, which keeps runs and their working directories for resuming.

use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use cantle::agent::{KeptRun, KeptStatus, RunStore};
use cantle::backends::local::LocalBackend;
use cantle::core::ids::RunId;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::environment::path_variable;

/// Variable of the state directory.
pub(crate) const VARIABLE: &str = "CANTLE_STATE_DIR";

/// A state directory.
#[derive(Clone, Debug)]
pub(crate) struct StateDir {
    directory: PathBuf,
    is_explicit: bool,
}

impl StateDir {
    /// Returns the state directory of this user.
    ///
    /// It is `CANTLE_STATE_DIR`, `$XDG_STATE_HOME/cantle`, or by default `/var/lib/cantle` for root and
    /// `~/.local/state/cantle` for others: commands of root's sandboxes run as another user, which
    /// can't enter root's home directory unless there are namespaces.
    ///
    /// # Errors
    /// If no variable is set, or the path is relative.
    pub(crate) fn find() -> anyhow::Result<Self> {
        let is_root = rustix::process::geteuid().is_root();
        let candidates = [
            path_variable(VARIABLE),
            path_variable("XDG_STATE_HOME").map(|state| state.join("cantle")),
            is_root.then(|| PathBuf::from("/var/lib/cantle")),
            path_variable("HOME").map(|home| home.join(".local/state/cantle")),
        ];
        let Some(directory) = candidates.into_iter().flatten().next() else {
            bail!("no state directory is known: set {VARIABLE} or HOME");
        };
        if !directory.is_absolute() {
            bail!(
                "the state directory {} is not an absolute path: set {VARIABLE} to one",
                directory.display()
            );
        }
        Ok(Self {
            is_explicit: path_variable(VARIABLE).is_some(),
            directory,
        })
    }

    /// Returns whether the user chose the directory, so that a run must not begin without it.
    pub(crate) fn is_explicit(&self) -> bool {
        self.is_explicit
    }

    /// Returns the store of kept runs.
    pub(crate) fn runs(&self) -> RunStore {
        RunStore::new(self.directory.join("runs"))
    }

    /// Returns the file of what was typed in conversations.
    pub(crate) fn chat_history(&self) -> PathBuf {
        self.directory.join("chat-history")
    }

    /// Returns the file that lists trusted directories.
    pub(crate) fn trust_record(&self) -> PathBuf {
        self.directory.join("trust.json")
    }

    /// Returns the directory of kept runs' working directories.
    pub(crate) fn workspaces(&self) -> PathBuf {
        self.directory.join("workspaces")
    }

    /// Returns the directory of the copies of directories that runs work on.
    pub(crate) fn working_copies(&self) -> PathBuf {
        self.directory.join("working-copies")
    }

    /// Returns the directory of the working directories of `cantle serve`.
    pub(crate) fn served(&self) -> PathBuf {
        self.directory.join("serve-workspaces")
    }

    /// Returns the directory of the state of `cantle serve`.
    pub(crate) fn server(&self) -> PathBuf {
        self.directory.join("serve")
    }

    /// Returns the directory of installed Python packages.
    pub(crate) fn packages(&self) -> PathBuf {
        self.directory.join("packages")
    }

    /// Returns the directory of stored files and their catalogue.
    pub(crate) fn files(&self) -> PathBuf {
        self.directory.join("files")
    }

    /// Returns the directory of files that are to be delivered to a store, by run.
    pub(crate) fn undelivered(&self) -> PathBuf {
        self.directory.join("undelivered")
    }

    /// Creates that directory, and returns it.
    ///
    /// # Errors
    /// If it can't be created.
    pub(crate) fn create_undelivered(&self) -> anyhow::Result<PathBuf> {
        let directory = self.undelivered();
        let created = create_traversable(&self.directory).and_then(|()| create_private(&directory));
        created.with_context(|| format!("failed to create {}", directory.display()))?;
        Ok(directory)
    }

    /// Returns a backend whose working directories are kept here.
    ///
    /// # Errors
    /// If their directory can't be created.
    pub(crate) fn backend(&self) -> anyhow::Result<LocalBackend> {
        let workspaces = self.workspaces();
        create_traversable(&workspaces).with_context(|| {
            format!(
                "failed to create the state directory {}; set {VARIABLE} to another one, or use \
                 --no-keep",
                self.directory.display()
            )
        })?;
        Ok(LocalBackend::new().in_directory(workspaces))
    }

    /// Returns the run of this name, on which no process works.
    ///
    /// # Errors
    /// As [`find_run`](Self::find_run), and if one does.
    pub(crate) fn find_idle_run(&self, name: &str) -> anyhow::Result<KeptRun> {
        let run = self.find_run(name)?;
        check_idle(&run)?;
        Ok(run)
    }

    /// Returns the run that `name` identifies: its id, a prefix of it, or `last` for the latest.
    ///
    /// # Errors
    /// If there is none, or several.
    pub(crate) fn find_run(&self, name: &str) -> anyhow::Result<KeptRun> {
        let store = self.runs();
        if let Ok(run) = name.parse::<RunId>() {
            return Ok(store.get(run)?);
        }
        let (runs, _) = store.list()?;
        let mut named: Vec<KeptRun> = match name {
            "last" => runs.into_iter().take(1).collect(),
            _ => {
                let begins = |run: &KeptRun| run.run.to_string().starts_with(name);
                runs.into_iter().filter(begins).collect()
            }
        };
        match (named.pop(), named.len()) {
            (Some(run), 0) => Ok(run),
            (Some(_), more) => bail!(
                "the ids of {} runs begin with `{name}`; use a longer prefix",
                more + 1
            ),
            (None, _) => bail!("no run `{name}` is kept; `cantle runs list` shows those that are"),
        }
    }
}

/// Checks that no process works on a run.
///
/// # Errors
/// If one does.
pub(crate) fn check_idle(run: &KeptRun) -> anyhow::Result<()> {
    if run.status == KeptStatus::Running {
        bail!("run {} is in progress; stop its process first", run.run);
    }
    Ok(())
}

/// Returns how a removal ended: that nothing was there is no error.
pub(crate) fn removed(result: io::Result<()>) -> io::Result<()> {
    result.or_else(|error| match error.kind() {
        io::ErrorKind::NotFound => Ok(()),
        _ => Err(error),
    })
}

/// Locks a file until it is dropped; `None` if another process has locked it.
pub(crate) fn try_lock(path: &Path) -> io::Result<Option<File>> {
    // NFS locks only what is open for writing, which a directory can't be.
    let mut options = File::options();
    let file = options
        .create(true)
        .truncate(false)
        .write(true)
        // Another user who may open it could lock it.
        .mode(0o600)
        .open(path)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(file)),
        Err(Errno::WOULDBLOCK) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Creates a directory that only its owner may enter.
pub(crate) fn create_private(directory: &Path) -> io::Result<()> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory)
}

/// Creates a directory that everybody may traverse: commands of root's sandboxes run as another user.
pub(crate) fn create_traversable(directory: &Path) -> io::Result<()> {
    let mut builder = DirBuilder::new();
    builder.recursive(true).mode(0o711).create(directory)
}
