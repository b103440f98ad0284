//! Large output: head, tail and spill file.

use cantle_core::sandbox::{Spill, SpillFile};

use super::prelude::*;

cases! { cases for Harness:
    large_output_keeps_its_head_and_tail,
    large_output_is_spilled_to_a_file.optional(),
    output_of_100_megabytes_is_spilled_whole.heavy().optional(),
    small_output_is_not_spilled.optional(),
    each_channel_is_spilled_by_itself.optional(),
    a_spilled_file_ends_at_its_cap.optional(),
}

/// A million distinct lines.
const COUNT: &str = "seq 1000000 1999999";
const COUNT_BYTES: usize = 8_000_000;

fn counted() -> String {
    (1_000_000..2_000_000).map(|n| format!("{n}\n")).collect()
}

async fn large_output_keeps_its_head_and_tail(bench: &Bench<'_>) -> Checked {
    let output = bench.run(SpawnRequest::shell(COUNT)).await?;
    head_and_tail(&output)
}

fn head_and_tail(output: &CommandOutput) -> Checked {
    let all = counted();
    let captured = &output.stdout;
    equal("exit", output.exit.status, ExitStatus::Code(0))?;
    equal("bytes in all", captured.total_bytes(), COUNT_BYTES as u64)?;
    let head = all.get(..captured.head.len()).unwrap_or_default();
    same_bytes("the head", &captured.head, head.as_bytes())?;
    let tail = all.len().saturating_sub(captured.tail.len());
    let tail = all.get(tail..).unwrap_or_default();
    same_bytes("the tail", &captured.tail, tail.as_bytes())
}

async fn large_output_is_spilled_to_a_file(bench: &Bench<'_>) -> Checked {
    let request = SpawnRequest::shell(COUNT).with_spill(Spill::after(1000));
    let output = bench.run(request).await?;
    head_and_tail(&output)?;
    let file = spilled(&output.exit.stdout.spilled)?;
    equal("the size reported", file.size_bytes, COUNT_BYTES as u64)?;
    equal("stderr", &output.exit.stderr.spilled, &None)?;
    let all = counted();
    bench.must_hold("the file", &file.path, all).await?;
    // The model gets the path and uses it in commands.
    let request = SpawnRequest::argv(["md5sum".to_owned(), file.path.to_string()]);
    let own = bench.output_of(request).await?;
    let whole = bench
        .output_of(SpawnRequest::shell(format!("{COUNT} | md5sum")))
        .await?;
    same_bytes("the file as a command sees it", sum(&own), sum(&whole))
}

fn sum(line: &[u8]) -> &[u8] {
    line.split(|byte| *byte == b' ').next().unwrap_or_default()
}

async fn output_of_100_megabytes_is_spilled_whole(bench: &Bench<'_>) -> Checked {
    const COUNT: &str = "seq 10000000 22499999; echo end";
    const BYTES: u64 = 12_500_000 * 9 + 4;
    let request = SpawnRequest::shell(COUNT).with_spill(Spill::after(1000));
    let exit = bench.run(request).await?.exit;
    equal("exit", exit.status, ExitStatus::Code(0))?;
    let file = spilled(&exit.stdout.spilled)?;
    let sizes = (exit.stdout.total_bytes, file.size_bytes);
    equal("bytes counted and kept", sizes, (BYTES, BYTES))?;
    let compare = format!("({COUNT}) | cmp - \"$1\"");
    let argv = ["bash", "-c", &compare, "bash", &file.path.to_string()];
    let output = bench.run(SpawnRequest::argv(argv)).await?;
    let difference = output.stdout.text();
    equal("the difference", &*difference, "")?;
    equal("exit", output.exit.status, ExitStatus::Code(0))
}

async fn small_output_is_not_spilled(bench: &Bench<'_>) -> Checked {
    let request = SpawnRequest::shell("printf %01000d 0").with_spill(Spill::after(1000));
    let output = bench.run(request).await?;
    equal("the bytes counted", output.exit.stdout.total_bytes, 1000)?;
    equal("the file", &output.exit.stdout.spilled, &None)
}

async fn each_channel_is_spilled_by_itself(bench: &Bench<'_>) -> Checked {
    let script = "printf %02000d 1; printf %03000d 2 >&2";
    let request = SpawnRequest::shell(script).with_spill(Spill::after(1000));
    let exit = bench.run(request).await?.exit;
    for (report, digit, size) in [(&exit.stdout, b'1', 2000), (&exit.stderr, b'2', 3000)] {
        let file = spilled(&report.spilled)?;
        let mut expected = vec![b'0'; size - 1];
        expected.push(digit);
        bench.must_hold("the file", &file.path, &expected).await?;
    }
    Ok(())
}

async fn a_spilled_file_ends_at_its_cap(bench: &Bench<'_>) -> Checked {
    const CAP: usize = 1_000_000;
    let spill = Spill::after(1000).with_cap(CAP as u64);
    let request = SpawnRequest::shell(format!("{COUNT}; exit 3")).with_spill(spill);
    let exit = bench.run(request).await?.exit;
    equal("exit", exit.status, ExitStatus::Code(3))?;
    let total = exit.stdout.total_bytes;
    equal("the bytes counted", total, COUNT_BYTES as u64)?;
    let file = spilled(&exit.stdout.spilled)?;
    equal("the size reported", file.size_bytes, CAP as u64)?;
    let all = counted();
    let expected = all.get(..CAP).unwrap_or_default();
    bench.must_hold("the file", &file.path, expected).await
}

fn spilled(file: &Option<SpillFile>) -> Checked<&SpillFile> {
    file.as_ref()
        .ok_or_else(|| Failure::new("large output was not spilled"))
}
