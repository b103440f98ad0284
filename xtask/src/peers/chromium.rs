//! Debian's Chromium, which tests start in sandboxes.

use std::path::Path;

use anyhow::{Result, ensure};

use super::Ready;

/// The program: `/usr/bin/chromium` is a script that needs files which sandboxes do not show.
const PROGRAM: &str = "/usr/lib/chromium/chromium";

pub fn is_installed() -> bool {
    Path::new(PROGRAM).exists()
}

/// Finds the program.
pub fn bring_up() -> Result<Ready> {
    ensure!(is_installed(), "there is no {PROGRAM}");
    Ok(Ready::with([("CANTLE_TEST_CHROMIUM", PROGRAM.to_owned())]))
}
