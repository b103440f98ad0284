//! A static `cantle`, for tests that run it in an empty root directory.

use anyhow::Result;

use super::{Installer, Ready};
use crate::dist::{self, Profile};

pub fn bring_up(installer: &Installer) -> Result<Ready> {
    installer.step("static", &dist::build(&dist::host()?, Profile::Dev))?;
    let program = dist::program(Profile::Dev)?.display().to_string();
    Ok(Ready::with([("CANTLE_TEST_STATIC_BIN", program)]))
}
