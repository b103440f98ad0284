//! `cargo xtask soak`: ordinary and hostile load for a long time, with kills; see `benches/src/soak.rs`.

use anyhow::Result;

use crate::metadata::Metadata;
use crate::shell;

/// Load the server and the library, kill processes, and check that nothing is left (as root)
#[derive(clap::Args)]
pub struct SoakArgs {
    #[arg(long, default_value = "3")]
    minutes: u64,

    /// Sandboxes at once
    #[arg(long, default_value = "40")]
    sandboxes: usize,

    /// Repeats the choices of an earlier test, which printed it
    #[arg(long, default_value_t = std::process::id().into())]
    seed: u64,
}

pub fn run(args: &SoakArgs) -> Result<()> {
    let build = ["build", "--package=cantle-cli", "--package=cantle-bench"];
    shell::run(shell::cargo().args(build))?;
    let programs = Metadata::read()?.target.join("debug");
    let mut soak = std::process::Command::new(programs.join("cantle-bench"));
    soak.arg("soak").arg(programs.join("cantle"));
    let numbers = [args.minutes * 60, args.sandboxes as u64, args.seed];
    shell::run(soak.args(numbers.map(|number| number.to_string())))
}
