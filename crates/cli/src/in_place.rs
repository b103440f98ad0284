//! Work on a directory itself (`--in-place`), not on a copy of it.
//!
//! Commands see the directory at its path and change it at once. What other programs run or obey is read-only there,
//! and what looks like a secret is hidden. No mount can keep a command from making new files with such names: those are
//! renamed at the end of a run.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use cantle::agent::InputOptions;
use cantle::core::escape::for_display as display;
use cantle::core::policy::{Policy, PolicyField, Strictness};
use cantle::core::sandbox::{EnforcedBy, Sandbox, SandboxExt as _, SpawnRequest, reserved_name};
use rustix::fs::{Mode, OFlags, RenameFlags, ResolveFlags, openat2, renameat_with};
use serde::{Deserialize, Serialize};

use crate::args::WorkdirArgs;
use crate::backend::BackendArg;
use crate::working_copy::project_directory;

/// Maximum number of files that are read-only or hidden.
const MAX_PROTECTED: usize = 2000;
/// Maximum number of names in a message.
const MAX_NAMED: usize = 5;
/// Attempts to find a free name.
const MAX_NAMES: u32 = 1000;

/// A directory that a run changes itself.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct InPlace {
    pub(crate) directory: PathBuf,
    /// Entries that commands can't change, relative to it.
    read_only: BTreeMap<PathBuf, EntryIdentity>,
    /// Files that commands can't read.
    hidden: Vec<PathBuf>,
}

/// Tells an entry from another of the same name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
        let (read_only, hidden) = protected(&directory, include_secrets)?;
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
        }))
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
                "--in-place needs the local backend: commands of others see no files of this machine. Leave it out to work on a copy"
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
        let absolute = |path: &PathBuf| self.directory.join(path);
        // A link can't be mounted; what it leads to, if that is in the directory, can.
        let found = self.read_only.keys().map(absolute);
        let is_inside = |path: &PathBuf| {
            let found = path.canonicalize();
            found.is_ok_and(|found| found.starts_with(&self.directory))
        };
        read.paths.extend(found.filter(is_inside));
        policy.hidden_paths.extend(self.hidden.iter().map(absolute));
        Ok(())
    }

    /// Returns what the user should know before the run.
    pub(crate) fn remark(&self) -> String {
        let directory = self.directory.display();
        let mut remark = format!(
            "Commands change {directory} itself: there is no diff to decide on, and no limit of disk space."
        );
        let read_only: Vec<_> = self.read_only.keys().collect();
        let hidden: Vec<_> = self.hidden.iter().collect();
        for (what, paths) in [
            ("Read-only", read_only),
            ("Hidden (--include-secrets)", hidden),
        ] {
            if !paths.is_empty() {
                remark += &format!(" {what}: {}.", names(&paths));
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

    /// Renames files that are new and that other programs run or obey. Returns lines about them. Blocks.
    ///
    /// # Errors
    /// If the directory can't be read.
    pub(crate) fn set_aside(&self) -> anyhow::Result<String> {
        let (now, _) = protected(&self.directory, true)?;
        let root = File::open(&self.directory)?;
        let mut lines = String::new();
        for (path, identity) in now {
            let is_known = match identity {
                EntryIdentity::Link(_) => self.read_only.get(&path) == Some(&identity),
                // A directory above it may have been renamed.
                EntryIdentity::Inode { .. } => self.read_only.values().any(|it| *it == identity),
            };
            if is_known || self.hidden.contains(&path) {
                continue;
            }
            let shown = display(&path.to_string_lossy());
            match rename(&root, &path) {
                Ok(name) => {
                    lines += &format!(
                        "Renamed: {shown} is new, and other programs run or obey files of that name; it is {} now\n",
                        display(&name)
                    );
                }
                Err(error) => {
                    lines += &format!(
                        "{shown} is new, other programs may run or obey it, and it can't be renamed: {error}\n"
                    );
                }
            }
        }
        Ok(lines)
    }
}

/// Entries with reserved names, and files that look like secrets.
type Protected = (BTreeMap<PathBuf, EntryIdentity>, Vec<PathBuf>);

/// Returns what commands must not change, and what they must not read, relative to a directory.
fn protected(directory: &Path, include_secrets: bool) -> anyhow::Result<Protected> {
    let mut options = InputOptions::default();
    (options.include_ignored, options.include_secrets) = (true, include_secrets);
    let entries = options.entries(directory)?;
    let mut read_only = BTreeMap::new();
    for (path, _) in entries.paths {
        let text = path.to_string_lossy();
        let (parent, name) = text.rsplit_once('/').unwrap_or(("", &text));
        if reserved_name(name).is_none() || reserved_name(parent).is_some() {
            continue;
        }
        if let Ok(identity) = EntryIdentity::of(&directory.join(&path)) {
            read_only.insert(path, identity);
        }
    }
    let is_visible = |path: &PathBuf| !read_only.keys().any(|above| path.starts_with(above));
    let hidden = entries.secrets.into_iter().filter(is_visible).collect();
    Ok((read_only, hidden))
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
    for number in 0..MAX_NAMES {
        let mut new = format!("from-run-{}", name.to_string_lossy());
        if number > 0 {
            new += &format!(".{number}");
        }
        match renameat_with(&parent, name, &parent, &new, RenameFlags::NOREPLACE) {
            Err(rustix::io::Errno::EXIST) => {}
            renamed => return renamed.map(|()| new).map_err(Into::into),
        }
    }
    bail!("every name for it is taken")
}

fn names(paths: &[&PathBuf]) -> String {
    let shown = paths.iter().take(MAX_NAMED);
    let shown: Vec<_> = shown.map(|path| display(&path.to_string_lossy())).collect();
    match paths.len().saturating_sub(MAX_NAMED) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}
