//! Commands: environment, working directory, exit status, signals and terminals.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;

use cantle_core::sandbox::{Exit, PtySize, Signal};

use super::prelude::*;

cases! { cases for Harness:
    exit_codes_are_kept,
    signal_death_differs_from_an_exit_code,
    the_shell_is_bash,
    commands_start_in_the_working_directory,
    a_command_runs_in_the_requested_directory,
    a_directory_that_is_missing_is_an_error,
    a_directory_that_is_a_file_is_an_error,
    host_environment_is_not_inherited,
    variables_of_a_request_reach_the_command,
    waiting_twice_returns_the_same_exit,
    a_cancelled_wait_loses_nothing,
    the_duration_covers_the_command,
    output_and_stdin_are_taken_once,
    concurrent_commands_are_independent,
    a_process_id_matches_the_command.optional(),
    a_signal_reaches_the_command.optional(),
    a_terminal_has_the_requested_size.optional(),
}

async fn exit_codes_are_kept(bench: &Bench<'_>) -> Checked {
    for code in [0, 1, 7, 126, 127, 137, 255] {
        let command = format!("exit {code}");
        let status = bench.sh(&command).await?.exit.status;
        equal(&command, status, ExitStatus::Code(code))?;
    }
    Ok(())
}

async fn signal_death_differs_from_an_exit_code(bench: &Bench<'_>) -> Checked {
    for (name, signal) in [("KILL", 9), ("TERM", 15), ("SEGV", 11)] {
        let command = format!("kill -{name} $$; sleep 5");
        let status = bench.sh(&command).await?.exit.status;
        equal(&command, status, ExitStatus::Signal(signal))?;
    }
    Ok(())
}

async fn the_shell_is_bash(bench: &Bench<'_>) -> Checked {
    let script = r#"a=(one two "$(echo three)"); [[ $BASH_VERSION ]] && printf %s "${#a[@]}${a[2]}" | cat <(cat)"#;
    bench.must_print("a script in bash", script, "3three").await
}

async fn commands_start_in_the_working_directory(bench: &Bench<'_>) -> Checked {
    let expected = bench.info().working_directory.to_string();
    equal("`pwd`", bench.stdout("pwd").await?.trim_end(), &*expected)?;
    let output = bench.output_of(SpawnRequest::argv(["pwd"])).await?;
    let pwd = String::from_utf8_lossy(&output);
    equal("`pwd` without a shell", pwd.trim_end(), &*expected)
}

async fn a_command_runs_in_the_requested_directory(bench: &Bench<'_>) -> Checked {
    let below = path("one/two words")?;
    bench.mkdir(&below).await?;
    let absolute = bench.info().working_directory.join("one/two words")?;
    for directory in [below, absolute.clone()] {
        let request = SpawnRequest::shell("pwd").in_directory(directory);
        let output = bench.output_of(request).await?;
        let pwd = String::from_utf8_lossy(&output);
        equal("`pwd`", pwd.trim_end(), &*absolute.to_string())?;
    }
    Ok(())
}

async fn a_directory_that_is_missing_is_an_error(bench: &Bench<'_>) -> Checked {
    let request = SpawnRequest::shell("true").in_directory(path("missing")?);
    let spawned = bench.spawn(request).await;
    let what = "a command in a missing directory";
    refused(what, spawned, &[NotFound])
}

async fn a_directory_that_is_a_file_is_an_error(bench: &Bench<'_>) -> Checked {
    let file = path("file")?;
    bench.write_bytes(&file, "text".into()).await?;
    let request = SpawnRequest::shell("true").in_directory(file);
    let spawned = bench.spawn(request).await;
    let what = "a command in a file";
    refused(what, spawned, &[NotADirectory])
}

/// Variables of every shell, whose values may equal the host's by chance.
const COMMON_VARIABLES: &[&str] = &[
    "_", "HOME", "HOSTNAME", "LANG", "LANGUAGE", "LOGNAME", "OLDPWD", "PATH", "PWD", "SHELL",
    "SHLVL", "TERM", "TMPDIR", "TZ", "USER",
];

async fn host_environment_is_not_inherited(bench: &Bench<'_>) -> Checked {
    let ours = std::env::vars_os().filter(|(name, value)| {
        let common = name
            .to_str()
            .is_some_and(|name| COMMON_VARIABLES.contains(&name) || name.starts_with("LC_"));
        !common && !value.is_empty()
    });
    let ours: BTreeMap<_, _> = ours.collect();
    // Cargo sets a dozen variables for every test.
    if ours.is_empty() {
        return Err(Failure::new("this process has no variable to look for"));
    }
    let output = bench.output_of(SpawnRequest::argv(["env", "-0"])).await?;
    for variable in output.split(|byte| *byte == 0) {
        let mut halves = variable.splitn(2, |byte| *byte == b'=');
        let name = OsString::from_vec(halves.next().unwrap_or_default().to_vec());
        let value = OsString::from_vec(halves.next().unwrap_or_default().to_vec());
        ensure!(
            ours.get(&name) != Some(&value),
            "the command inherited `{}`",
            name.display()
        );
    }
    Ok(())
}

async fn variables_of_a_request_reach_the_command(bench: &Bench<'_>) -> Checked {
    let variables = [
        ("PLAIN", "value"),
        ("QUOTED", "it's \"here\" $HOME `id`"),
        ("LINES", "one\ntwo\n"),
        ("EMPTY", ""),
        ("lower_2", "ü"),
    ];
    let mut request = SpawnRequest::argv(["env", "-0"]);
    for (name, value) in variables {
        request = request.with_env(name, value);
    }
    let output = bench.output_of(request).await?;
    for (name, value) in variables {
        let expected = format!("{name}={value}");
        let found = output
            .split(|byte| *byte == 0)
            .any(|own| own == expected.as_bytes());
        ensure!(found, "the command has no variable {expected:?}");
    }
    let again = bench.stdout("printf %s \"${PLAIN-none}\"").await?;
    equal("the variable in the next command", again, "none")
}

async fn waiting_twice_returns_the_same_exit(bench: &Bench<'_>) -> Checked {
    let mut process = bench.spawn(SpawnRequest::shell("exit 3")).await?;
    let first = process.wait().await?;
    equal("the first exit", first.status, ExitStatus::Code(3))?;
    equal("the second exit", process.wait().await?, first)
}

async fn a_cancelled_wait_loses_nothing(bench: &Bench<'_>) -> Checked {
    let request = SpawnRequest::shell("read line; exit 4").with_stdin(Stdin::Piped);
    let mut process = bench.spawn(request).await?;
    let mut stdin = take_stdin(&mut *process)?;
    let early = timeout(Duration::from_millis(50), process.wait()).await;
    ensure!(early.is_err(), "the command ended without its input");
    stdin.write("go\n".into()).await?;
    let exit = step("the exit", process.wait()).await??;
    equal("the exit", exit.status, ExitStatus::Code(4))
}

async fn the_duration_covers_the_command(bench: &Bench<'_>) -> Checked {
    let started = Instant::now();
    let Exit { duration, .. } = bench.sh("sleep 0.3").await?.exit;
    let took = started.elapsed();
    let least = Duration::from_millis(300);
    ensure!(
        duration >= least && duration <= took,
        "the duration of `sleep 0.3` is {duration:?}; the call took {took:?}"
    );
    Ok(())
}

async fn output_and_stdin_are_taken_once(bench: &Bench<'_>) -> Checked {
    let request = SpawnRequest::shell("cat").with_stdin(Stdin::Piped);
    let mut process = bench.spawn(request).await?;
    let outputs = [process.take_output(), process.take_output()].map(|it| it.is_some());
    equal(
        "whether `take_output` returns a stream",
        outputs,
        [true, false],
    )?;
    let inputs = [process.take_stdin(), process.take_stdin()].map(|it| it.is_some());
    equal(
        "whether `take_stdin` returns a stream",
        inputs,
        [true, false],
    )?;
    let mut process = bench.spawn(SpawnRequest::shell("true")).await?;
    let without = process.take_stdin().is_some();
    equal("whether it does without `Stdin::Piped`", without, false)
}

async fn concurrent_commands_are_independent(bench: &Bench<'_>) -> Checked {
    let one = async |number: usize| -> Checked {
        let command = format!(
            "cat; for i in {{1..200}}; do echo {number}; echo {number} >&2; done; exit {number}"
        );
        let input = Bytes::from(format!("{number}\n").repeat(10));
        let mut request = SpawnRequest::shell(command).with_stdin(Stdin::Bytes(input));
        request.timeout = Some(STEP_TIMEOUT);
        let output = bench.run(request).await?;
        let expected = format!("{number}\n").repeat(200);
        same_bytes("stderr", &whole(&output.stderr)?, expected.as_bytes())?;
        let expected = format!("{number}\n").repeat(210);
        same_bytes("stdout", &whole(&output.stdout)?, expected.as_bytes())?;
        let code = i32::try_from(number).unwrap_or(-1);
        equal("exit", output.exit.status, ExitStatus::Code(code))
    };
    try_join_all((0..32).map(one)).await?;
    Ok(())
}

async fn a_process_id_matches_the_command(bench: &Bench<'_>) -> Checked {
    let request = SpawnRequest::shell("echo $$; read line").with_stdin(Stdin::Piped);
    let mut process = bench.spawn(request).await?;
    let mut output = take_output(&mut *process)?;
    let own = read_until(&mut output, "\n").await?;
    let id = process
        .id()
        .ok_or_else(|| Failure::skip("the process has no id"))?;
    equal("the process id", own.trim_end(), &*id.to_string())
}

async fn a_signal_reaches_the_command(bench: &Bench<'_>) -> Checked {
    let token = Token::new();
    let script = format!("trap 'exit 5' USR1; echo ready; {} & wait", token.sleep());
    let (mut process, _output) = bench.start(SpawnRequest::shell(script), "ready").await?;
    process.signal(Signal::USR1).await?;
    let exit = step("the exit by USR1", process.wait()).await??;
    equal("a handled signal", exit.status, ExitStatus::Code(5))?;
    process.signal(Signal::TERM).await?;

    let request = SpawnRequest::shell(format!("exec {}", token.sleep()));
    let mut process = bench.spawn(request).await?;
    bench.must_run(&token).await?;
    process.signal(Signal::TERM).await?;
    let exit = step("the exit by TERM", process.wait()).await??;
    equal(
        "a fatal signal",
        exit.status,
        ExitStatus::Signal(Signal::TERM.as_raw()),
    )
}

async fn a_terminal_has_the_requested_size(bench: &Bench<'_>) -> Checked {
    let size = |rows, columns| PtySize { rows, columns };
    let script = "test -t 0 && test -t 1 && test -t 2 && stty size; read line; stty size; exit 6";
    let request = SpawnRequest::shell(script).with_pty(size(31, 97));
    let mut process = bench.spawn(request).await?;
    let mut output = take_output(&mut *process)?;
    let mut stdin = take_stdin(&mut *process)?;
    read_until(&mut output, "31 97").await?;
    process.resize(size(40, 120)).await?;
    stdin.write("\n".into()).await?;
    read_until(&mut output, "40 120").await?;
    let exit = step("the exit", process.wait()).await??;
    equal("the exit", exit.status, ExitStatus::Code(6))
}
