//! What a command leaves running: it delays no answer, and is killed or kept as the request says.

use cantle_core::sandbox::{Background, ExitStatus, SandboxExt as _, SpawnRequest};
use tokio::time::Instant;

use super::super::check::{Checked, Failure, ensure, equal, prompt, same_bytes, within};
use super::super::suite::Case;
use super::bench::{Bench, Harness, PATIENCE, SOON, Token, path, until, whole};
use super::{case, host};

pub(super) fn cases<'b>() -> Vec<Case<Harness<'b>>> {
    vec![
        case!(a_background_child_delays_no_answer),
        case!(a_background_child_is_killed),
        case!(a_background_daemon_is_killed),
        case!(a_kept_child_delays_no_answer).optional(),
        case!(a_kept_child_runs_on_and_is_listed).optional(),
        case!(a_kept_daemon_is_listed).optional(),
        case!(a_kept_process_ends_with_the_sandbox).optional(),
        case!(many_commands_leave_no_zombie).optional(),
    ]
}

/// Leaves a process that holds the pipes of the output.
fn holder(token: &Token) -> String {
    format!("{} & echo started", token.sleep())
}

/// Leaves a process that no longer belongs to the command by any visible tie.
fn daemon(token: &Token) -> String {
    format!(
        "( setsid {} </dev/null >/dev/null 2>&1 & ); echo started",
        token.sleep()
    )
}

async fn answers_at_once(bench: &Bench<'_>, background: Background, token: &Token) -> Checked {
    let request = SpawnRequest::shell(holder(token)).with_background(background);
    let started = Instant::now();
    let run = within("the answer", SOON, bench.sandbox.run(request));
    let output = run.await??;
    prompt("the answer", started, SOON)?;
    equal("the end", output.exit.status, ExitStatus::Code(0))?;
    same_bytes("output", &whole(&output.stdout)?, b"started\n")
}

async fn a_background_child_delays_no_answer(bench: &Bench<'_>) -> Checked {
    answers_at_once(bench, Background::Kill, &Token::new()).await
}

async fn a_kept_child_delays_no_answer(bench: &Bench<'_>) -> Checked {
    answers_at_once(bench, Background::Keep, &Token::new()).await
}

async fn a_background_child_is_killed(bench: &Bench<'_>) -> Checked {
    let token = Token::new();
    is_killed(bench, &holder(&token), &token).await
}

async fn a_background_daemon_is_killed(bench: &Bench<'_>) -> Checked {
    let token = Token::new();
    is_killed(bench, &daemon(&token), &token).await
}

async fn is_killed(bench: &Bench<'_>, script: &str, token: &Token) -> Checked {
    let output = within("the answer", SOON, bench.sh(script)).await??;
    equal("what is left running", output.exit.background, vec![])?;
    bench.must_be_gone(token).await
}

/// How a kept process is started, by the script `logger` and its argument.
#[derive(Clone, Copy)]
enum Start {
    Child,
    Daemon,
}

/// Runs a command that leaves one process, which writes to the file `log`, and returns its process
/// id.
async fn keep(bench: &Bench<'_>, start: Start, token: &Token) -> Checked<u32> {
    // A line fifty times a second, without a child of its own that would be listed too.
    let logger = "exec 3<>quiet; while :; do echo tick; read -t 0.02 -u 3; done > log";
    let logger_file = path("logger")?;
    bench
        .sandbox
        .write_bytes(&logger_file, logger.into())
        .await?;
    let logger = format!("bash logger {}", token.as_str());
    let start = match start {
        Start::Child => format!("{logger} &"),
        Start::Daemon => format!("( setsid {logger} </dev/null >/dev/null 2>&1 & );"),
    };
    // Not before it is what it will be: until then its command line is the shell's, or none.
    let script = format!("mkfifo quiet; {start} until [ -s log ]; do sleep 0.01; done");
    let request = SpawnRequest::shell(script).with_background(Background::Keep);
    let output = bench.sandbox.run(request).await?;
    equal("the end", output.exit.status, ExitStatus::Code(0))?;
    let [listed] = &output.exit.background[..] else {
        return Err(Failure::new(format!(
            "one process is left running; listed are {:?}",
            output.exit.background
        )));
    };
    ensure!(
        listed.command.contains(&logger),
        "the command line of `{logger}` is said to be `{}`",
        listed.command
    );
    bench.must_run(token).await?;
    Ok(listed.pid)
}

async fn a_kept_child_runs_on_and_is_listed(bench: &Bench<'_>) -> Checked {
    let [token, other] = [Token::new(), Token::new()];
    let pid = keep(bench, Start::Child, &token).await?;

    // Another command comes and goes, and this one's child still writes.
    bench.sh(&holder(&other)).await?;
    bench.must_be_gone(&other).await?;
    let log = path("log")?;
    let before = bench.sandbox.stat(&log).await?.size_bytes;
    let grows = until(PATIENCE, async || {
        Ok(bench.sandbox.stat(&log).await?.size_bytes > before)
    });
    ensure!(grows.await?, "a kept process no longer writes");

    bench.stdout(&format!("kill {pid}")).await?;
    bench.must_be_gone(&token).await
}

async fn a_kept_daemon_is_listed(bench: &Bench<'_>) -> Checked {
    let token = Token::new();
    let pid = keep(bench, Start::Daemon, &token).await?;
    bench.stdout(&format!("kill {pid}")).await?;
    bench.must_be_gone(&token).await
}

async fn a_kept_process_ends_with_the_sandbox(bench: &Bench<'_>) -> Checked {
    bench.require_host_visible()?;
    let token = Token::new();
    keep(bench, Start::Daemon, &token).await?;
    within("the end of `close`", SOON, bench.sandbox.close()).await??;
    bench.must_be_gone(&token).await
}

async fn many_commands_leave_no_zombie(bench: &Bench<'_>) -> Checked {
    bench.require_host_visible()?;
    let before = host::zombies()?;
    for _ in 0..10 {
        bench.sh("true & ( setsid true & ) ; exit 1").await?;
        drop(bench.sandbox.spawn(SpawnRequest::shell("sleep 60")).await?);
    }
    // Others may end meanwhile and be waited for a little later; ours must be by then too.
    let mut left = host::zombies()?;
    let reaped = until(SOON, async || {
        let now = host::zombies()?;
        left.retain(|pid| now.contains(pid) && !before.contains(pid));
        Ok(left.is_empty())
    });
    ensure!(reaped.await?, "processes nobody waited for: {left:?}");
    Ok(())
}
