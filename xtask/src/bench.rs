//! `cargo xtask bench`: the numbers in `docs/performance.md`.
//!
//! Builds the static binary, because that is what people run, and the measuring program, and runs
//! the one against the other. A goal that is missed is shown, it is no failure: machines differ.

use anyhow::Result;

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
    let bench = Metadata::read()?
        .target
        .join("release")
        .join("cantle-bench");
    let mut bench = std::process::Command::new(bench);
    shell::run(
        bench
            .arg("--cantle")
            .arg(cantle)
            .arg("--json")
            .arg(&args.json),
    )
}
