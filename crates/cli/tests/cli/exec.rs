//! `cantle exec`.

use std::time::Instant;

use rustix::process::{Resource, Signal, getrlimit};
use tokio::io::AsyncReadExt as _;
use tokio::time::timeout;

use crate::support::{
    DEADLINE, DEFAULT_SIGNALS, Exited, Mark, TestEnv, own_address, send, wait_for_exit,
};

async fn exec(args: &[&str]) -> Exited {
    let args = ["exec", "--"].iter().chain(args);
    TestEnv::new().run(args).await
}

#[tokio::test]
async fn streams_and_exit_code_are_passed_through() {
    let exited = exec(&["bash", "-c", "echo out; echo err >&2; exit 7"]).await;
    let expected = Exited {
        code: Some(7),
        stdout: "out\n".to_owned(),
        stderr: "err\n".to_owned(),
    };
    assert_eq!(exited, expected);
}

#[tokio::test]
async fn arguments_are_not_interpreted() {
    let exited = exec(&["printf", "%s|", "$HOME", "a b", "*", ";ls", "--help", ""]).await;
    assert_eq!(
        (exited.code, &*exited.stdout),
        (Some(0), "$HOME|a b|*|;ls|--help||")
    );
}

#[tokio::test]
async fn sandbox_has_its_own_directory_and_environment() {
    let env = TestEnv::new().set("OPENAI_API_KEY", "sk-secret");
    env.write("ours.txt", "not there");
    let exited = env
        .run(["exec", "--", "bash", "-c", "ls -A; env; pwd"])
        .await;
    assert_eq!(exited.code, Some(0));
    assert!(!exited.stdout.contains("ours.txt") && !exited.stdout.contains("sk-secret"));
    let directory = exited.stdout.lines().last().unwrap();
    assert!(
        !std::path::Path::new(directory).exists(),
        "{directory} is left"
    );
}

#[tokio::test]
async fn commands_may_open_as_many_files_as_the_limit_says() {
    let env = TestEnv::new();
    let mut shell = env.command_of("bash");
    let line = "ulimit -Sn 100 && exec \"$0\" exec -- bash -c 'ulimit -Sn'";
    shell.args(["-c", line, env!("CARGO_BIN_EXE_cantle")]);
    let exited = wait_for_exit(shell.spawn().unwrap()).await;
    let hard = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
    let expected = format!("{}\n", hard.min(65_536));
    assert_eq!(exited.stdout, expected, "{exited:?}");
}

#[tokio::test]
async fn variables_and_paths_are_given_by_name() {
    let env = TestEnv::new().set("HERE", "from here");
    env.write("vars", "# for the test\nFILE=from the file\n");
    env.write("toolchain/tool", "fine\n");
    let toolchain = env.path("toolchain").display().to_string();
    let line = format!("echo $HERE, $FILE, $GIVEN; cat {toolchain}/tool; touch {toolchain}/x");
    let flags = [
        "--env",
        "HERE",
        "--env-file",
        "vars",
        "--env",
        "GIVEN=a=b",
        "--read",
        &toolchain,
    ];
    let command = ["--", "bash", "-c", &line];
    let exited = env.run(["exec"].iter().chain(&flags).chain(&command)).await;
    assert_eq!(
        exited.stdout, "from here, from the file, a=b\nfine\n",
        "{exited:?}"
    );
    assert_eq!(env.list("toolchain"), ["tool"]);
    let missing = env.run(["exec", "--env", "MISSING", "--", "true"]).await;
    assert_eq!(missing.code, Some(2), "{missing:?}");
}

#[tokio::test]
async fn the_search_path_names_directories_inside() {
    let env = TestEnv::new();
    env.write("private/bin/tool", "");
    let path = std::env::var("PATH").unwrap();
    let path = format!("{}:/nowhere:{path}", env.path("private/bin").display());
    let env = env.set("PATH", path);
    let command = [
        "exec",
        "--",
        "bash",
        "-c",
        "IFS=:; for d in $PATH; do test -d $d || echo $d; done",
    ];
    let exited = env.run(command).await;
    // The one into which `pip install` puts programs.
    assert_eq!(exited.stdout, "/tmp/.local/bin\n", "{exited:?}");
}

#[tokio::test]
async fn input_is_passed_through() {
    let env = TestEnv::new();
    let input: Vec<u8> = (0..3_000_000u32).map(|n| (n % 251) as u8).collect();
    let exited = env.run_with(["exec", "--", "wc", "-c"], &input).await;
    assert_eq!((exited.code, exited.stdout.trim()), (Some(0), "3000000"));
    // A command may exit without reading all of it.
    let exited = env
        .run_with(["exec", "--", "head", "-c", "3"], b"abcdef")
        .await;
    assert_eq!((exited.code, &*exited.stdout), (Some(0), "abc"));
}

#[tokio::test]
async fn unread_input_does_not_delay_the_exit() {
    let env = TestEnv::new();
    let mut command = env.command(["exec", "--", "echo", "done"]);
    let mut child = command.stdin(std::process::Stdio::piped()).spawn().unwrap();
    let open = child.stdin.take();
    let exited = wait_for_exit(child).await;
    assert_eq!((exited.code, &*exited.stdout), (Some(0), "done\n"));
    drop(open);
}

#[tokio::test]
async fn exit_code_tells_signals_and_timeouts() {
    assert_eq!(exec(&["bash", "-c", "kill -9 $$"]).await.code, Some(137));
    assert_eq!(exec(&["bash", "-c", "kill -TERM $$"]).await.code, Some(143));
    let env = TestEnv::new();
    let start = Instant::now();
    let exited = env.run([
        "exec",
        "--timeout",
        "6",
        "--",
        "bash",
        "-c",
        "echo so far; sleep 1000",
    ]);
    let exited = exited.await;
    assert_eq!((exited.code, &*exited.stdout), (Some(124), "so far\n"));
    assert!(start.elapsed() < DEADLINE);
}

#[tokio::test]
async fn start_failures_have_their_own_codes() {
    let env = TestEnv::new();
    env.write("data.txt", "no program");
    let data = env.path("data.txt");
    let missing = exec(&["no-such-program", "x"]).await;
    assert_eq!((missing.code, &*missing.stdout), (Some(127), ""));
    assert!(
        missing.stderr.contains("no-such-program"),
        "{}",
        missing.stderr
    );
    let args = ["exec", "--policy", "unconfined", "--"];
    let data = env
        .run(args.into_iter().chain([data.to_str().unwrap()]))
        .await;
    assert_eq!(data.code, Some(126), "{data:?}");
    assert_eq!(
        data.stderr.matches("failed to start").count(),
        1,
        "{data:?}"
    );
    let nothing = TestEnv::new().run(["exec"]).await;
    assert_eq!(nothing.code, Some(2));
}

#[tokio::test]
async fn interrupt_ends_the_whole_process_tree() {
    let env = TestEnv::new();
    let mark = Mark::new(&env);
    let line = format!("setsid bash -c 'sleep 1000; :' {mark} & wait");
    for policy in ["workspace", "unconfined"] {
        let args = ["exec", "--policy", policy, "--", "bash", "-c", &line];
        for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
            let child = env
                .command_with_signals(&[DEFAULT_SIGNALS], args)
                .spawn()
                .unwrap();
            mark.appeared().await;
            send(&child, signal);
            assert_eq!(wait_for_exit(child).await.code, Some(130));
            mark.gone().await;
        }
    }
}

#[tokio::test]
async fn second_interrupt_exits_immediately() {
    let env = TestEnv::new();
    let mark = Mark::new(&env);
    // The command ignores the first signal after reporting it, and its output blocks on a full pipe, so
    // the first signal alone would never end it.
    let line = format!(
        "trap 'touch {}' TERM INT; : {mark}; head -c 80000 /dev/zero; touch {}; \
         while true; do sleep 0.1; done",
        env.path("signalled").display(),
        env.path("ready").display()
    );
    let args = ["exec", "--policy", "unconfined", "--", "bash", "-c", &line];
    let mut child = env
        .command_with_signals(&[DEFAULT_SIGNALS], args)
        .spawn()
        .unwrap();
    env.appeared("ready").await;
    send(&child, Signal::INT);
    // A command that takes longer than its grace is killed before it reports the signal.
    let is_bash = |process: &Vec<String>| process.first().is_some_and(|name| name == "bash");
    mark.wait(|processes| env.path("signalled").exists() || !processes.iter().any(is_bash))
        .await;
    send(&child, Signal::INT);
    let exited = timeout(DEADLINE, child.wait()).await.unwrap();
    assert_eq!(exited.unwrap().code(), Some(130));
    mark.gone().await;
}

#[tokio::test]
async fn closed_stdout_ends_the_command() {
    let env = TestEnv::new();
    let mut child = env.command(["exec", "--", "yes"]).spawn().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let mut first = [0; 4];
    stdout.read_exact(&mut first).await.unwrap();
    drop(stdout);
    assert_eq!(
        (&first, wait_for_exit(child).await.code),
        (b"y\ny\n", Some(141))
    );
}

#[tokio::test]
async fn docker_backend_runs_commands_in_containers() {
    let variable = |name| std::env::var(name).ok();
    let engine = variable("CANTLE_TEST_DOCKER_HOST").zip(variable("CANTLE_TEST_DOCKER_IMAGE"));
    let Some((host, image)) = engine else {
        eprintln!("SKIPPED: CANTLE_TEST_DOCKER_HOST and _IMAGE name no engine");
        return;
    };
    let env = TestEnv::new().set("DOCKER_HOST", &host);
    let backend = format!("docker:{image}");
    let line = "pwd; echo 7 > seven; cat seven; exit 3";
    let exited = env
        .run(["exec", "--backend", &backend, "--", "sh", "-c", line])
        .await;
    assert_eq!((exited.code, &*exited.stdout), (Some(3), "/workspace\n7\n"));
}

#[tokio::test]
async fn published_ports_lead_to_the_sandbox() {
    let env = TestEnv::new();
    let address = own_address(8000);
    let server = "use IO::Socket::INET; $s = IO::Socket::INET->new(Listen => 1, LocalAddr => '127.0.0.1:8000') or die; \
                  $| = 1; print \"ready\\n\"; $c = $s->accept; $line = <$c>; print $c \"got $line\"; close $c; print $line";
    let args = ["exec", "--publish", &address, "--", "perl", "-e", server];
    let mut child = env.command(args).spawn().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let mut ready = [0; 6];
    timeout(DEADLINE, stdout.read_exact(&mut ready))
        .await
        .expect("the server starts")
        .unwrap();
    let mut connection = tokio::net::TcpStream::connect(&address).await.unwrap();
    tokio::io::AsyncWriteExt::write_all(&mut connection, b"hello\n")
        .await
        .unwrap();
    let mut answer = String::new();
    timeout(DEADLINE, connection.read_to_string(&mut answer))
        .await
        .expect("an answer")
        .unwrap();
    assert_eq!(answer, "got hello\n");
    let exited = timeout(DEADLINE, child.wait()).await.unwrap().unwrap();
    assert_eq!(exited.code(), Some(0));
    assert!(tokio::net::TcpStream::connect(&address).await.is_err());

    let shared = env.run([
        "exec",
        "--policy",
        "unconfined",
        "--publish",
        &address,
        "--",
        "true",
    ]);
    let shared = shared.await;
    assert_eq!(shared.code, Some(125));
    assert!(
        shared.stderr.contains("shares this machine's network"),
        "{}",
        shared.stderr
    );
}
