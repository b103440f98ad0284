//! Arguments: passed unchanged or refused.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;

use super::prelude::*;

cases! { cases for Harness:
    arguments_without_a_shell_are_not_expanded,
    arguments_may_be_any_bytes,
    nul_in_a_request_is_refused,
    a_command_line_of_100_kilobytes_runs,
    arguments_that_are_too_long_are_refused,
    a_long_list_of_arguments_arrives_whole_or_is_refused,
    a_program_that_is_missing_is_an_error,
    a_program_that_is_not_executable_is_an_error,
    an_empty_argv_is_an_error,
}

async fn arguments_without_a_shell_are_not_expanded(bench: &Bench<'_>) -> Checked {
    let arguments = [
        "$HOME", "*", "a b", "`id`", "$(id)", "", "'\"", "\\n", "; exit 9", "-n", "~", "é\n",
    ];
    let request = SpawnRequest::argv(["printf", "%s|"].into_iter().chain(arguments));
    let expected: String = arguments.iter().map(|it| format!("{it}|")).collect();
    let output = bench.output_of(request).await?;
    equal("arguments", String::from_utf8_lossy(&output), expected)
}

async fn arguments_may_be_any_bytes(bench: &Bench<'_>) -> Checked {
    let bytes: Vec<u8> = (1..=255).collect();
    let argv = [
        "printf".into(),
        "%s".into(),
        OsString::from_vec(bytes.clone()),
    ];
    let output = bench.output_of(SpawnRequest::argv(argv)).await?;
    same_bytes("an argument of bytes 1 to 255", &output, &bytes)?;

    let line = OsString::from_vec(b"printf %s '\xff\xfe'".to_vec());
    let output = bench.output_of(SpawnRequest::shell(line)).await?;
    same_bytes("a command line that is not UTF-8", &output, b"\xff\xfe")
}

async fn nul_in_a_request_is_refused(bench: &Bench<'_>) -> Checked {
    let requests = [
        (
            "NUL in an argument",
            SpawnRequest::argv(["echo", "one\0two"]),
        ),
        ("NUL in a program", SpawnRequest::argv(["ec\0ho"])),
        (
            "NUL in a command line",
            SpawnRequest::shell("echo one\0two"),
        ),
        (
            "NUL in a variable",
            SpawnRequest::shell("true").with_env("NAME", "one\0two"),
        ),
    ];
    for (what, request) in requests {
        let spawned = bench.spawn(request).await;
        refused(what, spawned, &[InvalidInput])?;
    }
    Ok(())
}

async fn a_command_line_of_100_kilobytes_runs(bench: &Bench<'_>) -> Checked {
    // Models write files of this size with here documents. Linux allows 128 KiB.
    let text = "0123456789abcde\n".repeat(100_000 / 16);
    let command = format!("cat > file <<'END'\n{text}END\nwc -c < file; exit 3");
    let output = bench.sh(&command).await?;
    equal("exit", output.exit.status, ExitStatus::Code(3))?;
    let count = whole(&output.stdout)?;
    let count = String::from_utf8_lossy(&count);
    equal("bytes written", count.trim(), &*text.len().to_string())
}

async fn arguments_that_are_too_long_are_refused(bench: &Bench<'_>) -> Checked {
    const BYTES: usize = 3_000_000;
    let count = ["bash", "-c", "printf %s ${#1}", "bash"];
    let long = "x".repeat(BYTES);
    let request = SpawnRequest::argv(count.into_iter().chain([long.as_str()]));
    // Linux allows 128 KiB per argument; a sandbox that allows more must pass all of it.
    let output = bench.run(request).await;
    whole_or_refused("an argument of 3 MB", output, &BYTES.to_string())?;
    bench
        .must_print("a command after it", "echo ok", "ok\n")
        .await
}

async fn a_long_list_of_arguments_arrives_whole_or_is_refused(bench: &Bench<'_>) -> Checked {
    // Linux allows a quarter of the stack limit, by default 2 MiB, including the environment.
    for count in [5_000, 30_000] {
        let script = "all=\"$*\"; printf '%s %s %s' $# ${#all} \"${!#}\"";
        let own = ["bash", "-c", script, "bash"].map(OsString::from);
        let list = (1..=count).map(|number| OsString::from(format!("{number:0100}")));
        let request = SpawnRequest::argv(own.into_iter().chain(list));
        let output = bench.run(request).await;
        let expected = format!("{count} {} {count:0100}", count * 101 - 1);
        let what = format!("{count} arguments of 100 bytes");
        whole_or_refused(&what, output, &expected)?;
    }
    bench
        .must_print("a command after it", "echo ok", "ok\n")
        .await
}

/// Checks that the command got all of its arguments or was refused because they are too long.
#[track_caller]
fn whole_or_refused(
    what: &str,
    output: Result<CommandOutput, SandboxError>,
    expected: &str,
) -> Checked {
    match output {
        Ok(output) => same_bytes(what, &whole(&output.stdout)?, expected.as_bytes()),
        Err(error) => refused(what, Err::<(), _>(error), &[InvalidInput]),
    }
}

async fn a_program_that_is_missing_is_an_error(bench: &Bench<'_>) -> Checked {
    for program in ["no-such-program", "./no-such-program", "/no/such/program"] {
        let spawned = bench.spawn(SpawnRequest::argv([program])).await;
        refused(program, spawned, &[NotFound])?;
    }
    let status = bench.sh("no-such-program").await?.exit.status;
    let what = "a missing program in a shell";
    equal(what, status, ExitStatus::Code(127))
}

async fn a_program_that_is_not_executable_is_an_error(bench: &Bench<'_>) -> Checked {
    let script = "#!/bin/bash\n".into();
    bench.write_bytes(&path("tool")?, script).await?;
    let spawned = bench.spawn(SpawnRequest::argv(["./tool"])).await;
    refused("a program of mode 644", spawned, &[PermissionDenied])
}

async fn an_empty_argv_is_an_error(bench: &Bench<'_>) -> Checked {
    let nothing: [&str; 0] = [];
    for request in [SpawnRequest::argv(nothing), SpawnRequest::argv([""])] {
        let spawned = bench.spawn(request).await;
        refused(
            "an argv without a program",
            spawned,
            &[InvalidInput, NotFound],
        )?;
    }
    Ok(())
}
