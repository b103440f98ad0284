//! `cargo xtask fuzz`: fuzzing guided by coverage.
//!
//! libFuzzer on the stable toolchain: LLVM's coverage pass needs no unstable flag, unlike the sanitizers, which are
//! therefore off. Failures are panics, hangs and too much memory. The flags are given for the target alone, so
//! build scripts and procedural macros are built without them.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::metadata::Metadata;
use crate::{shell, static_build, workspace};

const FLAGS: &[&str] = &[
    "--cfg=cantle_fuzzing",
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=3",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "-Cdebug-assertions",
    "-Coverflow-checks",
];

/// Maximum length of an input, seconds for one input, and memory of a target in MiB.
const BOUNDS: &[&str] = &["-max_len=16384", "-timeout=10", "-rss_limit_mb=1024"];

/// Fuzz the parsers of untrusted bytes; inputs that fail are written to target/fuzz.
#[derive(clap::Args)]
pub struct FuzzArgs {
    /// All targets if none is named; fuzz/src/lib.rs lists them
    targets: Vec<String>,

    /// Time for each target
    #[arg(long, value_name = "SECONDS", default_value = "60")]
    seconds: u32,
}

impl FuzzArgs {
    /// All targets, in this time together.
    pub fn all(time: Duration) -> Self {
        let targets = names().map_or(1, |names| names.len().max(1));
        Self {
            targets: Vec::new(),
            seconds: u32::try_from(time.as_secs() / targets as u64).unwrap_or(u32::MAX),
        }
    }
}

pub fn run(args: &FuzzArgs) -> Result<()> {
    let all = names()?;
    if let Some(unknown) = args.targets.iter().find(|name| !all.contains(name)) {
        bail!(
            "there is no target `{unknown}`; the targets are {}",
            all.join(", ")
        );
    }
    let targets = if args.targets.is_empty() {
        &all
    } else {
        &args.targets
    };
    let triple = static_build::host()?;
    let directory = Metadata::read()?.target.join("fuzz");
    let build = [
        "build",
        "--profile=fuzz",
        "--package=cantle-fuzz",
        "--bin=cantle-fuzz",
    ];
    let mut cargo = shell::cargo();
    cargo.args(build).arg("--target").arg(&triple);
    // Apart from other builds, which would be made again.
    cargo.arg("--target-dir").arg(directory.join("build"));
    shell::run(cargo.env("CARGO_ENCODED_RUSTFLAGS", FLAGS.join("\x1f")))?;
    let program = directory
        .join("build")
        .join(triple)
        .join("fuzz/cantle-fuzz");
    let mut failed = Vec::new();
    for target in targets {
        if let Err(error) = fuzz(&program, target, args.seconds, &directory) {
            eprintln!("xtask: {error:#}");
            failed.push(target.as_str());
        }
    }
    if !failed.is_empty() {
        let directory = directory.display();
        bail!(
            "failed: {}. Fix it, and add the input from {directory}/TARGET to fuzz/corpora/TARGET",
            failed.join(", ")
        );
    }
    Ok(())
}

/// Returns the names of the targets: each has a corpus.
fn names() -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(workspace::root().join("fuzz/corpora"))? {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}

fn fuzz(program: &Path, target: &str, seconds: u32, directory: &Path) -> Result<()> {
    let found = directory.join(target);
    let new = found.join("corpus");
    fs::create_dir_all(&new).with_context(|| format!("failed to create {}", new.display()))?;
    let mut fuzzer = std::process::Command::new(program);
    fuzzer.env("CANTLE_FUZZ_TARGET", target);
    fuzzer.args(BOUNDS).arg("-print_final_stats=1");
    fuzzer.arg(format!("-max_total_time={seconds}"));
    fuzzer.arg(format!("-artifact_prefix={}/", found.display()));
    fuzzer
        .arg(new)
        .arg(workspace::root().join("fuzz/corpora").join(target));
    shell::run(&mut fuzzer)
}
