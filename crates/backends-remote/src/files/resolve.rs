//! Resolution of paths to absolute paths without links.

use cantle_core::sandbox::{FileInfo, FileKind, SandboxError, SandboxErrorKind, SandboxPath};
use futures_util::future::try_join_all;
use serde_json::json;

use super::entry::file_info;
use crate::envd::{Entry, FILES};
use crate::shared::{ActiveSandbox, SCRATCH};

/// The kernel's limit.
const MAX_LINKS: usize = 40;

/// Treatment of a link at the end of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FinalLink {
    /// Use the link itself.
    Keep,
    /// Use its target.
    Follow,
}

/// A path without links.
#[derive(Clone, Debug)]
pub(super) struct ResolvedPath {
    /// The absolute path.
    pub(super) bytes: Vec<u8>,
    /// The entry at the path, if it exists.
    pub(super) stat: Option<FileInfo>,
    /// Whether a parent exists and is not a directory.
    has_file_parent: bool,
}

impl ResolvedPath {
    pub(super) fn text(&self) -> Option<&str> {
        std::str::from_utf8(&self.bytes).ok()
    }

    /// Returns the entry, or an error if there is none.
    pub(super) fn stat(&self, doing: &str) -> Result<&FileInfo, SandboxError> {
        self.check_parents(doing)?;
        self.stat.as_ref().ok_or_else(|| {
            let message = format!("{doing}: no such file or directory");
            SandboxError::new(SandboxErrorKind::NotFound, message)
        })
    }

    /// Fails if a parent is not a directory.
    pub(super) fn check_parents(&self, doing: &str) -> Result<(), SandboxError> {
        if self.has_file_parent {
            let message = format!("{doing}: a parent is not a directory");
            return Err(SandboxError::new(SandboxErrorKind::NotADirectory, message));
        }
        Ok(())
    }
}

impl ActiveSandbox {
    /// Resolves all links in a path.
    pub(super) async fn resolve(
        &self,
        path: &SandboxPath,
        last: FinalLink,
        doing: &str,
    ) -> Result<ResolvedPath, SandboxError> {
        let mut whole = self.shared.absolute_path(path);
        for _ in 0..MAX_LINKS {
            let root = self.root_of(&whole, path)?;
            let (link, rest, target) = match self.walk(path, &root, whole, last, doing).await? {
                PathWalk::Done(resolved) => return Ok(resolved),
                PathWalk::Link { at, rest, target } => (at, rest, target),
            };
            // Only an absolute UTF-8 target is used as reported.
            let reported = target.filter(|it| it.starts_with('/') && !it.contains('\u{fffd}'));
            let resolved = match reported {
                Some(target) => Some(target.into_bytes()),
                None => self.resolve_by_script(&link, doing).await?,
            };
            whole = match resolved {
                Some(resolved) => join(&resolved, &rest),
                // A dangling or circular link.
                None => {
                    return Ok(ResolvedPath {
                        bytes: join(&link, &rest),
                        stat: None,
                        has_file_parent: false,
                    });
                }
            };
        }
        let message = format!("{doing}: too many links");
        Err(SandboxError::new(SandboxErrorKind::Io, message))
    }

    /// Returns the allowed directory that contains the path.
    fn root_of(&self, absolute: &[u8], path: &SandboxPath) -> Result<Vec<u8>, SandboxError> {
        let roots = [self.shared.home.as_bytes(), SCRATCH.as_bytes()];
        let is_in = |root: &&[u8]| {
            let rest = absolute.strip_prefix(*root);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/") || *root == b"/")
        };
        let root = roots.into_iter().find(is_in);
        root.map(<[u8]>::to_vec).ok_or_else(|| {
            let home = &self.shared.home;
            let message = format!("`{path}` is outside the sandbox, whose files are in `{home}`");
            SandboxError::new(SandboxErrorKind::OutsideSandbox, message)
                .with_advice("Use a path relative to the working directory.")
        })
    }

    /// Stats all components below the root concurrently, up to the first link to follow.
    async fn walk(
        &self,
        path: &SandboxPath,
        root: &[u8],
        whole: Vec<u8>,
        last: FinalLink,
        doing: &str,
    ) -> Result<PathWalk, SandboxError> {
        // The root itself is not checked, unless it is the whole path.
        let mut prefixes = vec![root.to_vec()];
        let below = whole.get(root.len()..).unwrap_or_default();
        for name in below
            .split(|byte| *byte == b'/')
            .filter(|name| !name.is_empty())
        {
            let above = prefixes.last().cloned().unwrap_or_default();
            prefixes.push(join(&above, name));
        }
        let final_at = prefixes.len() - 1;
        let first = usize::from(final_at > 0);
        let stats = prefixes
            .iter()
            .skip(first)
            .map(|absolute| self.stat_entry(path, absolute, doing));
        let found = try_join_all(stats).await?;
        let mut has_file_parent = false;
        for (entry, at) in found.iter().zip(first..) {
            match entry {
                // The root may be reached through links.
                _ if at == 0 => {}
                Some((entry, target))
                    if entry.kind == FileKind::Symlink
                        && (at < final_at || last == FinalLink::Follow) =>
                {
                    return Ok(link(&prefixes, at, target.clone()));
                }
                Some((entry, _)) if at < final_at && entry.kind != FileKind::Directory => {
                    has_file_parent = true;
                }
                None if at < final_at => break,
                _ => {}
            }
        }
        Ok(PathWalk::Done(ResolvedPath {
            bytes: whole,
            stat: found
                .into_iter()
                .next_back()
                .flatten()
                .map(|(stat, _)| stat),
            has_file_parent,
        }))
    }

    /// Returns the entry at an absolute path, and its target if it is a link and that is known.
    async fn stat_entry(
        &self,
        path: &SandboxPath,
        absolute: &[u8],
        doing: &str,
    ) -> Result<Option<(FileInfo, Option<String>)>, SandboxError> {
        let Ok(text) = std::str::from_utf8(absolute) else {
            let found = self.stat_by_script(path, absolute, doing).await?;
            return Ok(found.map(|found| (found, None)));
        };
        let message = json!({ "path": text });
        match self.envd.call::<Entry>(FILES, "Stat", &message).await {
            Ok(Entry { entry }) => {
                let info = file_info(path.clone(), &entry);
                Ok(Some((info, entry.symlink_target)))
            }
            Err(fault) if fault.has_code("not_found") => Ok(None),
            // Some servers answer so for paths below a file.
            Err(fault) if fault.to_string().to_lowercase().contains("not a directory") => Ok(None),
            Err(fault) => Err(self.explain(fault, doing).await),
        }
    }
}

/// Result of inspecting the components of a path.
enum PathWalk {
    Done(ResolvedPath),
    /// A link to follow, and the rest of the path.
    Link {
        at: Vec<u8>,
        rest: Vec<u8>,
        target: Option<String>,
    },
}

/// Splits the path at the link to follow.
fn link(prefixes: &[Vec<u8>], at: usize, target: Option<String>) -> PathWalk {
    let link = prefixes.get(at).cloned().unwrap_or_default();
    let whole = prefixes.last().map(Vec::as_slice).unwrap_or_default();
    let rest = whole.get(link.len()..).unwrap_or_default();
    let rest = rest.strip_prefix(b"/").unwrap_or(rest).to_vec();
    PathWalk::Link {
        at: link,
        rest,
        target,
    }
}

fn join(above: &[u8], below: &[u8]) -> Vec<u8> {
    if below.is_empty() {
        return above.to_vec();
    }
    [above.strip_suffix(b"/").unwrap_or(above), b"/", below].concat()
}
