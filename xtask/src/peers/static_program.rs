//! A static `cantle`, for tests that run it in an empty root directory.

use anyhow::Result;

use super::{Ready, Workshop};
use crate::dist::{self, Profile};

pub fn bring_up(workshop: &Workshop) -> Result<Ready> {
    workshop.step("static", &dist::build(&dist::host()?, Profile::Dev))?;
    let program = dist::program(Profile::Dev)?.display().to_string();
    Ok(Ready::with([("CANTLE_TEST_STATIC_BIN", program)]))
}
