//! `cargo xtask test`: every test of the workspace, with the real software it talks to.
//!
//! The peers are prepared while Cargo builds the tests; then the test programs run side by side
//! ([`schedule`]) and their output is printed whole, one program after the other. Every process that
//! is started here ends with this one (see [`crate::guard`]).
//!
//! There are two lanes: the quick lane runs every behaviour once, the full lane (`--full`) adds the long
//! matrix and ten minutes of fuzzing. A test asks for its lane with `cantle_testkit::lane`, and a test
//! that ran reduced or not at all is named at the end.

mod programs;
mod report;
mod schedule;

use std::str::FromStr;
use std::thread;
use std::time::Duration;

use anyhow::{Result, anyhow, bail};

use self::programs::CargoArgs;
use self::report::Report;
use crate::fuzz::{self, FuzzArgs};
use crate::lane::{self, Lane};
use crate::metadata::Metadata;
use crate::peers::{self, Installer, Peers, Required};
use crate::shell;

/// Run all tests, with the real software they talk to (CANTLE_REQUIRE=all: none may be missing).
#[derive(clap::Args)]
pub struct TestArgs {
    /// Add the long matrix: all versions of the peers, secondary modes, full kill tables, gigabytes
    #[arg(long)]
    full: bool,

    /// Run only this share of the tests, such as 1/3
    #[arg(long, value_name = "K/N")]
    part: Option<Part>,

    /// Start none of the peers; tests that need one are skipped
    #[arg(long)]
    without_peers: bool,

    /// For `cargo test`, as in `cargo xtask test -- -p cantle-core -- --nocapture`
    #[arg(last = true)]
    cargo_test_args: Vec<String>,
}

pub fn run(args: &TestArgs) -> Result<()> {
    let lane = if args.full { Lane::Full } else { Lane::Quick };
    let mut cargo_args = CargoArgs::parse(&args.cargo_test_args);
    cargo_args.add_features(lane);
    let required = Required::from_env()?;
    let installer = Installer::open(&Metadata::read()?.target, lane)?;

    let (programs, peers) = thread::scope(|scope| {
        let peers = scope.spawn(|| {
            if args.without_peers {
                return Ok(Peers::default());
            }
            shell::timed("peers", || peers::bring_up(&installer, &required))
        });
        let programs = shell::timed("building the tests", || programs::build(&cargo_args));
        let panicked = |_| Err(anyhow!("bringing up the peers panicked"));
        (programs, peers.join().unwrap_or_else(panicked))
    });
    let programs = programs?;
    let mut peers = peers?;

    let mut environment: Vec<_> = peers.variables().collect();
    environment.push((lane::VARIABLE, lane.name().to_owned()));
    // Tests talk to this machine alone.
    for name in ["NO_PROXY", "no_proxy"] {
        environment.push((name, "127.0.0.1,localhost".to_owned()));
    }
    let mut report = Report::default();
    let tested = shell::timed("running the tests", || {
        let jobs = schedule::jobs(&programs, &cargo_args, args.part, &environment)?;
        schedule::run(jobs, &mut report)
    });
    for peer in &peers.skipped {
        eprintln!("SKIPPED peer {peer} (the reason is above)");
    }
    // All at once; each is waited for when it is dropped.
    peers.release();
    tested?;
    report.print(lane);
    if !report.is_success() {
        bail!("tests failed");
    }
    if lane == Lane::Full && args.part.is_none() && args.cargo_test_args.is_empty() {
        shell::timed("fuzzing", || {
            fuzz::run(&FuzzArgs::all(Duration::from_mins(10)))
        })?;
    }
    Ok(())
}

/// One of several shares of the tests.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Part {
    /// From 0.
    index: usize,
    count: usize,
}

impl FromStr for Part {
    type Err = String;

    fn from_str(text: &str) -> Result<Part, String> {
        let parse = || {
            let (number, count) = text.split_once('/')?;
            let (number, count): (usize, usize) = (number.parse().ok()?, count.parse().ok()?);
            (1..=count).contains(&number).then(|| Part {
                index: number - 1,
                count,
            })
        };
        parse().ok_or_else(|| "expected K/N with K from 1 to N".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::Part;

    #[test]
    fn a_part_is_one_of_several() {
        assert_eq!("2/3".parse(), Ok(Part { index: 1, count: 3 }));
        for wrong in ["0/3", "4/3", "1", "1/0", "a/b"] {
            assert!(wrong.parse::<Part>().is_err(), "{wrong}");
        }
    }
}
