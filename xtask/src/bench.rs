//! `cargo xtask bench`: the numbers in `docs/performance.md`.
//!
//! Builds the static binary and the benchmark program, and runs one against the other. A missed goal is
//! shown but is not a failure: machines differ.

use anyhow::Result;

use crate::lane::Lane;
use crate::metadata::Metadata;
use crate::peers::{self, Installer};
use crate::static_build::Profile;
use crate::{shell, static_build};

/// Measures the numbers in docs/performance.md.
#[derive(clap::Args)]
pub struct BenchArgs {
    /// Write the measurements here, as JSON; a file with other areas keeps their rows.
    #[arg(long, default_value = "target/bench.json")]
    json: std::path::PathBuf,

    /// Only these areas, such as `records` (default: all; an unknown name lists them)
    areas: Vec<String>,
}

pub fn run(args: &BenchArgs) -> Result<()> {
    shell::run(&mut static_build::build(Profile::Dist)?)?;
    let cantle = static_build::program(Profile::Dist)?;
    let build = ["build", "--profile=dist", "--package=cantle-bench"];
    shell::run(shell::cargo().args(build))?;
    let target = Metadata::read()?.target;
    let installer = Installer::open(&target, Lane::Quick)?;
    // Until the end of the measurements.
    let engine = match peers::bring_up_engine(&installer) {
        Ok(engine) => Some(engine),
        Err(error) => {
            eprintln!("SKIPPED containers: {error:#}");
            None
        }
    };
    let mut bench = std::process::Command::new(target.join("dist").join("cantle-bench"));
    bench.envs(
        engine
            .iter()
            .flat_map(|engine| engine.variables.iter().cloned()),
    );
    bench.arg("--cantle").arg(cantle).arg("--json");
    let only = args.areas.iter().flat_map(|area| ["--only", area]);
    shell::run(bench.arg(&args.json).args(only))
}
