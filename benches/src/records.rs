//! The command on kept runs: listing them, the page of a long one, and the changes to a directory.

use std::fs;
use std::io::Read as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use cantle_agent::{RunStore, SessionOptions};
use cantle_core::event::RunStatus;
use cantle_testkit::openai::{Script, ScriptedServer, ServerOptions, ToolCall, Turn};
use serde_json::{Value, json};

use crate::client_loop::{Server, agent, runtime};
use crate::process::{median, run_part};
use crate::report::Report;

const REPEATS: usize = 3;
const RUNS: u32 = 1_000;
/// A turn has four events.
const LONG_TURNS: u32 = 5_000;
/// Directories, and files in each. One file of each is changed.
const DIRECTORIES: usize = 100;
const FILES: usize = 100;
const CHANGE: &str = "for d in d*; do echo changed >> $d/f50; done";

/// Keeps runs of so many turns in a store.
pub(crate) fn keep(directory: &str, url: &str, runs: u32, turns: u32) -> Result<()> {
    runtime()?.block_on(async {
        let store = RunStore::new(directory);
        let agent = agent(url, turns + 1)?;
        for _ in 0..runs {
            let options = SessionOptions::default().kept_in(store.clone(), Value::Null);
            let session = agent.session(options).await?;
            let outcome = session.run("Do nothing, many times.")?.outcome().await;
            let error = &outcome.error;
            ensure!(outcome.status() == RunStatus::Finished, "{error:?}");
            session.close().await?;
        }
        println!("{}", json!({}));
        Ok(())
    })
}

pub(crate) fn measure(report: &mut Report, cantle: &Path) -> Result<()> {
    lists(report, cantle)?;
    prompts(report, cantle)?;
    pages(report, cantle)?;
    changes(report, cantle)
}

/// Keeps runs in a new state directory.
fn kept(runs: u32, turns: u32) -> Result<tempfile::TempDir> {
    let state = tempfile::tempdir()?;
    let store = state.path().join("runs").display().to_string();
    let mut server = Server::start(turns, std::time::Duration::ZERO)?;
    run_part(&[
        "keep-runs",
        &store,
        &server.url,
        &runs.to_string(),
        &turns.to_string(),
    ])?;
    server.stop()?;
    Ok(state)
}

fn lists(report: &mut Report, cantle: &Path) -> Result<()> {
    let state = kept(RUNS, 1)?;
    let time = timed(REPEATS, || {
        succeed(command(cantle, state.path()).args(["runs", "list"]))
    })?;
    report.at_most(
        format!("`cantle runs list` with {RUNS} runs"),
        time,
        "ms",
        100.0,
    );
    Ok(())
}

fn pages(report: &mut Report, cantle: &Path) -> Result<()> {
    let state = kept(1, LONG_TURNS)?;
    let show = |format: &str| {
        let mut command = command(cantle, state.path());
        command.args(["runs", "show", "last", "--format", format]);
        succeed(&mut command)
    };
    let raw = show("json")?.stdout;
    let events = raw.iter().filter(|byte| **byte == b'\n').count();
    let page = show("html")?.stdout;
    let time = timed(3, || show("html"))?;
    report.at_most(
        format!("page of a run with {events} events"),
        time,
        "ms",
        1000.0,
    );
    let share = 100.0 * page.len() as f64 / raw.len() as f64;
    report.at_most("the same: size relative to its events", share, "%", 2.0);
    let empty = painted(state.path(), b"<!doctype html>")?;
    let time = painted(state.path(), &page)? - empty;
    let name = "the same: a screenshot of it, longer than of an empty page";
    report.at_most(name, time, "ms", 1000.0);
    Ok(())
}

/// Returns the time in milliseconds until Chromium has painted a page.
fn painted(directory: &Path, page: &[u8]) -> Result<f64> {
    let file = directory.join("page.html");
    fs::write(&file, page)?;
    timed(REPEATS, || {
        let mut chromium = Command::new("chromium");
        chromium
            .args(["--headless", "--no-sandbox", "--disable-gpu"])
            .arg(format!(
                "--user-data-dir={}",
                directory.join("profile").display()
            ))
            .arg(format!(
                "--screenshot={}",
                directory.join("page.png").display()
            ))
            .arg(format!("file://{}", file.display()));
        succeed(&mut chromium)
    })
}

/// Measures how long the prompt of a conversation takes to appear at a terminal.
fn prompts(report: &mut Report, cantle: &Path) -> Result<()> {
    let state = tempfile::tempdir()?;
    let chat = format!(
        "exec '{}' chat --base-url http://127.0.0.1:9 --model bench",
        cantle.display()
    );
    let prompt = |line: &str| {
        let mut terminal = command(Path::new("script"), state.path());
        terminal
            .args(["--quiet", "--return", "--command", line, "/dev/null"])
            .env("TERM", "xterm")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut terminal = terminal.spawn().context("script does not start")?;
        let mut stdout = terminal.stdout.take().context("no output")?;
        let (mut shown, mut chunk) = (Vec::new(), [0; 4096]);
        while !shown.ends_with(b"> ") && !shown.windows(3).any(|it| it == b"> \r") {
            let count = stdout.read(&mut chunk)?;
            ensure!(
                count > 0,
                "no prompt in {:?}",
                String::from_utf8_lossy(&shown)
            );
            shown.extend_from_slice(chunk.get(..count).unwrap_or_default());
        }
        terminal.kill()?;
        terminal.wait()?;
        Ok(())
    };
    let terminal = timed(REPEATS, || prompt("printf '> '; exec cat"))?;
    let time = timed(REPEATS, || prompt(&chat))? - terminal;
    report.at_most(
        "`cantle chat`: first prompt, beyond the terminal's",
        time,
        "ms",
        50.0,
    );
    Ok(())
}

fn changes(report: &mut Report, cantle: &Path) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let (tree, changed) = (
        directory.path().join("tree"),
        directory.path().join("changed"),
    );
    for parent in [&tree, &changed] {
        for at in 0..DIRECTORIES {
            let parent = parent.join(format!("d{at}"));
            fs::create_dir_all(&parent)?;
            for file in 0..FILES {
                let text = format!("line {file} of {at}\n").repeat(50);
                fs::write(parent.join(format!("f{file}")), text)?;
            }
        }
    }
    succeed(
        Command::new("sh")
            .args(["-c", CHANGE])
            .current_dir(&changed),
    )?;
    let threads = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let call = Turn::tool(ToolCall::new("code_exec", json!({"cmd": CHANGE})));
    let script = ServerOptions::new(Script::new().turn(call).repeat_last());
    let server = threads.block_on(ScriptedServer::start(script))?;
    let state = tempfile::tempdir()?;
    let mut run = command(cantle, state.path());
    run.args([
        "run",
        "--base-url",
        &server.url(),
        "--model",
        "bench",
        "--max-turns",
        "1",
    ])
    .args(["--no-agents-md", "Change it", "--workdir"])
    .arg(&tree);
    // Unfinished, so that each comparison is a new one.
    let status = run.output()?.status;
    ensure!(status.code() == Some(3), "the run ended with {status}");

    let apply = |how: &[&str]| {
        let mut command = command(cantle, state.path());
        succeed(command.args(["runs", "apply", "last"]).args(how))
    };
    let lines = String::from_utf8(apply(&["--diff"])?.stdout)?;
    let patched = lines
        .lines()
        .filter(|line| line.starts_with("+changed"))
        .count();
    ensure!(patched == DIRECTORIES, "{patched} files differ");
    let ours = timed(REPEATS, || apply(&["--diff"]))?;
    let git = timed(REPEATS, || {
        let mut git = Command::new("git");
        git.args(["diff", "--no-index"]).arg(&tree).arg(&changed);
        git.output().context("git does not start")
    })?;
    report.at_most(
        "diff of 10,000 files, 100 changed, relative to git",
        ours / git,
        "×",
        3.0,
    );
    apply(&[])?;
    let mut times = Vec::new();
    for _ in 0..REPEATS {
        apply(&["--revert"])?;
        times.push(timed(1, || apply(&[]))?);
    }
    report.at_most("applying these 100", median(&mut times), "ms", 200.0);
    Ok(())
}

/// Returns the command with a state directory of its own.
fn command(cantle: &Path, state: &Path) -> Command {
    let mut command = Command::new(cantle);
    command
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env("CANTLE_STATE_DIR", state)
        .env("CANTLE_API_KEY", "sk-bench")
        .current_dir(state)
        .stdin(Stdio::null());
    command
}

fn succeed(command: &mut Command) -> Result<Output> {
    let output = command.output()?;
    let error = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?} failed: {error}");
    Ok(output)
}

/// Returns the median time of a call in milliseconds.
fn timed<T>(repeats: usize, mut call: impl FnMut() -> Result<T>) -> Result<f64> {
    let mut times = Vec::new();
    for _ in 0..repeats {
        let started = Instant::now();
        call()?;
        times.push(started.elapsed().as_secs_f64() * 1000.0);
    }
    Ok(median(&mut times))
}
