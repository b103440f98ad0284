//! Flow control: unread output, blocked stdin or a slow transfer must not block other operations.
//!
//! A backend that multiplexes one connection needs flow control per stream; otherwise the first
//! stopped reader blocks all of them.

use cantle_core::sandbox::Signal;

use super::prelude::*;

/// More than all buffers hold, but quick to produce.
const DATA_BYTES: usize = 16_000_000;

/// Time after which a blocked stream has stopped.
const SETTLE_TIME: Duration = Duration::from_millis(300);

cases! { cases for Harness:
    unread_output_does_not_block_other_operations,
    unread_output_does_not_delay_signals.optional(),
    blocked_input_does_not_block_other_operations,
    blocked_input_ends_with_the_command,
    a_slow_read_does_not_block_other_operations,
    a_slow_write_does_not_block_other_operations,
}

/// Runs each kind of operation once.
async fn must_work(bench: &Bench<'_>) -> Checked {
    let work = async {
        let file = path("others/file")?;
        let data = vec![b'x'; 1_000_000];
        bench.write_bytes(&file, data.clone().into()).await?;
        same_bytes("a file", &read(&**bench, &file).await?, &data)?;
        let request = SpawnRequest::shell("cat; head -c 1000000 others/file >&2; exit 3")
            .with_stdin(Stdin::Bytes(Bytes::from_static(b"text")));
        let exit = bench.run(request).await?.exit;
        equal("the exit status", exit.status, ExitStatus::Code(3))?;
        let counted = (exit.stdout.total_bytes, exit.stderr.total_bytes);
        equal("bytes of its output", counted, (4, 1_000_000))?;
        bench.remove(&path("others")?).await?;
        Checked::Ok(())
    };
    step("the end of the other operations", work).await?
}

/// Starts a command with endless output and reads only its first line.
async fn endless(bench: &Bench<'_>, token: &Token) -> Checked<(Box<dyn Process>, OutputStream)> {
    let request = SpawnRequest::argv(["yes", token.as_str()]);
    let started = bench.start(request, "\n").await?;
    sleep(SETTLE_TIME).await;
    Ok(started)
}

async fn unread_output_does_not_block_other_operations(bench: &Bench<'_>) -> Checked {
    let token = Token::new();
    let _unread = [endless(bench, &token).await?, endless(bench, &token).await?];
    must_work(bench).await
}

async fn unread_output_does_not_delay_signals(bench: &Bench<'_>) -> Checked {
    let token = Token::new();
    let (mut process, output) = endless(bench, &token).await?;
    let signal = process.signal(Signal::TERM);
    within("the result of `signal`", PROMPT_LIMIT, signal).await??;
    bench.must_be_gone(&token).await?;
    drop(output);
    let exit = within("the exit by the signal", PROMPT_LIMIT, process.wait()).await??;
    let killed = ExitStatus::Signal(Signal::TERM.as_raw());
    equal("the exit", exit.status, killed)
}

async fn blocked_input_does_not_block_other_operations(bench: &Bench<'_>) -> Checked {
    let request = SpawnRequest::argv(["sleep", "60"]).with_stdin(Stdin::Piped);
    let mut process = bench.spawn(request).await?;
    let mut stdin = take_stdin(&mut *process)?;
    let writing = stdin.write(Bytes::from(vec![b'x'; DATA_BYTES]));
    tokio::pin!(writing);
    let early = timeout(SETTLE_TIME, &mut writing).await;
    ensure!(
        early.is_err(),
        "a command took {DATA_BYTES} bytes without reading"
    );
    tokio::select! {
        _ = writing => Err(Failure::new("the write ended, although the command reads nothing")),
        worked = must_work(bench) => worked,
    }
}

async fn blocked_input_ends_with_the_command(bench: &Bench<'_>) -> Checked {
    const LIMIT: Duration = Duration::from_millis(1500);
    let request = SpawnRequest::argv(["sleep", "60"])
        .with_stdin(Stdin::Piped)
        .with_timeout(LIMIT)
        .with_grace(LIMIT / 10);
    let mut process = bench.spawn(request).await?;
    let mut stdin = take_stdin(&mut *process)?;
    let writing = stdin.write(Bytes::from(vec![b'x'; DATA_BYTES]));
    let both = async { tokio::join!(writing, process.wait()) };
    let (written, exit) =
        within("the exit and the end of stdin", LIMIT + PROMPT_LIMIT, both).await?;
    let timed_out = ExitStatus::TimedOut { limit: LIMIT };
    equal("the exit", exit?.status, timed_out)?;
    ensure!(
        written.is_err(),
        "writing {DATA_BYTES} bytes to a command that reads nothing succeeded"
    );
    Ok(())
}

async fn a_slow_read_does_not_block_other_operations(bench: &Bench<'_>) -> Checked {
    let large = path("large")?;
    let data = Bytes::from(vec![b'l'; DATA_BYTES]);
    bench.write_bytes(&large, data.clone()).await?;
    let mut readers = Vec::new();
    for _ in 0..3 {
        let reading = bench.read(&large, ByteRange::all());
        let mut pieces = step("the result of `read`", reading).await??;
        let first = step("the first piece of a file", pieces.next()).await?;
        let first = first.ok_or_else(|| Failure::new("the file ended at once"))??;
        readers.push((first.len(), pieces));
    }
    sleep(SETTLE_TIME).await;
    must_work(bench).await?;
    for (mut count, mut pieces) in readers {
        let rest = async {
            while let Some(piece) = pieces.next().await {
                count += piece?.len();
            }
            Checked::Ok(())
        };
        step("the rest of a file", rest).await??;
        equal("bytes of a file that was read slowly", count, DATA_BYTES)?;
    }
    Ok(())
}

async fn a_slow_write_does_not_block_other_operations(bench: &Bench<'_>) -> Checked {
    let file = path("slow")?;
    let first = stream::iter([Ok(Bytes::from(vec![b's'; 200_000]))]);
    let data = Box::pin(first.chain(stream::pending()));
    let writing = bench.write(&file, WriteOptions::default(), data);
    tokio::pin!(writing);
    let early = timeout(SETTLE_TIME, &mut writing).await;
    ensure!(early.is_err(), "a write ended before its data did");
    tokio::select! {
        _ = writing => Err(Failure::new("a write ended before its data did")),
        worked = must_work(bench) => worked,
    }
}
