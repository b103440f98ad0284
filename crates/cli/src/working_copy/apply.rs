//! Changes on their way to the user's directory, and back.
//!
//! All files are checked first, and written under temporary names beside their places. The state of the changes is
//! written before the first is put in its place by a rename, and both versions of each file are kept, so that after a
//! crash the rest can be applied, or all of it reverted. The temporary names follow from the list of changes, so that those
//! of a process that was killed are found and removed. No link in the directory is followed.

use std::collections::BTreeSet;
use std::fmt;
use std::fs::File;
use std::io;
use std::iter;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::thread;

use anyhow::{Context as _, bail};
use rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, Stat, Uid, chownat, fchmod, fchown, fstat, mkdirat, open,
    openat, renameat, statat, unlinkat,
};
use rustix::io::Errno;
use rustix::process::geteuid;

use super::changes::{Changes, Status, Tree, Version};
use super::{MAX_NAMED, WorkingCopy};

/// Start of the temporary names.
const PREFIX: &str = ".cantle-apply";

/// Number of threads that wait for the disk.
const SYNC_THREADS: usize = 16;

const DIRECTORY: OFlags = OFlags::DIRECTORY
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

/// Changes that can't be applied, mostly because the files of the user's directory are not as they were.
#[derive(Debug)]
pub(crate) struct Conflicts {
    origin: PathBuf,
    /// Paths and reasons.
    pub(crate) files: Vec<(String, String)>,
    /// Number of the changes that can be applied.
    pub(crate) others: usize,
}

impl fmt::Display for Conflicts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let origin = self.origin.display();
        write!(
            f,
            "nothing was written to {origin}, because some changes can't be applied:"
        )?;
        for (path, reason) in self.files.iter().take(MAX_NAMED) {
            write!(f, "\n  {path}: {reason}")?;
        }
        match self.files.len().saturating_sub(MAX_NAMED) {
            0 => Ok(()),
            more => write!(f, "\n  and {more} more"),
        }
    }
}

impl std::error::Error for Conflicts {}

/// One file to be put in its place.
struct Step<'c> {
    /// Index in the list of changes.
    number: usize,
    path: &'c str,
    /// The file that is expected in its place.
    before: Option<&'c Version>,
    /// The file that changes which were applied before have put there, which is expected, too.
    applied: Option<&'c Option<Version>>,
    /// The file that is to be there.
    after: Option<&'c Version>,
    tree: Tree,
    /// The file in its place when the step was checked. It is not held open: there can be more steps than open files.
    found: Option<Stat>,
}

impl WorkingCopy {
    /// Puts the changed files in their places, except those of the paths that are left out. Blocks.
    ///
    /// # Errors
    /// If a file was changed meanwhile ([`Conflicts`]), or can't be written. Unless files are being put in place already,
    /// nothing has changed then.
    pub(crate) fn apply(
        &self,
        changes: &mut Changes,
        left_out: &BTreeSet<String>,
    ) -> anyhow::Result<usize> {
        changes.left_out.clone_from(left_out);
        let current = changes.clone();
        let steps = Step::all(&current, Tree::New);
        let steps = steps.filter(|step| !left_out.contains(step.path));
        self.perform(
            changes,
            steps.collect(),
            (Status::Applying, Status::Applied),
        )
    }

    /// Puts the files back as they were copied, except those that were left out and are not as the run left them. Blocks.
    ///
    /// # Errors
    /// As [`apply`](Self::apply).
    pub(crate) fn revert(&self, changes: &mut Changes) -> anyhow::Result<usize> {
        let current = changes.clone();
        self.perform(
            changes,
            Step::all(&current, Tree::Old).collect(),
            (Status::Reverting, Status::Reverted),
        )
    }

    /// Drops the changes; their files are kept until the run is removed. Blocks.
    pub(crate) fn reject(&self, changes: &mut Changes) -> anyhow::Result<()> {
        self.sweep(changes);
        changes.status = Status::Rejected;
        self.write(changes)
    }

    /// Removes what a process that was killed left in the user's directory. Blocks.
    pub(super) fn sweep(&self, changes: &Changes) {
        let Ok(root) = open(&self.origin, DIRECTORY, Mode::empty()) else {
            return;
        };
        for (number, change) in changes.files.iter().enumerate() {
            let removed = parent_of(&root, &change.path, false)
                .and_then(|(parent, _)| unlinkat(parent, self.temporary(number), AtFlags::empty()));
            if removed.is_ok() {
                let is_created = |directory: &str| changes.created.contains(directory);
                remove_empty_directories(&root, &change.path, is_created);
            }
        }
    }

    /// Returns the temporary name of a change, which no other run has.
    fn temporary(&self, number: usize) -> String {
        let copy = self.directory.file_name().unwrap_or_default();
        format!("{PREFIX}-{}-{number}", copy.display())
    }

    /// Performs the steps, and sets the status while their files are put in place, and after.
    fn perform(
        &self,
        changes: &mut Changes,
        steps: Vec<Step<'_>>,
        (during, after): (Status, Status),
    ) -> anyhow::Result<usize> {
        let root = open(&self.origin, DIRECTORY, Mode::empty())
            .with_context(|| format!("failed to open {}", self.origin.display()))?;
        self.sweep(changes);
        let removed = steps.iter().filter(|step| step.after.is_none());
        let removed: Vec<_> = removed.map(|step| step.path).collect();
        let todo = self.check_all(&root, changes, steps)?;
        let count = todo.len();
        let new = todo.iter().filter(|step| step.after.is_some());
        let created = new.flat_map(|step| missing_directories(&root, step.path));
        let mut staging = Staging {
            root: &root,
            copy: self,
            created: created.map(str::to_owned).collect(),
            staged: Vec::new(),
        };
        if let Err(error) = self.stage_all(&mut staging, changes, todo, during) {
            staging.undo();
            let origin = self.origin.display();
            return Err(error).with_context(|| format!("nothing was written to {origin}"));
        }
        staging.put_in_place()?;
        // A process that was killed may have removed only the files.
        for path in removed {
            remove_empty_directories(&root, path, |directory| {
                after == Status::Applied || changes.created.contains(directory)
            });
        }
        changes.status = after;
        if after == Status::Reverted {
            changes.created.clear();
        }
        self.write(changes)?;
        Ok(count)
    }

    /// Returns the steps that are to be done.
    ///
    /// # Errors
    /// [`Conflicts`], if a file is not as expected.
    fn check_all<'c>(
        &self,
        root: &OwnedFd,
        changes: &Changes,
        steps: Vec<Step<'c>>,
    ) -> anyhow::Result<Vec<Step<'c>>> {
        let mut todo = Vec::new();
        let mut conflicts = Vec::new();
        for mut step in steps {
            match step.check(root) {
                Ok(true) => todo.push(step),
                Ok(false) => {}
                Err(_) if changes.left_out.contains(step.path) => {}
                Err(_) if is_file_and_directory(changes, step.path) => {
                    let reason = "a file and a directory can't take each other's place";
                    conflicts.push((step.path.to_owned(), reason.to_owned()));
                }
                Err(reason) => conflicts.push((step.path.to_owned(), format!("{reason:#}"))),
            }
        }
        if !conflicts.is_empty() {
            return Err(anyhow::Error::new(Conflicts {
                origin: self.origin.clone(),
                files: conflicts,
                others: todo.len(),
            }));
        }
        Ok(todo)
    }

    /// Writes all files under their temporary names, and then the status.
    fn stage_all<'c>(
        &self,
        staging: &mut Staging<'_, 'c>,
        changes: &mut Changes,
        todo: Vec<Step<'c>>,
        during: Status,
    ) -> anyhow::Result<()> {
        // Only they may be removed again, also after a crash.
        if !staging.created.is_empty() {
            changes.created.extend(staging.created.iter().cloned());
            self.write(changes)?;
        }
        for step in todo {
            let path = step.path;
            let added = staging.add(step);
            added.with_context(|| format!("failed to write {path}"))?;
        }
        sync_each(&staging.staged, |step| staging.sync_content(step))
            .context("failed to write to the disk")?;
        changes.status = during;
        self.write(changes)
    }
}

impl<'c> Step<'c> {
    /// Returns the steps to one version of the changed files.
    fn all(changes: &'c Changes, tree: Tree) -> impl Iterator<Item = Self> {
        let files = changes.files.iter().enumerate();
        files.map(move |(number, change)| {
            let (before, after) = match tree {
                Tree::New => (&change.old, &change.new),
                Tree::Old => (&change.new, &change.old),
            };
            Self {
                number,
                path: &change.path,
                before: before.as_ref(),
                applied: changes.applied.get(&change.path),
                after: after.as_ref(),
                tree,
                found: None,
            }
        })
    }

    /// Notes the file in the step's place, and returns whether anything is to be done.
    ///
    /// # Errors
    /// If the file is not as expected.
    fn check(&mut self, root: &OwnedFd) -> anyhow::Result<bool> {
        let Some(current) = find(root, self.path)? else {
            return match self.before {
                _ if self.after.is_none() => Ok(false),
                Some(_) if self.applied != Some(&None) => bail!("it is gone"),
                _ => Ok(true),
            };
        };
        self.found = Some(fstat(&current)?);
        let version = Version::of(File::from(current))?;
        if self.after == Some(&version) {
            return Ok(false);
        }
        let expected = [self.before, self.applied.and_then(Option::as_ref)];
        let mut expected = expected.into_iter().flatten();
        match self.before {
            _ if expected.any(|it| it.sha256 == version.sha256) => Ok(true),
            Some(_) => bail!("it was changed meanwhile"),
            None => bail!("a file of this name was created meanwhile"),
        }
    }
}

/// Whether a path is a file in one version of the changed files, and a directory in the other.
fn is_file_and_directory(changes: &Changes, path: &str) -> bool {
    let is_below = |path: &str, above: &str| {
        let rest = path.strip_prefix(above);
        rest.is_some_and(|rest| rest.starts_with('/'))
    };
    let mut files = changes.files.iter();
    files.any(|other| is_below(&other.path, path) || is_below(path, &other.path))
}

/// Opens a regular file below a directory; `None` if there is none.
fn find(root: &OwnedFd, path: &str) -> io::Result<Option<OwnedFd>> {
    let opened = parent_of(root, path, false).and_then(|(parent, name)| {
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
        openat(parent, name, flags, Mode::empty())
    });
    match opened {
        Ok(file) => match FileType::from_raw_mode(fstat(&file)?.st_mode) {
            FileType::RegularFile => Ok(Some(file)),
            _ => Err(io::Error::other("it is no longer a regular file")),
        },
        Err(Errno::NOENT) => Ok(None),
        Err(Errno::LOOP | Errno::NOTDIR) => Err(io::Error::other(
            "a link or a file is in its place or on its way",
        )),
        Err(error) => Err(error.into()),
    }
}

/// Opens the directory of a path below `root`, without following links, and returns the file's name.
fn parent_of<'p>(root: &OwnedFd, path: &'p str, create: bool) -> Result<(OwnedFd, &'p str), Errno> {
    let mut directory = openat(root, ".", DIRECTORY, Mode::empty())?;
    let (above, name) = path.rsplit_once('/').unwrap_or(("", path));
    for component in above.split('/').filter(|component| !component.is_empty()) {
        if create {
            match mkdirat(&directory, component, Mode::from_raw_mode(0o777)) {
                Ok(()) => own(&directory, component)?,
                Err(Errno::EXIST) => {}
                Err(error) => return Err(error),
            }
        }
        directory = openat(&directory, component, DIRECTORY, Mode::empty())?;
    }
    Ok((directory, name))
}

/// Gives a new directory of root's to the owner of the directory that it is in.
fn own(parent: &OwnedFd, name: &str) -> Result<(), Errno> {
    if let Some((user, group)) = new_owner(&fstat(parent)?) {
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        chownat(parent, name, Some(user), Some(group), flags)?;
    }
    Ok(())
}

/// Returns the user and the group of a file, to which a new one is given; `None` if only root could do that.
fn new_owner(of: &Stat) -> Option<(Uid, Gid)> {
    let ids = (Uid::from_raw(of.st_uid), Gid::from_raw(of.st_gid));
    geteuid().is_root().then_some(ids)
}

/// The files that are written, but not yet in their places.
struct Staging<'s, 'c> {
    root: &'s OwnedFd,
    copy: &'s WorkingCopy,
    /// The directories that are created.
    created: BTreeSet<String>,
    staged: Vec<Step<'c>>,
}

impl<'c> Staging<'_, 'c> {
    fn add(&mut self, step: Step<'c>) -> anyhow::Result<()> {
        let (parent, _) = parent_of(self.root, step.path, step.after.is_some())?;
        if let Some(after) = step.after {
            let temporary = self.temporary(&step);
            let content = self.copy.content(step.tree, step.path);
            let written = write(&parent, &temporary, after, &content, step.found.as_ref());
            written.inspect_err(|_| {
                let _ = unlinkat(&parent, &*temporary, AtFlags::empty());
            })?;
        }
        self.staged.push(step);
        Ok(())
    }

    fn temporary(&self, step: &Step<'_>) -> String {
        self.copy.temporary(step.number)
    }

    /// Removes what was written and is not in its place.
    fn undo(&self) {
        for step in &self.staged {
            let _ = parent_of(self.root, step.path, false)
                .and_then(|(parent, _)| unlinkat(parent, self.temporary(step), AtFlags::empty()));
        }
        // Those in a directory come after it.
        for directory in self.created.iter().rev() {
            // One that is not empty stays.
            let _ = parent_of(self.root, directory, false)
                .and_then(|(parent, name)| unlinkat(parent, name, AtFlags::REMOVEDIR));
        }
    }

    fn put_in_place(self) -> anyhow::Result<()> {
        for step in &self.staged {
            if let Err(error) = self.put_one_in_place(step) {
                self.undo();
                let path = step.path;
                return Err(error).with_context(|| {
                    format!("failed to write {path}; the files before it are written")
                });
            }
        }
        sync_each(&self.staged, |step| {
            let (parent, _) = parent_of(self.root, step.path, false)?;
            Ok(rustix::fs::fsync(parent)?)
        })?;
        Ok(())
    }

    fn sync_content(&self, step: &Step<'_>) -> io::Result<()> {
        if step.after.is_none() {
            return Ok(());
        }
        let (parent, _) = parent_of(self.root, step.path, false)?;
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat(parent, self.temporary(step), flags, Mode::empty())?;
        Ok(rustix::fs::fsync(file)?)
    }

    fn put_one_in_place(&self, step: &Step<'_>) -> anyhow::Result<()> {
        let found = step.found.as_ref();
        let (parent, name) = parent_of(self.root, step.path, false)?;
        let now = match statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Some(stat),
            Err(Errno::NOENT) => None,
            Err(error) => return Err(error.into()),
        };
        // Replacing one link of a file changes the ctime of the others.
        let has_links = found.is_some_and(|found| found.st_nlink > 1);
        let identity = |stat: &Stat| match has_links {
            true => (stat.st_ino, stat.st_mtime, stat.st_mtime_nsec),
            false => (stat.st_ino, stat.st_ctime, stat.st_ctime_nsec),
        };
        if now.as_ref().map(identity) != found.map(identity) {
            bail!("it was changed meanwhile");
        }
        match step.after {
            Some(_) => renameat(&parent, self.temporary(step), &parent, name)?,
            None => unlinkat(parent, name, AtFlags::empty())?,
        }
        Ok(())
    }
}

/// Runs `sync` for each, on several threads: file systems write their journal once for all that wait.
fn sync_each(
    staged: &[Step<'_>],
    sync: impl Fn(&Step<'_>) -> io::Result<()> + Sync,
) -> io::Result<()> {
    let sync = &sync;
    let share = staged.len().div_ceil(SYNC_THREADS).max(1);
    thread::scope(|scope| {
        let parts = staged.chunks(share);
        let threads = parts.map(|part| scope.spawn(move || part.iter().try_for_each(sync)));
        let threads: Vec<_> = threads.collect();
        threads.into_iter().try_for_each(|thread| {
            let ended = thread.join();
            ended.unwrap_or_else(|_| Err(io::Error::other("a thread panicked")))
        })
    })
}

/// Writes a file under its temporary name, with the owner and the permissions of the one that it replaces.
fn write(
    parent: &OwnedFd,
    temporary: &str,
    version: &Version,
    content: &Path,
    replaced: Option<&Stat>,
) -> anyhow::Result<()> {
    let open_content =
        || File::open(content).with_context(|| format!("failed to read {}", content.display()));
    // A process that was killed while it collected changes has left others.
    if Version::of(open_content()?)?.sha256 != version.sha256 {
        bail!("{} has another content than recorded", content.display());
    }
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mode = if version.executable { 0o777 } else { 0o666 };
    let file = File::from(openat(parent, temporary, flags, Mode::from_raw_mode(mode))?);
    io::copy(&mut open_content()?, &mut &file)?;
    let owner = match replaced {
        Some(replaced) => *replaced,
        None => fstat(parent)?,
    };
    if let Some((user, group)) = new_owner(&owner) {
        fchown(&file, Some(user), Some(group))?;
    }
    if let Some(replaced) = replaced {
        let mode = replaced.st_mode & 0o777;
        // Who may read the file may execute it.
        let mode = match version.executable {
            true => mode | (mode & 0o444) >> 2,
            false => mode & !0o111,
        };
        fchmod(&file, Mode::from_raw_mode(mode))?;
    }
    Ok(())
}

/// Returns the directories of a path that do not exist.
fn missing_directories<'p>(root: &OwnedFd, path: &'p str) -> impl Iterator<Item = &'p str> {
    let parent = |path: &'p str| path.rsplit_once('/').map(|(directory, _)| directory);
    let above = iter::successors(parent(path), move |&directory| parent(directory));
    above.take_while(move |directory| {
        let found = parent_of(root, directory, false)
            .and_then(|(parent, name)| statat(parent, name, AtFlags::SYMLINK_NOFOLLOW));
        matches!(found, Err(Errno::NOENT))
    })
}

/// Removes the directories of a path that are empty, up to one that may stay. A process that was killed may not have created all
/// of them.
fn remove_empty_directories(root: &OwnedFd, path: &str, may_remove: impl Fn(&str) -> bool) {
    let mut path = path;
    while let Some((directory, _)) = path.rsplit_once('/') {
        if !may_remove(directory) {
            return;
        }
        let removed = parent_of(root, directory, false)
            .and_then(|(parent, name)| unlinkat(parent, name, AtFlags::REMOVEDIR));
        if !matches!(removed, Ok(()) | Err(Errno::NOENT)) {
            return;
        }
        path = directory;
    }
}

#[cfg(test)]
mod tests;
