//! A static `cantle`, for tests that run it in an empty root directory.

use anyhow::Result;

use super::{Installer, Ready};
use crate::static_build::{self, Profile};

pub fn bring_up(installer: &Installer) -> Result<Ready> {
    installer.step("static", &static_build::build(Profile::Dev)?)?;
    let program = static_build::program(Profile::Dev)?.display().to_string();
    Ok(Ready::with([("CANTLE_TEST_STATIC_BIN", program)]))
}
