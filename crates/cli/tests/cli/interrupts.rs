//! SIGINT, SIGTERM and SIGHUP.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::process::Stdio;
use std::time::{Duration, Instant};

use cantle_testkit::openai::{Fault, Script, ScriptedServer, Turn};
use rustix::process::Signal;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::Child;
use tokio::time::timeout;

use crate::command;
use crate::support::{
    DEADLINE, DEFAULT_SIGNALS, Mark, TestEnv, redact, send, until, wait_for_exit,
};

/// Time between SIGTERM and SIGKILL of a cancelled command.
const GRACE: Duration = Duration::from_secs(1);

/// Starts a run whose command, after `before`, starts a child in a new session and loops; both have the
/// mark. `signals` are options of `env`.
async fn busy(env: &TestEnv, signals: &[&str], before: &str) -> (ScriptedServer, Child, Mark) {
    let mark = Mark::new(env);
    let script = format!(
        "{before} echo kept > work.txt; setsid bash -c 'sleep 1000; :' {mark} & \
         while true; do sleep 1; done"
    );
    let server = ScriptedServer::start(Script::new().turn(command(&script)))
        .await
        .unwrap();
    let url = server.url();
    let args = [
        "run",
        "Work",
        "--output-dir",
        "out",
        "--model",
        "m",
        "--base-url",
        &url,
    ];
    let child = env.command_with_signals(signals, args).spawn().unwrap();
    mark.appeared().await;
    (server, child, mark)
}

#[tokio::test]
async fn first_signal_cancels_and_saves() {
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        let env = TestEnv::new();
        let (_server, child, mark) = busy(&env, &[DEFAULT_SIGNALS], "").await;
        send(&child, signal);
        let exited = wait_for_exit(child).await;
        assert_eq!((exited.code, &*exited.stdout), (Some(4), ""), "{exited:?}");
        mark.gone().await;
        assert_eq!(
            env.list("out"),
            [
                ".cantle-unfinished",
                "cantle-history.json",
                "cantle-unfinished"
            ]
        );
        assert_eq!(env.read("out/cantle-unfinished/work.txt"), "kept\n");
        for expected in [
            "cancelling; interrupt again to exit immediately",
            "✗ cancelled",
            "1 call · 0 failed · 1 cancelled · ",
            "cantle-history.json",
        ] {
            assert!(exited.stderr.contains(expected), "{}", exited.stderr);
        }
    }
}

#[tokio::test]
async fn second_signal_exits_immediately() {
    let env = TestEnv::new();
    let (_server, mut child, mark) = busy(&env, &[DEFAULT_SIGNALS], "trap '' TERM INT;").await;
    let first = Instant::now();
    send(&child, Signal::INT);
    // The first one must be handled before the second one is sent.
    let mut expected = BufReader::new(child.stderr.take().unwrap()).lines();
    let first_handled = async {
        while !expected
            .next_line()
            .await
            .unwrap()
            .unwrap()
            .contains("cancelling")
        {}
    };
    timeout(DEADLINE, first_handled).await.unwrap();
    send(&child, Signal::INT);
    let in_time = first.elapsed() < GRACE;
    let exited = wait_for_exit(child).await;
    assert_eq!((exited.code, &*exited.stdout), (Some(4), ""), "{exited:?}");
    mark.gone().await;
    assert!(!env.path("out/cantle-result.json").exists());
    // If this test was delayed, the first one may have ended the run in order.
    if in_time {
        let mut rest = Vec::new();
        while let Some(line) = expected.next_line().await.unwrap() {
            rest.push(line);
        }
        let rest = rest.join("\n");
        assert!(
            rest.ends_with(
                "\ncantle: interrupted; `cantle runs list` shows the runs that can be resumed"
            ),
            "{rest}"
        );
        assert_eq!(env.list("out"), [""; 0]);
    }
}

#[tokio::test]
async fn cancel_interrupts_a_hanging_model_call() {
    let script = Script::new().turn(Turn::text("").fault_always(Fault::Hang));
    let server = ScriptedServer::start(script).await.unwrap();
    let env = TestEnv::new().with_server(&server.url());
    let child = env
        .command_with_signals(&[DEFAULT_SIGNALS], ["run", "Wait", "--json"])
        .spawn()
        .unwrap();
    server.received(1).await;
    send(&child, Signal::INT);
    let exited = wait_for_exit(child).await;
    assert_eq!(exited.code, Some(4), "{exited:?}");
    let last = exited.stdout.lines().last().unwrap();
    assert!(last.contains(r#""status":"cancelled""#), "{last}");
    assert_eq!(
        exited.stderr,
        "cantle: cancelling; interrupt again to exit immediately\ncantle: the run was cancelled\n"
    );
}

#[tokio::test]
async fn a_signal_ends_the_wait_for_standard_input() {
    let env = TestEnv::new().with_server("http://127.0.0.1:9/v1");
    for (name, code) in [("run", 4), ("python", 130)] {
        let mut command = env.command_with_signals(&[DEFAULT_SIGNALS], [name, "-"]);
        let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
        // It has no end.
        let _stdin = child.stdin.take();
        let status = format!("/proc/{}/status", child.id().unwrap());
        let listens = || {
            let status = std::fs::read_to_string(&status).unwrap();
            let mut caught = status.lines().filter_map(|it| it.strip_prefix("SigCgt:"));
            let caught = u64::from_str_radix(caught.next().unwrap().trim(), 16).unwrap();
            // The last one: a handler's first signal is lost between its installation and its registration.
            caught >> (Signal::HUP.as_raw() - 1) & 1 == 1
        };
        until(listens).await;
        send(&child, Signal::INT);
        let exited = wait_for_exit(child).await;
        assert_eq!(exited.code, Some(code), "{exited:?}");
    }
}

#[tokio::test]
async fn ignored_signals_stay_ignored() {
    let env = TestEnv::new();
    let signals = [DEFAULT_SIGNALS, "--ignore-signal=HUP"];
    let (_server, child, _) = busy(&env, &signals, "").await;
    send(&child, Signal::HUP);
    send(&child, Signal::TERM);
    // If it were not ignored, SIGTERM would be the second signal and exit immediately.
    let exited = wait_for_exit(child).await;
    assert_eq!(exited.code, Some(4), "{exited:?}");
    assert!(exited.stderr.contains("✗ cancelled"), "{}", exited.stderr);
    assert_eq!(env.read("out/cantle-unfinished/work.txt"), "kept\n");
}

#[tokio::test]
async fn files_that_cannot_be_saved_are_listed() {
    let env = TestEnv::new();
    let before = r"
        mkfifo pipe; ln -s nowhere dangling; mkdir deep; ln -s ../work.txt deep/link
        echo x > deep/$'caf\xe9\n.txt'; truncate -s 2G huge; mkdir empty;";
    let (_server, child, _) = busy(&env, &[DEFAULT_SIGNALS], before).await;
    send(&child, Signal::TERM);
    let exited = wait_for_exit(child).await;
    assert_eq!(exited.code, Some(4), "{exited:?}");
    let (_, output) = exited.stderr.split_once("  kept  ").unwrap();
    insta::assert_snapshot!(redact(output));
    // File names need not be UTF-8.
    let name = OsStr::from_bytes(b"out/cantle-unfinished/deep/caf\xe9\n.txt");
    assert_eq!(env.read(name), "x\n");
    assert_eq!(env.list("out/cantle-unfinished"), ["deep", "work.txt"]);
}

#[tokio::test]
async fn only_some_lost_files_are_listed() {
    let env = TestEnv::new();
    let before = "for n in $(seq 30); do ln -s work.txt link-$n; done;";
    let (_server, child, _) = busy(&env, &[DEFAULT_SIGNALS], before).await;
    send(&child, Signal::TERM);
    let output = wait_for_exit(child).await.stderr;
    assert_eq!(output.matches("it is a link\n").count(), 8, "{output}");
    assert!(output.contains("22 more files\n"), "{output}");
}

#[tokio::test]
async fn unwritable_remains_are_reported() {
    let env = TestEnv::new();
    env.write("out/cantle-history.json/file", "in the way");
    env.write("out/cantle-unfinished", "in the way");
    let (_server, child, _) = busy(&env, &[DEFAULT_SIGNALS], "").await;
    send(&child, Signal::TERM);
    let exited = wait_for_exit(child).await;
    assert_eq!(exited.code, Some(4), "{exited:?}");
    for expected in [
        "lost     the conversation: failed to write out/cantle-history.json: ",
        "the files: failed to replace out/cantle-unfinished: ",
    ] {
        assert!(exited.stderr.contains(expected), "{}", exited.stderr);
    }
    assert_eq!(env.read("out/cantle-history.json/file"), "in the way");
    assert_eq!(env.read("out/cantle-unfinished"), "in the way");
}
