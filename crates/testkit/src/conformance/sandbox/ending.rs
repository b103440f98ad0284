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
    the_grace_is_part_of_the_timeout.waits(),
    timeout_kills_the_command => timeout_kills(ProcessShape::Plain).waits(),
    timeout_kills_a_child_that_left_the_process_group
        => timeout_kills(ProcessShape::LeftTheGroup).waits(),
    timeout_kills_a_daemon => timeout_kills(ProcessShape::Daemon).waits(),
    timeout_kills_a_grandchild_that_holds_the_pipe
        => timeout_kills(ProcessShape::HoldsThePipe).waits(),
    timeout_kills_a_stopped_command => timeout_kills(ProcessShape::Stopped).waits(),
    timeout_kills_a_command_that_ignores_term => timeout_kills(ProcessShape::IgnoresTerm).waits(),
    timeout_keeps_the_output_so_far.waits(),
    timeout_ends_a_command_with_unread_output.waits(),
    timeout_kills_kept_background_processes.waits().optional(),
    timeout_ends_a_command_in_a_terminal.waits().optional(),
    timeout_leaves_other_commands_alone.waits(),
    a_grace_longer_than_the_timeout_is_shortened.waits(),
    cancellation_kills_everything,
    cancellation_before_the_start_ends_at_once,
    dropping_the_process_kills_everything,
    dropping_a_run_kills_everything,
}

/// Process arrangement that is hard to kill. Its script starts the token's `sleep`, prints `ready`
/// and does not exit by itself.
#[derive(Clone, Copy)]
enum ProcessShape {
    Plain,
    LeftTheGroup,
    Daemon,
    HoldsThePipe,
    Stopped,
    IgnoresTerm,
}

impl ProcessShape {
    const ALL: [Self; 6] = [
        Self::Plain,
        Self::LeftTheGroup,
        Self::Daemon,
        Self::HoldsThePipe,
        Self::Stopped,
        Self::IgnoresTerm,
    ];

    fn script(self, token: &Token) -> String {
        let sleep = token.sleep();
        let ready = "echo ready";
        match self {
            Self::Plain => format!("{ready}; exec {sleep}"),
            Self::LeftTheGroup => format!("setsid {sleep} & {ready}; wait"),
            Self::Daemon => {
                format!("( setsid {sleep} </dev/null >/dev/null 2>&1 & ); {ready}; sleep 60")
            }
            Self::HoldsThePipe => format!("( {sleep} & ); {ready}; sleep 60"),
            Self::Stopped => format!("{sleep} & {ready}; kill -STOP $$; wait"),
            Self::IgnoresTerm => format!("trap '' TERM; {sleep} & {ready}; wait; sleep 60"),
        }
    }
}

/// Starts the script and waits until its process runs.
async fn start(
    bench: &Bench<'_>,
    shape: ProcessShape,
    token: &Token,
    adapt: impl FnOnce(SpawnRequest) -> SpawnRequest,
) -> Checked<(Box<dyn Process>, OutputStream)> {
    let request = adapt(SpawnRequest::shell(shape.script(token)).with_grace(GRACE));
    let mut process = bench.spawn(request).await?;
    let mut output = take_output(&mut *process)?;
    read_until(&mut output, "ready").await?;
    bench.must_run(token).await?;
    Ok((process, output))
}

/// Waits for the timeout and checks that the token's process is gone.
async fn times_out(bench: &Bench<'_>, process: &mut dyn Process, token: &Token) -> Checked {
    let exit = within(
        "the exit after a timeout",
        LIMIT + PROMPT_LIMIT,
        process.wait(),
    )
    .await??;
    equal("the exit", exit.status, TIMED_OUT)?;
    bench.must_be_gone(token).await
}

async fn timeout_kills(bench: &Bench<'_>, shape: ProcessShape) -> Checked {
    let token = Token::new();
    let started = Instant::now();
    let (mut process, _output) =
        start(bench, shape, &token, |request| request.with_timeout(LIMIT)).await?;
    let ended = times_out(bench, &mut *process, &token).await;
    ensure_prompt("the exit after a timeout", started, LIMIT + PROMPT_LIMIT)?;
    ended
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
    let request = SpawnRequest::argv(["yes"])
        .with_timeout(LIMIT)
        .with_grace(GRACE);
    let mut process = bench.spawn(request).await?;
    // Taken but not read, so the command blocks.
    let _output = take_output(&mut *process)?;
    let exit = within(
        "the exit after a timeout",
        LIMIT + PROMPT_LIMIT,
        process.wait(),
    )
    .await??;
    equal("the exit", exit.status, TIMED_OUT)
}

async fn timeout_kills_kept_background_processes(bench: &Bench<'_>) -> Checked {
    let token = Token::new();
    let (mut process, _output) = start(bench, ProcessShape::Daemon, &token, |request| {
        let request = request.with_background(Background::Keep);
        request.with_timeout(LIMIT)
    })
    .await?;
    times_out(bench, &mut *process, &token).await
}

async fn timeout_ends_a_command_in_a_terminal(bench: &Bench<'_>) -> Checked {
    let token = Token::new();
    let (mut process, _output) = start(bench, ProcessShape::IgnoresTerm, &token, |request| {
        let size = PtySize {
            rows: 24,
            columns: 80,
        };
        request.with_pty(size).with_timeout(LIMIT)
    })
    .await?;
    times_out(bench, &mut *process, &token).await
}

async fn timeout_leaves_other_commands_alone(bench: &Bench<'_>) -> Checked {
    let [one, other] = [Token::new(), Token::new()];
    let (_running, _output) = start(bench, ProcessShape::Plain, &other, |request| request).await?;
    let (mut process, _output) = start(bench, ProcessShape::LeftTheGroup, &one, |request| {
        request.with_timeout(LIMIT)
    })
    .await?;
    times_out(bench, &mut *process, &one).await?;
    ensure!(
        bench.is_running(&other).await?,
        "the timeout of one command killed another one"
    );
    Ok(())
}

async fn the_grace_is_part_of_the_timeout(bench: &Bench<'_>) -> Checked {
    // SIGTERM comes after a quarter of the timeout, or after half of it if the backend caps the grace.
    const LONG: Duration = Duration::from_secs(16);
    let token = Token::new();
    let script = format!(
        "trap 'echo cleaned; exit 3' TERM; {} & echo ready; wait",
        token.sleep()
    );
    let request = SpawnRequest::shell(script)
        .with_timeout(LONG)
        .with_grace(LONG * 3 / 4);
    let started = Instant::now();
    let mut process = bench.spawn(request).await?;
    let mut output = take_output(&mut *process)?;
    read_until(&mut output, "cleaned").await?;
    ensure_prompt("SIGTERM before the timeout", started, LONG * 15 / 16)?;
    let exit = within(
        "the exit after a timeout",
        LONG + PROMPT_LIMIT,
        process.wait(),
    )
    .await??;
    equal(
        "the exit",
        exit.status,
        ExitStatus::TimedOut { limit: LONG },
    )?;
    bench.must_be_gone(&token).await
}

async fn a_grace_longer_than_the_timeout_is_shortened(bench: &Bench<'_>) -> Checked {
    // Timeout minus grace would be negative: SIGTERM at the start, which `sleep 1` exposes.
    const LONG: Duration = Duration::from_secs(30);
    let request = SpawnRequest::shell("sleep 1; echo done")
        .with_timeout(LONG)
        .with_grace(LONG * 2);
    let output = bench.run(request).await?;
    let status = output.exit.status;
    equal("a command of 1 s in 30 s", status, ExitStatus::Code(0))
}

async fn cancellation_kills_everything(bench: &Bench<'_>) -> Checked {
    for_each_shape(async |shape, token: &Token| {
        let mut cancellation = None;
        let (mut process, _output) = start(bench, shape, token, |request| {
            cancellation = Some(request.cancellation.clone());
            request
        })
        .await?;
        if let Some(cancellation) = cancellation {
            cancellation.cancel();
        }
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
    for_each_shape(async |shape, token: &Token| {
        drop(start(bench, shape, token, |request| request).await?);
        bench.must_be_gone(token).await
    })
    .await
}

async fn dropping_a_run_kills_everything(bench: &Bench<'_>) -> Checked {
    for_each_shape(async |shape, token: &Token| {
        let run = bench.run(SpawnRequest::shell(shape.script(token)));
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

/// Runs `check` for all process shapes concurrently.
async fn for_each_shape(check: impl AsyncFn(ProcessShape, &Token) -> Checked) -> Checked {
    let check = &check;
    let checks = ProcessShape::ALL.map(async |shape| check(shape, &Token::new()).await);
    try_join_all(checks).await?;
    Ok(())
}
