//! Forced end of commands: timeout, cancellation and dropped handles.
//!
//! Each of them kills all processes that the command started, including those that left its process
//! group, and the caller gets the result within a second.

use cantle_core::sandbox::PtySize;

use super::prelude::*;

/// Long enough to start everything on a slow machine; includes the grace.
const LIMIT: Duration = Duration::from_secs(4);
const GRACE: Duration = Duration::from_millis(200);
const TIMED_OUT: ExitStatus = ExitStatus::TimedOut { limit: LIMIT };

cases! { cases for Harness:
    // The longest case starts first.
    the_grace_follows_the_timeout.waits(),
    timeout_kills_the_command => timeout_kills(PLAIN).waits(),
    timeout_kills_a_child_that_left_the_process_group => timeout_kills(LEFT_THE_GROUP).waits(),
    timeout_kills_a_daemon => timeout_kills(DAEMON).waits(),
    timeout_kills_a_grandchild_that_holds_the_pipe => timeout_kills(HOLDS_THE_PIPE).waits(),
    timeout_kills_a_stopped_command => timeout_kills(STOPPED).waits(),
    timeout_kills_a_command_that_ignores_term => timeout_kills(IGNORES_TERM).waits(),
    timeout_keeps_the_output_so_far.waits(),
    timeout_ends_a_command_with_unread_output.waits(),
    timeout_kills_kept_background_processes.waits().optional(),
    timeout_ends_a_command_in_a_terminal.waits().optional(),
    timeout_leaves_other_commands_alone.waits(),
    a_command_has_the_whole_timeout.waits(),
    cancellation_kills_everything,
    cancellation_before_the_start_ends_at_once,
    dropping_the_process_kills_everything,
    dropping_a_run_kills_everything,
}

// Arrangements of processes that are hard to kill. Each script starts `$sleep`, prints `ready` and does
// not exit by itself.
const PLAIN: &str = "echo ready; exec $sleep";
const LEFT_THE_GROUP: &str = "setsid $sleep & echo ready; wait";
const DAEMON: &str = "( setsid $sleep </dev/null >/dev/null 2>&1 & ); echo ready; sleep 60";
const HOLDS_THE_PIPE: &str = "( $sleep & ); echo ready; sleep 60";
const STOPPED: &str = "$sleep & echo ready; kill -STOP $$; wait";
const IGNORES_TERM: &str = "trap '' TERM; $sleep & echo ready; wait; sleep 60";

fn request(script: &str, token: &Token) -> SpawnRequest {
    SpawnRequest::shell(script.replace("$sleep", &token.sleep())).with_grace(GRACE)
}

/// Starts a script and waits until its process runs.
async fn start(
    bench: &Bench<'_>,
    request: SpawnRequest,
    token: &Token,
) -> Checked<(Box<dyn Process>, OutputStream)> {
    let started = bench.start(request, "ready").await?;
    bench.must_run(token).await?;
    Ok(started)
}

/// Checks that the command ends by the timeout, soon after it.
async fn must_time_out(process: &mut dyn Process, limit: Duration) -> Checked {
    let wait = within(
        "the exit after a timeout",
        limit + PROMPT_LIMIT,
        process.wait(),
    );
    equal(
        "the exit",
        wait.await??.status,
        ExitStatus::TimedOut { limit },
    )
}

/// Starts a script with a timeout, and checks that the timeout ends it and its process.
async fn times_out(bench: &Bench<'_>, request: SpawnRequest, token: &Token) -> Checked {
    let (mut process, _output) = start(bench, request.with_timeout(LIMIT), token).await?;
    must_time_out(&mut *process, LIMIT).await?;
    bench.must_be_gone(token).await
}

async fn timeout_kills(bench: &Bench<'_>, script: &str) -> Checked {
    let token = Token::new();
    let request = request(script, &token).with_timeout(LIMIT);
    let started = Instant::now();
    let (mut process, _output) = start(bench, request, &token).await?;
    let ended = must_time_out(&mut *process, LIMIT).await;
    ensure_prompt("the exit after a timeout", started, LIMIT + PROMPT_LIMIT)?;
    ended?;
    bench.must_be_gone(&token).await
}

async fn timeout_keeps_the_output_so_far(bench: &Bench<'_>) -> Checked {
    let script = "echo out; echo err >&2; sleep 60 & printf partial; wait";
    let request = SpawnRequest::shell(script)
        .with_timeout(LIMIT)
        .with_grace(GRACE);
    let run = bench.run(request);
    let output = within("the output after a timeout", LIMIT + PROMPT_LIMIT, run).await??;
    equal("the exit", output.exit.status, TIMED_OUT)?;
    same_bytes("stdout", &whole(&output.stdout)?, b"out\npartial")?;
    same_bytes("stderr", &whole(&output.stderr)?, b"err\n")
}

async fn timeout_ends_a_command_with_unread_output(bench: &Bench<'_>) -> Checked {
    let request = SpawnRequest::argv(["yes"]).with_timeout(LIMIT);
    let mut process = bench.spawn(request.with_grace(GRACE)).await?;
    // Taken but not read, so the command blocks.
    let _output = take_output(&mut *process)?;
    must_time_out(&mut *process, LIMIT).await
}

async fn timeout_kills_kept_background_processes(bench: &Bench<'_>) -> Checked {
    let token = Token::new();
    let request = request(DAEMON, &token).with_background(Background::Keep);
    times_out(bench, request, &token).await
}

async fn timeout_ends_a_command_in_a_terminal(bench: &Bench<'_>) -> Checked {
    let token = Token::new();
    let (rows, columns) = (24, 80);
    let request = request(IGNORES_TERM, &token).with_pty(PtySize { rows, columns });
    times_out(bench, request, &token).await
}

async fn timeout_leaves_other_commands_alone(bench: &Bench<'_>) -> Checked {
    let [one, other] = [Token::new(), Token::new()];
    let _running = start(bench, request(PLAIN, &other), &other).await?;
    times_out(bench, request(LEFT_THE_GROUP, &one), &one).await?;
    let runs = bench.is_running(&other).await?;
    ensure!(runs, "the timeout of one command killed another one");
    Ok(())
}

async fn the_grace_follows_the_timeout(bench: &Bench<'_>) -> Checked {
    let token = Token::new();
    let script = "trap 'sleep 0.3; echo cleaned; exit 3' TERM; $sleep & echo ready; wait";
    let request = request(script, &token)
        .with_timeout(LIMIT)
        .with_grace(PROMPT_LIMIT);
    let output = bench.run(request).await?;
    equal("the exit", output.exit.status, TIMED_OUT)?;
    same_bytes("stdout", &whole(&output.stdout)?, b"ready\ncleaned\n")?;
    bench.must_be_gone(&token).await
}

async fn a_command_has_the_whole_timeout(bench: &Bench<'_>) -> Checked {
    const LONG: Duration = Duration::from_secs(10);
    let request = SpawnRequest::shell("sleep 6; echo done")
        .with_timeout(LONG)
        .with_grace(LONG * 2);
    let output = bench.run(request).await?;
    let status = output.exit.status;
    equal("a command of 6 s in 10 s", status, ExitStatus::Code(0))
}

async fn cancellation_kills_everything(bench: &Bench<'_>) -> Checked {
    for_each_arrangement(async |script, token: &Token| {
        let request = request(script, token);
        let cancellation = request.cancellation.clone();
        let (mut process, _output) = start(bench, request, token).await?;
        cancellation.cancel();
        let limit = GRACE + PROMPT_LIMIT;
        let exit = within("the exit after a cancellation", limit, process.wait()).await??;
        equal("the exit", exit.status, ExitStatus::Cancelled)?;
        bench.must_be_gone(token).await
    })
    .await
}

async fn cancellation_before_the_start_ends_at_once(bench: &Bench<'_>) -> Checked {
    let token = Token::new();
    let request = SpawnRequest::shell(token.sleep()).with_grace(GRACE);
    request.cancellation.cancel();
    let run = bench.run(request);
    // Refusing the command and killing it after its start are both correct.
    if let Ok(output) = within("the exit", GRACE + PROMPT_LIMIT, run).await? {
        equal("the exit", output.exit.status, ExitStatus::Cancelled)?;
    }
    bench.must_be_gone(&token).await
}

async fn dropping_the_process_kills_everything(bench: &Bench<'_>) -> Checked {
    for_each_arrangement(async |script, token: &Token| {
        drop(start(bench, request(script, token), token).await?);
        bench.must_be_gone(token).await
    })
    .await
}

async fn dropping_a_run_kills_everything(bench: &Bench<'_>) -> Checked {
    for_each_arrangement(async |script, token: &Token| {
        let run = bench.run(request(script, token));
        let mut run = Box::pin(run);
        let early = timeout(PROMPT_LIMIT, async {
            tokio::select! {
                _ = &mut run => Ok(false),
                started = bench.must_run(token) => started.map(|()| true),
            }
        });
        let started = early.await.unwrap_or(Ok(true))?;
        ensure!(started, "the command exited by itself");
        drop(run);
        bench.must_be_gone(token).await
    })
    .await
}

/// Runs `check` for all arrangements concurrently.
async fn for_each_arrangement(check: impl AsyncFn(&str, &Token) -> Checked) -> Checked {
    let all = [
        PLAIN,
        LEFT_THE_GROUP,
        DAEMON,
        HOLDS_THE_PIPE,
        STOPPED,
        IGNORES_TERM,
    ];
    let check = &check;
    try_join_all(all.map(async |script| check(script, &Token::new()).await)).await?;
    Ok(())
}
