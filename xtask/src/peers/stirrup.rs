//! Stirrup itself, for histories it wrote and histories it must read (`xtask/peers/stirrup_history.py`).

use anyhow::Result;

use super::python::Python;
use super::{Ready, Workshop};

pub fn bring_up(workshop: &Workshop) -> Result<Ready> {
    // The second is a part that lxml has given up and a dependency of Stirrup still imports.
    let packages = ["stirrup", "lxml_html_clean"];
    let pins = include_str!("../../peers/stirrup.txt");
    let environment = Python::find((3, 12))?.environment(workshop, "stirrup", &packages, pins)?;
    let python = environment.program("python").display().to_string();
    Ok(Ready::with([("CANTLE_TEST_STIRRUP_PYTHON", python)]))
}
