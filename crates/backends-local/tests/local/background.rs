//! Background processes that outlive their command.

use std::time::{Duration, Instant};

use cantle_backends_local::LocalBackend;
use cantle_core::ids::RunId;
use cantle_core::policy::Policy;
use cantle_core::sandbox::{Backend as _, Background, ExitStatus, SandboxContext, SandboxExt as _};

use crate::support::{Token, eventually, on_host, open, soon, stdout};

/// Upper bound for a call that does not wait for the child, which runs longer.
const LATEST: Duration = Duration::from_secs(30);

#[tokio::test]
async fn command_end_kills_its_children() {
    let sandbox = open().await;
    for line in [
        "sleep 600 & echo out",
        "setsid sleep 600 & echo out",
        "(setsid sleep 600 &); echo out",
        "env -i bash -c 'exec -a TOKEN sleep 600' & echo out",
        "nohup sleep 600 > /dev/null 2>&1 & echo out",
        "{ trap '' TERM HUP; sleep 600; } & disown; echo out",
    ] {
        let token = Token::new();
        let started = Instant::now();
        let output = soon(sandbox.run(token.shell(line))).await.unwrap();
        assert!(started.elapsed() < LATEST, "{line}");
        assert_eq!(output.exit.status, ExitStatus::Code(0), "{line}");
        assert_eq!(output.stdout.text(), "out\n", "{line}");
        assert_eq!(output.exit.background, []);
        token.dead_since(started).await;
    }
    sandbox.close().await.unwrap();
}

#[tokio::test]
async fn background_processes_are_polled_for_limits() {
    let mut policy = Policy::workspace();
    policy.limits.set("disk=1M").unwrap();
    let cx = SandboxContext::new(RunId::new(), policy).durable();
    let sandbox = LocalBackend::new().open(cx).await.unwrap();
    let token = Token::new();
    let line =
        "(sleep 0.5; head -c 5M /dev/zero > big; exec -a TOKEN sleep 600) > /dev/null 2>&1 &";
    let request = token.shell(line).with_background(Background::Keep);
    let output = soon(sandbox.run(request)).await.unwrap();
    assert!(!output.exit.background.is_empty(), "{:?}", output.exit);
    let stopped = async || {
        let output = soon(sandbox.run(token.shell("true"))).await.unwrap();
        output.exit.notes
    };
    let expected = "Background processes of an earlier command were killed: they exceeded the limit `disk` of 1048576.";
    let begun = Instant::now();
    while !stopped().await.iter().any(|note| note == expected) {
        assert!(begun.elapsed() < LATEST);
    }
    eventually("it is gone", || token.alive().is_empty()).await;
    sandbox.close().await.unwrap();
}

#[tokio::test]
async fn child_of_long_running_command_is_listed() {
    let sandbox = open().await;
    let token = Token::new();
    // Long enough for process ids to wrap.
    let line = "(setsid sleep 600 &); sleep 1.2; echo out";
    let ends = Instant::now() + Duration::from_millis(1200);
    let output = soon(sandbox.run(token.shell(line))).await.unwrap();
    assert_eq!(output.stdout.text(), "out\n");
    token.dead_since(ends).await;
    sandbox.close().await.unwrap();
}

#[tokio::test]
async fn kept_children_are_listed_and_die_with_the_sandbox() {
    let sandbox = open().await;
    let token = Token::new();
    let line = "setsid sleep 601 & env -i bash -c 'exec -a TOKEN sleep 602' & sleep 603 > /dev/null 2>&1 & echo out";
    let request = token.shell(line).with_background(Background::Keep);
    let output = soon(sandbox.run(request)).await.unwrap();
    assert_eq!(output.stdout.text(), "out\n");
    let mut listed: Vec<u32> = output.exit.background.iter().map(|kept| kept.pid).collect();
    listed.sort_unstable();
    eventually(&format!("{listed:?} run"), || {
        let mut alive = token.alive();
        alive.sort_unstable();
        listed.len() == 3 && alive == listed
    })
    .await;
    assert!(
        output
            .exit
            .background
            .iter()
            .all(|kept| !kept.command.is_empty())
    );

    // They survive another command and its end.
    assert_eq!(
        stdout(&*sandbox, "sleep 0.01 & echo other").await,
        "other\n"
    );
    eventually("all survive", || token.alive().len() == 3).await;
    sandbox.close().await.unwrap();
    assert_eq!(token.alive(), [0; 0]);
}

#[tokio::test]
async fn kept_child_may_keep_writing() {
    let sandbox = open().await;
    let token = Token::new();
    let line = "(trap '' PIPE; for i in $(seq 400); do \
                head -c 10000 /dev/zero || exit; done; echo done > done; sleep 600) & echo out";
    let request = token.shell(line).with_background(Background::Keep);
    let output = soon(sandbox.run(request)).await.unwrap();
    assert!(output.stdout.text().contains("out\n"));
    let done = on_host(&*sandbox, "done");
    eventually("the child wrote all its output", || done.exists()).await;
    sandbox.close().await.unwrap();
    assert_eq!(token.alive(), [0; 0]);
}

#[tokio::test]
async fn endless_output_of_kept_child_does_not_delay_the_result() {
    let sandbox = open().await;
    let token = Token::new();
    let started = Instant::now();
    let request = token
        .shell("yes & echo out")
        .with_background(Background::Keep);
    let output = soon(sandbox.run(request)).await.unwrap();
    assert!(started.elapsed() < LATEST);
    assert_eq!(output.exit.background.len(), 1);
    // Before its exec, the command line is still the shell's.
    assert!(output.exit.background[0].command.contains("yes"));
    sandbox.close().await.unwrap();
    assert_eq!(token.alive(), [0; 0]);
}

#[tokio::test]
async fn output_of_kept_child_is_not_awaited() {
    let sandbox = open().await;
    let token = Token::new();
    let fastest = async |line: &str| {
        let mut fastest = Duration::MAX;
        for _ in 0..5 {
            let started = Instant::now();
            let request = token.shell(line).with_background(Background::Keep);
            soon(sandbox.run(request)).await.unwrap();
            fastest = fastest.min(started.elapsed());
        }
        fastest
    };
    let plain = fastest("echo out").await;
    let with_child = fastest("sleep 600 & echo out").await;
    let latest = Duration::from_millis(400) + 10 * plain;
    assert!(with_child < latest, "{with_child:?}, and {plain:?} without");
    sandbox.close().await.unwrap();
    assert_eq!(token.alive(), [0; 0]);
}

#[tokio::test]
async fn long_command_lines_are_truncated() {
    let sandbox = open().await;
    let token = Token::new();
    let line = format!("sleep 600 {} & true", "0 ".repeat(400));
    let request = token.shell(&line).with_background(Background::Keep);
    let output = soon(sandbox.run(request)).await.unwrap();
    let kept = &output.exit.background;
    assert_eq!(kept.len(), 1);
    assert_eq!(kept[0].command.chars().count(), 120);
    sandbox.close().await.unwrap();
}

#[tokio::test]
async fn timeout_kills_kept_children() {
    let sandbox = open().await;
    let token = Token::new();
    let limit = Duration::from_millis(400);
    let started = Instant::now();
    let request = token
        .shell("setsid sleep 600 & sleep 600")
        .with_background(Background::Keep)
        .with_timeout(limit);
    let output = soon(sandbox.run(request)).await.unwrap();
    assert_eq!(output.exit.status, ExitStatus::TimedOut { limit });
    assert_eq!(output.exit.background, []);
    token.dead_since(started + limit).await;
    sandbox.close().await.unwrap();
}
