//! `cargo xtask bench`: the numbers in `docs/performance.md`.
//!
//! Builds the static binary, because that is what people run, and the measuring program, and runs
//! the one against the other. A goal that is missed is shown, it is no failure: machines differ.

use anyhow::Result;

use crate::peers::{self, Workshop};
use crate::workspace::Metadata;
use crate::{dist, shell};

/// Measures the numbers in docs/performance.md.
#[derive(clap::Args)]
pub struct Args {
    /// Write the measurements here, as JSON.
    #[arg(long, default_value = "target/bench.json")]
    json: std::path::PathBuf,
}

pub fn run(args: &Args) -> Result<()> {
    shell::run(&mut dist::build(&dist::host()?))?;
    let cantle = dist::program()?;
    let build = ["build", "--release", "--package", "cantle-bench"];
    shell::run(shell::cargo().args(build))?;
    let target = Metadata::read()?.target;
    let workshop = Workshop::open(&target)?;
    // Until the end of the measurements.
    let engine = match peers::bring_up_engine(&workshop) {
        Ok(engine) => Some(engine),
        Err(error) => {
            eprintln!("SKIPPED containers: {error:#}");
            None
        }
    };
    let mut bench = std::process::Command::new(target.join("release").join("cantle-bench"));
    bench.envs(
        engine
            .iter()
            .flat_map(|engine| engine.variables.iter().cloned()),
    );
    shell::run(
        bench
            .arg("--cantle")
            .arg(cantle)
            .arg("--json")
            .arg(&args.json),
    )
}
