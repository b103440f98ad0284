//! A static `cantle`, for tests that run it in an empty root directory.

use std::process::Command;

use anyhow::Result;

use super::{Ready, Workshop};
use crate::dist::{self, Profile};

pub fn bring_up(workshop: &Workshop) -> Result<Ready> {
    let build = dist::build(&dist::host()?, Profile::Dev);
    // The tests that run meanwhile have time limits.
    let mut patient = Command::new("nice");
    patient
        .args(["-n", "19"])
        .arg(build.get_program())
        .args(build.get_args());
    for (name, value) in build.get_envs() {
        match value {
            Some(value) => patient.env(name, value),
            None => patient.env_remove(name),
        };
    }
    if let Some(directory) = build.get_current_dir() {
        patient.current_dir(directory);
    }
    workshop.step("static", &patient)?;
    let program = dist::program(Profile::Dev)?.display().to_string();
    Ok(Ready::with([("CANTLE_TEST_STATIC_BIN", program)]))
}
