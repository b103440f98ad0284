//! Agent loop: an agent with a no-op tool against the scripted server, over HTTP on loopback.

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use cantle_agent::{Agent, SessionOptions};
use cantle_clients::chat::ChatClient;
use cantle_core::event::RunStatus;
use cantle_core::tool::{DynTool, ToolOutput, ToolSpec};
use cantle_testkit::openai::{Script, ScriptedServer, ServerOptions, ToolCall, Turn};
use serde_json::{Value, json};

use crate::process::{cpu_time, part, peak_memory_mb, run_part};
use crate::report::Report;

const REPEATS: usize = 3;

/// Serves a script of `turns` no-op calls and a finish until stdin ends, then prints its CPU time.
pub(crate) fn serve(turns: usize, latency: Duration) -> Result<()> {
    runtime()?.block_on(async {
        let call = ToolCall::new("noop", json!({"n": 1}));
        let script = Script::new()
            .turns(turns - 1, Turn::tool(call).latency(latency))
            .turn(Turn::tool(ToolCall::new("finish", json!({"reason": "done"}))).latency(latency));
        let server = ScriptedServer::start(ServerOptions::new(script).without_record()).await?;
        println!("{}", server.url());
        let wait = || std::io::stdin().read_to_end(&mut Vec::new());
        tokio::task::spawn_blocking(wait).await??;
        println!("{}", cpu_time().as_secs_f64());
        Ok(())
    })
}

/// Runs an agent for `turns` turns and prints the measurements.
pub(crate) fn run(url: &str, turns: u32) -> Result<()> {
    let (wall, cpu) = runtime()?.block_on(async {
        let agent = agent(url, turns + 1)?;
        let session = agent.session(SessionOptions::default()).await?;
        let started = (Instant::now(), cpu_time());
        let outcome = session.run("Do nothing, many times.")?.outcome().await;
        let spent = (started.0.elapsed(), cpu_time() - started.1);
        ensure!(
            outcome.status() == RunStatus::Finished,
            "{:?}",
            outcome.error
        );
        ensure!(outcome.turns == turns, "{} turns", outcome.turns);
        session.close().await?;
        Ok(spent)
    })?;
    let (wall_s, cpu_s) = (wall.as_secs_f64(), cpu.as_secs_f64());
    println!(
        "{}",
        json!({"wall_s": wall_s, "cpu_s": cpu_s, "peak_mb": peak_memory_mb()?})
    );
    Ok(())
}

/// Builds an agent with a no-op tool.
pub(crate) fn agent(url: &str, max_turns: u32) -> Result<Agent> {
    let client = ChatClient::builder("bench").base_url(url).build()?;
    let noop = json!({"type": "object", "properties": {"n": {"type": "integer"}}});
    let noop = ToolSpec::new("noop", "Does nothing.", noop);
    let finish = json!({"type": "object", "properties": {"reason": {"type": "string"}}});
    let finish = ToolSpec::new("finish", "Ends the run.", finish);
    let ok = |_: Value, _| async { Ok(ToolOutput::text("ok")) };
    Ok(Agent::builder("bench", client)
        // The benchmark repeats an identical call.
        .tool(DynTool::from_schema(noop, ok).with_polls(true))
        .finish(DynTool::from_schema(finish, ok))
        .max_turns(max_turns)
        .turn_warning_threshold(0)
        .build()?)
}

pub(crate) fn measure(report: &mut Report) -> Result<()> {
    for turns in [10_u32, 100, 1000] {
        let mut best: Option<Value> = None;
        let mut server_cpu = f64::MAX;
        for _ in 0..REPEATS {
            let mut server = Server::start(turns, Duration::ZERO)?;
            let result = run_part(&["loop", &server.url, &turns.to_string()])?;
            server_cpu = server_cpu.min(server.stop()?);
            if best
                .as_ref()
                .is_none_or(|best| number(&result, "cpu_s") < number(best, "cpu_s"))
            {
                best = Some(result);
            }
        }
        let best = best.context("nothing was measured")?;
        let per_turn = |seconds: f64| seconds * 1000.0 / f64::from(turns);
        let cpu_s = number(&best, "cpu_s");
        let name = format!("loop, {turns} turns");
        report.add(
            format!("{name}: time per turn"),
            per_turn(number(&best, "wall_s")),
            "ms",
        );
        match turns {
            100 => {
                report.at_most(format!("{name}: CPU per turn"), per_turn(cpu_s), "ms", 0.15);
                report.at_most(
                    format!("{name}: peak memory"),
                    number(&best, "peak_mb"),
                    "MB",
                    15.0,
                );
            }
            1000 => {
                report.at_most(format!("{name}: CPU in all"), cpu_s, "s", 0.4);
                report.at_most(
                    format!("{name}: peak memory"),
                    number(&best, "peak_mb"),
                    "MB",
                    30.0,
                );
            }
            _ => report.add(format!("{name}: CPU per turn"), per_turn(cpu_s), "ms"),
        }
        report.add(
            format!("{name}: the server's CPU per turn"),
            per_turn(server_cpu),
            "ms",
        );
    }
    Ok(())
}

pub(crate) fn number(value: &Value, key: &str) -> f64 {
    value.get(key).and_then(Value::as_f64).unwrap_or(f64::NAN)
}

/// Scripted server in a separate process.
pub(crate) struct Server {
    child: Child,
    lines: BufReader<std::process::ChildStdout>,
    pub(crate) url: String,
}

impl Server {
    pub(crate) fn start(turns: u32, latency: Duration) -> Result<Self> {
        let latency = latency.as_millis().to_string();
        let mut child = part(&["serve", &turns.to_string(), &latency])?
            .stdin(Stdio::piped())
            .spawn()?;
        let mut lines = BufReader::new(child.stdout.take().context("no output")?);
        let mut url = String::new();
        lines.read_line(&mut url)?;
        Ok(Self {
            child,
            lines,
            url: url.trim().to_owned(),
        })
    }

    /// Stops the server and returns its CPU time in seconds.
    pub(crate) fn stop(&mut self) -> Result<f64> {
        drop(self.child.stdin.take());
        let mut line = String::new();
        self.lines.read_line(&mut line)?;
        self.child.wait()?;
        Ok(line.trim().parse()?)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Builds a single-threaded runtime.
pub(crate) fn runtime() -> Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?)
}
