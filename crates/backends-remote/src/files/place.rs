//! From a path to a place in the sandbox without links on the way.

use cantle_core::sandbox::{FileKind, SandboxError, SandboxErrorKind, SandboxPath};
use futures_util::future::try_join_all;

use super::entry::Seen;
use super::{Files, SERVICE};
use crate::envd::{Entry, Path};
use crate::sandbox::SCRATCH;

/// As many links as the kernel follows.
const MOST_LINKS: usize = 40;

/// What is done about a link at the end of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Last {
    /// It is what is meant.
    AsItIs,
    /// What it leads to is meant.
    Followed,
}

/// Where a path leads.
#[derive(Clone, Debug)]
pub(super) struct Place {
    /// Absolute.
    pub(super) bytes: Vec<u8>,
    /// What is there.
    pub(super) last: Option<Seen>,
    /// Whether something above it is there and no directory.
    blocked: bool,
}

impl Place {
    pub(super) fn text(&self) -> Option<&str> {
        std::str::from_utf8(&self.bytes).ok()
    }

    /// What is there, which must be something.
    pub(super) fn seen(&self, doing: &str) -> Result<&Seen, SandboxError> {
        self.must_fit(doing)?;
        self.last.as_ref().ok_or_else(|| {
            let message = format!("{doing}: there is no such file or directory");
            SandboxError::new(SandboxErrorKind::NotFound, message)
        })
    }

    /// Something can be there.
    pub(super) fn must_fit(&self, doing: &str) -> Result<(), SandboxError> {
        if self.blocked {
            let message = format!("{doing}: a file is where a directory is needed");
            return Err(SandboxError::new(SandboxErrorKind::NotADirectory, message));
        }
        Ok(())
    }
}

impl Files<'_> {
    /// Finds where a path leads.
    pub(super) async fn find(
        &self,
        path: &SandboxPath,
        last: Last,
        doing: &str,
    ) -> Result<Place, SandboxError> {
        let mut whole = self.shared.place(path);
        for _ in 0..MOST_LINKS {
            let root = self.root_of(&whole, path)?;
            let (link, rest, target) = match self.look_along(&root, whole, last, doing).await? {
                Along::Plain(place) => return Ok(place),
                Along::Link { at, rest, target } => (at, rest, target),
            };
            // Whole and certain, or to be asked for.
            let told = target.filter(|it| it.starts_with('/') && !it.contains('\u{fffd}'));
            let resolved = match told {
                Some(target) => Some(target.into_bytes()),
                None => self.resolve_by_script(&link, doing).await?,
            };
            whole = match resolved {
                Some(resolved) => join(&resolved, &rest),
                // It leads nowhere, or in circles.
                None => {
                    return Ok(Place {
                        bytes: join(&link, &rest),
                        last: None,
                        blocked: false,
                    });
                }
            };
        }
        let message = format!("{doing}: there are too many links on the way");
        Err(SandboxError::new(SandboxErrorKind::Io, message))
    }

    /// Which of the directories that may be used a place is in.
    fn root_of(&self, place: &[u8], path: &SandboxPath) -> Result<Vec<u8>, SandboxError> {
        let roots = [self.shared.home.as_bytes(), SCRATCH.as_bytes()];
        let is_in = |root: &&[u8]| {
            let rest = place.strip_prefix(*root);
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

    /// Looks at everything from the root on, at once.
    async fn look_along(
        &self,
        root: &[u8],
        whole: Vec<u8>,
        last: Last,
        doing: &str,
    ) -> Result<Along, SandboxError> {
        // The root is what it is, unless it is meant itself.
        let mut places = vec![root.to_vec()];
        let below = whole.get(root.len()..).unwrap_or_default();
        for name in below
            .split(|byte| *byte == b'/')
            .filter(|name| !name.is_empty())
        {
            let above = places.last().cloned().unwrap_or_default();
            places.push(join(&above, name));
        }
        let final_at = places.len() - 1;
        let first = usize::from(final_at > 0);
        let looks = places
            .iter()
            .skip(first)
            .map(|place| self.look(place, doing));
        let seen = try_join_all(looks).await?;
        let mut blocked = false;
        for (seen, at) in seen.iter().zip(first..) {
            match seen {
                // Whatever leads to the root.
                _ if at == 0 => {}
                Some(seen)
                    if seen.kind == FileKind::Symlink
                        && (at < final_at || last == Last::Followed) =>
                {
                    return Ok(link(&places, at, seen.target.clone()));
                }
                Some(seen) if at < final_at && seen.kind != FileKind::Directory => blocked = true,
                None if at < final_at => break,
                _ => {}
            }
        }
        Ok(Along::Plain(Place {
            bytes: whole,
            last: seen.into_iter().next_back().flatten(),
            blocked,
        }))
    }

    async fn look(&self, place: &[u8], doing: &str) -> Result<Option<Seen>, SandboxError> {
        let Ok(text) = std::str::from_utf8(place) else {
            return self.look_by_script(place, doing).await;
        };
        let request = Path { path: text };
        let looked = self.awake.envd.call::<Entry>(SERVICE, "Stat", &request);
        match looked.await {
            Ok(entry) => Ok(Some(Seen::from(&entry.entry))),
            Err(fault) if fault.is("not_found") => Ok(None),
            // Below a file there is nothing, in the words of some.
            Err(fault) if fault.to_string().to_lowercase().contains("not a directory") => Ok(None),
            Err(fault) => Err(self.explain(fault, doing).await),
        }
    }
}

/// What is found along a path.
enum Along {
    Plain(Place),
    /// A link, and what comes after it.
    Link {
        at: Vec<u8>,
        rest: Vec<u8>,
        target: Option<String>,
    },
}

/// The link that is to be followed next, and what comes after it.
fn link(places: &[Vec<u8>], at: usize, target: Option<String>) -> Along {
    let link = places.get(at).cloned().unwrap_or_default();
    let whole = places.last().map(Vec::as_slice).unwrap_or_default();
    let rest = whole.get(link.len()..).unwrap_or_default();
    let rest = rest.strip_prefix(b"/").unwrap_or(rest).to_vec();
    Along::Link {
        at: link,
        rest,
        target,
    }
}

pub(super) fn join(above: &[u8], below: &[u8]) -> Vec<u8> {
    if below.is_empty() {
        return above.to_vec();
    }
    [above.strip_suffix(b"/").unwrap_or(above), b"/", below].concat()
}
