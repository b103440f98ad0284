//! Concurrent sessions of one agent, with and without journals, and resuming a long run.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use cantle_agent::{Agent, ResumeOptions, RunStore, SessionOptions};
use cantle_core::event::{EventKind, RunStatus};
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use serde_json::{Value, json};

use crate::client_loop::{Server, agent, number, runtime};
use crate::process::{cpu_time, median, memory_mb, peak_memory_mb, run_part, run_part_in};
use crate::report::Report;

const SESSIONS: u32 = 1000;
const TURNS: u32 = 20;
const LATENCY: Duration = Duration::from_millis(50);
const LONG: u32 = 1000;

/// Builds a multi-threaded runtime with two workers.
fn threads() -> Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?)
}

/// Runs all sessions concurrently and prints the measurements; `kept` enables journals.
pub(crate) fn run(url: &str, kept: bool) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let store = RunStore::new(directory.path());
    let (wall, cpu, memory) = threads()?.block_on(async {
        let agent = agent(url, TURNS + 1)?;
        let before = memory_mb()?;
        let started = (Instant::now(), cpu_time());
        let mut sessions: FuturesUnordered<_> = (0..SESSIONS)
            .map(|_| one(&agent, kept.then(|| store.clone())))
            .collect();
        while let Some(ended) = sessions.next().await {
            ended?;
        }
        let spent = (started.0.elapsed(), cpu_time() - started.1);
        Ok::<_, anyhow::Error>((spent.0, spent.1, peak_memory_mb()? - before))
    })?;
    let result = json!({
        "wall_s": wall.as_secs_f64(),
        "cpu_s": cpu.as_secs_f64(),
        "session_kb": memory * 1000.0 / f64::from(SESSIONS),
    });
    println!("{result}");
    Ok(())
}

async fn one(agent: &Agent, store: Option<RunStore>) -> Result<()> {
    let mut options = SessionOptions::default();
    if let Some(store) = store {
        options = options.kept_in(store, Value::Null);
    }
    let session = agent.session(options).await?;
    let outcome = session.run("Do nothing, many times.")?.outcome().await;
    ensure!(
        outcome.status() == RunStatus::Finished,
        "{:?}",
        outcome.error
    );
    Ok(session.close().await?)
}

/// Writes a journal of many turns, and prints the time to resume it.
pub(crate) fn resume(url: &str) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let store = RunStore::new(directory.path());
    let resumed = runtime()?.block_on(async {
        let first = agent(url, LONG)?;
        let options = SessionOptions::default().kept_in(store.clone(), Value::Null);
        let session = first.session(options).await?;
        let outcome = session.run("Do nothing, many times.")?.outcome().await;
        ensure!(outcome.turns == LONG, "{:?}", outcome.error);
        session.close().await?;

        let more = agent(url, LONG + 2)?;
        let started = Instant::now();
        let options = ResumeOptions::default();
        let session = more.resume(&store, outcome.run, options).await?;
        let mut run = session.resume()?;
        let is_resumed = |kind: &EventKind| matches!(kind, EventKind::RunResumed { .. });
        while !is_resumed(&run.next().await.context("it ended")?.kind) {}
        let resumed = started.elapsed();
        run.cancel();
        run.outcome().await;
        session.close().await?;
        Ok(resumed)
    })?;
    println!("{}", json!({"resumed_s": resumed.as_secs_f64()}));
    Ok(())
}

/// Number of rounds, alternating with and without journals.
const ROUNDS: usize = 3;

/// Directory in memory, where `fdatasync` is free.
const MEMORY: &str = "/dev/shm";

/// Measurements of the rounds of one kind.
#[derive(Default)]
struct Rounds {
    wall: Vec<f64>,
    cpu: Vec<f64>,
    memory: Vec<f64>,
    server_cpu: Vec<f64>,
}

impl Rounds {
    /// Runs another round with journals, if any, in `directory`.
    fn run(&mut self, part: &str, directory: &Path) -> Result<()> {
        let turns = f64::from(SESSIONS * TURNS);
        let mut server = Server::start(TURNS, LATENCY)?;
        let result = run_part_in(directory, &[part, &server.url])?;
        self.server_cpu.push(server.stop()? * 1000.0 / turns);
        self.wall.push(number(&result, "wall_s"));
        self.cpu.push(number(&result, "cpu_s") * 1000.0 / turns);
        self.memory.push(number(&result, "session_kb"));
        Ok(())
    }

    fn report(&mut self, report: &mut Report, name: &str, goals: (f64, Option<f64>)) {
        let name = format!("{SESSIONS} sessions, {TURNS} turns each, journal {name}");
        let (wall, cpu) = goals;
        report.at_most(format!("{name}: time"), median(&mut self.wall), "s", wall);
        let what = format!("{name}: CPU per turn");
        match cpu {
            Some(goal) => report.at_most(what, median(&mut self.cpu), "ms", goal),
            None => report.add(what, median(&mut self.cpu), "ms"),
        }
        let what = format!("{name}: memory of a session");
        report.at_most(what, median(&mut self.memory), "KB", 120.0);
        let what = format!("{name}: the server's CPU per turn");
        report.add(what, median(&mut self.server_cpu), "ms");
    }
}

pub(crate) fn measure(report: &mut Report) -> Result<()> {
    let disk = std::env::temp_dir();
    let memory = Path::new(MEMORY);
    let (mut off, mut kept, mut in_memory) =
        (Rounds::default(), Rounds::default(), Rounds::default());
    for _ in 0..ROUNDS {
        off.run("sessions", &disk)?;
        kept.run("kept-sessions", &disk)?;
        if memory.is_dir() {
            in_memory.run("kept-sessions", memory)?;
        }
    }
    off.report(report, "off", (2.0, Some(0.12)));
    kept.report(report, "on", (6.0, None));
    if memory.is_dir() {
        report.at_most(
            format!("the same in {MEMORY}, where fdatasync is free: CPU beside no journal"),
            median(&mut in_memory.cpu) / median(&mut off.cpu),
            "x",
            1.2,
        );
    }
    let mut server = Server::start(LONG + 2, Duration::ZERO)?;
    let result = run_part(&["resume", &server.url])?;
    server.stop()?;
    report.at_most(
        format!("resume of a journal of {LONG} turns"),
        number(&result, "resumed_s") * 1000.0,
        "ms",
        100.0,
    );
    Ok(())
}
