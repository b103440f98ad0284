//! The state directory: where runs and their workspaces are kept, so that they can be resumed.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use cantle::agent::{KeptRun, RunStore};
use cantle::backends::local::LocalBackend;
use cantle::core::ids::RunId;

use crate::settings::variable;

const VARIABLE: &str = "CANTLE_STATE_DIR";

/// The state directory of this user.
#[derive(Clone, Debug)]
pub(crate) struct State {
    directory: PathBuf,
    /// Somebody named it, rather than that it is the usual place.
    is_named: bool,
}

impl State {
    /// `CANTLE_STATE_DIR`, else `$XDG_STATE_HOME/cantle`, else for root `/var/lib/cantle` and for others
    /// `~/.local/state/cantle`. Commands of root's sandboxes run as another user, who could not go
    /// to a directory below root's home where there are no namespaces.
    ///
    /// # Errors
    /// Where none of the variables says, or one says no absolute path.
    pub(crate) fn find() -> anyhow::Result<Self> {
        let is_root = rustix::process::geteuid().is_root();
        let candidates = [
            variable(VARIABLE).map(PathBuf::from),
            variable("XDG_STATE_HOME").map(|state| Path::new(&state).join("cantle")),
            is_root.then(|| PathBuf::from("/var/lib/cantle")),
            variable("HOME").map(|home| Path::new(&home).join(".local/state/cantle")),
        ];
        let Some(directory) = candidates.into_iter().flatten().next() else {
            bail!("there is no state directory: set {VARIABLE} to one, or HOME");
        };
        if !directory.is_absolute() {
            bail!(
                "the state directory {} is no absolute path: set {VARIABLE} to one",
                directory.display()
            );
        }
        Ok(Self {
            is_named: variable(VARIABLE).is_some(),
            directory,
        })
    }

    /// Whether somebody named it, so that it must not be done without.
    pub(crate) fn is_named(&self) -> bool {
        self.is_named
    }

    /// The kept runs.
    pub(crate) fn runs(&self) -> RunStore {
        RunStore::new(self.directory.join("runs"))
    }

    /// Where the working directories of kept runs are.
    pub(crate) fn workspaces(&self) -> PathBuf {
        self.directory.join("workspaces")
    }

    /// Where those of sandboxes are that `cantle serve` makes.
    pub(crate) fn served(&self) -> PathBuf {
        self.directory.join("serve-workspaces")
    }

    /// What `cantle serve` knows of them.
    pub(crate) fn server(&self) -> PathBuf {
        self.directory.join("serve")
    }

    /// Sandboxes whose working directories are kept here.
    ///
    /// # Errors
    /// Where their directory can't be made.
    pub(crate) fn backend(&self) -> anyhow::Result<LocalBackend> {
        use std::os::unix::fs::DirBuilderExt as _;

        let workspaces = self.workspaces();
        let mut builder = std::fs::DirBuilder::new();
        // What is in a workspace concerns nobody else, but whom it belongs to must get there.
        builder.recursive(true).mode(0o711);
        builder.create(&workspaces).with_context(|| {
            format!(
                "the state directory {} can't be written; set {VARIABLE} to another one, or use \
                 --no-keep",
                self.directory.display()
            )
        })?;
        Ok(LocalBackend::new().in_directory(workspaces))
    }

    /// The run that `name` means: its id, the beginning of one, or `last` for the latest.
    ///
    /// # Errors
    /// Where it means none, or several.
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
                "{} runs begin with `{name}`; write more of the id",
                more + 1
            ),
            (None, _) => bail!("no run `{name}` is kept; `cantle runs list` shows those that are"),
        }
    }
}
