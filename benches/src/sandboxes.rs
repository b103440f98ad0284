//! Sandboxes under the default policy: cost of commands and sandboxes, and time to kill them.

use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use cantle_backends_local::LocalBackend;
use cantle_core::ids::RunId;
use cantle_core::policy::Policy;
use cantle_core::sandbox::{Backend as _, Sandbox, SandboxContext, SandboxExt as _, SpawnRequest};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::process::{median, memory_mb, run_part};
use crate::report::Report;

const ROUNDS: usize = 300;
const KILL_ROUNDS: usize = 9;
const CPU_ROUNDS: usize = 20;
const IMAGE_ROUNDS: usize = 20;
const AT_ONCE: usize = 200;
const PROCESSES: usize = 1000;
const LARGE_GIB: usize = 4;

/// Measures each part in a separate process.
pub(crate) fn measure(report: &mut Report) -> Result<()> {
    for gib in [0, LARGE_GIB] {
        let answer = run_part(&["sandboxes", &gib.to_string()])?;
        let number = |name: &str| answer[name].as_f64().context("not a number");
        let with = if gib == 0 {
            String::new()
        } else {
            format!(" with {gib} GiB in memory")
        };
        report.add(format!("raw `bash -c true`{with}"), number("raw")?, "ms");
        report.at_most(
            format!("command in a default sandbox / raw{with}"),
            number("command")?,
            "x",
            1.3,
        );
        report.at_most(
            format!("open, one command, close / raw{with}"),
            number("whole")?,
            "x",
            3.5,
        );
    }
    let answer = run_part(&["many-sandboxes"])?;
    let number = |name: &str| answer[name].as_f64().context("not a number");
    report.at_most(
        "memory of ours for each of 200 sandboxes",
        number("each_mb")?,
        "MB",
        1.0,
    );
    report.at_most(
        "death of 1000 processes after the kill",
        number("kill_ms")?,
        "ms",
        200.0,
    );
    let answer = run_part(&["disk-images"])?;
    if let Some(made) = answer["made_ms"].as_f64() {
        let reattached = answer["reattached_ms"].as_f64();
        report.add("making a disk image", made, "ms");
        report.at_most(
            "reattaching a disk image, more than without",
            reattached.context("not a number")?,
            "ms",
            5.0,
        );
    }
    let answer = run_part(&["busy-sandbox"])?;
    let number = |name: &str| answer[name].as_f64().context("not a number");
    let spread = number("spread")?;
    report.add("spread of a busy command, raw / raw", spread, "x");
    report.at_most(
        "busy command in a default sandbox / raw",
        number("ratio")?,
        "x",
        spread.max(1.0 / spread) + 0.02,
    );
    Ok(())
}

/// Part: compares commands and sandboxes with raw commands, with `gib` GiB resident.
pub(crate) fn run(gib: usize) -> Result<()> {
    let mut ballast = vec![0_u8; gib << 30];
    // Makes every page resident.
    for page in ballast.chunks_mut(4096) {
        page[0] = 1;
    }
    let answer = in_runtime(async {
        let sandbox = open().await?;
        let (mut raw, mut command, mut whole) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            raw.push(timed(raw_command("true"))?);
            let started = Instant::now();
            succeed(&*sandbox, "true").await?;
            command.push(milliseconds(started));
            let started = Instant::now();
            let once = open().await?;
            succeed(&*once, "true").await?;
            once.close().await?;
            whole.push(milliseconds(started));
        }
        sandbox.close().await?;
        let raw = median(&mut raw);
        Ok(json!({
            "raw": raw,
            "command": median(&mut command) / raw,
            "whole": median(&mut whole) / raw,
        }))
    })?;
    // Keeps the memory resident until here.
    drop(ballast);
    println!("{answer}");
    Ok(())
}

/// Part: many concurrent sandboxes, and a thousand processes in one.
pub(crate) fn run_many() -> Result<()> {
    let answer = in_runtime(async {
        let before = memory_mb()?;
        let mut open_ones = Vec::new();
        for _ in 0..AT_ONCE {
            open_ones.push(open().await?);
        }
        let each = (memory_mb()? - before) / AT_ONCE as f64;
        for sandbox in open_ones {
            sandbox.close().await?;
        }

        let mut policy = Policy::workspace();
        policy.limits.processes = Some(2 * PROCESSES as u64);
        let sandbox = open_under(policy).await?;
        let ready = "ready".parse()?;
        let mut kills = Vec::new();
        for _ in 0..KILL_ROUNDS {
            let line = format!(
                "for i in $(seq {PROCESSES}); do setsid sleep 600 & done; echo > ready; sleep 600"
            );
            let token = CancellationToken::new();
            let request = SpawnRequest::shell(line)
                .with_grace(Duration::ZERO)
                .with_cancellation(token.clone());
            let mut process = sandbox.spawn(request).await?;
            while sandbox.stat(&ready).await.is_err() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            let started = Instant::now();
            token.cancel();
            process.wait().await?;
            kills.push(milliseconds(started));
            sandbox.remove(&ready).await?;
        }
        sandbox.close().await?;
        Ok(json!({ "each_mb": each, "kill_ms": median(&mut kills) }))
    })?;
    println!("{answer}");
    Ok(())
}

/// Part: the time that a disk image adds to opening and to reattaching a sandbox; empty where there can be none.
pub(crate) fn run_images() -> Result<()> {
    let mut with = Policy::workspace();
    with.limits.disk_bytes = Some(1 << 30);
    let answer = in_runtime(async {
        let backend = LocalBackend::new();
        let (mut made, mut reattached) = ([vec![], vec![]], [vec![], vec![]]);
        for _ in 0..IMAGE_ROUNDS {
            for (which, policy) in [Policy::workspace(), with.clone()].into_iter().enumerate() {
                let cx = SandboxContext::new(RunId::new(), policy).durable();
                let started = Instant::now();
                let sandbox = backend.open(cx.clone()).await?;
                made[which].push(milliseconds(started));
                let mut mechanisms = sandbox.info().mechanisms.iter();
                if which == 1 && !mechanisms.any(|name| name == "disk image") {
                    sandbox.close().await?;
                    return Ok(json!({}));
                }
                succeed(&*sandbox, "seq 100000 > file").await?;
                let handle = sandbox.persist().await?;
                drop(sandbox);
                // Waits for the first one to be written back.
                drop(backend.reattach(&handle, cx.clone()).await?);
                tokio::time::sleep(Duration::from_millis(100)).await;
                let started = Instant::now();
                let sandbox = backend.reattach(&handle, cx).await?;
                reattached[which].push(milliseconds(started));
                sandbox.close().await?;
            }
        }
        let [mut without, mut image] = made;
        let made_ms = median(&mut image) - median(&mut without);
        let [mut without, mut image] = reattached;
        let reattached_ms = median(&mut image) - median(&mut without);
        Ok(json!({ "made_ms": made_ms, "reattached_ms": reattached_ms }))
    })?;
    println!("{answer}");
    Ok(())
}

/// Part: a CPU-bound command, alternating twice raw and once in a sandbox.
pub(crate) fn run_busy() -> Result<()> {
    const LINE: &str = "for ((i = 0; i < 60000; i++)); do :; done";
    let answer = in_runtime(async {
        let sandbox = open().await?;
        let (mut one, mut other, mut ours) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..CPU_ROUNDS {
            one.push(timed(raw_command(LINE))?);
            let started = Instant::now();
            succeed(&*sandbox, LINE).await?;
            ours.push(milliseconds(started));
            other.push(timed(raw_command(LINE))?);
        }
        sandbox.close().await?;
        let (one, other) = (median(&mut one), median(&mut other));
        let ratio = median(&mut ours) / ((one + other) / 2.0);
        Ok(json!({ "spread": one / other, "ratio": ratio }))
    })?;
    println!("{answer}");
    Ok(())
}

pub(crate) fn in_runtime(work: impl Future<Output = Result<Value>>) -> Result<Value> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?
        .block_on(work)
}

async fn open() -> Result<Arc<dyn Sandbox>> {
    open_under(Policy::workspace()).await
}

async fn open_under(policy: Policy) -> Result<Arc<dyn Sandbox>> {
    let cx = SandboxContext::new(RunId::new(), policy);
    Ok(LocalBackend::new().open(cx).await?)
}

async fn succeed(sandbox: &dyn Sandbox, line: &str) -> Result<()> {
    let output = sandbox.run(SpawnRequest::shell(line)).await?;
    ensure!(output.exit.status.success(), "{output:?}");
    Ok(())
}

fn raw_command(line: &str) -> std::process::Command {
    let mut command = std::process::Command::new("bash");
    command.args(["-c", line]).stdin(Stdio::null());
    command
}

fn timed(mut command: std::process::Command) -> Result<f64> {
    let started = Instant::now();
    let output = command.output()?;
    ensure!(output.status.success());
    Ok(milliseconds(started))
}

pub(crate) fn milliseconds(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1000.0
}
