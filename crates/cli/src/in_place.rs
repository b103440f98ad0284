//! Work on a directory itself (`--in-place`), not on a copy of it.
//!
//! Commands see the directory at its path and change it at once. What other programs load or execute is read-only there,
//! and what looks like a secret is hidden. No mount can keep a command from making new files with such names: those are
//! renamed at the end of a run.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use cantle::agent::InputOptions;
use cantle::core::escape::{for_display as display, join_up_to};
use cantle::core::policy::{Policy, PolicyField, Strictness};
use cantle::core::sandbox::{EnforcedBy, Sandbox, SandboxExt as _, SpawnRequest, reserved_name};
use rustix::fs::{Mode, OFlags, RenameFlags, ResolveFlags, openat2, renameat_with};
use rustix::process::geteuid;
use serde::{Deserialize, Serialize};
use walkdir::WalkDir;

use crate::args::WorkdirArgs;
use crate::backend::BackendArg;
use crate::output_dir::{self, OutputDir};
use crate::result_file;
use crate::unfinished;
use crate::working_copy::project_directory;

/// Directories of version control.
const VERSION_CONTROL: [&str; 3] = [".git", ".hg", ".svn"];
/// Maximum number of files that are read-only or hidden.
const MAX_PROTECTED: usize = 2000;
/// Maximum number of names in a message.
const MAX_NAMED: usize = 5;
/// Attempts to find a free name, before one that commands can't have guessed.
const MAX_NAMES: u32 = 5;
/// Maximum number of bytes that a new name has of the old one: file systems allow 255 in all.
const MAX_NAME_BYTES: usize = 200;
/// Maximum number of lines about renamed files.
const MAX_LINES: usize = 50;
/// The names that Cantle itself writes in the directory of a result.
const RESULT_NAMES: [&str; 3] = [
    result_file::FILE_NAME,
    unfinished::HISTORY,
    unfinished::FILES,
];

/// A directory that a run changes itself.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct InPlace {
    pub(crate) directory: PathBuf,
    /// Entries that commands can't change, relative to it.
    read_only: BTreeMap<PathBuf, EntryIdentity>,
    /// Files that commands can't read.
    hidden: BTreeMap<PathBuf, EntryIdentity>,
    /// Whether files that look like secrets are not among them.
    #[serde(default)]
    pub(crate) include_secrets: bool,
}

/// Tells an entry from another of the same name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
enum EntryIdentity {
    /// A link to this path. Commands can replace it.
    Link(PathBuf),
    /// A file or directory. Commands can't remove it, so its number is its own.
    Inode { device: u64, inode: u64 },
}

impl EntryIdentity {
    fn of(path: &Path) -> io::Result<Self> {
        let metadata = fs::symlink_metadata(path)?;
        Ok(match metadata.is_symlink() {
            true => Self::Link(fs::read_link(path)?),
            false => Self::Inode {
                device: metadata.dev(),
                inode: metadata.ino(),
            },
        })
    }
}

impl InPlace {
    /// Looks at the directory of a new run, if it is to be changed itself. Blocks.
    ///
    /// # Errors
    /// If the directory can't be read, holds everything of a user or of the machine, or has too much to protect.
    pub(crate) fn find(args: &WorkdirArgs, include_secrets: bool) -> anyhow::Result<Option<Self>> {
        let Some(directory) = args.workdir.as_deref().filter(|_| args.in_place) else {
            return Ok(None);
        };
        let directory = project_directory(directory)?;
        let Reserved {
            entries: mut read_only,
            unreadable,
        } = Reserved::find(&directory, &[]);
        let is_foreign = |path: &Path| {
            let found = directory.join(path).symlink_metadata();
            found.is_ok_and(|found| found.uid() != geteuid().as_raw())
        };
        // Commands run as the same user: they can make a directory readable, and move what is too deep.
        if let Some(path) = unreadable.iter().find(|path| !is_foreign(path)) {
            bail!(
                "{} can't be read, so what commands must not see there is not known: make it readable, or work on a copy, \
                 without --in-place",
                display(&directory.join(path).to_string_lossy())
            );
        }
        let hidden = match include_secrets {
            true => BTreeMap::new(),
            false => secrets(&directory)?,
        };
        // What is hidden is read-only, too.
        read_only.retain(|path, _| !hidden.contains_key(path));
        if read_only.len() + hidden.len() > MAX_PROTECTED {
            bail!(
                "{} has more than {MAX_PROTECTED} files to protect from commands, such as .git and .env: work on a copy, \
                 without --in-place",
                directory.display()
            );
        }
        Ok(Some(Self {
            directory,
            read_only,
            hidden,
            include_secrets,
        }))
    }

    /// Makes the directory of results read-only for commands if it is in this one: they could replace it by a link to
    /// another place, where files that they name would be saved.
    ///
    /// # Errors
    /// If that does not suffice, because commands could replace a directory above it, or it can't be created.
    pub(crate) fn protect_results(&mut self, output_dir: Option<&OutputDir>) -> anyhow::Result<()> {
        let Some(path) = self.results(output_dir)? else {
            return Ok(());
        };
        let created = self.directory.join(&path);
        if !created.is_dir() {
            fs::create_dir(&created).with_context(|| created.display().to_string())?;
        }
        let identity = EntryIdentity::of(&created)?;
        self.read_only.insert(path, identity);
        Ok(())
    }

    /// Checks that the directory of results of a resumed run is protected.
    ///
    /// # Errors
    /// If it is not.
    pub(crate) fn check_results(&self, output_dir: Option<&OutputDir>) -> anyhow::Result<()> {
        match self.results(output_dir)? {
            Some(path) if !self.read_only.contains_key(&path) => {
                bail!(
                    "--output-dir must stay the same for a resumed run with --in-place, or be outside of its directory"
                )
            }
            _ => Ok(()),
        }
    }

    /// Checks that what is protected is where it was when the run began: the policy of a resumed run names the same paths.
    ///
    /// # Errors
    /// If commands have moved some of it with a directory above it, or may have.
    pub(crate) fn check_unmoved(&self) -> anyhow::Result<()> {
        let is_missing = |(path, identity): &(&PathBuf, &EntryIdentity)| {
            let found = EntryIdentity::of(&self.directory.join(path));
            matches!(identity, EntryIdentity::Inode { .. })
                && !found.is_ok_and(|found| found == **identity)
        };
        let missing = self.known().filter(is_missing);
        let missing: HashMap<_, _> = missing.map(|(path, identity)| (identity, path)).collect();
        if missing.is_empty() {
            return Ok(());
        }
        for entry in WalkDir::new(&self.directory).min_depth(1) {
            let found = entry.map_err(io::Error::from).and_then(|entry| {
                let identity = EntryIdentity::of(entry.path())?;
                Ok((identity, entry.into_path()))
            });
            let (identity, found) = match found {
                Ok(found) => found,
                // It was removed meanwhile.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => {
                    let problem = "what is protected in the directory was moved or replaced, and may be where it can't be found";
                    return Err(error).context(problem);
                }
            };
            if let Some(path) = missing.get(&identity) {
                let shown = |path: &Path| display(&path.to_string_lossy());
                bail!(
                    "{} was moved to {}, where it would not be protected: move it back, or use --continue",
                    shown(path),
                    shown(&found)
                );
            }
        }
        // Programs of the user have removed or replaced it.
        Ok(())
    }

    /// Returns the path of the directory of results, if it is in this one.
    fn results(&self, output_dir: Option<&OutputDir>) -> anyhow::Result<Option<PathBuf>> {
        let Some(OutputDir::Given(path) | OutputDir::PerRun(path)) = output_dir else {
            return Ok(None);
        };
        // It may not exist yet.
        let absolute = std::path::absolute(path)?;
        let mut above = absolute.ancestors();
        let real = above.find_map(|existing| {
            let rest = absolute.strip_prefix(existing).ok()?;
            Some(existing.canonicalize().ok()?.join(rest))
        });
        let real = real.with_context(|| path.display().to_string())?;
        let Ok(inside) = real.strip_prefix(&self.directory) else {
            return Ok(None);
        };
        if inside.components().count() != 1 {
            bail!(
                "{} can't hold results with --in-place, because commands could replace it: name an --output-dir \
                 outside of {}, or an immediate subdirectory of it",
                path.display(),
                self.directory.display()
            );
        }
        Ok(Some(inside.to_owned()))
    }

    /// Allows commands to change the directory, all but what is protected.
    ///
    /// # Errors
    /// If the backend or the policy can't protect them.
    pub(crate) fn add_to(
        &self,
        policy: &mut Policy,
        backend: Option<&BackendArg>,
    ) -> anyhow::Result<()> {
        if !matches!(backend, None | Some(BackendArg::Local)) {
            bail!(
                "--in-place needs the local backend: commands in other backends can't see files of this machine. Leave it out to work on a copy"
            );
        }
        let (Some(read), Some(written)) = (&mut policy.read_roots, &mut policy.write_roots) else {
            bail!(
                "--in-place can't be combined with the policy `unconfined`, which protects nothing. Remove one of them"
            );
        };
        if policy.strictness == Strictness::BestEffort {
            bail!(
                "--in-place can't be combined with --best-effort: without mount namespaces, .git and the like can't be \
                 protected. Leave out --in-place to work on a copy"
            );
        }
        written.push(self.directory.clone());
        let (read_only, hidden) = self.protected();
        read.paths.extend(read_only);
        policy.hidden_paths.extend(hidden);
        Ok(())
    }

    /// Returns the paths that commands can't change, and those that they can't read.
    pub(crate) fn protected(&self) -> (Vec<PathBuf>, Vec<PathBuf>) {
        let absolute = |path: &PathBuf| self.directory.join(path);
        // A link can't be mounted; what it leads to, if that is in the directory, can.
        let is_inside = |path: &PathBuf| {
            let found = path.canonicalize();
            found.is_ok_and(|found| found.starts_with(&self.directory))
        };
        let read_only = self.read_only.keys().map(absolute).filter(is_inside);
        (
            read_only.collect(),
            self.hidden.keys().map(absolute).collect(),
        )
    }

    /// Returns what the user should know before the run.
    pub(crate) fn remark(&self) -> String {
        let directory = self.directory.display();
        let mut remark = format!(
            "Commands change {directory} itself: there is no diff to decide on, and no limit of disk space."
        );
        for (what, paths) in [
            ("Read-only", &self.read_only),
            ("Hidden (--include-secrets)", &self.hidden),
        ] {
            if !paths.is_empty() {
                let names = paths.keys().map(|path| display(&path.to_string_lossy()));
                remark += &format!(" {what}: {}.", join_up_to(MAX_NAMED, names));
            }
        }
        remark
    }

    /// Checks that the sandbox is as it must be.
    ///
    /// # Errors
    /// If it does not protect what it should, or its commands can't write to the directory.
    pub(crate) async fn check(&self, sandbox: Option<&dyn Sandbox>) -> anyhow::Result<()> {
        let sandbox = sandbox.context("--in-place needs a sandbox")?;
        let is_needed = |field| matches!(field, PolicyField::WriteRoots | PolicyField::HiddenPaths);
        let mut report = sandbox.info().enforcement.iter();
        if report.any(|it| is_needed(it.field) && it.by != EnforcedBy::Kernel) {
            bail!("--in-place needs the local backend and mount namespaces (see `cantle doctor`)");
        }
        let test = SpawnRequest::argv(["test".as_ref(), "-w".as_ref(), self.directory.as_os_str()]);
        if !sandbox.run(test).await?.exit.status.success() {
            bail!(
                "commands can't write to {}: run cantle as its owner, or leave out --in-place to work on a copy",
                self.directory.display()
            );
        }
        Ok(())
    }

    /// Renames files that are new and that other programs load or execute, but for those that Cantle writes in the output
    /// directory. Returns lines about them. Blocks.
    ///
    /// # Errors
    /// If the directory can't be read.
    pub(crate) fn set_aside(&self, output_dir: Option<&Path>) -> anyhow::Result<String> {
        let output_dir = output_dir.and_then(|path| path.canonicalize().ok());
        let output_dir =
            output_dir.and_then(|path| Some(path.strip_prefix(&self.directory).ok()?.to_owned()));
        let now = Reserved::find(&self.directory, output_dir.as_slice());
        let root = File::open(&self.directory)?;
        let mut lines = Vec::new();
        for (path, identity) in now.entries {
            let is_known = match identity {
                EntryIdentity::Link(_) => self.known().any(|it| it == (&path, &identity)),
                // A directory above it may have been renamed.
                EntryIdentity::Inode { .. } => self.known().any(|(_, it)| *it == identity),
            };
            if is_known {
                continue;
            }
            let shown = display(&path.to_string_lossy());
            match rename(&root, &path) {
                Ok(name) => {
                    lines.push(format!(
                        "Renamed: {shown} is new, and other programs load or execute files of that name; it is {} now\n",
                        display(&name)
                    ));
                }
                Err(error) => {
                    lines.push(format!(
                        "{shown} is new, other programs may load or execute it, and it can't be renamed: {error}\n"
                    ));
                }
            }
        }
        for path in now.unreadable {
            let shown = display(&path.to_string_lossy());
            lines.push(format!(
                "{shown} can't be read: new files that other programs load or execute may be in it\n"
            ));
        }
        let more = lines.len().saturating_sub(MAX_LINES);
        lines.truncate(MAX_LINES);
        if more > 0 {
            lines.push(format!("… and {more} more like these\n"));
        }
        Ok(lines.concat())
    }

    /// Iterates over what was there before the run.
    fn known(&self) -> impl Iterator<Item = (&PathBuf, &EntryIdentity)> {
        self.read_only.iter().chain(&self.hidden)
    }
}

/// Entries of a directory with reserved names, by their paths relative to it.
#[derive(Default)]
struct Reserved {
    entries: BTreeMap<PathBuf, EntryIdentity>,
    /// Directories that can't be read.
    unreadable: Vec<PathBuf>,
}

impl Reserved {
    /// Looks everywhere in the directory, ignored or not. What Cantle writes in a directory of results is passed over.
    fn find(directory: &Path, results: &[PathBuf]) -> Self {
        let mut found = Self::default();
        let mut walk = WalkDir::new(directory).min_depth(1).into_iter();
        while let Some(entry) = walk.next() {
            let entry = match entry {
                Ok(entry) => entry,
                Err(error) => {
                    let path = error.path().and_then(|it| it.strip_prefix(directory).ok());
                    found.unreadable.extend(path.map(Path::to_owned));
                    continue;
                }
            };
            let name = entry.file_name().to_string_lossy();
            let Ok(path) = entry.path().strip_prefix(directory) else {
                continue;
            };
            if reserved_name(&name).is_none() || is_result(path, &name, results) {
                continue;
            }
            if let Ok(identity) = EntryIdentity::of(entry.path()) {
                found.entries.insert(path.to_owned(), identity);
            }
            if entry.file_type().is_dir() {
                walk.skip_current_dir();
            }
        }
        found
    }
}

/// Returns whether Cantle writes a file of this name there: in `cantle-out/RUN`, or in one of `results`.
fn is_result(path: &Path, name: &str, results: &[PathBuf]) -> bool {
    let Some(parent) = path.parent().filter(|_| RESULT_NAMES.contains(&name)) else {
        return false;
    };
    let above = parent.parent().and_then(Path::file_name);
    above.is_some_and(|above| above == output_dir::DEFAULT) || results.iter().any(|it| it == parent)
}

/// Returns files that look like secrets, relative to a directory, but for those of version control: they are named after
/// branches, and its programs need them.
///
/// # Errors
/// If the directory can't be read.
fn secrets(directory: &Path) -> anyhow::Result<BTreeMap<PathBuf, EntryIdentity>> {
    let mut options = InputOptions::default();
    options.include_ignored = true;
    options.include_results = true;
    let found = options.entries(directory)?.secrets.into_iter();
    let is_version_control = |name: &OsStr| VERSION_CONTROL.iter().any(|it| name == *it);
    let found = found.filter(|path| !path.iter().any(is_version_control));
    let identified = found.filter_map(|path| {
        let identity = EntryIdentity::of(&directory.join(&path)).ok()?;
        Some((path, identity))
    });
    Ok(identified.collect())
}

/// Renames an entry of a directory, whatever links processes may make meanwhile. Returns its new name.
fn rename(root: &File, path: &Path) -> anyhow::Result<String> {
    let name = path.file_name().context("it has no name")?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let parent = openat2(root, parent, flags, Mode::empty(), resolve)?;
    for number in 0..=MAX_NAMES {
        let mut new = new_name(&name.to_string_lossy());
        match number {
            0 => {}
            MAX_NAMES => new += &format!(".{:016x}", getrandom::u64()?),
            _ => new += &format!(".{number}"),
        }
        match renameat_with(&parent, name, &parent, &new, RenameFlags::NOREPLACE) {
            Err(rustix::io::Errno::EXIST) => {}
            renamed => return renamed.map(|()| new).map_err(Into::into),
        }
    }
    bail!("every name for it is taken")
}

/// Returns a name that no program knows for a file with a reserved one.
fn new_name(reserved: &str) -> String {
    let (kept, _) = reserved.split_at(reserved.floor_char_boundary(MAX_NAME_BYTES));
    let new = format!("from-run-{kept}");
    // Of some names, only the end counts.
    match reserved_name(&new) {
        Some(_) => new + ".txt",
        None => new,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_found_everywhere() {
        let directory = tempfile::tempdir().unwrap();
        let secret = ["a/cantle-out/.env", "cantle-out/run/.env", "ignored/.env"];
        for name in secret
            .into_iter()
            .chain([".gitignore", "cantle-out/.gitignore"])
        {
            let path = directory.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "*").unwrap();
        }
        let found = secrets(directory.path()).unwrap();
        assert!(found.into_keys().eq(secret.map(PathBuf::from)));
    }

    #[test]
    fn every_new_name_is_replaced_once() {
        let directory = tempfile::tempdir().unwrap();
        let in_place = InPlace {
            directory: directory.path().canonicalize().unwrap(),
            read_only: BTreeMap::new(),
            hidden: BTreeMap::new(),
            include_secrets: false,
        };
        let long = format!(".cantle-{}", "é".repeat(120));
        for name in [".envrc", "a.code-workspace", &long] {
            fs::write(directory.path().join(name), "").unwrap();
        }
        let lines = in_place.set_aside(None).unwrap();
        assert_eq!(lines.matches("Renamed: ").count(), 3, "{lines}");
        assert_eq!(in_place.set_aside(None).unwrap(), "");
        for name in ["from-run-.envrc", "from-run-a.code-workspace.txt"] {
            assert!(directory.path().join(name).is_file(), "{name}");
        }
    }
}
