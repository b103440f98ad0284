//! Standard input: none, given bytes, or interactive.

use super::prelude::*;

const MEGABYTE: usize = 1_000_000;

cases! { cases for Harness:
    missing_stdin_is_at_eof,
    given_input_arrives_whole,
    unread_input_does_not_block,
    input_is_written_while_output_is_read,
    input_that_is_dropped_ends,
    input_that_the_command_closed_is_reported,
}

async fn missing_stdin_is_at_eof(bench: &Bench<'_>) -> Checked {
    let reading = bench.stdout("cat; echo end");
    let output = step("the exit of `cat` without stdin", reading).await??;
    equal("output", output, "end\n")
}

async fn given_input_arrives_whole(bench: &Bench<'_>) -> Checked {
    let mut input: Vec<u8> = (0..=255).cycle().take(MEGABYTE).collect();
    input.push(b'!');
    let count = SpawnRequest::shell("cat > copy; wc -c < copy")
        .with_stdin(Stdin::Bytes(Bytes::from(input.clone())));
    let output = bench.output_of(count).await?;
    equal(
        "bytes of input",
        String::from_utf8_lossy(&output).trim(),
        &*input.len().to_string(),
    )?;
    let copy = read(&**bench, &path("copy")?).await?;
    same_bytes("the input", &copy, &input)?;

    let empty = SpawnRequest::shell("cat; echo end").with_stdin(Stdin::Bytes(Bytes::new()));
    let output = bench.output_of(empty).await?;
    same_bytes("output with an empty input", &output, b"end\n")
}

async fn unread_input_does_not_block(bench: &Bench<'_>) -> Checked {
    for command in ["exit 3", "sleep 0.2; exit 3", "exec <&-; sleep 0.2; exit 3"] {
        let input = Stdin::Bytes(Bytes::from(vec![b'x'; MEGABYTE]));
        let request = SpawnRequest::shell(command).with_stdin(input);
        let run = bench.run(request);
        let output = step("the exit of a command that reads nothing", run).await??;
        equal(command, output.exit.status, ExitStatus::Code(3))?;
    }
    Ok(())
}

async fn input_is_written_while_output_is_read(bench: &Bench<'_>) -> Checked {
    // A megabyte exceeds two pipe buffers of 64 KiB, so both sides must make progress.
    let input = Bytes::from(vec![b'x'; MEGABYTE]);
    let request = SpawnRequest::argv(["cat"]).with_stdin(Stdin::Bytes(input));
    let mut count = 0;
    let mut sink = |chunk: OutputChunk| count += chunk.bytes.len();
    let exit = bench.exec(request, &mut sink);
    let exit = step("the exit of `cat`", exit).await??;
    equal("exit", exit.status, ExitStatus::Code(0))?;
    equal("bytes through `cat`", count, MEGABYTE)?;

    let script = "while read -r line; do echo \"<$line>\"; done; echo over";
    let (mut process, mut stdin) = piped(bench, script).await?;
    let mut output = take_output(&mut *process)?;
    for line in ["one", "two"] {
        stdin.write(format!("{line}\n").into()).await?;
        read_until(&mut output, &format!("<{line}>")).await?;
    }
    Ok(())
}

async fn input_that_is_dropped_ends(bench: &Bench<'_>) -> Checked {
    let (mut process, mut stdin) = piped(bench, "cat; exit 7").await?;
    stdin.write("text".into()).await?;
    drop(stdin);
    let exit = step("the exit of `cat`", process.wait()).await??;
    equal("exit", exit.status, ExitStatus::Code(7))?;
    equal("bytes through `cat`", exit.stdout.total_bytes, 4)
}

async fn input_that_the_command_closed_is_reported(bench: &Bench<'_>) -> Checked {
    let token = Token::new();
    let script = format!("exec <&-; echo closed; exec {}", token.sleep());
    let (mut process, mut stdin) = piped(bench, &script).await?;
    let mut output = take_output(&mut *process)?;
    read_until(&mut output, "closed").await?;
    // The first write may still fit into a buffer.
    let writing = async {
        let piece = Bytes::from(vec![b'x'; MEGABYTE]);
        for _ in 0..8 {
            stdin.write(piece.clone()).await?;
        }
        Ok(())
    };
    let written = step("the result of a write", writing).await?;
    let what = "writing to a closed input";
    refused(what, written, &[Closed])
}

async fn piped(
    bench: &Bench<'_>,
    command: &str,
) -> Checked<(Box<dyn Process>, Box<dyn ProcessStdin>)> {
    let request = SpawnRequest::shell(command).with_stdin(Stdin::Piped);
    let mut process = bench.spawn(request).await?;
    let stdin = take_stdin(&mut *process)?;
    Ok((process, stdin))
}
