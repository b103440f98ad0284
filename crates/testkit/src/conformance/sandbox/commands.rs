//! Commands: what they are given, where they run, and how they end.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::time::Duration;

use bytes::Bytes;
use cantle_core::sandbox::{
    Exit, ExitStatus, PtySize, SandboxErrorKind, SandboxExt as _, SpawnRequest, Stdin,
};
use futures_util::future::try_join_all;
use tokio::time::{Instant, timeout};

use super::super::check::{Checked, Failure, ensure, equal, refused, same_bytes, within};
use super::super::suite::Case;
use super::bench::{Bench, Harness, PATIENCE, Token, path, read_until, take_output, whole};
use super::case;

pub(super) fn cases<'b>() -> Vec<Case<Harness<'b>>> {
    vec![
        case!(exit_codes_are_kept),
        case!(death_by_a_signal_is_told_from_an_exit_code),
        case!(the_shell_is_bash),
        case!(commands_start_in_the_working_directory),
        case!(a_command_runs_in_the_directory_it_asks_for),
        case!(a_directory_that_is_missing_is_an_error),
        case!(a_directory_that_is_a_file_is_an_error),
        case!(nothing_of_our_environment_is_inherited),
        case!(variables_of_a_request_reach_the_command),
        case!(waiting_again_gives_the_same_answer),
        case!(a_wait_that_is_given_up_loses_nothing),
        case!(the_duration_is_the_commands_own),
        case!(output_and_input_are_given_once),
        case!(thirty_two_commands_at_once_keep_apart),
        case!(a_process_id_is_the_commands_own).optional(),
        case!(a_signal_reaches_the_command).optional(),
        case!(a_terminal_has_the_size_asked_for).optional(),
    ]
}

async fn exit_codes_are_kept(bench: &Bench<'_>) -> Checked {
    for code in [0, 1, 7, 126, 127, 137, 255] {
        let command = format!("exit {code}");
        let status = bench.sh(&command).await?.exit.status;
        equal(&command, status, ExitStatus::Code(code))?;
    }
    Ok(())
}

async fn death_by_a_signal_is_told_from_an_exit_code(bench: &Bench<'_>) -> Checked {
    for (name, signal) in [("KILL", 9), ("TERM", 15), ("SEGV", 11)] {
        let command = format!("kill -{name} $$; sleep 5");
        let status = bench.sh(&command).await?.exit.status;
        equal(&command, status, ExitStatus::Signal(signal))?;
    }
    Ok(())
}

async fn the_shell_is_bash(bench: &Bench<'_>) -> Checked {
    let script = r#"a=(one two "$(echo three)"); [[ $BASH_VERSION ]] && printf %s "${#a[@]}${a[2]}" | cat <(cat)"#;
    equal("a script in bash", bench.stdout(script).await?, "3three")
}

async fn commands_start_in_the_working_directory(bench: &Bench<'_>) -> Checked {
    let expected = bench.sandbox.info().working_directory.to_string();
    equal("`pwd`", bench.stdout("pwd").await?.trim_end(), &*expected)?;
    let output = bench.output_of(SpawnRequest::argv(["pwd"])).await?;
    let pwd = String::from_utf8_lossy(&output);
    equal("`pwd` without a shell", pwd.trim_end(), &*expected)
}

async fn a_command_runs_in_the_directory_it_asks_for(bench: &Bench<'_>) -> Checked {
    let below = path("one/two words")?;
    bench.sandbox.mkdir(&below).await?;
    let absolute = bench
        .sandbox
        .info()
        .working_directory
        .join("one/two words")?;
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
    let spawned = bench.sandbox.spawn(request).await;
    let what = "a command in a missing directory";
    refused(what, spawned.map(drop), &[SandboxErrorKind::NotFound])
}

async fn a_directory_that_is_a_file_is_an_error(bench: &Bench<'_>) -> Checked {
    let file = path("file")?;
    bench.sandbox.write_bytes(&file, "text".into()).await?;
    let request = SpawnRequest::shell("true").in_directory(file);
    let spawned = bench.sandbox.spawn(request).await;
    let what = "a command in a file";
    refused(what, spawned.map(drop), &[SandboxErrorKind::NotADirectory])
}

/// What every shell has, so that its value may be ours by chance.
const USUAL: &[&str] = &[
    "_", "HOME", "HOSTNAME", "LANG", "LANGUAGE", "LOGNAME", "OLDPWD", "PATH", "PWD", "SHELL",
    "SHLVL", "TERM", "TMPDIR", "TZ", "USER",
];

async fn nothing_of_our_environment_is_inherited(bench: &Bench<'_>) -> Checked {
    let ours = std::env::vars_os().filter(|(name, value)| {
        let usual = name
            .to_str()
            .is_some_and(|name| USUAL.contains(&name) || name.starts_with("LC_"));
        !usual && !value.is_empty()
    });
    let ours: BTreeMap<_, _> = ours.collect();
    // Cargo sets a dozen for every test it runs.
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
            "the command has `{}` of our own environment",
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

async fn waiting_again_gives_the_same_answer(bench: &Bench<'_>) -> Checked {
    let mut process = bench.sandbox.spawn(SpawnRequest::shell("exit 3")).await?;
    let first = process.wait().await?;
    equal("the first answer", first.status, ExitStatus::Code(3))?;
    equal("the second answer", process.wait().await?, first)
}

async fn a_wait_that_is_given_up_loses_nothing(bench: &Bench<'_>) -> Checked {
    let request = SpawnRequest::shell("read line; exit 4").with_stdin(Stdin::Piped);
    let mut process = bench.sandbox.spawn(request).await?;
    let mut stdin = process
        .take_stdin()
        .ok_or_else(|| Failure::new("there is no input to write to"))?;
    let early = timeout(Duration::from_millis(50), process.wait()).await;
    ensure!(early.is_err(), "the command ended without its input");
    stdin.write("go\n".into()).await?;
    let exit = within("the end of the command", PATIENCE, process.wait()).await??;
    equal("the answer", exit.status, ExitStatus::Code(4))
}

async fn the_duration_is_the_commands_own(bench: &Bench<'_>) -> Checked {
    let started = Instant::now();
    let Exit { duration, .. } = bench.sh("sleep 0.3").await?.exit;
    let took = started.elapsed();
    let least = Duration::from_millis(300);
    ensure!(
        duration >= least && duration <= took,
        "`sleep 0.3` is said to have taken {duration:?}; the call took {took:?}"
    );
    Ok(())
}

async fn output_and_input_are_given_once(bench: &Bench<'_>) -> Checked {
    let request = SpawnRequest::shell("cat").with_stdin(Stdin::Piped);
    let mut process = bench.sandbox.spawn(request).await?;
    ensure!(process.take_output().is_some(), "there is no output");
    ensure!(process.take_output().is_none(), "there is output twice");
    ensure!(process.take_stdin().is_some(), "there is no input");
    ensure!(process.take_stdin().is_none(), "there is input twice");
    let mut process = bench.sandbox.spawn(SpawnRequest::shell("true")).await?;
    ensure!(
        process.take_stdin().is_none(),
        "there is input to write to where none was asked for"
    );
    Ok(())
}

async fn thirty_two_commands_at_once_keep_apart(bench: &Bench<'_>) -> Checked {
    let one = async |number: usize| -> Checked {
        let command = format!(
            "cat; for i in {{1..200}}; do echo {number}; echo {number} >&2; done; exit {number}"
        );
        let input = Bytes::from(format!("{number}\n").repeat(10));
        let mut request = SpawnRequest::shell(command).with_stdin(Stdin::Bytes(input));
        request.timeout = Some(PATIENCE);
        let output = bench.sandbox.run(request).await?;
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

async fn a_process_id_is_the_commands_own(bench: &Bench<'_>) -> Checked {
    let request = SpawnRequest::shell("echo $$; read line").with_stdin(Stdin::Piped);
    let mut process = bench.sandbox.spawn(request).await?;
    let mut output = take_output(&mut *process)?;
    let own = read_until(&mut output, "\n").await?;
    let id = process
        .id()
        .ok_or_else(|| Failure::skip("the process has no id"))?;
    equal("the process id", own.trim_end(), &*id.to_string())
}

async fn a_signal_reaches_the_command(bench: &Bench<'_>) -> Checked {
    const TERM: i32 = 15;
    let token = Token::new();
    let script = format!("trap 'exit 5' USR1; echo ready; {} & wait", token.sleep());
    let mut process = bench.sandbox.spawn(SpawnRequest::shell(script)).await?;
    let mut output = take_output(&mut *process)?;
    read_until(&mut output, "ready").await?;
    process.signal(10).await?;
    let exit = within("the end by USR1", PATIENCE, process.wait()).await??;
    equal("a handled signal", exit.status, ExitStatus::Code(5))?;
    process.signal(TERM).await?;

    let request = SpawnRequest::shell(format!("exec {}", token.sleep()));
    let mut process = bench.sandbox.spawn(request).await?;
    bench.must_run(&token).await?;
    process.signal(TERM).await?;
    let exit = within("the end by TERM", PATIENCE, process.wait()).await??;
    equal("a deadly signal", exit.status, ExitStatus::Signal(TERM))
}

async fn a_terminal_has_the_size_asked_for(bench: &Bench<'_>) -> Checked {
    let size = |rows, columns| PtySize { rows, columns };
    let script = "test -t 0 && test -t 1 && test -t 2 && stty size; read line; stty size; exit 6";
    let request = SpawnRequest::shell(script).with_pty(size(31, 97));
    let mut process = bench.sandbox.spawn(request).await?;
    let mut output = take_output(&mut *process)?;
    let mut stdin = process
        .take_stdin()
        .ok_or_else(|| Failure::new("a terminal has no input"))?;
    read_until(&mut output, "31 97").await?;
    process.resize(size(40, 120)).await?;
    stdin.write("\n".into()).await?;
    read_until(&mut output, "40 120").await?;
    let exit = within("the end of the command", PATIENCE, process.wait()).await??;
    equal("the end", exit.status, ExitStatus::Code(6))
}
