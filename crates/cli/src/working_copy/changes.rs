//! The changes that a run made in its copy of a directory.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use cantle::agent::InputOptions;
use cantle::core::sandbox::{
    FileKind, Sandbox, SandboxErrorKind, SandboxExt as _, SandboxPath, Walk, looks_secret,
    reserved_name,
};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use walkdir::WalkDir;

use super::{BEFORE, MAX_ENTRIES, WorkingCopy};
use crate::json_file;
use crate::state_dir::{create_private, removed};
use crate::text::{plural, size};

const FILE_NAME: &str = "changes.json";

// Changes beyond these are most likely built or downloaded.
const MAX_FILES: usize = 20_000;
const MAX_BYTES: u64 = 1_000_000_000;

/// The directory of the sandbox for the output of commands.
const OWN_DIRECTORY: &[u8] = b".cantle";

/// The changes of a run, kept until they are applied or rejected.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Changes {
    pub(crate) status: Status,
    /// The changed files, sorted by path.
    pub(crate) files: Vec<Change>,
    /// Changes that can't be applied, with the reason.
    pub(crate) refused: Vec<(String, String)>,
    /// Paths of changes that the user left out when the others were applied.
    #[serde(default)]
    pub(crate) left_out: BTreeSet<String>,
    /// The files that changes of the run which were applied before have put in the user's directory.
    #[serde(default)]
    pub(super) applied: BTreeMap<String, Option<Version>>,
    /// The directories that were created, or are about to be, for files in the user's directory.
    #[serde(default)]
    pub(super) created: BTreeSet<String>,
    /// New files that git ignores.
    pub(crate) ignored: usize,
}

/// The state of a run's changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Status {
    /// They wait for a decision.
    #[default]
    Pending,
    /// A process applies them, or was killed while it did.
    Applying,
    Applied,
    /// A process reverts them, or was killed while it did.
    Reverting,
    Reverted,
    Rejected,
}

/// One changed file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Change {
    /// Its path below the directory.
    pub(crate) path: String,
    /// The file that was copied; `None` if it is new.
    pub(crate) old: Option<Version>,
    /// The file now; `None` if it was deleted.
    pub(crate) new: Option<Version>,
}

/// The content of a file, and whether it can be executed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Version {
    pub(crate) sha256: String,
    pub(crate) executable: bool,
}

impl Version {
    /// Describes a file. Blocks.
    pub(super) fn of(mut file: File) -> io::Result<Self> {
        let executable = file.metadata()?.permissions().mode() & 0o100 != 0;
        let mut digest = Sha256::new();
        io::copy(&mut file, &mut digest)?;
        Ok(Self {
            sha256: format!("{:x}", digest.finalize()),
            executable,
        })
    }
}

impl Changes {
    /// Returns the files that these changes and those before have put in the user's directory.
    pub(super) fn in_place(self) -> BTreeMap<String, Option<Version>> {
        let mut applied = self.applied;
        match self.status {
            Status::Pending | Status::Rejected => {}
            Status::Reverted => applied.clear(),
            Status::Applying | Status::Applied | Status::Reverting => {
                let files = self.files.into_iter();
                let files = files.filter(|change| !self.left_out.contains(&change.path));
                applied.extend(files.map(|change| (change.path, change.new)));
            }
        }
        applied
    }

    /// Describes the number of files and what became of them.
    pub(crate) fn describe(&self) -> String {
        let state = match self.status {
            Status::Pending => "not applied",
            Status::Applying => "applied in part",
            Status::Applied => "applied",
            Status::Reverting => "reverted in part",
            Status::Reverted => "reverted",
            Status::Rejected => "rejected",
        };
        format!(
            "{}, {state}",
            plural(self.files.len() as u64, "file", "files")
        )
    }
}

impl Change {
    /// Returns the name in the path for which programs of the host may load or execute the file.
    pub(crate) fn reserved_name(&self) -> Option<&str> {
        reserved_name(&self.path)
    }
}

impl WorkingCopy {
    /// Compares the sandbox's files with the copy, and keeps what differs. If the run has ended for good (`is_final`),
    /// the files that it did not change are removed from the copy.
    ///
    /// # Errors
    /// If the sandbox is gone, or files can't be written. A file for which the disk lacks space is an error only if the
    /// comparison can be repeated (`is_repeatable`).
    pub(crate) async fn collect(
        &self,
        sandbox: &dyn Sandbox,
        is_final: bool,
        is_repeatable: bool,
    ) -> anyhow::Result<Changes> {
        let earlier = self.changes()?.unwrap_or_default();
        self.sweep(&earlier);
        removed(fs::remove_dir_all(self.new_files()))?;
        create_private(&self.new_files())?;
        let before = self.before()?;
        let after = sandbox
            .walk(&SandboxPath::working_directory(), MAX_ENTRIES)
            .await?;
        let mut collection = Collection {
            copy: self,
            sandbox,
            changes: Changes {
                created: earlier.created.clone(),
                applied: earlier.in_place(),
                ..Changes::default()
            },
            size_bytes: 0,
            is_repeatable,
        };
        collection.changed(&before, &after).await?;
        collection.deleted(&before, &after);
        collection.follow_links()?;
        collection.changed_back();
        let changes = collection.changes;
        self.write(&changes)?;
        if is_final {
            self.prune(&changes)?;
        }
        Ok(changes)
    }

    /// Returns the changes that were collected; `None` if there are none yet.
    pub(crate) fn changes(&self) -> anyhow::Result<Option<Changes>> {
        json_file::read(&self.directory.join(FILE_NAME))
    }

    /// Returns the files that the run changed, and where they are kept as it left them.
    ///
    /// # Errors
    /// If the changes can't be read.
    pub(crate) fn changed_files(&self) -> anyhow::Result<Vec<(String, PathBuf)>> {
        let changes = self.changes()?.unwrap_or_default().files.into_iter();
        let left = changes.filter(|change| change.new.is_some());
        let left = left.map(|change| {
            let kept = self.content(Tree::New, &change.path);
            (change.path, kept)
        });
        Ok(left.collect())
    }

    pub(super) fn write(&self, changes: &Changes) -> anyhow::Result<()> {
        json_file::write(&self.directory.join(FILE_NAME), changes)
    }

    /// Removes the files of the copy that did not change.
    fn prune(&self, changes: &Changes) -> anyhow::Result<()> {
        let files = changes.files.iter();
        let kept: HashSet<_> = files.map(|it| self.content(Tree::Old, &it.path)).collect();
        for entry in WalkDir::new(self.base()).contents_first(true) {
            let entry = entry?;
            if entry.file_type().is_dir() {
                // One that has files left stays.
                let _ = fs::remove_dir(entry.path());
            } else if !kept.contains(entry.path()) {
                fs::remove_file(entry.path())?;
            }
        }
        Ok(removed(fs::remove_file(self.directory.join(BEFORE)))?)
    }

    /// Gives both versions of a link's file the place of its target.
    fn move_to_target(&self, link: &str, target: &str) -> io::Result<()> {
        for tree in [Tree::Old, Tree::New] {
            let (from, to) = (self.content(tree, link), self.content(tree, target));
            create_private(to.parent().unwrap_or(&to))?;
            // The old version may be there, and the next comparison needs it in its own place, too.
            if tree == Tree::New || !to.exists() {
                fs::copy(from, to)?;
            }
        }
        Ok(())
    }

    /// Returns the content of a file as it was copied (`BASE`) or as the run left it (`NEW`).
    pub(super) fn content(&self, tree: Tree, path: &str) -> PathBuf {
        let tree = match tree {
            Tree::Old => self.base(),
            Tree::New => self.new_files(),
        };
        tree.join(path)
    }
}

/// One of the two versions of the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tree {
    Old,
    New,
}

/// Changes while they are collected.
struct Collection<'a> {
    copy: &'a WorkingCopy,
    sandbox: &'a dyn Sandbox,
    changes: Changes,
    size_bytes: u64,
    is_repeatable: bool,
}

impl Collection<'_> {
    /// Adds the files that are new or have another content.
    async fn changed(&mut self, before: &Walk, after: &Walk) -> anyhow::Result<()> {
        let mut options = InputOptions::default();
        options.include_ignored = self.copy.include_ignored;
        let mut ignore_rules = options.ignore_rules(&self.copy.origin);
        for (path, entry) in &after.entries {
            if entry.kind == FileKind::Directory || path.components().next() == Some(OWN_DIRECTORY)
            {
                continue;
            }
            let Ok(name) = std::str::from_utf8(path.relative_bytes()) else {
                // The list from before has the name as text.
                let listed = SandboxPath::new(path.to_string()).ok();
                if listed.and_then(|listed| before.entries.get(&listed)) != Some(entry) {
                    self.refuse(path, "its name is not UTF-8");
                }
                continue;
            };
            let is_listed_alike = before.entries.get(path) == Some(entry);
            let old = self.copy.base().join(name);
            // Also if it was a directory; the copy has no links.
            let is_new = !old.is_file();
            // Without times, only the content tells whether a file is as it was.
            if is_listed_alike && (is_new || entry.stamp.is_some()) {
                continue;
            }
            if is_new
                && ignore_rules
                    .as_mut()
                    .is_some_and(|rules| rules.ignores(Path::new(name)))
            {
                self.changes.ignored += 1;
            } else if entry.kind != FileKind::File {
                self.refuse(
                    path,
                    "only files are applied, and it is a link or a special file",
                );
            } else if is_new && !self.copy.include_secrets && looks_secret(name) {
                self.refuse(path, "it looks like a secret (--include-secrets)");
            } else if let Some(link) = self.link_in(name).filter(|_| is_new) {
                self.refuse(path, format!("{} is a link", link.display()));
            } else if self.changes.files.len() >= MAX_FILES {
                self.refuse(path, format!("at most {MAX_FILES} files are applied"));
            } else if self.size_bytes.saturating_add(entry.size_bytes) > MAX_BYTES {
                self.refuse(
                    path,
                    format!("the changes would exceed {}", size(MAX_BYTES)),
                );
            } else {
                self.file(path, name, (!is_new).then_some(&*old)).await?;
            }
        }
        if after.is_truncated {
            self.changes.refused.push((
                "…".to_owned(),
                format!("the working directory has more than {MAX_ENTRIES} files"),
            ));
        }
        Ok(())
    }

    /// Adds a file if its content differs.
    async fn file(
        &mut self,
        path: &SandboxPath,
        name: &str,
        old: Option<&Path>,
    ) -> anyhow::Result<()> {
        let to = self.copy.content(Tree::New, name);
        create_private(to.parent().unwrap_or(&to))?;
        let mode = match self.sandbox.stat(path).await {
            Ok(info) => info.mode,
            Err(error) if error.kind() == SandboxErrorKind::Gone => return Err(error.into()),
            // The download tells why.
            Err(_) => None,
        };
        match self.sandbox.download(path, &to).await {
            Ok(size_bytes) => self.size_bytes = self.size_bytes.saturating_add(size_bytes),
            Err(error)
                if error.kind() == SandboxErrorKind::Gone
                    || (error.kind() == SandboxErrorKind::StorageFull && self.is_repeatable) =>
            {
                return Err(error.into());
            }
            Err(error) => {
                self.refuse(path, error.to_string());
                return Ok(());
            }
        }
        let old = old.map(File::open).transpose()?;
        let old = old.map(Version::of).transpose()?;
        let was_executable = old.as_ref().is_some_and(|old| old.executable);
        let executable = mode.map_or(was_executable, |mode| mode & 0o100 != 0);
        let permissions = if executable { 0o700 } else { 0o600 };
        fs::set_permissions(&to, fs::Permissions::from_mode(permissions))?;
        let new = Some(Version::of(File::open(&to)?)?);
        if old == new {
            fs::remove_file(&to)?;
        } else {
            self.changes.files.push(Change {
                path: name.to_owned(),
                old,
                new,
            });
        }
        Ok(())
    }

    /// Adds the files that are gone. One that never reached the sandbox is not.
    fn deleted(&mut self, before: &Walk, after: &Walk) {
        let is_unreadable = |path: &str| {
            let mut refused = after.refused.iter();
            refused.any(|refused| Path::new(path).starts_with(&refused.source))
        };
        let not_text = self.deleted_names_that_are_not_text(before, after);
        for (path, entry) in &before.entries {
            let is_there = after
                .entries
                .get(path)
                .is_some_and(|now| now.kind != FileKind::Directory);
            let name = path.to_string();
            if entry.kind != FileKind::File || is_there {
                continue;
            }
            if after.is_truncated || is_unreadable(&name) {
                continue;
            }
            // Other files of the sandbox are no concern of the user's directory.
            let old = File::open(self.copy.base().join(&name));
            if let Ok(old) = old.and_then(Version::of) {
                self.changes.files.push(Change {
                    path: name,
                    old: Some(old),
                    new: None,
                });
            } else if not_text.contains(&name) {
                self.refuse(path, "it was deleted, and its name is not UTF-8");
            }
        }
    }

    /// Returns the names of copied files that are gone and whose names are not UTF-8, as the list from before has them.
    fn deleted_names_that_are_not_text(&self, before: &Walk, after: &Walk) -> HashSet<String> {
        let mut listed = before.entries.keys().map(ToString::to_string);
        if !listed.any(|name| name.contains(char::REPLACEMENT_CHARACTER)) {
            return HashSet::new();
        }
        let base = self.copy.base();
        let copied = WalkDir::new(&base)
            .into_iter()
            .flatten()
            .filter_map(|entry| {
                let path = entry.path().strip_prefix(&base).ok()?;
                path.to_str()
                    .is_none()
                    .then(|| path.to_string_lossy().into_owned())
            });
        let mut gone: HashSet<String> = copied.collect();
        let now = after.entries.keys();
        for path in now.filter(|path| std::str::from_utf8(path.relative_bytes()).is_err()) {
            gone.remove(&path.to_string());
        }
        gone
    }

    /// Returns the link of the user's directory that has this path or is on its way.
    fn link_in<'p>(&self, path: &'p str) -> Option<&'p Path> {
        let mut above = Path::new(path).ancestors();
        above.find(|path| self.copy.origin.join(path).is_symlink())
    }

    /// Makes the changes of links those of their targets: the sandbox has files in place of links.
    fn follow_links(&mut self) -> anyhow::Result<()> {
        let links = self.copy.links()?;
        let changes = std::mem::take(&mut self.changes.files);
        let changes = changes.into_iter();
        let (of_links, others): (Vec<_>, Vec<_>) =
            changes.partition(|change| links.contains_key(&change.path));
        let by_path = |change: Change| (change.path.clone(), change);
        let mut files: BTreeMap<_, _> = others.into_iter().map(by_path).collect();
        for mut change in of_links {
            let Some(target) = links.get(&change.path) else {
                continue;
            };
            let other = files.get(target);
            let problem = match &change.new {
                None => ", and links are not removed".to_owned(),
                Some(_) if other.is_some_and(|other| other.new != change.new) => {
                    ", which was changed differently".to_owned()
                }
                Some(_) => match self.copy.move_to_target(&change.path, target) {
                    Ok(()) => {
                        change.path.clone_from(target);
                        files.insert(target.clone(), change);
                        continue;
                    }
                    Err(error) => format!(", which can't be changed: {error}"),
                },
            };
            let reason = format!("it is a link to {target}{problem}");
            self.changes.refused.push((change.path, reason));
        }
        // Sorted by path.
        self.changes.files = files.into_values().collect();
        Ok(())
    }

    /// Names the files that were applied before, and are as they were copied again.
    fn changed_back(&mut self) {
        let changes = &mut self.changes;
        for path in changes.applied.keys() {
            let changed = changes.files.binary_search_by(|it| it.path.cmp(path));
            if changed.is_err() && changes.refused.iter().all(|(refused, _)| refused != path) {
                let reason = "it was applied before, and the run has changed it back";
                changes.refused.push((path.clone(), reason.to_owned()));
            }
        }
    }

    fn refuse(&mut self, path: &SandboxPath, reason: impl Into<String>) {
        self.changes.refused.push((path.to_string(), reason.into()));
    }
}
