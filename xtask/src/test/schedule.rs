//! Runs test programs side by side.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Mutex;
use std::sync::mpsc;
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result};

use super::Part;
use super::programs::{CargoArgs, TestProgram};
use super::report::Report;
use crate::guard::Guarded;
use crate::shell;

/// Programs whose measurements of time or memory other programs would distort: they run alone, last.
const ALONE: &[(&str, &str)] = &[
    ("cantle-agent", "memory"),
    ("cantle-backends-local", "memory"),
    ("cantle-backends-local", "near_misses"),
];

/// The programs that take longest: they start first.
const LONGEST: &[(&str, &str)] = &[
    ("cantle-backends-docker", "docker"),
    ("cantle-backends-local", "hostile"),
    ("cantle-testkit", "conformance_sandbox"),
    ("cantle-backends-docker", "conformance"),
    ("cantle-backends-local", "local"),
    ("cantle-cli", "cli"),
    ("cantle-backends-docker", "relay"),
];

/// One command to run, and what to call it.
pub struct Job {
    title: String,
    command: Command,
    runs_alone: bool,
    rank: usize,
}

/// Returns the jobs for a share of the tests.
pub fn jobs(
    programs: &[TestProgram],
    args: &CargoArgs,
    part: Option<Part>,
    environment: &[(&str, String)],
) -> Result<Vec<Job>> {
    let libraries = shell::output(Command::new("rustc").args(["--print", "target-libdir"]))?;
    let libraries = PathBuf::from(libraries.trim());
    let mut jobs = Vec::new();
    let mut position = 0;
    for program in programs {
        let mut command = program.command(&libraries);
        if let Some(Part { index, count }) = part {
            let tests = program.tests(&libraries, &args.tests)?;
            let mut share = Vec::new();
            for test in tests {
                if position % count == index {
                    share.push(test);
                }
                position += 1;
            }
            if share.is_empty() {
                continue;
            }
            command.arg("--exact").args(share);
        }
        // libtest accepts its unstable options under any value; for compilers that tests start, -1
        // is the same as none.
        command
            .args(["-Zunstable-options", "--report-time", "--show-output"])
            .args(&args.tests)
            .env("RUSTC_BOOTSTRAP", "-1");
        let key = (program.package.as_str(), program.target.as_str());
        let rank = LONGEST.iter().position(|long| *long == key);
        jobs.push(Job {
            title: format!("{} {}", program.package, program.target),
            command,
            runs_alone: ALONE.contains(&key),
            rank: rank.unwrap_or(LONGEST.len()),
        });
    }
    if args.has_doc_tests() && part.is_none_or(|part| part.index == 0) {
        let mut cargo = shell::cargo();
        cargo
            .arg("test")
            .args(args.cargo.iter().filter(|word| *word != "--doc"))
            .arg("--doc");
        cargo.arg("--").arg("--show-output").args(&args.tests);
        // It compiles, which takes as long as the longest programs.
        jobs.push(Job {
            title: "documentation".to_owned(),
            command: cargo,
            runs_alone: false,
            rank: 0,
        });
    }
    for job in &mut jobs {
        job.command.envs(environment.iter().cloned());
    }
    jobs.sort_by_key(|job| job.rank);
    Ok(jobs)
}

/// Runs all jobs; a failure of one keeps none from running.
pub fn run(jobs: Vec<Job>, report: &mut Report) -> Result<()> {
    let (alone, shared): (Vec<_>, Vec<_>) = jobs.into_iter().partition(|job| job.runs_alone);
    // Most tests wait more than they compute.
    let workers = thread::available_parallelism()?.get() + 1;
    run_on(workers, shared, report)?;
    run_on(1, alone, report)
}

fn run_on(workers: usize, jobs: Vec<Job>, report: &mut Report) -> Result<()> {
    let queue = Mutex::new(jobs.into_iter());
    let (send, finished) = mpsc::channel();
    thread::scope(|scope| {
        for _ in 0..workers {
            let (queue, send) = (&queue, send.clone());
            scope.spawn(move || {
                let next = || queue.lock().ok()?.next();
                while let Some(job) = next() {
                    let start = Instant::now();
                    let output = job.run();
                    let _ = send.send((job.title, output, start.elapsed()));
                }
            });
        }
        drop(send);
        for (title, output, elapsed) in finished {
            let (text, is_success) = output.with_context(|| format!("failed to run {title}"))?;
            report.add(&title, &text, is_success, elapsed);
        }
        Ok(())
    })
}

impl Job {
    /// Returns everything that the command wrote, and whether it succeeded.
    fn run(&self) -> Result<(String, bool)> {
        let output = tempfile::NamedTempFile::new()?;
        let status = Guarded::spawn_into(&self.command, output.path())?.wait()?;
        let mut text = String::from_utf8_lossy(&fs::read(output.path())?).into_owned();
        if !status.success() {
            let line = shell::line(&self.command);
            text.push_str(&format!("`{line}` failed: {status}\n"));
        }
        Ok((text, status.success()))
    }
}
