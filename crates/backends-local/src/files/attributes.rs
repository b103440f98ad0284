//! Extended attributes, which commands set.

use std::collections::BTreeMap;
use std::os::fd::AsRawFd as _;

use cantle_core::sandbox::{MAX_ATTRIBUTES_BYTES, SandboxPath};
use rustix::fs::{FileType, OFlags, fstat, getxattr, listxattr};

use super::Root;
use super::beneath::PATH_ONLY;

/// Maximum size of a list of names (`XATTR_LIST_MAX`).
const LIST_BYTES: usize = 64 << 10;

impl Root {
    /// Returns the attributes of each path whose names begin with `prefix`, without it.
    pub(crate) fn attributes(
        &self,
        paths: &[SandboxPath],
        prefix: &str,
    ) -> Vec<BTreeMap<String, String>> {
        let mut names = vec![0; LIST_BYTES];
        let mut value = vec![0; MAX_ATTRIBUTES_BYTES];
        let read = |path| {
            let found = self.attributes_of(path, prefix, &mut names, &mut value);
            found.unwrap_or_default()
        };
        paths.iter().map(read).collect()
    }

    fn attributes_of(
        &self,
        path: &SandboxPath,
        prefix: &str,
        names: &mut [u8],
        value: &mut [u8],
    ) -> Option<BTreeMap<String, String>> {
        // Not opened for reading, because it may be a pipe that a command has made.
        let flags = PATH_ONLY | OFlags::NOFOLLOW;
        let file = self.open(path, flags, "read attributes of").ok()?;
        let kind = FileType::from_raw_mode(fstat(&file).ok()?.st_mode);
        if !matches!(kind, FileType::RegularFile | FileType::Directory) {
            return None;
        }
        let file = format!("/proc/self/fd/{}", file.as_raw_fd());
        let length = listxattr(&*file, &mut *names).ok()?;
        let mut attributes = BTreeMap::new();
        let mut bytes = 0;
        for name in names.get(..length)?.split(|byte| *byte == 0) {
            let text = str::from_utf8(name).ok();
            let Some(own) = text.and_then(|name| name.strip_prefix(prefix)) else {
                continue;
            };
            let Ok(length) = getxattr(&*file, name, &mut *value) else {
                continue;
            };
            bytes += own.len() + length;
            if bytes > MAX_ATTRIBUTES_BYTES {
                break;
            }
            if let Ok(value) = str::from_utf8(value.get(..length)?) {
                attributes.insert(own.to_owned(), value.to_owned());
            }
        }
        Some(attributes)
    }
}
