//! Command output: a gigabyte through a sandbox, compared with a raw pipe.

use std::io::Read as _;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use cantle_backends_local::LocalBackend;
use cantle_core::ids::RunId;
use cantle_core::policy::Policy;
use cantle_core::sandbox::{Backend as _, SandboxContext, SandboxExt as _, SpawnRequest, Spill};
use serde_json::{Value, json};

use crate::process::{median, peak_memory_mb, run_part};
use crate::report::Report;

const BYTES: u64 = 1_000_000_000;
const REPEATS: usize = 3;

fn command(bytes: u64) -> String {
    format!("head -c {bytes} /dev/zero | cat")
}

/// Runs the command in a sandbox and prints the rate and the memory.
pub(crate) fn run(bytes: u64) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let seconds = runtime.block_on(async {
        let cx = SandboxContext::new(RunId::new(), Policy::unconfined());
        let sandbox = LocalBackend::new().open(cx).await?;
        let started = Instant::now();
        let output = sandbox.run(SpawnRequest::shell(command(bytes))).await?;
        let seconds = started.elapsed().as_secs_f64();
        ensure!(output.stdout.total_bytes() == bytes);
        let spill = SpawnRequest::shell(command(bytes)).with_spill(Spill::after(80_000));
        let spilled = sandbox.run(spill).await?;
        ensure!(spilled.exit.stdout.spilled.is_some());
        sandbox.close().await?;
        Ok::<_, anyhow::Error>(seconds)
    })?;
    println!(
        "{}",
        json!({"seconds": seconds, "peak_mb": peak_memory_mb()?})
    );
    Ok(())
}

/// Reads the same output directly from a pipe.
fn through_raw_pipe() -> Result<f64> {
    let started = Instant::now();
    let mut child = Command::new("bash")
        .args(["-c", &command(BYTES)])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut stdout = child.stdout.take().context("no output")?;
    let mut buffer = vec![0; 64 * 1024];
    let mut total = 0;
    loop {
        match stdout.read(&mut buffer)? {
            0 => break,
            read => total += read as u64,
        }
    }
    child.wait()?;
    ensure!(total == BYTES);
    Ok(started.elapsed().as_secs_f64())
}

pub(crate) fn measure(report: &mut Report) -> Result<()> {
    let (mut hand, mut ours, mut peak) = (Vec::new(), Vec::new(), 0.0_f64);
    for _ in 0..REPEATS {
        hand.push(through_raw_pipe()?);
        let result = run_part(&["output", &BYTES.to_string()])?;
        let field = |key| result.get(key).and_then(Value::as_f64).unwrap_or(f64::NAN);
        ours.push(field("seconds"));
        peak = peak.max(field("peak_mb"));
    }
    let (hand, ours) = (median(&mut hand), median(&mut ours));
    let rate = |seconds: f64| BYTES as f64 / 1e6 / seconds;
    report.add("1 GB through a pipe by hand", rate(hand), "MB/s");
    report.add("1 GB through a sandbox", rate(ours), "MB/s");
    report.between("sandbox / by hand", hand / ours, "x", (0.7, f64::INFINITY));
    report.at_most(
        "1 GB of output, kept and spilled: peak memory",
        peak,
        "MB",
        64.0,
    );
    Ok(())
}
