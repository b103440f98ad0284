//! A static BusyBox, for a root directory in which there is nothing else.

use std::path::PathBuf;

use anyhow::{Context, Result};

use super::{Installer, Ready, system};
use crate::{shell, static_build};

pub fn bring_up(installer: &Installer) -> Result<Ready> {
    let program = program(installer)?.display().to_string();
    Ok(Ready::with([("CANTLE_TEST_BUSYBOX", program)]))
}

/// The machine's own where it is static; else Debian's, unpacked here and not installed, because it
/// would replace the machine's.
pub fn program(installer: &Installer) -> Result<PathBuf> {
    let own =
        shell::probe("sh", &["-c", "command -v busybox"]).map(|path| PathBuf::from(path.trim()));
    match own {
        Some(own) if static_build::is_static(&own)? => Ok(own),
        _ => debian(installer),
    }
}

fn debian(installer: &Installer) -> Result<PathBuf> {
    let directory = system::unpacked(installer, "busybox", &["busybox-static"])?;
    // Where it is depends on the release: /bin before the merge, /usr/bin after.
    ["bin/busybox", "usr/bin/busybox"]
        .map(|path| directory.join(path))
        .into_iter()
        .find(|path| path.exists())
        .context("busybox-static holds no busybox")
}
