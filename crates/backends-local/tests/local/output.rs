//! Output: complete, at the reader's pace, counted, and spilled to a file on request.

use std::time::{Duration, Instant};

use cantle_core::sandbox::{
    Channel, ChannelReport, ExitStatus, OutputStream, SandboxExt as _, SpawnRequest, Spill,
};
use futures_util::StreamExt as _;
use tokio_util::sync::CancellationToken;

use crate::support::{Token, eventually, on_host, open, read, read_until, soon, stdout};

/// Collects a stream by channel.
async fn collect(mut output: OutputStream) -> (Vec<u8>, Vec<u8>) {
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    while let Some(chunk) = output.next().await {
        let chunk = chunk.unwrap();
        match chunk.channel {
            Channel::Stdout => stdout.extend_from_slice(&chunk.bytes),
            Channel::Stderr => stderr.extend_from_slice(&chunk.bytes),
        }
    }
    (stdout, stderr)
}

#[tokio::test]
async fn every_byte_arrives_on_its_channel() {
    let sandbox = open().await;
    let line = "seq 200000 & seq 200000 | rev >&2; wait";
    let mut process = sandbox.spawn(SpawnRequest::shell(line)).await.unwrap();
    let output = process.take_output().unwrap();
    assert!(process.take_output().is_none());
    let (out, err) = soon(collect(output)).await;
    let expected: String = (1..=200_000).map(|number| format!("{number}\n")).collect();
    assert!(out == expected.as_bytes());
    let reversed: String = expected
        .lines()
        .map(|line| line.chars().rev().chain(['\n']).collect::<String>())
        .collect();
    assert!(err == reversed.as_bytes());
    let exit = process.wait().await.unwrap();
    assert_eq!(exit.stdout, ChannelReport::new(expected.len() as u64, None));
    assert_eq!(exit.stderr, ChannelReport::new(expected.len() as u64, None));
    sandbox.close().await.unwrap();
}

#[tokio::test]
async fn binary_output_is_unchanged() {
    let sandbox = open().await;
    let line = r"printf '\000\377\200\r\033[31m'; printf 'no newline'";
    let output = sandbox.run(SpawnRequest::shell(line)).await.unwrap();
    assert_eq!(output.stdout.head, &b"\x00\xff\x80\r\x1b[31mno newline"[..]);
    sandbox.close().await.unwrap();
}

#[tokio::test]
async fn output_is_streamed_as_written() {
    let sandbox = open().await;
    let line = "echo first; read; echo second";
    let request = SpawnRequest::shell(line).with_stdin(cantle_core::sandbox::Stdin::Piped);
    let mut process = sandbox.spawn(request).await.unwrap();
    let stdin = process.take_stdin().unwrap();
    let mut output = process.take_output().unwrap();
    assert_eq!(read_until(&mut output, "\n").await, "first\n");
    drop(stdin);
    assert_eq!(read_until(&mut output, "\n").await, "second\n");
    assert!(soon(output.next()).await.is_none());
    sandbox.close().await.unwrap();
}

#[tokio::test]
async fn unread_output_is_counted() {
    let sandbox = open().await;
    let line = "head -c 5000000 /dev/zero; head -c 3000000 /dev/zero >&2; exit 3";
    let mut process = sandbox.spawn(SpawnRequest::shell(line)).await.unwrap();
    let exit = soon(process.wait()).await.unwrap();
    assert_eq!(exit.status, ExitStatus::Code(3));
    assert_eq!(exit.stdout.total_bytes, 5_000_000);
    assert_eq!(exit.stderr.total_bytes, 3_000_000);
    assert!(process.take_output().is_none());
    sandbox.close().await.unwrap();
}

#[tokio::test]
async fn discarded_output_is_counted() {
    let sandbox = open().await;
    let line = "head -c 5000000 /dev/zero; echo done > done; exit 3";
    let mut process = sandbox.spawn(SpawnRequest::shell(line)).await.unwrap();
    let mut output = process.take_output().unwrap();
    soon(output.next()).await.unwrap().unwrap();
    drop(output);
    let exit = soon(process.wait()).await.unwrap();
    assert_eq!(exit.status, ExitStatus::Code(3));
    assert_eq!(exit.stdout.total_bytes, 5_000_000);
    sandbox.close().await.unwrap();
}

#[tokio::test]
async fn slow_reader_applies_back_pressure_without_loss() {
    let sandbox = open().await;
    let line = "for i in $(seq 400); do head -c 50000 /dev/zero; echo $i > progress; done";
    let mut process = sandbox.spawn(SpawnRequest::shell(line)).await.unwrap();
    let mut output = process.take_output().unwrap();
    let first = soon(output.next()).await.unwrap().unwrap().bytes.len();
    // The command fills the buffers and then waits for the reader.
    let progress = on_host(&*sandbox, "progress");
    eventually("it wrote something", || progress.exists()).await;
    let mut seen = String::new();
    let mut since = Instant::now();
    eventually("it waits", || {
        let now = std::fs::read_to_string(&progress).unwrap();
        if now != seen {
            seen = now;
            since = Instant::now();
        }
        since.elapsed() > Duration::from_millis(300)
    })
    .await;
    assert!(seen.trim().parse::<u32>().unwrap_or(0) < 200, "{seen}");
    let (rest, _) = soon(collect(output)).await;
    assert_eq!(first + rest.len(), 20_000_000);
    assert_eq!(process.wait().await.unwrap().stdout.total_bytes, 20_000_000);
    sandbox.close().await.unwrap();
}

#[tokio::test]
async fn slow_reader_gets_output_still_in_the_pipe() {
    let sandbox = open().await;
    let line = "head -c 3000000 /dev/zero; echo end";
    let mut process = sandbox.spawn(SpawnRequest::shell(line)).await.unwrap();
    let mut output = process.take_output().unwrap();
    let mut total = 0;
    let mut last = Vec::new();
    while let Some(chunk) = soon(output.next()).await {
        let bytes = chunk.unwrap().bytes;
        total += bytes.len();
        // The last line may arrive in two chunks.
        last.extend_from_slice(&bytes);
        last.drain(..last.len().saturating_sub(4));
        // Slower in total than any deadline for the end of the output.
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(total, 3_000_004);
    assert_eq!(last, b"end\n");
    assert_eq!(process.wait().await.unwrap().stdout.total_bytes, 3_000_004);
    sandbox.close().await.unwrap();
}

#[tokio::test]
async fn exit_is_reported_to_stopped_reader() {
    let sandbox = open().await;
    let token = Token::new();
    let cancellation = CancellationToken::new();
    let request = token
        .shell("head -c 60000 /dev/zero; touch ready; sleep 600")
        .with_cancellation(cancellation.clone());
    let mut process = sandbox.spawn(request).await.unwrap();
    let mut output = process.take_output().unwrap();
    let first = soon(output.next()).await.unwrap().unwrap().bytes.len();
    let ready = on_host(&*sandbox, "ready");
    eventually("all is written", || ready.exists()).await;
    let cancelled = Instant::now();
    cancellation.cancel();
    let exit = soon(process.wait()).await.unwrap();
    assert_eq!(exit.status, ExitStatus::Cancelled);
    assert_eq!(exit.stdout.total_bytes, 60_000);
    token.dead_since(cancelled).await;
    drop(process);
    // Earlier output can still be read.
    let (rest, _) = soon(collect(output)).await;
    assert_eq!(first + rest.len(), 60_000);
    sandbox.close().await.unwrap();
}

#[tokio::test]
async fn large_output_is_spilled() {
    let sandbox = open().await;
    let line = "seq 100000; echo few >&2";
    let request = SpawnRequest::shell(line).with_spill(Spill::after(1000));
    let output = sandbox.run(request).await.unwrap();
    let expected: String = (1..=100_000).map(|number| format!("{number}\n")).collect();
    let spilled = output.exit.stdout.spilled.unwrap();
    assert_eq!(spilled.size_bytes, expected.len() as u64);
    assert_eq!(output.exit.stdout.total_bytes, expected.len() as u64);
    assert_eq!(output.exit.stderr, ChannelReport::new(4, None));
    assert_eq!(read(&*sandbox, &spilled.path.to_string()).await, expected);
    // Commands see it at the same path.
    let line = format!("tail -n 1 {}; ls $TMPDIR", spilled.path);
    let listed = stdout(&*sandbox, &line).await;
    let name = String::from_utf8(spilled.path.file_name().unwrap().to_vec()).unwrap();
    assert_eq!(listed, format!("100000\n{name}\n"));
    sandbox.close().await.unwrap();
}

#[tokio::test]
async fn spill_respects_threshold_and_cap() {
    let sandbox = open().await;
    for (written, spill, kept) in [
        (0, Spill::after(0), None),
        (1, Spill::after(0), Some(1)),
        (1000, Spill::after(1000), None),
        (1001, Spill::after(1000), Some(1001)),
        (1001, Spill::after(1000).with_cap(1000), Some(1000)),
        (
            3_000_000,
            Spill::after(1000).with_cap(700_000),
            Some(700_000),
        ),
        (3_000_000, Spill::after(1000).with_cap(10), Some(10)),
        (3_000_000, Spill::after(u64::MAX), None),
    ] {
        let line = format!("head -c {written} /dev/zero; exit 6");
        let request = SpawnRequest::shell(line).with_spill(spill);
        let output = soon(sandbox.run(request)).await.unwrap();
        assert_eq!(output.exit.status, ExitStatus::Code(6));
        assert_eq!(output.exit.stdout.total_bytes, written);
        let spilled = output.exit.stdout.spilled;
        let size = spilled.as_ref().map(|file| file.size_bytes);
        assert_eq!(size, kept, "{written} {spill:?}");
        if let Some(file) = spilled {
            assert_eq!(
                Some(sandbox.stat(&file.path).await.unwrap().size_bytes),
                kept
            );
        }
    }
    sandbox.close().await.unwrap();
}

#[tokio::test]
async fn output_before_timeout_is_spilled() {
    let sandbox = open().await;
    let request = SpawnRequest::shell("seq 10000; sleep 600")
        .with_spill(Spill::after(100))
        .with_timeout(Duration::from_secs(8));
    let output = soon(sandbox.run(request)).await.unwrap();
    let spilled = output.exit.stdout.spilled.unwrap();
    assert_eq!(spilled.size_bytes, 48_894);
    assert!(
        read(&*sandbox, &spilled.path.to_string())
            .await
            .ends_with("\n10000\n")
    );
    sandbox.close().await.unwrap();
}

#[tokio::test]
async fn failed_spill_does_not_stop_the_command() {
    let sandbox = open().await;
    let line = "rm -rf $TMPDIR; ln -s / $TMPDIR; seq 100000; exit 4";
    let request = SpawnRequest::shell(line).with_spill(Spill::after(10));
    let output = soon(sandbox.run(request)).await.unwrap();
    assert_eq!(output.exit.status, ExitStatus::Code(4));
    assert_eq!(output.exit.stdout, ChannelReport::new(588_895, None));
    assert!(output.stdout.text().ends_with("\n100000\n"));
    sandbox.close().await.unwrap();
}

#[tokio::test]
async fn spill_recreates_the_temporary_directory() {
    let sandbox = open().await;
    let request = SpawnRequest::shell("rm -rf $TMPDIR; seq 10").with_spill(Spill::after(10));
    let output = soon(sandbox.run(request)).await.unwrap();
    assert_eq!(output.exit.stdout.spilled.unwrap().size_bytes, 21);
    sandbox.close().await.unwrap();
}
