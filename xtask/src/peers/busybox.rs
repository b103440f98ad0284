//! A static BusyBox, for a root directory in which there is nothing else.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};

use super::{Ready, Workshop};
use crate::{elf, shell};

pub fn bring_up(workshop: &Workshop) -> Result<Ready> {
    let program = program(workshop)?.display().to_string();
    Ok(Ready::with([("CANTLE_TEST_BUSYBOX", program)]))
}

/// The machine's own where it is static; else Debian's, unpacked here and not installed, because it
/// would replace the machine's.
pub fn program(workshop: &Workshop) -> Result<PathBuf> {
    let own =
        shell::probe("sh", &["-c", "command -v busybox"]).map(|path| PathBuf::from(path.trim()));
    match own {
        Some(own) if elf::is_static(&own)? => Ok(own),
        _ => debian(workshop),
    }
}

fn debian(workshop: &Workshop) -> Result<PathBuf> {
    let directory = workshop.cached("busybox", "busybox-static", |directory| {
        let mut download = Command::new("apt-get");
        download
            .args(["download", "--quiet", "busybox-static"])
            .current_dir(directory);
        workshop.step("busybox", &download)?;
        let package = std::fs::read_dir(directory)?
            .flatten()
            .map(|entry| entry.path())
            .find(|path| path.extension().is_some_and(|extension| extension == "deb"))
            .context("apt-get downloaded nothing")?;
        let mut unpack = Command::new("dpkg-deb");
        unpack.arg("--extract").arg(package).arg(directory);
        workshop.step("busybox", &unpack)
    })?;
    // Where it is depends on the release: /bin before the merge, /usr/bin after.
    ["bin/busybox", "usr/bin/busybox"]
        .map(|path| directory.join(path))
        .into_iter()
        .find(|path| path.exists())
        .context("busybox-static holds no busybox")
}
