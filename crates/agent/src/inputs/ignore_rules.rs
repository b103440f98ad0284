//! The paths of a directory that git would ignore, whether or not they exist.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use ignore::Match;
use ignore::gitignore::Gitignore;

use super::entries::{InputOptions, repository_of};

/// The ignore rules of a directory: its `.gitignore` files and, in a repository, those above it and git's own.
#[derive(Debug)]
pub struct IgnoreRules {
    directory: PathBuf,
    /// The directories from the repository's top to here, and those below.
    top: PathBuf,
    files: HashMap<PathBuf, Gitignore>,
    /// Rules of the repository and the user that no file of the tree holds.
    others: Vec<Gitignore>,
}

impl InputOptions {
    /// Reads the ignore rules of a directory; without any if [`include_ignored`](Self::include_ignored) is set.
    /// Blocks.
    pub fn ignore_rules(&self, directory: &Path) -> Option<IgnoreRules> {
        if self.include_ignored {
            return None;
        }
        let directory = directory.canonicalize().ok()?;
        let repository = repository_of(&directory);
        let others = match &repository {
            Some(top) => vec![
                Gitignore::new(top.join(".git/info/exclude")).0,
                Gitignore::global().0,
            ],
            None => Vec::new(),
        };
        Some(IgnoreRules {
            top: repository.unwrap_or_else(|| directory.clone()),
            directory,
            files: HashMap::new(),
            others,
        })
    }
}

impl IgnoreRules {
    /// Whether the file at a path below the directory is ignored. Blocks.
    pub fn ignores(&mut self, path: &Path) -> bool {
        let path = self.directory.join(path);
        for directory in path.ancestors().skip(1) {
            let rules = self.files.entry(directory.to_owned());
            let rules = rules.or_insert_with(|| Gitignore::new(directory.join(".gitignore")).0);
            if let Some(is_ignored) = decision(rules, directory, &path) {
                return is_ignored;
            }
            if directory == self.top {
                break;
            }
        }
        let others = self.others.iter();
        others
            .filter_map(|rules| decision(rules, &self.top, &path))
            .next()
            .unwrap_or(false)
    }
}

/// Whether the rules of a directory ignore a path or include it; `None` if they don't mention it.
fn decision(rules: &Gitignore, directory: &Path, path: &Path) -> Option<bool> {
    let below = path.strip_prefix(directory).ok()?;
    match rules.matched_path_or_any_parents(below, false) {
        Match::None => None,
        Match::Ignore(_) => Some(true),
        Match::Whitelist(_) => Some(false),
    }
}
