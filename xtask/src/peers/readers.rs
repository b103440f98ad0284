//! The readers of exported runs: those of ATIF and of Inspect.

use anyhow::Result;

use super::python::Python;
use super::{Ready, Workshop};
use crate::lane::Lane;

const PINS: &str = include_str!("../../peers/readers.txt");

/// Prepares an environment, in the full lane.
pub fn bring_up(workshop: &Workshop, lane: Lane) -> Result<Ready> {
    if lane != Lane::Full {
        return Ok(Ready::default());
    }
    let packages = ["atif", "inspect_ai"];
    let environment = Python::find((3, 11))?.environment(workshop, "readers", &packages, PINS)?;
    let python = environment.program("python").display().to_string();
    Ok(Ready::with([("CANTLE_TEST_READERS_PYTHON", python)]))
}
