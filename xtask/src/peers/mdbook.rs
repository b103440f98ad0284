//! mdBook, which makes a site of `docs/`.

use anyhow::Result;

use super::{Installer, Ready};

const VERSION: &str = "0.5.4";

/// Builds it, for the full lane.
pub fn bring_up(installer: &Installer) -> Result<Ready> {
    let directory =
        installer.cargo_install("mdbook", "mdbook", VERSION, &["--no-default-features"])?;
    let program = directory.join("bin/mdbook").display().to_string();
    Ok(Ready::with([("CANTLE_TEST_MDBOOK", program)]))
}
