//! Sandboxes killed from outside: running and later operations report `Gone` within seconds.

use super::prelude::*;

cases! { cases for Harness:
    a_killed_sandbox_is_gone.optional(),
    a_command_in_a_killed_sandbox_ends.optional(),
    a_transfer_in_a_killed_sandbox_ends.optional(),
    a_killed_sandbox_can_be_closed_and_leaves_nothing.optional(),
}

const GONE: &[SandboxErrorKind] = &[Gone];

/// An operation that fails with `Gone` or succeeds: some backends keep files outside the sandbox.
async fn gone_or_done<T>(
    what: &str,
    operation: impl Future<Output = Result<T, SandboxError>>,
) -> Checked {
    match step(what, operation).await? {
        Ok(_) => Ok(()),
        failed => refused(what, failed, GONE),
    }
}

async fn a_killed_sandbox_is_gone(bench: &Bench<'_>) -> Checked {
    let file = path("file")?;
    bench.write_bytes(&file, "text".into()).await?;
    bench.kill().await?;

    // The backend may take a moment to detect it; until then a command may start and be lost.
    let known = until(STEP_TIMEOUT, async || {
        let run = bench.run(SpawnRequest::shell("exit 0"));
        match step("the result of a command", run).await? {
            Ok(output) => {
                let succeeded = output.exit.status.success();
                ensure!(!succeeded, "a command succeeded in a killed sandbox");
                Ok(false)
            }
            Err(error) => refused("a command", Err::<(), _>(error), GONE).map(|()| true),
        }
    });
    ensure!(
        known.await?,
        "commands still start {STEP_TIMEOUT:?} after the kill"
    );

    let spawn = bench.spawn(SpawnRequest::shell("true"));
    let spawned = within("a command", PROMPT_LIMIT, spawn).await?;
    refused("a command", spawned, GONE)?;
    gone_or_done("`read`", bench.read_bytes(&file, 100)).await?;
    gone_or_done("`write`", bench.write_bytes(&file, "new".into())).await?;
    gone_or_done("`stat`", bench.stat(&file)).await?;
    gone_or_done("`list`", bench.list(&path(".")?)).await?;
    let new = path("new")?;
    gone_or_done("`mkdir`", bench.mkdir(&new)).await?;
    gone_or_done("`remove`", bench.remove(&new)).await
}

async fn a_command_in_a_killed_sandbox_ends(bench: &Bench<'_>) -> Checked {
    let request = SpawnRequest::shell("echo ready; cat").with_stdin(Stdin::Piped);
    let mut started = [
        bench.start(request, "ready").await?,
        bench.start(SpawnRequest::argv(["yes"]), "y").await?,
    ];
    let [(silent, _), _] = &mut started;
    let mut stdin = take_stdin(&mut **silent)?;
    bench.kill().await?;

    for (process, output) in &mut started {
        let rest = async { while output.next().await.is_some_and(|piece| piece.is_ok()) {} };
        step("the end of the output", rest).await?;
        match step("the exit", process.wait()).await? {
            // A signal is plausible as well, an exit code is not.
            Ok(exit) => ensure!(
                matches!(exit.status, ExitStatus::Signal(_)),
                "a command in a killed sandbox is reported to have ended with {}",
                exit.status
            ),
            Err(error) => refused("waiting", Err::<(), _>(error), GONE)?,
        }
    }
    let writing = async { while stdin.write("x".into()).await.is_ok() {} };
    step("the end of stdin", writing).await
}

async fn a_transfer_in_a_killed_sandbox_ends(bench: &Bench<'_>) -> Checked {
    const DATA_BYTES: usize = 16_000_000;
    let large = path("large")?;
    bench
        .write_bytes(&large, vec![b'x'; DATA_BYTES].into())
        .await?;
    let mut reading = bench.read(&large, ByteRange::all()).await?;
    let first = step("the first piece of a file", reading.next()).await?;
    let mut count = first
        .ok_or_else(|| Failure::new("the file ended at once"))??
        .len();
    let endless = Box::pin(stream::repeat_with(|| Ok(vec![b'x'; 100_000].into())));
    let slow = endless.then(async |piece| {
        tokio::task::yield_now().await;
        piece
    });
    let new = path("new")?;
    let writing = bench.write(&new, WriteOptions::default(), Box::pin(slow));
    tokio::pin!(writing);
    let early = timeout(PROMPT_LIMIT / 20, &mut writing).await;
    ensure!(early.is_err(), "an endless write ended");
    bench.kill().await?;

    let rest = async {
        while let Some(piece) = reading.next().await {
            count += piece?.len();
        }
        Ok::<_, SandboxError>(count)
    };
    match step("the end of a file", rest).await? {
        Ok(count) => ensure!(
            count == DATA_BYTES,
            "a file of {DATA_BYTES} bytes ended after {count} without an error"
        ),
        Err(error) => refused("reading on", Err::<(), _>(error), GONE)?,
    }
    // On backends whose files survive the kill the write continues; it is dropped here.
    let written = match timeout(PROMPT_LIMIT / 5, &mut writing).await {
        Ok(written) => written,
        Err(_) if bench.stat(&large).await.is_ok() => return Ok(()),
        Err(_) => step("the end of a write", writing).await?,
    };
    ensure!(written.is_err(), "an endless write succeeded");
    refused("writing on", written, GONE)
}

async fn a_killed_sandbox_can_be_closed_and_leaves_nothing(bench: &Bench<'_>) -> Checked {
    let token = Token::new();
    let script = format!("setsid {} & echo ready; wait", token.sleep());
    let _started = bench.start(SpawnRequest::shell(script), "ready").await?;
    bench.must_run(&token).await?;
    bench.kill().await?;
    // `close` may succeed or fail, but must return.
    for _ in 0..2 {
        let _ = step("the end of `close`", bench.close()).await?;
    }
    if bench.require_host_visible().is_ok() {
        bench.must_be_gone(&token).await?;
    }
    Ok(())
}
