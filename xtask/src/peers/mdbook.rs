//! mdBook, which makes a site of `docs/`.

use anyhow::Result;

use super::{Ready, Workshop};
use crate::lane::Lane;

const VERSION: &str = "0.5.4";

/// Builds it, for the full lane.
pub fn bring_up(workshop: &Workshop, lane: Lane) -> Result<Ready> {
    if lane != Lane::Full {
        return Ok(Ready::default());
    }
    let directory =
        workshop.cargo_install("mdbook", "mdbook", VERSION, &["--no-default-features"])?;
    let program = directory.join("bin/mdbook").display().to_string();
    Ok(Ready::with([("CANTLE_TEST_MDBOOK", program)]))
}
