//! Files of a sandbox: by the protocol where it can, by a short script where it can't.
//!
//! The protocol has no bytes in names, no modes, and follows links wherever they lead. So what is on the
//! way to a path is looked at first, and links are followed before anything is done: what leads out of
//! the working directory (or the scratch directory) is refused. Between that look and what is done, a
//! command may change the link; what it can reach so is the machine that it runs on anyway.

mod entry;
mod place;
mod read;
mod script;
mod write;

use std::sync::Arc;

use cantle_core::sandbox::{FileInfo, FileKind, SandboxError, SandboxErrorKind, SandboxPath};

use self::entry::Seen;
use self::place::{Last, Place};
pub(crate) use self::read::read;
pub(crate) use self::write::{upload, write};
use crate::envd::{Entries, Fault, ListDir, Move, Path};
use crate::sandbox::{Awake, SCRATCH, Shared};

const SERVICE: &str = "filesystem.Filesystem";

/// Files of one sandbox, while it is awake.
pub(super) struct Files<'s> {
    pub(super) shared: &'s Arc<Shared>,
    pub(super) awake: Awake,
}

impl<'s> Files<'s> {
    pub(super) async fn open(shared: &'s Arc<Shared>) -> Result<Self, SandboxError> {
        Ok(Self {
            shared,
            awake: shared.awake().await?,
        })
    }

    pub(super) async fn explain(&self, fault: Fault, doing: &str) -> SandboxError {
        self.shared.explain(&self.awake.envd, fault, doing).await
    }
}

/// What is at a path.
pub(crate) async fn stat(
    shared: &Arc<Shared>,
    path: &SandboxPath,
) -> Result<FileInfo, SandboxError> {
    let doing = format!("failed to look at `{path}`");
    let files = Files::open(shared).await?;
    let place = files.find(path, Last::AsItIs, &doing).await?;
    let seen = place.seen(&doing)?;
    Ok(seen.info(path.clone()))
}

/// What is in a directory.
pub(crate) async fn list(
    shared: &Arc<Shared>,
    path: &SandboxPath,
) -> Result<Vec<FileInfo>, SandboxError> {
    let doing = format!("failed to list `{path}`");
    let files = Files::open(shared).await?;
    let place = files.find(path, Last::Followed, &doing).await?;
    if place.seen(&doing)?.kind != FileKind::Directory {
        let message = format!("{doing}: it is no directory");
        return Err(SandboxError::new(SandboxErrorKind::NotADirectory, message));
    }
    let mut listed = match place.text() {
        Some(text) => files.list_by_protocol(text, &doing).await?,
        None => None,
    };
    if listed.is_none() {
        listed = Some(files.list_by_script(&place.bytes, &doing).await?);
    }
    let mut listed = listed.unwrap_or_default();
    listed.sort_by(|one, other| one.path.cmp(&other.path));
    Ok(listed)
}

impl Files<'_> {
    /// Nothing where a name is no text.
    async fn list_by_protocol(
        &self,
        text: &str,
        doing: &str,
    ) -> Result<Option<Vec<FileInfo>>, SandboxError> {
        let request = ListDir {
            path: text,
            depth: 1,
        };
        let listing = self
            .awake
            .envd
            .call::<Entries>(SERVICE, "ListDir", &request);
        let entries = match listing.await {
            Ok(listing) => listing.entries,
            // One name that is no UTF-8 spoils it all.
            Err(Fault::Refused { code, .. }) if code == "internal" || code == "unknown" => {
                return Ok(None);
            }
            Err(fault) => return Err(self.explain(fault, doing).await),
        };
        if entries.iter().any(|entry| entry.name.contains('\u{fffd}')) {
            return Ok(None);
        }
        let infos = entries.iter().map(|entry| {
            let path = SandboxPath::working_directory().join(&entry.name)?;
            Ok(Seen::from(entry).info(path))
        });
        infos.collect::<Result<Vec<_>, SandboxError>>().map(Some)
    }
}

/// Makes a directory and those above it.
pub(crate) async fn mkdir(shared: &Arc<Shared>, path: &SandboxPath) -> Result<(), SandboxError> {
    let doing = format!("failed to make the directory `{path}`");
    let files = Files::open(shared).await?;
    let place = files.find(path, Last::Followed, &doing).await?;
    match place.last {
        Some(seen) if seen.kind == FileKind::Directory => return Ok(()),
        Some(_) => {
            let message = format!("{doing}: something else is there");
            return Err(SandboxError::new(SandboxErrorKind::AlreadyExists, message));
        }
        None => {}
    }
    place.must_fit(&doing)?;
    let Some(text) = place.text() else {
        return files.mkdir_by_script(&place.bytes, &doing).await;
    };
    let request = Path { path: text };
    let made = files
        .awake
        .envd
        .call::<serde_json::Value>(SERVICE, "MakeDir", &request);
    match made.await {
        Ok(_) => Ok(()),
        // Somebody else was faster.
        Err(fault) if fault.is("already_exists") => Ok(()),
        Err(fault) => Err(files.explain(fault, &doing).await),
    }
}

/// Removes a file, a link or a directory.
pub(crate) async fn remove(shared: &Arc<Shared>, path: &SandboxPath) -> Result<(), SandboxError> {
    let doing = format!("failed to remove `{path}`");
    let files = Files::open(shared).await?;
    let place = files.find(path, Last::AsItIs, &doing).await?;
    place.must_be_loose(shared, &doing)?;
    place.seen(&doing)?;
    if let Some(text) = place.text() {
        let request = Path { path: text };
        let removed = files
            .awake
            .envd
            .call::<serde_json::Value>(SERVICE, "Remove", &request);
        match removed.await {
            Ok(_) => return Ok(()),
            Err(fault @ (Fault::Gone(_) | Fault::Broken(_))) => {
                return Err(files.explain(fault, &doing).await);
            }
            // Perhaps a directory that can't be written.
            Err(Fault::Refused { .. }) => {}
        }
    }
    files.remove_by_script(&place.bytes, &doing).await
}

/// Moves a file or directory.
pub(crate) async fn rename(
    shared: &Arc<Shared>,
    from: &SandboxPath,
    to: &SandboxPath,
) -> Result<(), SandboxError> {
    let doing = format!("failed to move `{from}` to `{to}`");
    let files = Files::open(shared).await?;
    let source = files.find(from, Last::AsItIs, &doing).await?;
    source.must_be_loose(shared, &doing)?;
    let moved = source.seen(&doing)?;
    let target = files.find(to, Last::AsItIs, &doing).await?;
    target.must_be_loose(shared, &doing)?;
    target.must_fit(&doing)?;
    if let Some(there) = &target.last
        && there.kind == FileKind::Directory
        && moved.kind != FileKind::Directory
    {
        let message = format!("{doing}: a directory is there");
        return Err(SandboxError::new(SandboxErrorKind::NotAFile, message));
    }
    files.put(&source.bytes, &target.bytes, &doing).await
}

impl Files<'_> {
    /// Moves what is at one place to another.
    pub(super) async fn put(
        &self,
        from: &[u8],
        to: &[u8],
        doing: &str,
    ) -> Result<(), SandboxError> {
        let (Ok(source), Ok(destination)) = (std::str::from_utf8(from), std::str::from_utf8(to))
        else {
            return self.move_by_script(from, to, doing).await;
        };
        let request = Move {
            source,
            destination,
        };
        let moved = self
            .awake
            .envd
            .call::<serde_json::Value>(SERVICE, "Move", &request);
        match moved.await {
            Ok(_) => Ok(()),
            Err(fault) => Err(self.explain(fault, doing).await),
        }
    }
}

impl Place {
    /// Refuses to touch what every sandbox has.
    fn must_be_loose(&self, shared: &Shared, doing: &str) -> Result<(), SandboxError> {
        let fixed = [shared.home.as_bytes(), SCRATCH.as_bytes()];
        if fixed.contains(&self.bytes.as_slice()) {
            let message = format!("{doing}: every sandbox has it");
            return Err(SandboxError::new(SandboxErrorKind::InvalidInput, message));
        }
        Ok(())
    }
}
