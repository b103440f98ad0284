//! A sandbox that is killed from outside: known to be gone within seconds, by whatever is under way
//! and by whatever comes after.

use cantle_core::sandbox::{
    ByteRange, ExitStatus, SandboxError, SandboxErrorKind, SandboxExt as _, SpawnRequest, Stdin,
    WriteOptions,
};
use futures_util::{StreamExt as _, stream};
use tokio::time::timeout;

use super::super::check::{Checked, Failure, ensure, refused, within};
use super::super::suite::Case;
use super::bench::{Bench, Harness, PATIENCE, SOON, Token, path, read_until, take_output, until};
use super::case;

pub(super) fn cases<'b>() -> Vec<Case<Harness<'b>>> {
    vec![
        case!(a_killed_sandbox_is_gone).optional(),
        case!(a_command_in_a_killed_sandbox_ends).optional(),
        case!(a_transfer_in_a_killed_sandbox_ends).optional(),
        case!(a_killed_sandbox_can_be_closed_and_leaves_nothing).optional(),
    ]
}

const GONE: &[SandboxErrorKind] = &[SandboxErrorKind::Gone];

/// Fails with `Gone`, or gives what is true: some backends have the files where no crash reaches them.
#[track_caller]
fn gone_or_true<T>(what: &str, result: Result<T, SandboxError>) -> Checked {
    match result {
        Ok(_) => Ok(()),
        failed => refused(what, failed, GONE),
    }
}

async fn a_killed_sandbox_is_gone(bench: &Bench<'_>) -> Checked {
    let sandbox = &bench.sandbox;
    let file = path("file")?;
    sandbox.write_bytes(&file, "text".into()).await?;
    bench.kill().await?;

    // For a moment it may not be known yet; a command may start and be lost.
    let known = until(PATIENCE, async || {
        let run = sandbox.run(SpawnRequest::shell("exit 0"));
        match within("an answer to a command", PATIENCE, run).await? {
            Ok(output) => {
                let ended_well = output.exit.status.success();
                ensure!(
                    !ended_well,
                    "a command ended well in a sandbox that was killed"
                );
                Ok(false)
            }
            Err(error) => refused("a command", Err::<(), _>(error), GONE).map(|()| true),
        }
    });
    ensure!(
        known.await?,
        "commands still start {PATIENCE:?} after it was killed"
    );

    // And again, without another wait.
    let spawned = within(
        "a command",
        SOON,
        sandbox.spawn(SpawnRequest::shell("true")),
    )
    .await?;
    refused("a command", spawned.map(drop), GONE)?;
    let read = within("`read`", PATIENCE, sandbox.read_bytes(&file, 100)).await?;
    gone_or_true("`read`", read)?;
    let written = within(
        "`write`",
        PATIENCE,
        sandbox.write_bytes(&file, "new".into()),
    );
    gone_or_true("`write`", written.await?)?;
    gone_or_true(
        "`stat`",
        within("`stat`", PATIENCE, sandbox.stat(&file)).await?,
    )?;
    let list = path(".")?;
    gone_or_true(
        "`list`",
        within("`list`", PATIENCE, sandbox.list(&list)).await?,
    )?;
    let new = path("new")?;
    gone_or_true(
        "`mkdir`",
        within("`mkdir`", PATIENCE, sandbox.mkdir(&new)).await?,
    )?;
    gone_or_true(
        "`remove`",
        within("`remove`", PATIENCE, sandbox.remove(&new)).await?,
    )
}

async fn a_command_in_a_killed_sandbox_ends(bench: &Bench<'_>) -> Checked {
    let request = SpawnRequest::shell("echo ready; cat").with_stdin(Stdin::Piped);
    let mut silent = bench.sandbox.spawn(request).await?;
    let mut silent_output = take_output(&mut *silent)?;
    read_until(&mut silent_output, "ready").await?;
    let mut stdin = silent
        .take_stdin()
        .ok_or_else(|| Failure::new("there is no input to write to"))?;
    let mut busy = bench.sandbox.spawn(SpawnRequest::argv(["yes"])).await?;
    let mut busy_output = take_output(&mut *busy)?;
    read_until(&mut busy_output, "y").await?;
    bench.kill().await?;

    for (process, output) in [
        (&mut silent, &mut silent_output),
        (&mut busy, &mut busy_output),
    ] {
        let rest = async { while output.next().await.is_some_and(|piece| piece.is_ok()) {} };
        within("the end of the output", PATIENCE, rest).await?;
        match within("the answer to who waits", PATIENCE, process.wait()).await? {
            // A signal that was not ours is true as well. An end by itself is not.
            Ok(exit) => ensure!(
                matches!(exit.status, ExitStatus::Signal(_)),
                "a command in a sandbox that was killed is said to have ended with {}",
                exit.status
            ),
            Err(error) => refused("waiting", Err::<(), _>(error), GONE)?,
        }
    }
    let writing = async { while stdin.write("x".into()).await.is_ok() {} };
    within("the end of its input", PATIENCE, writing).await
}

async fn a_transfer_in_a_killed_sandbox_ends(bench: &Bench<'_>) -> Checked {
    const MUCH: usize = 16_000_000;
    let sandbox = &bench.sandbox;
    let large = path("large")?;
    sandbox.write_bytes(&large, vec![b'x'; MUCH].into()).await?;
    let mut reading = sandbox.read(&large, ByteRange::all()).await?;
    let first = within("the first piece of a file", PATIENCE, reading.next()).await?;
    let mut count = first
        .ok_or_else(|| Failure::new("the file ended at once"))??
        .len();
    let endless = Box::pin(stream::repeat_with(|| Ok(vec![b'x'; 100_000].into())));
    let slow = endless.then(async |piece| {
        tokio::task::yield_now().await;
        piece
    });
    let new = path("new")?;
    let writing = sandbox.write(&new, WriteOptions::default(), Box::pin(slow));
    tokio::pin!(writing);
    let early = timeout(SOON / 20, &mut writing).await;
    ensure!(early.is_err(), "a write without end ended");
    bench.kill().await?;

    let rest = async {
        while let Some(piece) = reading.next().await {
            count += piece?.len();
        }
        Ok::<_, SandboxError>(count)
    };
    match within("the end of a file", PATIENCE, rest).await? {
        Ok(count) => ensure!(
            count == MUCH,
            "a file of {MUCH} bytes ended after {count} without an error"
        ),
        Err(error) => refused("reading on", Err::<(), _>(error), GONE)?,
    }
    // Where files are out of a crash's reach it goes on, and is given up here.
    let written = match timeout(SOON / 5, &mut writing).await {
        Ok(written) => written,
        Err(_) if sandbox.stat(&large).await.is_ok() => return Ok(()),
        Err(_) => within("the end of a write", PATIENCE, writing).await?,
    };
    ensure!(written.is_err(), "a write without end ended well");
    refused("writing on", written, GONE)
}

async fn a_killed_sandbox_can_be_closed_and_leaves_nothing(bench: &Bench<'_>) -> Checked {
    let token = Token::new();
    let script = format!("setsid {} & echo ready; wait", token.sleep());
    let mut process = bench.sandbox.spawn(SpawnRequest::shell(script)).await?;
    let mut output = take_output(&mut *process)?;
    read_until(&mut output, "ready").await?;
    bench.must_run(&token).await?;
    bench.kill().await?;
    // Whether there is something left to complain of is the backend's to say; it must say so.
    for _ in 0..2 {
        let _ = within("the end of `close`", PATIENCE, bench.sandbox.close()).await?;
    }
    if bench.require_host_visible().is_ok() {
        bench.must_be_gone(&token).await?;
    }
    Ok(())
}
