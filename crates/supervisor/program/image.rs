//! The disk image of a sandbox: a file with a file system whose size is the limit.
//!
//! Neither the loop device nor the mount needs to be removed: the device is released when its last user is gone, and the
//! mount belongs to the sandbox's mount namespace only. Both therefore end with the sandbox, whoever is killed when.
//! The device keeps the open file, and with it the owner's lock on it, until everything is written back.

use crate::sys::{self, Fd};
use crate::text::Text;

/// Attempts to get a loop device, which others may take first.
const MAX_ATTEMPTS: u32 = 64;

/// `MOUNT_ATTR_NOSUID` and `MOUNT_ATTR_NODEV`.
const ATTRIBUTES: u64 = 2 | 4;

/// Mounts the file system in a file, on no directory yet.
pub fn mount(file: Fd) -> sys::Result<Fd> {
    let control = sys::open(c"/dev/loop-control", sys::O_RDWR)?;
    let mounted = attach(control, file).and_then(|(device, path)| {
        // Freed blocks are holes in the file again, and nothing is written to it in advance.
        let options = [c"discard", c"noinit_itable"];
        let mounted = sys::mount_device(c"ext4", path.as_c(), &options, ATTRIBUTES);
        sys::close(device);
        mounted
    });
    sys::close(control);
    mounted
}

/// Attaches the file to an unused loop device.
fn attach(control: Fd, file: Fd) -> sys::Result<(Fd, Text)> {
    for _ in 0..MAX_ATTEMPTS {
        let number = sys::unused_loop_device(control)?;
        let path = Text::new().text(b"/dev/loop").number(number as i32);
        let device = sys::open(path.as_c(), sys::O_RDWR)?;
        match sys::attach_to_loop_device(device, file) {
            Ok(()) => return Ok((device, path)),
            Err(error) => {
                sys::close(device);
                if error != sys::EBUSY {
                    return Err(error);
                }
            }
        }
    }
    Err(sys::EBUSY)
}
