//! mdBook, which makes a site of `docs/`.

use anyhow::Result;

use super::{Ready, Workshop};

const VERSION: &str = "0.5.4";

/// Builds it, for the full lane.
pub fn bring_up(workshop: &Workshop) -> Result<Ready> {
    let directory =
        workshop.cargo_install("mdbook", "mdbook", VERSION, &["--no-default-features"])?;
    let program = directory.join("bin/mdbook").display().to_string();
    Ok(Ready::with([("CANTLE_TEST_MDBOOK", program)]))
}
