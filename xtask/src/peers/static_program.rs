//! Our own static `cantle`, for tests that run it where there is nothing to load.

use anyhow::Result;

use super::{Ready, Workshop};
use crate::dist;

/// Cargo knows whether there is something to build.
pub fn bring_up(workshop: &Workshop) -> Result<Ready> {
    workshop.step("static", &dist::build(&dist::host()?))?;
    let program = dist::program()?.display().to_string();
    Ok(Ready {
        variables: vec![("CANTLE_TEST_STATIC_BIN", program)],
        server: None,
    })
}
