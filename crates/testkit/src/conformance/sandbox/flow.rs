//! What is held up holds up nothing else: output that nobody reads, input that no command takes, a
//! file that is read slowly.
//!
//! A backend that carries everything over one connection needs a pace for each part of it; one that
//! doesn't stops as a whole at the first reader that stops.

use std::time::Duration;

use bytes::Bytes;
use cantle_core::sandbox::{
    ByteRange, ExitStatus, OutputStream, Process, SandboxExt as _, SpawnRequest, Stdin,
    WriteOptions,
};
use futures_util::{StreamExt as _, stream};
use tokio::time::timeout;

use super::super::check::{Checked, Failure, ensure, equal, same_bytes, within};
use super::super::suite::Case;
use super::bench::{Bench, Harness, PATIENCE, SOON, Token, path, read_until, take_output};
use super::case;
use super::files::read;

/// More than buffers on the way hold, and little enough to be made at once.
const MUCH: usize = 16_000_000;

/// Long enough for what is held up to have come to a stop.
const SETTLED: Duration = Duration::from_millis(300);

pub(super) fn cases<'b>() -> Vec<Case<Harness<'b>>> {
    vec![
        case!(output_that_nobody_reads_holds_up_nothing_else),
        case!(output_that_nobody_reads_holds_up_no_signal).optional(),
        case!(input_that_nobody_takes_holds_up_nothing_else),
        case!(input_that_nobody_takes_ends_with_the_command),
        case!(a_file_that_is_read_slowly_holds_up_nothing_else),
        case!(a_write_whose_data_are_slow_holds_up_nothing_else),
    ]
}

/// Everything that a sandbox does, once.
async fn must_work(bench: &Bench<'_>) -> Checked {
    let work = async {
        let sandbox = &bench.sandbox;
        let file = path("others/file")?;
        let data = vec![b'x'; 1_000_000];
        sandbox.write_bytes(&file, data.clone().into()).await?;
        same_bytes("a file", &read(&**sandbox, &file).await?, &data)?;
        let request = SpawnRequest::shell("cat; head -c 1000000 others/file >&2; exit 3")
            .with_stdin(Stdin::Bytes(Bytes::from_static(b"text")));
        let exit = sandbox.run(request).await?.exit;
        equal("the end of a command", exit.status, ExitStatus::Code(3))?;
        let counted = (exit.stdout.total_bytes, exit.stderr.total_bytes);
        equal("bytes of its output", counted, (4, 1_000_000))?;
        sandbox.remove(&path("others")?).await?;
        Checked::Ok(())
    };
    within("the end of what else is done", PATIENCE, work).await?
}

/// A command that writes without end, of whose output only the first of it is read.
async fn endless(bench: &Bench<'_>, token: &Token) -> Checked<(Box<dyn Process>, OutputStream)> {
    let request = SpawnRequest::argv(["yes", token.as_str()]);
    let mut process = bench.sandbox.spawn(request).await?;
    let mut output = take_output(&mut *process)?;
    read_until(&mut output, "\n").await?;
    tokio::time::sleep(SETTLED).await;
    Ok((process, output))
}

async fn output_that_nobody_reads_holds_up_nothing_else(bench: &Bench<'_>) -> Checked {
    let token = Token::new();
    let _held = [endless(bench, &token).await?, endless(bench, &token).await?];
    must_work(bench).await
}

async fn output_that_nobody_reads_holds_up_no_signal(bench: &Bench<'_>) -> Checked {
    const TERM: i32 = 15;
    let token = Token::new();
    let (mut process, output) = endless(bench, &token).await?;
    let answer = within("the answer to a signal", SOON, process.signal(TERM));
    answer.await??;
    bench.must_be_gone(&token).await?;
    drop(output);
    let exit = within("the end by the signal", SOON, process.wait()).await??;
    equal("the end", exit.status, ExitStatus::Signal(TERM))
}

async fn input_that_nobody_takes_holds_up_nothing_else(bench: &Bench<'_>) -> Checked {
    let request = SpawnRequest::argv(["sleep", "60"]).with_stdin(Stdin::Piped);
    let mut process = bench.sandbox.spawn(request).await?;
    let mut stdin = process
        .take_stdin()
        .ok_or_else(|| Failure::new("there is no input to write to"))?;
    let writing = stdin.write(Bytes::from(vec![b'x'; MUCH]));
    tokio::pin!(writing);
    let early = timeout(SETTLED, &mut writing).await;
    ensure!(
        early.is_err(),
        "a command took {MUCH} bytes without reading"
    );
    tokio::select! {
        _ = writing => Err(Failure::new("the write ended, and the command reads nothing")),
        worked = must_work(bench) => worked,
    }
}

async fn input_that_nobody_takes_ends_with_the_command(bench: &Bench<'_>) -> Checked {
    const LIMIT: Duration = Duration::from_millis(1500);
    let request = SpawnRequest::argv(["sleep", "60"])
        .with_stdin(Stdin::Piped)
        .with_timeout(LIMIT)
        .with_grace(LIMIT / 10);
    let mut process = bench.sandbox.spawn(request).await?;
    let mut stdin = process
        .take_stdin()
        .ok_or_else(|| Failure::new("there is no input to write to"))?;
    let writing = stdin.write(Bytes::from(vec![b'x'; MUCH]));
    let both = async { tokio::join!(writing, process.wait()) };
    let (written, exit) = within("the end of a command and its input", LIMIT + SOON, both).await?;
    equal(
        "the end",
        exit?.status,
        ExitStatus::TimedOut { limit: LIMIT },
    )?;
    ensure!(
        written.is_err(),
        "{MUCH} bytes are said to have been taken by a command that reads nothing"
    );
    Ok(())
}

async fn a_file_that_is_read_slowly_holds_up_nothing_else(bench: &Bench<'_>) -> Checked {
    let large = path("large")?;
    let data = Bytes::from(vec![b'l'; MUCH]);
    bench.sandbox.write_bytes(&large, data.clone()).await?;
    let mut held = Vec::new();
    for _ in 0..3 {
        let reading = bench.sandbox.read(&large, ByteRange::all());
        let mut pieces = within("an answer to reading a file", PATIENCE, reading).await??;
        let first = within("the first piece of a file", PATIENCE, pieces.next()).await?;
        let first = first.ok_or_else(|| Failure::new("the file ended at once"))??;
        held.push((first.len(), pieces));
    }
    tokio::time::sleep(SETTLED).await;
    must_work(bench).await?;
    for (mut count, mut pieces) in held {
        let rest = async {
            while let Some(piece) = pieces.next().await {
                count += piece?.len();
            }
            Checked::Ok(())
        };
        within("the rest of a file", PATIENCE, rest).await??;
        equal("bytes of a file that was read slowly", count, MUCH)?;
    }
    Ok(())
}

async fn a_write_whose_data_are_slow_holds_up_nothing_else(bench: &Bench<'_>) -> Checked {
    let file = path("slow")?;
    let first = stream::iter([Ok(Bytes::from(vec![b's'; 200_000]))]);
    let data = Box::pin(first.chain(stream::pending()));
    let writing = bench.sandbox.write(&file, WriteOptions::default(), data);
    tokio::pin!(writing);
    let early = timeout(SETTLED, &mut writing).await;
    ensure!(early.is_err(), "a write ended before its data");
    tokio::select! {
        _ = writing => Err(Failure::new("a write ended before its data")),
        worked = must_work(bench) => worked,
    }
}
