//! Command output: complete, in order, with separate channels and backpressure.

use cantle_core::sandbox::Channel;

use super::prelude::*;

cases! { cases for Harness:
    output_keeps_its_order,
    stderr_is_separate,
    output_may_be_any_bytes,
    output_comes_as_it_is_written,
    a_line_of_20_megabytes_is_kept => line_is_kept(20_000_000),
    a_line_of_100_megabytes_is_kept => line_is_kept(100_000_000).heavy(),
    untaken_output_is_counted_and_does_not_block,
    dropped_output_is_counted_and_does_not_block,
    output_can_be_read_after_the_end,
    a_stopped_reader_blocks_the_command,
}

async fn output_keeps_its_order(bench: &Bench<'_>) -> Checked {
    let script = "for i in {1..20000}; do echo $i; if (( i % 3 == 0 )); then echo $i >&2; fi; done";
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    let mut sink = |chunk: OutputChunk| match chunk.channel {
        Channel::Stdout => stdout.extend_from_slice(&chunk.bytes),
        Channel::Stderr => stderr.extend_from_slice(&chunk.bytes),
    };
    let exit = bench.exec(SpawnRequest::shell(script), &mut sink).await?;
    let lines = |step: usize| -> String {
        let numbers = (1..=20_000).filter(|number| number % step == 0);
        numbers.map(|number| format!("{number}\n")).collect()
    };
    same_bytes("stdout", &stdout, lines(1).as_bytes())?;
    same_bytes("stderr", &stderr, lines(3).as_bytes())?;
    let counted = (exit.stdout.total_bytes, exit.stderr.total_bytes);
    let read = (stdout.len() as u64, stderr.len() as u64);
    equal("the bytes counted of both channels", counted, read)
}

async fn stderr_is_separate(bench: &Bench<'_>) -> Checked {
    let output = bench.sh("echo out; echo err >&2; echo out; exit 1").await?;
    same_bytes("stdout", &whole(&output.stdout)?, b"out\nout\n")?;
    same_bytes("stderr", &whole(&output.stderr)?, b"err\n")?;
    let counted = [&output.exit.stdout, &output.exit.stderr].map(|report| report.total_bytes);
    equal("the bytes counted of both channels", counted, [8, 4])
}

async fn output_may_be_any_bytes(bench: &Bench<'_>) -> Checked {
    let bytes: Vec<u8> = (0..=255).chain([0xff, 0xc3, 0x28, 0xe2, 0x82]).collect();
    let octal: String = bytes.iter().map(|byte| format!("\\{byte:03o}")).collect();
    let script = format!("printf '{octal}' | tee /dev/stderr");
    let output = bench.sh(&script).await?;
    same_bytes("stdout", &whole(&output.stdout)?, &bytes)?;
    same_bytes("stderr", &whole(&output.stderr)?, &bytes)
}

async fn output_comes_as_it_is_written(bench: &Bench<'_>) -> Checked {
    let token = Token::new();
    let script = format!("printf early; exec {}", token.sleep());
    let started = bench.start(SpawnRequest::shell(script), "early");
    started.await.map(drop)
}

async fn line_is_kept(bench: &Bench<'_>, size: usize) -> Checked {
    let script = format!("head -c {size} /dev/zero | tr '\\0' x");
    let all_x = vec![b'x'; 1 << 20];
    let (mut count, mut others) = (0, 0);
    let mut sink = |chunk: OutputChunk| {
        count += chunk.bytes.len();
        // Compares whole slices: byte-wise iteration is slow in debug builds.
        let mut parts = chunk.bytes.chunks(all_x.len());
        others += usize::from(!parts.all(|part| all_x.starts_with(part)));
    };
    let request = SpawnRequest::shell(script);
    let exit = bench.exec(request, &mut sink).await?;
    equal("exit", exit.status, ExitStatus::Code(0))?;
    equal("bytes of the line", count, size)?;
    equal("pieces with other bytes", others, 0)?;
    equal("the bytes counted", exit.stdout.total_bytes, size as u64)
}

const DATA_BYTES: u64 = 10_000_000;

async fn untaken_output_is_counted_and_does_not_block(bench: &Bench<'_>) -> Checked {
    let request = SpawnRequest::shell(format!("head -c {DATA_BYTES} /dev/zero; exit 3"));
    let process = bench.spawn(request).await?;
    ends_with_much_output(process).await
}

async fn dropped_output_is_counted_and_does_not_block(bench: &Bench<'_>) -> Checked {
    let request = SpawnRequest::shell(format!("head -c {DATA_BYTES} /dev/zero; exit 3"));
    let mut process = bench.spawn(request).await?;
    let mut output = take_output(&mut *process)?;
    let first = step("the first output", output.next()).await?;
    ensure!(first.is_some(), "the output ended at once");
    drop(output);
    ends_with_much_output(process).await
}

async fn ends_with_much_output(mut process: Box<dyn Process>) -> Checked {
    let wait = process.wait();
    let exit = step("the exit with unread output", wait).await??;
    equal("exit", exit.status, ExitStatus::Code(3))?;
    equal("the bytes counted", exit.stdout.total_bytes, DATA_BYTES)
}

async fn output_can_be_read_after_the_end(bench: &Bench<'_>) -> Checked {
    let request = SpawnRequest::shell("head -c 4000 /dev/zero; echo end >&2");
    let mut process = bench.spawn(request).await?;
    let mut output = take_output(&mut *process)?;
    step("the end of a short command", process.wait()).await??;
    let mut counts = [0, 0];
    let reading = async {
        while let Some(chunk) = output.next().await {
            let chunk = chunk?;
            let [stdout, stderr] = &mut counts;
            match chunk.channel {
                Channel::Stdout => *stdout += chunk.bytes.len(),
                Channel::Stderr => *stderr += chunk.bytes.len(),
            }
        }
        Checked::Ok(())
    };
    step("the end of the output", reading).await??;
    equal("bytes read of both channels", counts, [4000, 4])
}

async fn a_stopped_reader_blocks_the_command(bench: &Bench<'_>) -> Checked {
    /// Far more than pipes and in-flight pieces hold.
    const MAX_PIECES_AHEAD: u64 = 100;
    const PIECES: u64 = 200;
    const PIECE_BYTES: u64 = 65_536;
    let script = format!(
        "x=$(printf %0{PIECE_BYTES}d 0); \
         for ((i = 1; i <= {PIECES}; i++)); do printf %s \"$x\"; echo $i > progress; done"
    );
    let mut process = bench.spawn(SpawnRequest::shell(script)).await?;
    let mut output = take_output(&mut *process)?;
    let mut read = next_bytes(&mut output).await?;

    let ahead = settled_progress(bench).await?;
    ensure!(
        ahead <= MAX_PIECES_AHEAD,
        "the command wrote {} unread bytes",
        ahead * PIECE_BYTES
    );

    let rest = async {
        while let Some(chunk) = output.next().await {
            read += chunk?.bytes.len() as u64;
        }
        Checked::Ok(process.wait().await?)
    };
    let exit = step("the rest of the output", rest).await??;
    equal("exit", exit.status, ExitStatus::Code(0))?;
    equal("bytes in all", read, PIECES * PIECE_BYTES)
}

async fn next_bytes(output: &mut OutputStream) -> Checked<u64> {
    let chunk = step("the first output", output.next()).await?;
    let chunk = chunk.ok_or_else(|| Failure::new("the output ended at once"))??;
    Ok(chunk.bytes.len() as u64)
}

/// Returns the number in the file `progress` once it no longer grows.
async fn settled_progress(bench: &Bench<'_>) -> Checked<u64> {
    const STALL_TIMEOUT: Duration = Duration::from_millis(1500);
    let progress = path("progress")?;
    let (mut last, mut since) = (0, Instant::now());
    while last == 0 || since.elapsed() < STALL_TIMEOUT {
        sleep(Duration::from_millis(20)).await;
        // The file is briefly missing or empty while the command rewrites it.
        let text = bench.read_bytes(&progress, 100).await;
        let text = text.unwrap_or_default();
        let now = String::from_utf8_lossy(&text).trim().parse();
        let now = now.unwrap_or(last);
        if now != last {
            (last, since) = (now, Instant::now());
        }
    }
    Ok(last)
}
