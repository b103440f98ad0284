//! Description of a file or directory in responses.

use std::collections::BTreeMap;
use std::sync::Arc;

use cantle_core::sandbox::{FileKind, SandboxPath};
use serde::Serialize;

use crate::accounts::MemoryCharge;
use crate::envd::directories::listing::{self, ListedEntry, Listing, StartLink};
use crate::envd::error::{EnvdError, Result};
use crate::envd::{RunningSandbox, SandboxUse, helper, metadata};
use crate::tasks;

/// Maximum links per listing whose targets are resolved.
const MAX_LINKS: usize = 256;
const LINKS_BYTES: usize = 4 << 20;
/// Maximum entries per listing of which metadata is read that commands have stored.
const MAX_ATTRIBUTED: usize = 256;

/// `filesystem.EntryInfo`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct EntryInfo {
    pub(crate) name: String,
    #[serde(rename = "type")]
    pub(crate) kind: &'static str,
    pub(crate) path: String,
    /// Text, because JSON numbers can't represent 64 bits.
    pub(crate) size: String,
    pub(crate) mode: u32,
    pub(crate) permissions: String,
    pub(crate) owner: String,
    pub(crate) group: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) modified_time: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) symlink_target: Option<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) metadata: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) is_symlink: bool,
}

/// Returns the description of a path, or `None` if it does not exist.
pub(crate) async fn describe(
    live: &Arc<RunningSandbox>,
    sandbox: &SandboxUse,
    path: &SandboxPath,
) -> Result<Option<EntryInfo>> {
    let listed = listing::list(sandbox, path, StartLink::NoFollow, 0).await?;
    let charge = &mut live.account.charge();
    Ok(describe_all(live, sandbox, path, listed, charge)
        .await?
        .pop())
}

/// Returns the descriptions of a listing, in the order of their paths. `charge` grows by the metadata that commands have
/// stored.
pub(crate) async fn describe_all(
    live: &Arc<RunningSandbox>,
    sandbox: &SandboxUse,
    start: &SandboxPath,
    mut listed: Listing,
    charge: &mut MemoryCharge,
) -> Result<Vec<EntryInfo>> {
    let (owned, root) = (Arc::clone(live), start.clone());
    let described = tasks::compute(listed.size_bytes(), move || {
        let mut entries = Vec::with_capacity(listed.entries.len());
        let (mut links, mut attributed) = (Vec::new(), Vec::new());
        listed.sort();
        for item in &listed.entries {
            let path = root.join(&item.relative_path)?;
            let entry = describe_entry(&owned, &path, item);
            if entry.is_symlink && links.len() < MAX_LINKS {
                links.push((entries.len(), path));
            } else if !entry.is_symlink && attributed.len() < MAX_ATTRIBUTED {
                attributed.push(path);
            }
            entries.push(entry);
        }
        Ok::<_, EnvdError>((entries, links, attributed))
    });
    let (mut entries, links, attributed) = described.await??;
    let no_links = entries.iter_mut().filter(|entry| !entry.is_symlink);
    let stored = metadata::of_commands(sandbox, &attributed, charge).await?;
    for (entry, stored) in no_links.zip(stored) {
        for (name, value) in stored {
            entry.metadata.entry(name).or_insert(value);
        }
    }
    if links.is_empty() {
        return Ok(entries);
    }
    let mut argv = vec!["readlink".into(), "-z".into(), "-m".into(), "--".into()];
    argv.extend(links.iter().map(|(_, path)| listing::os_path(path)));
    if let Some(output) = helper::run(sandbox, argv, LINKS_BYTES).await?
        && output.exit.status.success()
    {
        let targets = output.stdout.split(|byte| *byte == 0);
        for ((index, _), target) in links.iter().zip(targets) {
            if let Some(entry) = entries.get_mut(*index) {
                entry.symlink_target = Some(String::from_utf8_lossy(target).into_owned());
            }
        }
    }
    let mut argv = vec!["find".into(), "-L".into()];
    argv.extend(links.iter().map(|(_, path)| listing::os_path(path)));
    argv.extend(["-maxdepth", "0", "-printf", "%m\\0%p\\0"].map(Into::into));
    if let Some(output) = helper::run(sandbox, argv, LINKS_BYTES).await? {
        let mut parts = output.stdout.split(|byte| *byte == 0);
        while let (Some(mode), Some(path)) = (parts.next(), parts.next()) {
            let mode = std::str::from_utf8(mode).ok();
            let mode = mode.and_then(|mode| u32::from_str_radix(mode, 8).ok());
            let link = links
                .iter()
                .find(|(_, link)| listing::os_path(link).as_encoded_bytes() == path);
            if let (Some(mode), Some((index, _))) = (mode, link)
                && let Some(entry) = entries.get_mut(*index)
            {
                entry.mode = mode & 0o777;
            }
        }
    }
    Ok(entries)
}

/// Returns the description of an entry without its link target.
pub(crate) fn describe_entry(
    live: &RunningSandbox,
    path: &SandboxPath,
    listed: &ListedEntry,
) -> EntryInfo {
    let name = path.file_name().unwrap_or(b"/");
    EntryInfo {
        name: String::from_utf8_lossy(name).into_owned(),
        kind: match listed.target_kind {
            Some(FileKind::File) => "FILE_TYPE_FILE",
            Some(FileKind::Directory) => "FILE_TYPE_DIRECTORY",
            _ => "FILE_TYPE_UNSPECIFIED",
        },
        path: path.to_string(),
        size: listed.size_bytes.to_string(),
        mode: listed.mode & 0o777,
        permissions: permissions(listed.kind, listed.mode),
        owner: listed.owner.to_string(),
        group: listed.group.to_string(),
        modified_time: listed.modified.map(|modified| modified.to_string()),
        symlink_target: None,
        metadata: live.metadata.get(path),
        is_symlink: listed.kind == FileKind::Symlink,
    }
}

/// Formats permission bits as Go does.
fn permissions(kind: FileKind, mode: u32) -> String {
    let first = match kind {
        FileKind::Directory => 'd',
        FileKind::Symlink => 'L',
        _ => '-',
    };
    let bits = "rwxrwxrwx".chars().enumerate().map(|(index, letter)| {
        let is_set = mode & (0o400 >> index) != 0;
        if is_set { letter } else { '-' }
    });
    std::iter::once(first).chain(bits).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permissions_are_formatted_as_in_go() {
        assert_eq!(permissions(FileKind::File, 0o644), "-rw-r--r--");
        assert_eq!(permissions(FileKind::Directory, 0o755), "drwxr-xr-x");
        assert_eq!(permissions(FileKind::Symlink, 0o777), "Lrwxrwxrwx");
    }
}
