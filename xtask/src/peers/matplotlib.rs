//! matplotlib, whose figures are results of a Python kernel.

use anyhow::Result;

use super::python::Python;
use super::{Ready, Workshop};

const PINS: &str = include_str!("../../peers/matplotlib.txt");

/// Prepares an environment. Tests run its Python in sandboxes.
pub fn bring_up(workshop: &Workshop) -> Result<Ready> {
    let python = Python::find((3, 11))?;
    let environment = python.environment(workshop, "matplotlib", &["matplotlib"], PINS)?;
    let program = environment.program("python").display().to_string();
    Ok(Ready::with([("CANTLE_TEST_MATPLOTLIB", program)]))
}
