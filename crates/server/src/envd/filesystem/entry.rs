//! What is said of one file or directory.

use std::collections::BTreeMap;

use cantle_core::sandbox::{FileKind, Sandbox, SandboxPath};
use serde::Serialize;

use super::census::{self, Seen, Start};
use crate::envd::fault::Fault;
use crate::envd::inside;
use crate::fleet::Live;

/// Links of one listing of which it is said where they lead.
const MOST_LINKS: usize = 256;
const LINKS_BYTES: usize = 4 << 20;

/// `filesystem.EntryInfo`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct EntryInfo {
    pub(crate) name: String,
    #[serde(rename = "type")]
    pub(crate) kind: &'static str,
    pub(crate) path: String,
    /// As text, since it has 64 bits.
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

/// What is at a path; `None` where nothing is.
pub(crate) async fn at(
    live: &Live,
    sandbox: &dyn Sandbox,
    path: &SandboxPath,
) -> Result<Option<EntryInfo>, Fault> {
    let seen = census::take(sandbox, path, Start::Itself, 0).await?;
    Ok(of(live, sandbox, path, seen).await?.into_iter().next())
}

/// The same of all that was seen from `start` on.
pub(crate) async fn of(
    live: &Live,
    sandbox: &dyn Sandbox,
    start: &SandboxPath,
    seen: Vec<Seen>,
) -> Result<Vec<EntryInfo>, Fault> {
    let mut entries = Vec::with_capacity(seen.len());
    let mut links = Vec::new();
    for one in seen {
        let path = start.join(&one.below)?;
        let entry = entry(live, &path, &one);
        if entry.is_symlink && links.len() < MOST_LINKS {
            links.push((entries.len(), path));
        }
        entries.push(entry);
    }
    if links.is_empty() {
        return Ok(entries);
    }
    let mut argv = vec!["readlink".into(), "-z".into(), "-m".into(), "--".into()];
    argv.extend(links.iter().map(|(_, path)| census::os_path(path)));
    if let Some(output) = inside::run(sandbox, argv, LINKS_BYTES).await?
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
    argv.extend(links.iter().map(|(_, path)| census::os_path(path)));
    argv.extend(["-maxdepth", "0", "-printf", "%m\\0%p\\0"].map(Into::into));
    if let Some(output) = inside::run(sandbox, argv, LINKS_BYTES).await? {
        let mut parts = output.stdout.split(|byte| *byte == 0);
        while let (Some(mode), Some(path)) = (parts.next(), parts.next()) {
            let mode = std::str::from_utf8(mode).ok();
            let mode = mode.and_then(|mode| u32::from_str_radix(mode, 8).ok());
            let link = links
                .iter()
                .find(|(_, link)| census::os_path(link).as_encoded_bytes() == path);
            if let (Some(mode), Some((index, _))) = (mode, link)
                && let Some(entry) = entries.get_mut(*index)
            {
                entry.mode = mode & 0o777;
            }
        }
    }
    Ok(entries)
}

/// What is said of an entry, but for where it leads.
pub(crate) fn entry(live: &Live, path: &SandboxPath, seen: &Seen) -> EntryInfo {
    let name = path.file_name().unwrap_or(b"/");
    EntryInfo {
        name: String::from_utf8_lossy(name).into_owned(),
        kind: match seen.target_kind {
            Some(FileKind::File) => "FILE_TYPE_FILE",
            Some(FileKind::Directory) => "FILE_TYPE_DIRECTORY",
            _ => "FILE_TYPE_UNSPECIFIED",
        },
        path: path.to_string(),
        size: seen.size_bytes.to_string(),
        mode: seen.mode & 0o777,
        permissions: permissions(seen.kind, seen.mode),
        owner: seen.owner.clone(),
        group: seen.group.clone(),
        modified_time: seen.modified.map(|modified| modified.to_string()),
        symlink_target: None,
        metadata: live.metadata.of(path),
        is_symlink: seen.kind == FileKind::Symlink,
    }
}

/// Permission bits as Go writes them.
fn permissions(kind: FileKind, mode: u32) -> String {
    let first = match kind {
        FileKind::Directory => 'd',
        FileKind::Symlink => 'L',
        _ => '-',
    };
    let bits = "rwxrwxrwx".chars().enumerate().map(|(index, letter)| {
        if mode & (0o400 >> index) == 0 {
            '-'
        } else {
            letter
        }
    });
    std::iter::once(first).chain(bits).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permissions_look_as_in_go() {
        assert_eq!(permissions(FileKind::File, 0o644), "-rw-r--r--");
        assert_eq!(permissions(FileKind::Directory, 0o755), "drwxr-xr-x");
        assert_eq!(permissions(FileKind::Symlink, 0o777), "Lrwxrwxrwx");
    }
}
