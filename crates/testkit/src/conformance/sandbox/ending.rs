//! The end of commands that don't end by themselves: time, cancellation, and handles that go away.
//!
//! Whatever ends a command ends everything it started, also what left its process group, and the
//! caller has the answer within a second.

use std::time::Duration;

use cantle_core::sandbox::{
    Background, ExitStatus, OutputStream, Process, PtySize, SandboxExt as _, SpawnRequest,
};
use futures_util::future::try_join_all;
use tokio::time::{Instant, timeout};

use super::super::check::{Checked, ensure, equal, prompt, same_bytes, within};
use super::super::suite::Case;
use super::bench::{Bench, Harness, SOON, Token, read_until, take_output, whole};
use super::case;

/// Time enough to start everything, also on a slow machine; the grace lies in it.
const LIMIT: Duration = Duration::from_secs(4);
const GRACE: Duration = Duration::from_millis(200);
const TIMED_OUT: ExitStatus = ExitStatus::TimedOut { limit: LIMIT };

pub(super) fn cases<'b>() -> Vec<Case<Harness<'b>>> {
    vec![
        // The longest of all: first, so that none waits for it alone.
        case!(the_grace_lies_before_the_end_of_the_time).waits(),
        case!(timeout_kills_the_command).waits(),
        case!(timeout_kills_a_child_that_left_the_process_group).waits(),
        case!(timeout_kills_a_daemon).waits(),
        case!(timeout_kills_a_grandchild_that_holds_the_pipe).waits(),
        case!(timeout_kills_a_stopped_command).waits(),
        case!(timeout_kills_a_command_that_ignores_term).waits(),
        case!(timeout_keeps_the_output_so_far).waits(),
        case!(timeout_ends_a_command_whose_output_nobody_reads).waits(),
        case!(timeout_kills_what_would_have_been_kept)
            .waits()
            .optional(),
        case!(timeout_ends_a_command_in_a_terminal)
            .waits()
            .optional(),
        case!(timeout_leaves_other_commands_alone).waits(),
        case!(a_grace_longer_than_the_time_leaves_some_of_it).waits(),
        case!(cancellation_kills_everything),
        case!(cancellation_before_the_start_ends_at_once),
        case!(dropping_the_process_kills_everything),
        case!(giving_up_a_run_kills_everything),
    ]
}

/// A script that is hard to kill, by what makes it so. It starts `sleep` of the token, says
/// `ready`, and does not end by itself.
#[derive(Clone, Copy)]
enum Hard {
    Plain,
    LeftTheGroup,
    Daemon,
    HoldsThePipe,
    Stopped,
    IgnoresTerm,
}

impl Hard {
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

/// Starts a script, and returns once what it starts is running.
async fn start(
    bench: &Bench<'_>,
    hard: Hard,
    token: &Token,
    adapt: impl FnOnce(SpawnRequest) -> SpawnRequest,
) -> Checked<(Box<dyn Process>, OutputStream)> {
    let request = adapt(SpawnRequest::shell(hard.script(token)).with_grace(GRACE));
    let mut process = bench.sandbox.spawn(request).await?;
    let mut output = take_output(&mut *process)?;
    read_until(&mut output, "ready").await?;
    bench.must_run(token).await?;
    Ok((process, output))
}

async fn timeout_kills(bench: &Bench<'_>, hard: Hard) -> Checked {
    let token = Token::new();
    let started = Instant::now();
    let (mut process, _output) =
        start(bench, hard, &token, |request| request.with_timeout(LIMIT)).await?;
    let exit = within("the answer after a timeout", LIMIT + SOON, process.wait()).await??;
    prompt("the answer after a timeout", started, LIMIT + SOON)?;
    equal("the end", exit.status, TIMED_OUT)?;
    bench.must_be_gone(&token).await
}

async fn timeout_kills_the_command(bench: &Bench<'_>) -> Checked {
    timeout_kills(bench, Hard::Plain).await
}

async fn timeout_kills_a_child_that_left_the_process_group(bench: &Bench<'_>) -> Checked {
    timeout_kills(bench, Hard::LeftTheGroup).await
}

async fn timeout_kills_a_daemon(bench: &Bench<'_>) -> Checked {
    timeout_kills(bench, Hard::Daemon).await
}

async fn timeout_kills_a_grandchild_that_holds_the_pipe(bench: &Bench<'_>) -> Checked {
    timeout_kills(bench, Hard::HoldsThePipe).await
}

async fn timeout_kills_a_stopped_command(bench: &Bench<'_>) -> Checked {
    timeout_kills(bench, Hard::Stopped).await
}

async fn timeout_kills_a_command_that_ignores_term(bench: &Bench<'_>) -> Checked {
    timeout_kills(bench, Hard::IgnoresTerm).await
}

async fn timeout_keeps_the_output_so_far(bench: &Bench<'_>) -> Checked {
    let script = "echo out; echo err >&2; sleep 60 & printf partial; wait";
    let request = SpawnRequest::shell(script)
        .with_timeout(LIMIT)
        .with_grace(GRACE);
    let run = bench.sandbox.run(request);
    let output = within("the output after a timeout", LIMIT + SOON, run).await??;
    equal("the end", output.exit.status, TIMED_OUT)?;
    same_bytes("stdout", &whole(&output.stdout)?, b"out\npartial")?;
    same_bytes("stderr", &whole(&output.stderr)?, b"err\n")
}

async fn timeout_ends_a_command_whose_output_nobody_reads(bench: &Bench<'_>) -> Checked {
    let request = SpawnRequest::argv(["yes"])
        .with_timeout(LIMIT)
        .with_grace(GRACE);
    let mut process = bench.sandbox.spawn(request).await?;
    // Taken and held: the command is blocked, not rid of its output.
    let _output = take_output(&mut *process)?;
    let exit = within("the answer after a timeout", LIMIT + SOON, process.wait()).await??;
    equal("the end", exit.status, TIMED_OUT)
}

async fn timeout_kills_what_would_have_been_kept(bench: &Bench<'_>) -> Checked {
    let token = Token::new();
    let (mut process, _output) = start(bench, Hard::Daemon, &token, |request| {
        let request = request.with_background(Background::Keep);
        request.with_timeout(LIMIT)
    })
    .await?;
    let exit = within("the answer after a timeout", LIMIT + SOON, process.wait()).await??;
    equal("the end", exit.status, TIMED_OUT)?;
    bench.must_be_gone(&token).await
}

async fn timeout_ends_a_command_in_a_terminal(bench: &Bench<'_>) -> Checked {
    let token = Token::new();
    let (mut process, _output) = start(bench, Hard::IgnoresTerm, &token, |request| {
        let size = PtySize {
            rows: 24,
            columns: 80,
        };
        request.with_pty(size).with_timeout(LIMIT)
    })
    .await?;
    let exit = within("the answer after a timeout", LIMIT + SOON, process.wait()).await??;
    equal("the end", exit.status, TIMED_OUT)?;
    bench.must_be_gone(&token).await
}

async fn timeout_leaves_other_commands_alone(bench: &Bench<'_>) -> Checked {
    let [one, other] = [Token::new(), Token::new()];
    let (_running, _output) = start(bench, Hard::Plain, &other, |request| request).await?;
    timeout_of(bench, &one).await?;
    ensure!(
        bench.is_running(&other).await?,
        "the timeout of one command killed another one"
    );
    Ok(())
}

async fn timeout_of(bench: &Bench<'_>, token: &Token) -> Checked {
    let (mut process, _output) = start(bench, Hard::LeftTheGroup, token, |request| {
        request.with_timeout(LIMIT)
    })
    .await?;
    within("the answer after a timeout", LIMIT + SOON, process.wait()).await??;
    bench.must_be_gone(token).await
}

async fn the_grace_lies_before_the_end_of_the_time(bench: &Bench<'_>) -> Checked {
    // TERM comes after a quarter of the time, or after half of it where a grace may not be longer.
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
    let mut process = bench.sandbox.spawn(request).await?;
    let mut output = take_output(&mut *process)?;
    read_until(&mut output, "cleaned").await?;
    prompt("TERM, well before the end", started, LONG * 15 / 16)?;
    let exit = within("the answer after a timeout", LONG + SOON, process.wait()).await??;
    equal("the end", exit.status, ExitStatus::TimedOut { limit: LONG })?;
    bench.must_be_gone(&token).await
}

async fn a_grace_longer_than_the_time_leaves_some_of_it(bench: &Bench<'_>) -> Checked {
    // TERM would come before the start, if the one were merely taken from the other. The command is
    // long enough for that to be noticed, and the time for a busy machine to start it.
    const LONG: Duration = Duration::from_secs(30);
    let request = SpawnRequest::shell("sleep 1; echo done")
        .with_timeout(LONG)
        .with_grace(LONG * 2);
    let output = bench.sandbox.run(request).await?;
    let status = output.exit.status;
    equal("a command of 1 s in 30 s", status, ExitStatus::Code(0))
}

async fn cancellation_kills_everything(bench: &Bench<'_>) -> Checked {
    each_way(async |hard, token: &Token| {
        let mut cancellation = None;
        let (mut process, _output) = start(bench, hard, token, |request| {
            cancellation = Some(request.cancellation.clone());
            request
        })
        .await?;
        if let Some(cancellation) = cancellation {
            cancellation.cancel();
        }
        let limit = GRACE + SOON;
        let exit = within("the answer after a cancellation", limit, process.wait()).await??;
        equal("the end", exit.status, ExitStatus::Cancelled)?;
        bench.must_be_gone(token).await
    })
    .await
}

async fn cancellation_before_the_start_ends_at_once(bench: &Bench<'_>) -> Checked {
    let token = Token::new();
    let request = SpawnRequest::shell(token.sleep()).with_grace(GRACE);
    request.cancellation.cancel();
    let run = bench.sandbox.run(request);
    // It may be refused or started and killed: nothing must be left, and nobody wait.
    if let Ok(output) = within("the answer", GRACE + SOON, run).await? {
        equal("the end", output.exit.status, ExitStatus::Cancelled)?;
    }
    bench.must_be_gone(&token).await
}

async fn dropping_the_process_kills_everything(bench: &Bench<'_>) -> Checked {
    each_way(async |hard, token: &Token| {
        drop(start(bench, hard, token, |request| request).await?);
        bench.must_be_gone(token).await
    })
    .await
}

async fn giving_up_a_run_kills_everything(bench: &Bench<'_>) -> Checked {
    each_way(async |hard, token: &Token| {
        let run = bench.sandbox.run(SpawnRequest::shell(hard.script(token)));
        let mut run = Box::pin(run);
        let early = timeout(SOON, async {
            tokio::select! {
                _ = &mut run => Ok(false),
                started = bench.must_run(token) => started.map(|()| true),
            }
        });
        let started = early.await.unwrap_or(Ok(true))?;
        ensure!(started, "the command ended by itself");
        drop(run);
        bench.must_be_gone(token).await
    })
    .await
}

/// Tries all ways to be hard to kill, side by side.
async fn each_way(check: impl AsyncFn(Hard, &Token) -> Checked) -> Checked {
    let check = &check;
    let checks = Hard::ALL.map(async |hard| check(hard, &Token::new()).await);
    try_join_all(checks).await?;
    Ok(())
}
