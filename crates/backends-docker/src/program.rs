//! The supervisor's program, and the volume of the engine that holds it.

use std::io;

use bollard::models::{Mount, MountType, MountVolumeOptions};
use bytes::Bytes;
use sha2::{Digest as _, Sha256};
use tar::{EntryType, Header};

/// Mount point of the volume.
pub(crate) const DIRECTORY: &str = "/.cantle";
/// File name of the program.
pub(crate) const NAME: &str = "supervisor";

const VOLUME_PREFIX: &str = "cantle-supervisor-";

/// Length of the digest in the volume's name.
const DIGEST_DIGITS: usize = 24;

/// Returns the program, if this build has one.
pub(crate) fn bytes() -> Option<&'static [u8]> {
    #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
    return Some(cantle_supervisor::PROGRAM);
    #[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
    None
}

/// Returns the program's path in a container that mounts the volume.
pub(crate) fn path() -> String {
    format!("{DIRECTORY}/{NAME}")
}

/// Returns the volume's name.
pub(crate) fn volume_name() -> String {
    let mut digest = format!("{:x}", Sha256::digest(bytes().unwrap_or_default()));
    digest.truncate(DIGEST_DIGITS);
    format!("{VOLUME_PREFIX}{digest}")
}

/// Whether this is the name of a supervisor's volume, of any version.
pub(crate) fn is_volume(name: &str) -> bool {
    let digest = name.strip_prefix(VOLUME_PREFIX).map(str::as_bytes);
    digest.is_some_and(|it| it.len() == DIGEST_DIGITS && it.iter().all(u8::is_ascii_hexdigit))
}

/// Returns the mount of the volume.
pub(crate) fn mount(read_only: bool) -> Mount {
    Mount {
        typ: Some(MountType::VOLUME),
        source: Some(volume_name()),
        target: Some(DIRECTORY.to_owned()),
        read_only: Some(read_only),
        volume_options: Some(MountVolumeOptions {
            // The engine would fill an empty volume with what the image has there.
            no_copy: Some(true),
            ..MountVolumeOptions::default()
        }),
        ..Mount::default()
    }
}

/// Packs executable files into a tar archive, in order.
pub(crate) fn archive(files: &[(&str, &[u8])]) -> io::Result<Bytes> {
    let mut archive = tar::Builder::new(Vec::new());
    for (name, bytes) in files {
        let mut header = header(EntryType::Regular, 0o755);
        header.set_size(bytes.len() as u64);
        archive.append_data(&mut header, name, *bytes)?;
    }
    archive.into_inner().map(Bytes::from)
}

/// Returns the header of an empty entry of root's, without a time.
pub(crate) fn header(kind: EntryType, mode: u32) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_size(0);
    header
}
