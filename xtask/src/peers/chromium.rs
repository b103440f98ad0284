//! Debian's Chromium, which tests start in sandboxes.

use std::path::Path;

use anyhow::{Result, ensure};

use super::Ready;

/// The program: `/usr/bin/chromium` is a script that needs files which sandboxes do not show.
const PROGRAM: &str = "/usr/lib/chromium/chromium";

/// Finds the program. It is not installed without being asked for: it has 400 MB.
pub fn bring_up() -> Result<Ready> {
    ensure!(
        Path::new(PROGRAM).exists(),
        "there is no {PROGRAM}; install the package chromium"
    );
    Ok(Ready::with([("CANTLE_TEST_CHROMIUM", PROGRAM.to_owned())]))
}
