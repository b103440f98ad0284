//! `cargo xtask test`: every test of the workspace, with real peers beside it.
//!
//! The peers are prepared and started while Cargo builds the tests; at the end, however it comes,
//! every process that was started here is gone (see [`crate::guard`]).

use std::process::{Command, Stdio};
use std::thread;

use anyhow::{Context, Result, anyhow, bail};

use crate::guard::Guarded;
use crate::peers::{self, Required, Workshop};
use crate::shell;
use crate::workspace::Metadata;

/// Run all tests, with the real software they talk to (CANTLE_REQUIRE=all: none may be missing).
#[derive(clap::Args)]
pub struct Args {
    /// For `cargo test`, as in `cargo xtask test -- -p cantle-core -- --nocapture`
    #[arg(last = true)]
    cargo_test_args: Vec<String>,
}

pub fn run(args: &Args) -> Result<()> {
    let required = Required::from_env()?;
    let workshop = Workshop::open(&Metadata::read()?.target)?;

    let (built, peers) = thread::scope(|scope| {
        let peers = scope.spawn(|| peers::bring_up(&workshop, &required));
        let built = cargo_test(args, Phase::Build, &[]);
        (
            built,
            peers
                .join()
                .unwrap_or_else(|_| Err(anyhow!("bringing up the peers panicked"))),
        )
    });
    built?;
    let mut peers = peers?;

    let variables: Vec<_> = peers
        .ready
        .iter()
        .flat_map(|ready| ready.variables.iter().cloned())
        .collect();
    let tested = cargo_test(args, Phase::Run, &variables);
    for peer in &peers.skipped {
        eprintln!("SKIPPED {peer} (the reason is above)");
    }
    // All at once; each is waited for when it is dropped.
    for server in peers
        .ready
        .iter_mut()
        .filter_map(|ready| ready.server.as_mut())
    {
        server.release();
    }
    tested
}

#[derive(Clone, Copy, PartialEq)]
enum Phase {
    Build,
    Run,
}

/// One `cargo test`, with its output as it is: its closing lines are read by others.
fn cargo_test(args: &Args, phase: Phase, variables: &[(&str, String)]) -> Result<()> {
    let mut cargo = arguments(&args.cargo_test_args, phase);
    cargo.envs(
        variables
            .iter()
            .map(|(name, value)| (*name, value.as_str())),
    );
    // Tests talk to this machine alone.
    cargo
        .env("NO_PROXY", "127.0.0.1,localhost")
        .env("no_proxy", "127.0.0.1,localhost");
    let line = shell::line(&cargo);
    eprintln!("$ {line}");
    let status = Guarded::spawn(&cargo, Stdio::inherit(), Stdio::inherit())?
        .wait()
        .with_context(|| format!("`{line}` could not be waited for"))?;
    if !status.success() {
        bail!("`{line}` failed: {status}");
    }
    Ok(())
}

fn arguments(given: &[String], phase: Phase) -> Command {
    let inner = given
        .iter()
        .position(|word| word == "--")
        .unwrap_or(given.len());
    let (for_cargo, for_tests) = given.split_at(inner);
    let names_packages = for_cargo
        .iter()
        .any(|word| word.starts_with("-p") || word.starts_with("--package"));
    let mut cargo = shell::cargo();
    cargo.arg("test");
    if !names_packages {
        cargo.arg("--workspace");
    }
    if phase == Phase::Build {
        cargo.arg("--no-run");
    }
    cargo.args(for_cargo);
    if phase == Phase::Run {
        cargo.args(for_tests);
    }
    cargo
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(given: &[&str], phase: Phase) -> Vec<String> {
        let given: Vec<String> = given.iter().map(|word| (*word).to_owned()).collect();
        let command = arguments(&given, phase);
        command
            .get_args()
            .map(|word| word.to_string_lossy().into_owned())
            .collect()
    }

    #[test]
    fn all_packages_are_tested_unless_some_are_named() {
        assert_eq!(words(&[], Phase::Run), ["test", "--workspace"]);
        assert_eq!(
            words(&["-p", "cantle-core"], Phase::Run),
            ["test", "-p", "cantle-core"]
        );
    }

    #[test]
    fn arguments_of_the_tests_are_not_for_the_build() {
        let given = ["--lib", "--", "--nocapture"];
        assert_eq!(
            words(&given, Phase::Build),
            ["test", "--workspace", "--no-run", "--lib"]
        );
        assert_eq!(
            words(&given, Phase::Run),
            ["test", "--workspace", "--lib", "--", "--nocapture"]
        );
    }
}
