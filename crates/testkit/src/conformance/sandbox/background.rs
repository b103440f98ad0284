//! Background processes: they don't delay the exit and are killed or kept as requested.

use super::prelude::*;

cases! { cases for Harness:
    a_background_child_does_not_delay_the_exit => exits_at_once(Background::Kill),
    a_background_child_is_killed => is_killed(holder),
    a_background_daemon_is_killed => is_killed(daemon),
    a_kept_child_does_not_delay_the_exit => exits_at_once(Background::Keep).optional(),
    a_kept_child_runs_on_and_is_listed.optional(),
    a_kept_daemon_is_listed.optional(),
    a_kept_process_ends_with_the_sandbox.optional(),
    many_commands_leave_no_zombie.optional(),
}

/// Script that leaves a process holding the output pipes.
fn holder(token: &Token) -> String {
    format!("{} & echo started", token.sleep())
}

/// Script that leaves a process in its own session, reparented and without the output pipes.
fn daemon(token: &Token) -> String {
    format!(
        "( setsid {} </dev/null >/dev/null 2>&1 & ); echo started",
        token.sleep()
    )
}

async fn exits_at_once(bench: &Bench<'_>, background: Background) -> Checked {
    let request = SpawnRequest::shell(holder(&Token::new())).with_background(background);
    let started = Instant::now();
    let run = within("the exit", PROMPT_LIMIT, bench.run(request));
    let output = run.await??;
    ensure_prompt("the exit", started, PROMPT_LIMIT)?;
    equal("the exit status", output.exit.status, ExitStatus::Code(0))?;
    same_bytes("output", &whole(&output.stdout)?, b"started\n")
}

async fn is_killed(bench: &Bench<'_>, script: fn(&Token) -> String) -> Checked {
    let token = Token::new();
    let output = within("the exit", PROMPT_LIMIT, bench.sh(&script(&token))).await??;
    equal("background processes", output.exit.background, vec![])?;
    bench.must_be_gone(&token).await
}

// Scripts that leave `$logger` running.
const CHILD: &str = "$logger &";
const DAEMON: &str = "( setsid $logger </dev/null >/dev/null 2>&1 & );";

/// Runs a script that leaves one process writing to the file `log`, and returns its process id.
async fn keep(bench: &Bench<'_>, script: &str, token: &Token) -> Checked<u32> {
    // Writes a line fifty times a second without a child process, which would be listed too.
    let logger = "exec 3<>quiet; while :; do echo tick; read -t 0.02 -u 3; done > log";
    let logger_file = path("logger")?;
    bench.write_bytes(&logger_file, logger.into()).await?;
    let logger = format!("bash logger {}", token.as_str());
    let start = script.replace("$logger", &logger);
    // Waits for the log: before `exec`, the command line is the shell's or empty.
    let script = format!("mkfifo quiet; {start} until [ -s log ]; do sleep 0.01; done");
    let request = SpawnRequest::shell(script).with_background(Background::Keep);
    let output = bench.run(request).await?;
    equal("the exit status", output.exit.status, ExitStatus::Code(0))?;
    let [listed] = &output.exit.background[..] else {
        return Err(Failure::new(format!(
            "one background process was expected, got {:?}",
            output.exit.background
        )));
    };
    ensure!(
        listed.command.contains(&logger),
        "the command line of `{logger}` is reported as `{}`",
        listed.command
    );
    bench.must_run(token).await?;
    Ok(listed.pid)
}

async fn a_kept_child_runs_on_and_is_listed(bench: &Bench<'_>) -> Checked {
    let [token, other] = [Token::new(), Token::new()];
    let pid = keep(bench, CHILD, &token).await?;

    // Another command's end does not affect it.
    bench.sh(&holder(&other)).await?;
    bench.must_be_gone(&other).await?;
    let log = path("log")?;
    let before = bench.stat(&log).await?.size_bytes;
    let grows = until(STEP_TIMEOUT, async || {
        Ok(bench.stat(&log).await?.size_bytes > before)
    });
    ensure!(grows.await?, "a kept process no longer writes");

    bench.stdout(&format!("kill {pid}")).await?;
    bench.must_be_gone(&token).await
}

async fn a_kept_daemon_is_listed(bench: &Bench<'_>) -> Checked {
    let token = Token::new();
    let pid = keep(bench, DAEMON, &token).await?;
    bench.stdout(&format!("kill {pid}")).await?;
    bench.must_be_gone(&token).await
}

async fn a_kept_process_ends_with_the_sandbox(bench: &Bench<'_>) -> Checked {
    bench.require_host_visible()?;
    let token = Token::new();
    keep(bench, DAEMON, &token).await?;
    within("the end of `close`", PROMPT_LIMIT, bench.close()).await??;
    bench.must_be_gone(&token).await
}

async fn many_commands_leave_no_zombie(bench: &Bench<'_>) -> Checked {
    bench.require_host_visible()?;
    let before = host::zombies()?;
    for _ in 0..10 {
        bench.sh("true & ( setsid true & ) ; exit 1").await?;
        drop(bench.spawn(SpawnRequest::shell("sleep 60")).await?);
    }
    // Zombies of concurrent tests may appear too; all must be reaped within the limit.
    let mut left = host::zombies()?;
    let reaped = until(PROMPT_LIMIT, async || {
        let now = host::zombies()?;
        left.retain(|pid| now.contains(pid) && !before.contains(pid));
        Ok(left.is_empty())
    });
    ensure!(reaped.await?, "unreaped processes: {left:?}");
    Ok(())
}
