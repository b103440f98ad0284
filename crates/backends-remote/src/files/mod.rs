//! File operations, through envd's protocol or, where it is insufficient, through short scripts.
//!
//! The protocol has neither non-UTF-8 names nor modes, and follows links anywhere. Therefore each component of a path
//! is inspected and links are resolved first; paths outside the working directory and `/tmp` are refused. A command
//! can change a link between check and use, but gains nothing: it runs on that machine anyway.

mod entry;
mod read;
mod resolve;
mod script;
mod write;

use cantle_core::sandbox::{
    FileInfo, FileKind, MAX_LIST_ENTRIES, SandboxError, SandboxErrorKind, SandboxPath,
};
use serde_json::json;

use self::entry::file_info;
use self::resolve::{FinalLink, ResolvedPath};
pub(crate) use self::write::upload;
use crate::envd::{Entries, FILES, Fault};
use crate::quote::{quote, quote_all};
use crate::shared::{ActiveSandbox, SCRATCH, Shared};

impl ActiveSandbox {
    /// Returns the type, size and mode of a path.
    pub(crate) async fn stat(&self, path: &SandboxPath) -> Result<FileInfo, SandboxError> {
        let doing = format!("failed to stat `{path}`");
        let resolved = self.resolve(path, FinalLink::Keep, &doing).await?;
        resolved.stat(&doing).cloned()
    }

    /// Lists a directory.
    pub(crate) async fn list(&self, path: &SandboxPath) -> Result<Vec<FileInfo>, SandboxError> {
        let doing = format!("failed to list `{path}`");
        let resolved = self.resolve(path, FinalLink::Follow, &doing).await?;
        if resolved.stat(&doing)?.kind != FileKind::Directory {
            let message = format!("{doing}: it is not a directory");
            return Err(SandboxError::new(SandboxErrorKind::NotADirectory, message));
        }
        let listed = match resolved.text() {
            Some(text) => self.list_by_protocol(text, &doing).await?,
            None => None,
        };
        let mut listed = match listed {
            Some(listed) => listed,
            None => self.list_by_script(&resolved.bytes, &doing).await?,
        };
        if listed.len() > MAX_LIST_ENTRIES {
            return Err(SandboxError::too_many_entries(path));
        }
        listed.sort_by(|one, other| one.path.cmp(&other.path));
        Ok(listed)
    }

    /// Lists a directory; returns `None` if a name is not UTF-8.
    async fn list_by_protocol(
        &self,
        text: &str,
        doing: &str,
    ) -> Result<Option<Vec<FileInfo>>, SandboxError> {
        let message = json!({ "path": text, "depth": 1 });
        let envd = &self.envd;
        let entries = match envd.call::<Entries>(FILES, "ListDir", &message).await {
            Ok(listing) => listing.entries,
            // One name that is not UTF-8 fails the whole call.
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
            Ok(file_info(path, entry))
        });
        infos.collect::<Result<Vec<_>, SandboxError>>().map(Some)
    }

    /// Creates a directory and its parents.
    pub(crate) async fn mkdir(&self, path: &SandboxPath) -> Result<(), SandboxError> {
        let doing = format!("failed to create the directory `{path}`");
        let resolved = self.resolve(path, FinalLink::Follow, &doing).await?;
        match resolved.stat {
            Some(stat) if stat.kind == FileKind::Directory => return Ok(()),
            Some(_) => {
                let message = format!("{doing}: it exists and is not a directory");
                return Err(SandboxError::new(SandboxErrorKind::AlreadyExists, message));
            }
            None => {}
        }
        resolved.check_parents(&doing)?;
        let Some(text) = resolved.text() else {
            let words = ["mkdir", &quote(&resolved.bytes)];
            return self.run_script(&words, &doing).await;
        };
        let message = json!({ "path": text });
        match self.envd.order(FILES, "MakeDir", &message).await {
            // Created concurrently.
            Err(fault) if fault.has_code("already_exists") => Ok(()),
            made => self.explained(made, &doing).await,
        }
    }

    /// Removes a file, a link or a directory.
    pub(crate) async fn remove(&self, path: &SandboxPath) -> Result<(), SandboxError> {
        let doing = format!("failed to remove `{path}`");
        let resolved = self.resolve(path, FinalLink::Keep, &doing).await?;
        resolved.check_removable(&self.shared, &doing)?;
        resolved.stat(&doing)?;
        if let Some(text) = resolved.text() {
            let message = json!({ "path": text });
            match self.envd.order(FILES, "Remove", &message).await {
                // Possibly an unwritable directory, which the script can remove.
                Err(Fault::Refused { .. }) => {}
                removed => return self.explained(removed, &doing).await,
            }
        }
        let words = ["remove", &quote(&resolved.bytes)];
        self.run_script(&words, &doing).await
    }

    /// Moves a file or directory.
    pub(crate) async fn rename(
        &self,
        from: &SandboxPath,
        to: &SandboxPath,
    ) -> Result<(), SandboxError> {
        let doing = format!("failed to move `{from}` to `{to}`");
        let source = self.resolve(from, FinalLink::Keep, &doing).await?;
        source.check_removable(&self.shared, &doing)?;
        let moved = source.stat(&doing)?;
        let target = self.resolve(to, FinalLink::Keep, &doing).await?;
        target.check_removable(&self.shared, &doing)?;
        target.check_parents(&doing)?;
        if let Some(there) = &target.stat
            && there.kind == FileKind::Directory
            && moved.kind != FileKind::Directory
        {
            let message = format!("{doing}: the target is a directory");
            return Err(SandboxError::new(SandboxErrorKind::NotAFile, message));
        }
        self.rename_path(&source.bytes, &target.bytes, &doing).await
    }

    /// Renames a file or directory at a path without links.
    async fn rename_path(&self, from: &[u8], to: &[u8], doing: &str) -> Result<(), SandboxError> {
        let (Ok(source), Ok(destination)) = (std::str::from_utf8(from), std::str::from_utf8(to))
        else {
            let words = ["move", &quote_all([from, to])];
            return self.run_script(&words, doing).await;
        };
        let message = json!({ "source": source, "destination": destination });
        let moved = self.envd.order(FILES, "Move", &message).await;
        self.explained(moved, doing).await
    }
}

impl ResolvedPath {
    /// Refuses to remove or rename the fixed directories of a sandbox.
    fn check_removable(&self, shared: &Shared, doing: &str) -> Result<(), SandboxError> {
        let required = [shared.home.as_bytes(), SCRATCH.as_bytes()];
        if required.contains(&self.bytes.as_slice()) {
            let message = format!("{doing}: it is required by the sandbox");
            return Err(SandboxError::invalid_input(message));
        }
        Ok(())
    }
}
