//! The directory in which the files of a run are saved.

use std::fs::OpenOptions;
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use cantle::agent::{RunOptions, SessionOptions};
use cantle::core::ids::RunId;
use cantle::core::sandbox::OutputOptions;
use rustix::fs::{Access, access};

use crate::args::RunArgs;
use crate::delivery::StoreTarget;
use crate::result_file;
use crate::state_dir::StateDir;

/// The directory of results where none is given. It is never an input.
pub(crate) const DEFAULT: &str = "cantle-out";

/// The output directory of a run.
#[derive(Clone, Debug)]
pub(crate) enum OutputDir {
    /// The directory that the user named.
    Given(PathBuf),
    /// Each run that delivers files has a directory in this one, which has the run's id as its name.
    PerRun(PathBuf),
    /// As before, until the files are in the store that the user named.
    Staged(PathBuf),
}

impl OutputDir {
    /// Returns the directory that the user named, that of files for the store that the user named, or else `cantle-out`
    /// in the directory where the run began; `None` if that can't be written.
    ///
    /// # Errors
    /// If `cantle-out` is something else than a directory, or the current directory is unknown.
    pub(crate) fn find(given: Option<PathBuf>, started_in: &Path) -> anyhow::Result<Option<Self>> {
        let is_current = std::env::current_dir().is_ok_and(|current| current == started_in);
        if let Some(given) = given {
            if StoreTarget::of(&given).is_some() {
                return Ok(Some(Self::Staged(StateDir::find()?.create_undelivered()?)));
            }
            // Paths in the journal are relative to the directory where the run began.
            return Ok(Some(Self::Given(match is_current {
                true => given,
                false => std::path::absolute(given)?,
            })));
        }
        let path = match is_current {
            true => PathBuf::from(DEFAULT),
            false => started_in.join(DEFAULT),
        };
        let writable = match std::fs::symlink_metadata(&path) {
            Ok(metadata) if metadata.is_dir() => access(&path, Access::WRITE_OK),
            Ok(_) => bail!(
                "{} is not a directory, and files can't be saved there: name another with --output-dir",
                path.display()
            ),
            Err(_) => access(started_in, Access::WRITE_OK),
        };
        Ok(writable.is_ok().then_some(Self::PerRun(path)))
    }

    /// Has the runs of a session save their files there.
    pub(crate) fn set_in(&self, runs: &mut RunOptions) {
        let (Self::Given(path) | Self::PerRun(path) | Self::Staged(path)) = self;
        runs.output_dir = Some(path.clone());
        runs.has_output_dir_per_run = !matches!(self, Self::Given(_));
    }

    /// Returns whether the user named it, or a store.
    pub(crate) fn is_given(&self) -> bool {
        !matches!(self, Self::PerRun(_))
    }

    /// Returns the directory of a run's files.
    pub(crate) fn of(&self, run: RunId) -> PathBuf {
        match self {
            Self::Given(path) => path.clone(),
            Self::PerRun(path) | Self::Staged(path) => path.join(run.to_string()),
        }
    }

    /// Keeps the default directory out of git, once it exists.
    pub(crate) fn ignore(&self) -> anyhow::Result<()> {
        let Self::PerRun(path) = self else {
            return Ok(());
        };
        let path = path.join(".gitignore");
        match OpenOptions::new().write(true).create_new(true).open(&path) {
            Ok(mut file) => file.write_all(b"*\n"),
            Err(error) => match error.kind() {
                ErrorKind::AlreadyExists | ErrorKind::NotFound => Ok(()),
                _ => Err(error),
            },
        }
        .with_context(|| format!("failed to write {}", path.display()))
    }
}

/// Returns the options of saving, for a directory with files of earlier runs.
pub(crate) fn output_options(args: &RunArgs, output_dir: Option<&Path>) -> OutputOptions {
    let earlier = output_dir.map(result_file::earlier).unwrap_or_default();
    let options = OutputOptions::default().with_earlier(earlier);
    match args.overwrite {
        true => options.with_overwrite(),
        false => options,
    }
}

/// Returns a warning if output files may find their names occupied.
pub(crate) fn occupied_names_remark(options: &SessionOptions) -> Option<String> {
    let directory = options.runs.shared_output_dir()?;
    if options.runs.outputs.overwrite {
        return None;
    }
    let names = std::fs::read_dir(directory).ok()?.flatten();
    let names = names.map(|entry| PathBuf::from(entry.file_name()));
    let is_foreign = |name: &PathBuf| {
        let is_own = *name == Path::new(result_file::FILE_NAME);
        let mut earlier = options.runs.outputs.earlier.keys();
        !is_own
            && !name.as_os_str().as_encoded_bytes().starts_with(b".")
            && !earlier.any(|path| path.starts_with(name))
    };
    let first = names.into_iter().find(is_foreign)?;
    Some(format!(
        "{} has files that no earlier run delivered, such as {}: an output file of such a name is saved beside it \
         as NAME.1, unless --overwrite is given",
        directory.display(),
        first.display()
    ))
}
