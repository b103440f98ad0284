//! The size of a sandbox's file system in memory.

use std::ffi::CString;

use cantle_core::policy::Limits;

/// The size that tmpfs counts for an inode (`BOGO_INODE_SIZE`). Extended attributes take this space, and not that of files.
const INODE_BYTES: u64 = 1024;
/// The most inodes that tmpfs accepts.
const MAX_INODES: u64 = u64::MAX / INODE_BYTES;
/// The fewest inodes if only the size is limited.
const MIN_INODES: u64 = 1024;
/// Its root and the three directories, which are not the user's.
const OWN_INODES: u64 = 4;

/// Returns the mount options for these limits.
pub(super) fn options(limits: &Limits) -> CString {
    let mut options = "mode=777".to_owned();
    if let Some(bytes) = limits.disk_bytes {
        // Zero would stand for no limit.
        options += &format!(",size={}", bytes.max(1));
    }
    // By default there are inodes for half of the machine's memory, all of which attributes could take.
    let of_size = |bytes: u64| (bytes / INODE_BYTES).max(MIN_INODES);
    if let Some(inodes) = limits.inodes.or(limits.disk_bytes.map(of_size)) {
        let inodes = inodes.saturating_add(OWN_INODES).min(MAX_INODES);
        options += &format!(",nr_inodes={inodes}");
    }
    CString::new(options).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inodes_are_limited_with_the_size() {
        for (named, expected) in [
            ("disk=8M", c"mode=777,size=8388608,nr_inodes=8196"),
            ("disk=4K", c"mode=777,size=4096,nr_inodes=1028"),
            ("disk=8M,inodes=20", c"mode=777,size=8388608,nr_inodes=24"),
            ("inodes=20", c"mode=777,nr_inodes=24"),
        ] {
            let mut limits = Limits::default();
            for limit in named.split(',') {
                limits.set(limit).unwrap();
            }
            assert_eq!(options(&limits).as_c_str(), expected, "{named}");
        }
        let mut limits = Limits::default();
        limits.inodes = Some(u64::MAX);
        let expected = format!("mode=777,nr_inodes={MAX_INODES}");
        assert_eq!(options(&limits).to_str(), Ok(&*expected));
    }
}
