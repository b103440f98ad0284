//! `cantle serve`: throughput, many concurrent sandboxes, and leftovers of closed ones.
//!
//! The server is the real program with the local backend in a separate process; the client is another
//! process on the same two cores, either plain HTTP or the remote backend, which runs a script around
//! each command and file.

mod client;
mod server;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use bytes::Bytes;
use cantle_backends_remote::RemoteBackend;
use cantle_core::ids::RunId;
use cantle_core::policy::Policy;
use cantle_core::sandbox::{
    Backend as _, ByteRange, ByteStream, Sandbox, SandboxContext, SandboxExt as _, SandboxPath,
    SpawnRequest, WriteOptions,
};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use self::client::KEY;
pub(crate) use self::client::{Client, Made};
pub(crate) use self::server::{Served, loop_devices};
use crate::process::{median, run_part};
use crate::report::Report;

const BYTES: usize = 1_000_000_000;
const REPEATS: usize = 3;

const OPEN: usize = 200;
const COMMANDS: u32 = 2000;
const SPREAD_OVER: Duration = Duration::from_secs(60);

/// Cycles until the thread count, and thus the memory retained by the allocator, has peaked.
const WARM_UP: usize = 500;
const CYCLES: usize = 2000;
const AT_ONCE: usize = 8;

/// Measures each part in a separate process.
pub(crate) fn measure(report: &mut Report, cantle: &Path) -> Result<()> {
    let cantle = cantle.to_str().context("the path is no text")?;
    let part = |name: &str| -> Result<_> {
        let answer = run_part(&[name, cantle])?;
        Ok(move |name: &str| {
            answer[name]
                .as_f64()
                .with_context(|| format!("{name} is no number"))
        })
    };

    let number = part("serve-bytes")?;
    for (client, name) in [("plain client", "plain"), ("remote backend", "remote")] {
        for (what, direction) in [("a file up", "up"), ("a file down", "down")] {
            report.at_least(
                format!("`serve`: 1 GB of {what}, {client}"),
                number(&format!("{name}_{direction}"))?,
                "MB/s",
                200.0,
            );
        }
        report.add(
            format!("`serve`: 1 GB of output, {client}"),
            number(&format!("{name}_output"))?,
            "MB/s",
        );
    }
    report.at_most("the same: its peak memory", number("peak_mb")?, "MB", 64.0);

    let number = part("serve-load")?;
    let load = format!("`serve`: {COMMANDS}/min in {OPEN} sandboxes");
    report.add(format!("{load}, median"), number("median")?, "ms");
    report.at_most(format!("{load}, p99"), number("p99")?, "ms", 100.0);
    report.add(format!("{load}, longest"), number("longest")?, "ms");
    report.add(
        "the same: memory for each of its sandboxes",
        number("each_mb")?,
        "MB",
    );

    let number = part("serve-cycles")?;
    report.add(
        "`serve`: create, one command, kill",
        number("each_ms")?,
        "ms",
    );
    for what in ["processes", "descriptors", "mounts", "files", "groups"] {
        let row = format!("{what} more after {CYCLES} of them");
        report.at_most(row, number(what)?, "", 0.0);
    }
    report.add("its memory before", number("before_mb")?, "MB");
    report.between(
        "its memory after them / before",
        number("memory")?,
        "x",
        (0.9, 1.1),
    );
    Ok(())
}

/// Part: uploads and downloads a gigabyte, and reads it from a command.
pub(crate) fn run_bytes(cantle: &str) -> Result<()> {
    let served = Served::start(Path::new(cantle))?;
    let answer = in_runtime(async {
        let client = Client::new(served.address);
        let made = client.create().await?;
        let url = format!("http://{}", served.address);
        let backend = RemoteBackend::builder()
            .api_key(KEY)
            .api_url(&url)
            .sandbox_url(&url)
            .build()?;
        let cx = SandboxContext::new(RunId::new(), Policy::workspace());
        let remote = backend.open(cx).await?;
        let line = format!("head -c {BYTES} /dev/zero");

        let mut plain = Rates::default();
        let mut through_remote = Rates::default();
        for _ in 0..REPEATS {
            let started = Instant::now();
            client.upload(&made, "file", BYTES).await?;
            plain.up.push(rate(started));
            let started = Instant::now();
            ensure!(client.download(&made, "file").await? == BYTES as u64);
            plain.down.push(rate(started));
            client.run(&made, "rm file").await?;
            let started = Instant::now();
            ensure!(client.run(&made, &line).await? > BYTES as u64);
            plain.output.push(rate(started));

            let started = Instant::now();
            upload(&*remote).await?;
            through_remote.up.push(rate(started));
            let started = Instant::now();
            download(&*remote).await?;
            through_remote.down.push(rate(started));
            remote.remove(&"file".parse()?).await?;
            let started = Instant::now();
            let output = remote.run(SpawnRequest::shell(&line)).await?;
            ensure!(output.stdout.total_bytes() == BYTES as u64, "{output:?}");
            through_remote.output.push(rate(started));
        }
        remote.close().await?;
        client.kill(&made).await?;
        Ok(json!({
            "plain_up": median(&mut plain.up),
            "plain_down": median(&mut plain.down),
            "plain_output": median(&mut plain.output),
            "remote_up": median(&mut through_remote.up),
            "remote_down": median(&mut through_remote.down),
            "remote_output": median(&mut through_remote.output),
            "peak_mb": served.peak_memory_mb()?,
        }))
    })?;
    served.stop()?;
    println!("{answer}");
    Ok(())
}

/// In MB/s.
#[derive(Default)]
struct Rates {
    up: Vec<f64>,
    down: Vec<f64>,
    output: Vec<f64>,
}

fn rate(since: Instant) -> f64 {
    BYTES as f64 / 1e6 / since.elapsed().as_secs_f64()
}

async fn upload(sandbox: &dyn Sandbox) -> Result<()> {
    const PIECE: &[u8] = &[0; 64 * 1024];
    let pieces = (0..BYTES.div_ceil(PIECE.len())).map(|number| {
        let left = BYTES - number * PIECE.len();
        Ok(Bytes::from_static(PIECE.get(..left).unwrap_or(PIECE)))
    });
    let data: ByteStream = Box::pin(stream::iter(pieces));
    let path: SandboxPath = "file".parse()?;
    sandbox.write(&path, WriteOptions::default(), data).await?;
    Ok(())
}

async fn download(sandbox: &dyn Sandbox) -> Result<()> {
    let data = sandbox.read(&"file".parse()?, ByteRange::all()).await?;
    let add = |sum, piece: Bytes| async move { Ok(sum + piece.len()) };
    ensure!(data.try_fold(0, add).await? == BYTES);
    Ok(())
}

/// Part: runs commands at a constant rate across many sandboxes.
pub(crate) fn run_load(cantle: &str) -> Result<()> {
    let served = Served::start(Path::new(cantle))?;
    let answer = in_runtime(async {
        let client = Arc::new(Client::new(served.address));
        client.kill(&client.create().await?).await?;
        let before = served.memory_mb()?;
        let making = stream::iter(0..OPEN).map(|_| client.create());
        let making = making.buffer_unordered(AT_ONCE).map_ok(Arc::new);
        let made: Vec<_> = making.try_collect().await?;
        let each = (served.memory_mb()? - before) / OPEN as f64;

        let mut commands = JoinSet::new();
        let began = tokio::time::Instant::now();
        for (number, made) in (0..COMMANDS).zip(made.iter().cycle()) {
            let due = began + SPREAD_OVER / COMMANDS * number;
            tokio::time::sleep_until(due).await;
            let (client, made) = (Arc::clone(&client), Arc::clone(made));
            commands.spawn(async move {
                client.run(&made, "true").await?;
                // Measured from the scheduled time, to include queueing.
                Ok::<_, anyhow::Error>(due.elapsed().as_secs_f64() * 1000.0)
            });
        }
        let mut times = Vec::new();
        while let Some(done) = commands.join_next().await {
            times.push(done??);
        }
        let killing = stream::iter(&made).map(|made| client.kill(made));
        let () = killing.buffer_unordered(AT_ONCE).try_collect().await?;
        let middle = median(&mut times);
        let at = |share: f64| times.get((times.len() as f64 * share) as usize);
        Ok(json!({
            "median": middle,
            "p99": at(0.99),
            "longest": times.last(),
            "each_mb": each,
        }))
    })?;
    served.stop()?;
    println!("{answer}");
    Ok(())
}

/// Part: creates, uses and kills sandboxes, and counts leftovers.
pub(crate) fn run_cycles(cantle: &str) -> Result<()> {
    let served = Served::start(Path::new(cantle))?;
    let answer = in_runtime(async {
        cycles(&served, WARM_UP).await?;
        served.wait_until_idle().await?;
        let (before, before_mb) = (served.traces()?, served.memory_mb()?);
        let started = Instant::now();
        cycles(&served, CYCLES).await?;
        let each_ms = started.elapsed().as_secs_f64() * 1000.0 / CYCLES as f64;
        served.wait_until_idle().await?;
        let (after, after_mb) = (served.traces()?, served.memory_mb()?);
        let more = |of: fn(&server::Traces) -> usize| of(&after).saturating_sub(of(&before));
        Ok(json!({
            "each_ms": each_ms,
            "processes": more(|traces| traces.processes),
            "descriptors": more(|traces| traces.descriptors),
            "mounts": more(|traces| traces.mounts),
            "files": more(|traces| traces.files),
            "groups": more(|traces| traces.groups),
            "before_mb": before_mb,
            "memory": after_mb / before_mb,
        }))
    })?;
    served.stop()?;
    println!("{answer}");
    Ok(())
}

async fn cycles(served: &Served, count: usize) -> Result<()> {
    // Dropping the client closes its connections.
    let client = Client::new(served.address);
    let cycle = async |_| {
        let made = client.create().await?;
        client.run(&made, "true").await?;
        client.kill(&made).await
    };
    let all = stream::iter(0..count).map(cycle);
    all.buffer_unordered(AT_ONCE).try_collect().await
}

fn in_runtime(work: impl Future<Output = Result<Value>>) -> Result<Value> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?
        .block_on(work)
}
