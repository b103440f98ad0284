//! Starting commands: environment, directory, input, exit codes, and failures.

use std::time::Duration;

use bytes::Bytes;
use cantle_core::policy::Policy;
use cantle_core::sandbox::{
    Exit, ExitStatus, Sandbox, SandboxError, SandboxErrorKind, SandboxExt as _, Signal,
    SpawnRequest, Stdin,
};

use crate::support::{
    Token, on_host, open, open_under, path, read_until, run, soon, stdout, write,
};

async fn refused(sandbox: &dyn Sandbox, request: SpawnRequest) -> SandboxError {
    match sandbox.spawn(request).await {
        Ok(_) => panic!("it started"),
        Err(error) => error,
    }
}

#[tokio::test]
async fn environment_contains_only_documented_variables() {
    let mut policy = Policy::unconfined();
    policy
        .environment
        .insert("FROM_POLICY".into(), "policy".into());
    policy.environment.insert("BOTH".into(), "policy".into());
    let sandbox = open_under(policy).await;
    let request = SpawnRequest::argv(["env"])
        .with_env("FROM_REQUEST", "request")
        .with_env("BOTH", "request");
    let output = sandbox.run(request).await.unwrap().stdout.text();
    let mut names: Vec<&str> = output
        .lines()
        .filter_map(|line| line.split_once('=').map(|(name, _)| name))
        .collect();
    names.sort_unstable();
    let expected = [
        "BOTH",
        "FROM_POLICY",
        "FROM_REQUEST",
        "HOME",
        "LANG",
        "LOGNAME",
        "PATH",
        "PWD",
        "SHELL",
        "TERM",
        "TMPDIR",
        "USER",
    ];
    assert_eq!(names, expected);
    let work = sandbox.info().working_directory.to_string();
    for line in [
        "BOTH=request".to_owned(),
        "LANG=C.UTF-8".to_owned(),
        "TERM=dumb".to_owned(),
        format!("HOME={work}"),
        format!("PWD={work}"),
    ] {
        assert!(
            output.lines().any(|found| found == line),
            "{line} in {output}"
        );
    }
    sandbox.close().await.unwrap();
}

#[tokio::test]
async fn temporary_files_are_in_the_sandbox() {
    let sandbox = open().await;
    let made = stdout(&*sandbox, "mktemp").await;
    let root = on_host(&*sandbox, "..").canonicalize().unwrap();
    assert!(
        made.starts_with(&format!("{}/tmp/", root.display())),
        "{made}"
    );
    sandbox.close().await.unwrap();
}

// An ordinary child inherits descriptors without the close-on-exec flag.
#[cfg(confined)]
#[tokio::test]
async fn only_standard_descriptors_are_inherited() {
    let sandbox = open().await;
    let other = open().await;
    // A descriptor without the close-on-exec flag.
    let open_to_all = rustix::io::dup(std::io::stderr()).unwrap();
    // The fourth is the directory that `ls` reads.
    let seen = stdout(&*sandbox, "ls /proc/self/fd").await;
    assert_eq!(seen, "0\n1\n2\n3\n");
    drop(open_to_all);
    sandbox.close().await.unwrap();
    other.close().await.unwrap();
}

#[tokio::test]
async fn exit_codes_and_signals_are_distinguished() {
    let sandbox = open().await;
    for (line, status) in [
        ("true", ExitStatus::Code(0)),
        ("exit 7", ExitStatus::Code(7)),
        ("kill -USR1 $$", ExitStatus::Signal(10)),
        ("exit 138", ExitStatus::Code(138)),
        ("no-such-program", ExitStatus::Code(127)),
    ] {
        assert_eq!(run(&*sandbox, line).await.exit.status, status, "{line}");
    }
    sandbox.close().await.unwrap();
}

#[tokio::test]
async fn second_wait_returns_the_same_result() {
    let sandbox = open().await;
    let mut process = sandbox
        .spawn(SpawnRequest::shell("echo x; exit 3"))
        .await
        .unwrap();
    let once: Exit = process.wait().await.unwrap();
    assert_eq!(process.wait().await.unwrap(), once);
    assert_eq!(once.status, ExitStatus::Code(3));
    assert_eq!(once.stdout.total_bytes, 2);
    process.signal(Signal::TERM).await.unwrap();
    sandbox.close().await.unwrap();
}

#[tokio::test]
async fn dropped_wait_is_cancel_safe() {
    let sandbox = open().await;
    let mut process = sandbox
        .spawn(SpawnRequest::shell("read; exit 4").with_stdin(Stdin::Piped))
        .await
        .unwrap();
    let stdin = process.take_stdin().unwrap();
    let cut_short = tokio::time::timeout(Duration::from_millis(20), process.wait()).await;
    assert!(cut_short.is_err());
    drop(stdin);
    assert_eq!(
        soon(process.wait()).await.unwrap().status,
        ExitStatus::Code(4)
    );
    sandbox.close().await.unwrap();
}

#[tokio::test]
async fn shell_line_may_begin_with_hyphen() {
    let sandbox = open().await;
    let output = run(&*sandbox, "-x").await;
    assert_eq!(output.exit.status, ExitStatus::Code(127));
    assert!(
        output.stderr.text().contains("-x: command not found"),
        "{output:?}"
    );
    sandbox.close().await.unwrap();
}

#[tokio::test]
async fn arguments_are_not_expanded_without_shell() {
    let sandbox = open().await;
    let request = SpawnRequest::argv(["printf", "%s|", "*", "$HOME", "a b", ""]);
    assert_eq!(
        sandbox.run(request).await.unwrap().stdout.text(),
        "*|$HOME|a b||"
    );
    sandbox.close().await.unwrap();
}

#[tokio::test]
async fn program_is_found_by_path_and_by_name() {
    let sandbox = open().await;
    write(&*sandbox, "bin/tool", "#!/bin/sh\necho \"$0 in $PWD\"\n").await;
    stdout(&*sandbox, "chmod +x bin/tool; cp bin/tool bin/other").await;
    let work = sandbox.info().working_directory.to_string();

    let request = SpawnRequest::argv(["./tool"]).in_directory(path("bin"));
    let output = sandbox.run(request).await.unwrap().stdout.text();
    assert!(output.ends_with(&format!("in {work}/bin\n")), "{output}");

    let bin = format!("{work}/bin");
    let request = SpawnRequest::argv(["other"]).with_env("PATH", bin.as_str());
    let output = sandbox.run(request).await.unwrap().stdout.text();
    assert_eq!(output, format!("{bin}/other in {work}\n"));
    sandbox.close().await.unwrap();
}

#[tokio::test]
async fn start_failure_is_typed_error_with_advice() {
    let sandbox = open().await;
    write(&*sandbox, "plain", "text").await;
    write(&*sandbox, "broken", "#!/nonexistent/python\n").await;
    stdout(&*sandbox, "chmod +x broken; ln -s /usr out; touch file").await;
    let shell = |line: &str| SpawnRequest::shell(line.to_owned());
    let argv = |program: &str| SpawnRequest::argv([program]);
    let here = |directory| shell("true").in_directory(path(directory));
    for (request, kind) in [
        (argv("no-such-program"), SandboxErrorKind::NotFound),
        (argv("./missing"), SandboxErrorKind::NotFound),
        (argv("./broken"), SandboxErrorKind::NotFound),
        (argv("./plain"), SandboxErrorKind::PermissionDenied),
        (argv("/"), SandboxErrorKind::PermissionDenied),
        (argv(""), SandboxErrorKind::InvalidInput),
        (argv("a\0b"), SandboxErrorKind::InvalidInput),
        (
            SpawnRequest::argv(Vec::<String>::new()),
            SandboxErrorKind::InvalidInput,
        ),
        (shell("echo a\0b"), SandboxErrorKind::InvalidInput),
        (
            shell(&format!(": {}", "x".repeat(3 << 20))),
            SandboxErrorKind::InvalidInput,
        ),
        (
            shell("true").with_env("A=B", "x"),
            SandboxErrorKind::InvalidInput,
        ),
        (
            shell("true").with_env("A", "x\0y"),
            SandboxErrorKind::InvalidInput,
        ),
        (here("missing"), SandboxErrorKind::NotFound),
        (here("file"), SandboxErrorKind::NotADirectory),
        (here("out/lib"), SandboxErrorKind::OutsideSandbox),
        (here("/usr"), SandboxErrorKind::OutsideSandbox),
    ] {
        let asked = format!("{:.80}", format!("{request:?}"));
        let error = refused(&*sandbox, request).await;
        assert_eq!(error.kind(), kind, "{asked}: {error}");
    }
    let error = refused(&*sandbox, argv("no-such-program")).await;
    assert!(error.to_string().contains("/usr/bin"), "{error}");
    let directory = refused(&*sandbox, argv("/")).await;
    assert!(directory.advice().unwrap().contains("not a directory"));
    let long = refused(&*sandbox, shell(&"x".repeat(3 << 20))).await;
    assert!(long.advice().unwrap().contains("a file"), "{long}");
    assert!(long.to_string().len() < 1000);
    assert_eq!(stdout(&*sandbox, "echo alive").await, "alive\n");
    sandbox.close().await.unwrap();
}

#[tokio::test]
async fn stdin_is_empty_by_default() {
    let sandbox = open().await;
    let output = soon(run(&*sandbox, "cat; echo done")).await;
    assert_eq!(output.stdout.text(), "done\n");
    let request = SpawnRequest::shell("cat; echo done").with_stdin(Stdin::Bytes(Bytes::new()));
    assert_eq!(
        soon(sandbox.run(request)).await.unwrap().stdout.text(),
        "done\n"
    );
    sandbox.close().await.unwrap();
}

#[tokio::test]
async fn in_memory_stdin_arrives_complete() {
    let sandbox = open().await;
    let data = Bytes::from(vec![b'x'; 3_000_000]);
    let request = SpawnRequest::shell("wc -c").with_stdin(Stdin::Bytes(data));
    assert_eq!(
        soon(sandbox.run(request)).await.unwrap().stdout.text(),
        "3000000\n"
    );
    sandbox.close().await.unwrap();
}

#[tokio::test]
async fn large_stdin_and_stdout_do_not_deadlock() {
    let sandbox = open().await;
    let data = Bytes::from(vec![b'x'; 3_000_000]);
    let request = SpawnRequest::shell("cat").with_stdin(Stdin::Bytes(data));
    let output = soon(sandbox.run(request)).await.unwrap();
    assert_eq!(output.exit.stdout.total_bytes, 3_000_000);
    sandbox.close().await.unwrap();
}

#[tokio::test]
async fn unread_stdin_is_harmless() {
    let sandbox = open().await;
    for line in ["true", "exec 0<&-; sleep 0.05", "sleep 0.05"] {
        let data = Bytes::from(vec![b'x'; 1_000_000]);
        let request = SpawnRequest::shell(line).with_stdin(Stdin::Bytes(data));
        let output = soon(sandbox.run(request)).await.unwrap();
        assert_eq!(output.exit.status, ExitStatus::Code(0), "{line}");
    }
    sandbox.close().await.unwrap();
}

#[tokio::test]
async fn stdin_can_be_written_while_running() {
    let sandbox = open().await;
    let request = SpawnRequest::shell("while read line; do echo got $line; done; echo end");
    let mut process = sandbox
        .spawn(request.with_stdin(Stdin::Piped))
        .await
        .unwrap();
    let mut stdin = process.take_stdin().unwrap();
    assert!(process.take_stdin().is_none());
    stdin.write(Bytes::from_static(b"one\n")).await.unwrap();
    stdin.write(Bytes::from_static(b"two\n")).await.unwrap();
    drop(stdin);
    let exit = soon(process.wait()).await.unwrap();
    assert_eq!(
        exit.stdout.total_bytes,
        "got one\ngot two\nend\n".len() as u64
    );
    sandbox.close().await.unwrap();
}

#[tokio::test]
async fn stdin_is_closed_after_exit_even_if_a_child_holds_the_pipe() {
    let sandbox = open().await;
    let token = Token::new();
    for line in ["exec 0<&-; sleep 600", "sleep 600 <&0 &"] {
        let request = token
            .shell(line)
            .with_stdin(Stdin::Piped)
            .with_background(cantle_core::sandbox::Background::Keep);
        let mut process = sandbox.spawn(request).await.unwrap();
        let mut stdin = process.take_stdin().unwrap();
        let error = soon(async {
            loop {
                if let Err(error) = stdin.write(Bytes::from(vec![b'x'; 100_000])).await {
                    break error;
                }
            }
        })
        .await;
        assert_eq!(error.kind(), SandboxErrorKind::Closed, "{line}: {error}");
    }
    sandbox.close().await.unwrap();
    token.all_dead().await;
}

#[tokio::test]
async fn signal_reaches_the_process_group() {
    let sandbox = open().await;
    let token = Token::new();
    let mut process = sandbox
        .spawn(token.shell("trap 'exit 9' USR1; sleep 600 & echo ready; wait"))
        .await
        .unwrap();
    assert!(process.id().is_some());
    token.at_least(2).await;
    let mut output = process.take_output().unwrap();
    assert_eq!(read_until(&mut output, "\n").await, "ready\n");
    process.signal(Signal::USR1).await.unwrap();
    assert_eq!(
        soon(process.wait()).await.unwrap().status,
        ExitStatus::Code(9)
    );
    token.all_dead().await;
    sandbox.close().await.unwrap();
}

#[tokio::test]
async fn command_starts_in_requested_directory() {
    let sandbox = open().await;
    stdout(&*sandbox, "mkdir -p a/b; ln -s a link").await;
    let work = sandbox.info().working_directory.to_string();
    for (directory, expected) in [("a/b", "a/b"), ("link/b", "a/b")] {
        let request = SpawnRequest::shell("pwd -P").in_directory(path(directory));
        let output = sandbox.run(request).await.unwrap().stdout.text();
        assert_eq!(output, format!("{work}/{expected}\n"));
    }
    let absolute = path(&format!("{work}/a"));
    let request = SpawnRequest::shell("pwd").in_directory(absolute);
    let output = sandbox.run(request).await.unwrap().stdout.text();
    assert_eq!(output, format!("{work}/a\n"));
    sandbox.close().await.unwrap();
}
