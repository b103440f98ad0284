//! Python: source facts, one-shot runs, and kernels.

use std::fmt::Write as _;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use cantle_backends_local::LocalBackend;
use cantle_core::sandbox::ArtifactLimits;
use cantle_core::tool::NoProgress;
use cantle_python::{
    Execution, Interpreter, PackageIndex, PackageRequest, PackageStore, PythonSession, SourceFacts,
};
use rustix::time::{ClockId, clock_gettime};
use serde_json::json;

use crate::process::{median, run_part};
use crate::report::Report;
use crate::sandboxes::{in_runtime, milliseconds};

const ROUNDS: usize = 100;
const KERNELS: usize = 50;

/// Prints the proportional memory in MB of each process whose command line contains one of two words.
const MEMORY: &str = "import os
totals = {'MAX_FRAME': [], 'time.sleep(1000)': []}
for pid in filter(str.isdigit, os.listdir('/proc')):
    try:
        line = open(f'/proc/{pid}/cmdline').read()
        pss = next(it for it in open(f'/proc/{pid}/smaps_rollup') if it.startswith('Pss:'))
    except (OSError, StopIteration):
        continue
    for word, total in totals.items():
        if word in line:
            total.append(int(pss.split()[1]) / 1000)
print(*(sum(it) for it in totals.values()), *map(len, totals.values()))";

/// Measures all of it in a separate process.
pub(crate) fn measure(report: &mut Report) -> Result<()> {
    let answer = run_part(&["python"])?;
    let number = |name: &str| answer[name].as_f64().context("not a number");
    for (what, name, unit, most) in [
        ("facts of 30 lines of Python: CPU", "short_ms", "ms", 0.05),
        ("facts of 3000 lines of Python: CPU", "long_ms", "ms", 3.0),
        (
            "one-shot run in an open sandbox / raw",
            "one_shot",
            "x",
            1.15,
        ),
        ("call of a warm kernel", "call_ms", "ms", 2.0),
        (
            "prepared packages: opening, a one-shot run and closing, more than without",
            "packages_ms",
            "ms",
            5.0,
        ),
        (
            "artifacts among 10,000 files: a call, more than without",
            "artifacts_ms",
            "ms",
            20.0,
        ),
        (
            "50 kernels: memory of each beyond Python's own",
            "kernel_mb",
            "MB",
            15.0,
        ),
    ] {
        report.at_most(what, number(name)?, unit, most);
    }
    report.add("raw `python3 -c pass`", number("raw_ms")?, "ms");
    Ok(())
}

/// Part: everything.
pub(crate) fn run() -> Result<()> {
    let answer = in_runtime(async {
        let facts = |lines| {
            let source = source(lines);
            let mut times: Vec<_> = (0..ROUNDS)
                .map(|_| {
                    let started = thread_cpu();
                    let facts = std::hint::black_box(SourceFacts::of(source.as_bytes()));
                    let time = thread_cpu() - started;
                    assert!(facts.syntax_error.is_none() && !facts.imports.is_empty());
                    time
                })
                .collect();
            median(&mut times)
        };
        let (short, long) = (facts(30), facts(3000));

        let session = Interpreter::new(LocalBackend::new()).open().await?;
        let executable = session.run("import sys; print(sys.executable)").await?;
        let executable = executable.stdout.text();
        let (mut raw, mut one_shot, mut calls) = (Vec::new(), Vec::new(), Vec::new());
        completed(session.execute("main", "x = 1").await?)?;
        for _ in 0..ROUNDS {
            let mut command = tokio::process::Command::new(executable.trim());
            command
                .args(["-c", "pass"])
                .stdin(Stdio::null())
                .stdout(Stdio::piped());
            let started = Instant::now();
            ensure!(command.output().await?.status.success());
            raw.push(milliseconds(started));
            let started = Instant::now();
            completed(session.run("pass").await?)?;
            one_shot.push(milliseconds(started));
            let started = Instant::now();
            completed(session.execute("main", "x + 1").await?)?;
            calls.push(milliseconds(started));
        }
        session.close().await?;
        let raw = median(&mut raw);
        Ok(json!({
            "short_ms": short,
            "long_ms": long,
            "raw_ms": raw,
            "one_shot": median(&mut one_shot) / raw,
            "call_ms": median(&mut calls),
            "packages_ms": packages().await?,
            "artifacts_ms": artifacts().await?,
            "kernel_mb": kernel_memory().await?,
        }))
    })?;
    println!("{answer}");
    Ok(())
}

/// Writes a wheel of the module `small` into the current directory.
const WHEEL: &str = r#"
import zipfile
info = "small-1.0.dist-info"
with zipfile.ZipFile("small-1.0-py3-none-any.whl", "w") as wheel:
    wheel.writestr("small.py", "VALUE = 42\n")
    wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: small\nVersion: 1.0\n")
    wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: bench\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    wheel.writestr(f"{info}/RECORD", "")
"#;

/// Returns the time that a prepared package adds to a run in a sandbox of its own.
async fn packages() -> Result<f64> {
    let place = tempfile::tempdir()?;
    // The user that runs commands enters it.
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o711);
    std::fs::set_permissions(place.path(), mode)?;
    let wheels = place.path().join("wheels");
    std::fs::create_dir(&wheels)?;
    let mut wheel = std::process::Command::new("python3");
    wheel.args(["-c", WHEEL]).current_dir(&wheels);
    ensure!(wheel.status()?.success());
    let index = PackageIndex::directory(wheels);
    let request = PackageRequest::new(["small".parse()?]).index(index);
    let store = PackageStore::new(place.path().join("store"), LocalBackend::new());
    let plain = Interpreter::new(LocalBackend::new());
    let with_packages = plain
        .clone()
        .packages(store.prepare(&request, &NoProgress).await?);
    completed(with_packages.run("import small").await?)?;
    let (mut without, mut with) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        for (python, times) in [(&plain, &mut without), (&with_packages, &mut with)] {
            let started = Instant::now();
            completed(python.run("pass").await?)?;
            times.push(milliseconds(started));
        }
    }
    Ok(median(&mut with) - median(&mut without))
}

/// Returns the time that looking for artifacts adds to a call in a directory of 10,000 files.
async fn artifacts() -> Result<f64> {
    let plain = Interpreter::new(LocalBackend::new());
    let session = plain.open().await?;
    let collecting = plain
        .artifacts(ArtifactLimits::default(), ())
        .attach(Arc::clone(session.sandbox()));
    let fill = "import os\nfor d in range(100):\n  os.mkdir(str(d))\n  for f in range(100): open(f'{d}/{f}', 'w').close()";
    completed(session.execute("main", fill).await?)?;
    completed(collecting.execute("main", "1").await?)?;
    let (mut without, mut with) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        for (session, times) in [(&session, &mut without), (&collecting, &mut with)] {
            let started = Instant::now();
            let executed = completed(
                session
                    .execute("main", "open('made', 'w').write('x')")
                    .await?,
            )?;
            times.push(milliseconds(started));
            ensure!(executed.artifacts.files.len() <= 1, "{executed:?}");
        }
    }
    collecting.remove("main").await;
    session.close().await?;
    Ok(median(&mut with) - median(&mut without))
}

/// Returns the memory of a kernel's two processes beyond that of an idle Python beside it.
async fn kernel_memory() -> Result<f64> {
    let session = Interpreter::new(LocalBackend::new()).open().await?;
    for context in 0..KERNELS {
        completed(session.execute(&context.to_string(), "1").await?)?;
    }
    let idle = format!(
        "import subprocess, sys, time\nidle = [subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(1000)']) \
         for _ in range({KERNELS})]\ntime.sleep(2)"
    );
    completed(session.execute("0", &idle).await?)?;
    let printed = memory(&session).await?;
    session.close().await?;
    let [kernels, idle, kernel_count, idle_count] = printed[..] else {
        anyhow::bail!("expected four numbers: {printed:?}");
    };
    ensure!(
        kernel_count >= KERNELS as f64 && idle_count == KERNELS as f64,
        "{printed:?}"
    );
    Ok((kernels - idle) / KERNELS as f64)
}

async fn memory(session: &PythonSession) -> Result<Vec<f64>> {
    let printed = completed(session.run(MEMORY).await?)?.stdout.text();
    let numbers = printed.split_whitespace().map(|number| Ok(number.parse()?));
    numbers.collect()
}

/// Returns the CPU time of this thread in milliseconds.
fn thread_cpu() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 * 1e3 + time.tv_nsec as f64 / 1e6
}

fn completed(execution: Execution) -> Result<Execution> {
    ensure!(execution.success(), "{execution:?}");
    Ok(execution)
}

/// Returns ordinary code with this many lines.
fn source(lines: usize) -> String {
    let mut source = String::from("import csv\nfrom math import sqrt\n");
    for at in 0..lines / 7 {
        let _ = write!(
            source,
            "\ndef total_{at}(rows, scale=1.0):\n    \"\"\"Adds what is positive.\"\"\"\n    \
             values = [float(row['value']) * scale for row in rows if row.get('value')]\n    \
             if not values:\n        return {{'count': 0, 'name': f'none {{scale}}'}}\n    \
             return {{'count': len(values), 'mean': sqrt(sum(values)) / len(values)}}\n"
        );
    }
    source
}
