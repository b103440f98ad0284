//! Timeouts, cancellation and dropped handles: no process survives, and partial output is kept.

use std::time::{Duration, Instant};

use cantle_core::policy::Policy;
use cantle_core::sandbox::{
    CommandOutput, ExitStatus, Sandbox, SandboxExt as _, Signal, SpawnRequest,
};
use tokio_util::sync::CancellationToken;

use crate::support::{
    Token, eventually, exists, new_runtime, on_host, open, open_under, soon, stdout, write,
};

const LIMIT: Duration = Duration::from_secs(1);
/// For a timeout before which something must happen, even on a slow machine.
const LONG: Duration = Duration::from_secs(8);
/// Maximum delay of a timed-out command's result, including what a slow and busy machine adds. A command
/// that is not stopped runs for ten minutes.
const LATE: Duration = Duration::from_secs(20);

/// Runs an endless line, and checks that no process of it is left.
async fn time_out(sandbox: &dyn Sandbox, line: &str, limit: Duration) -> CommandOutput {
    let token = Token::new();
    let started = Instant::now();
    let request = token.shell(line).with_timeout(limit);
    let output = soon(sandbox.run(request)).await.unwrap();
    let took = started.elapsed();
    assert_eq!(output.exit.status, ExitStatus::TimedOut { limit }, "{line}");
    assert!(took < limit + LATE, "{line}: {took:?}");
    token.dead_since(started + limit).await;
    output
}

#[tokio::test]
async fn timeout_keeps_partial_output() {
    let sandbox = open().await;
    let output = time_out(&*sandbox, "echo out; echo err >&2; sleep 600", LONG).await;
    assert_eq!(output.stdout.text(), "out\n");
    assert_eq!(output.stderr.text(), "err\n");
    sandbox.close().await.unwrap();
}

#[tokio::test]
async fn timeout_kills_hiding_processes() {
    let sandbox = open().await;
    for line in [
        // Ignores TERM.
        "trap '' TERM; while :; do sleep 600; done",
        "trap '' TERM; while :; do :; done",
        // Stopped.
        "kill -STOP $$; sleep 600",
        // In a new session, with and without a living parent.
        "setsid sleep 600 & wait",
        "setsid bash -c 'sleep 600' & sleep 600",
        "(setsid bash -c 'sleep 600 & sleep 600' &) ; sleep 600",
        // Forked twice, holding the pipe.
        "( (sleep 600 &) & ) ; sleep 600",
        "python3 -c 'import os,time\nif os.fork(): time.sleep(600)\nos.setsid()\nif os.fork(): os._exit(0)\nos.chdir(\"/\"); time.sleep(600)'",
        // Without the marking environment, found by group or parent.
        "env -i bash -c 'exec -a TOKEN sleep 600' & sleep 600",
        "env -i setsid bash -c 'exec -a TOKEN sleep 600' & wait",
        // Its first thread has ended, so it looks like a zombie.
        "setsid python3 -c 'import ctypes, threading, time\n\
         threading.Thread(target=time.sleep, args=(600,)).start()\n\
         ctypes.CDLL(None).pthread_exit(None)' & sleep 600",
        // With children.
        "for i in $(seq 50); do setsid sleep 600 & done; sleep 600",
    ] {
        time_out(&*sandbox, line, LIMIT).await;
    }
    sandbox.close().await.unwrap();
}

#[tokio::test]
async fn timeout_stops_fork_bomb_in_new_sessions() {
    let sandbox = open().await;
    write(
        &*sandbox,
        "bomb.sh",
        "[ $1 = 0 ] || { setsid bash bomb.sh $(($1 - 1)) & setsid bash bomb.sh $(($1 - 1)) & }\n\
         while :; do sleep 0.05; done\n",
    )
    .await;
    time_out(&*sandbox, "bash bomb.sh 5", LIMIT).await;
    sandbox.close().await.unwrap();
}

#[tokio::test]
async fn timeout_stops_processes_that_replace_each_other() {
    let sandbox = open().await;
    write(&*sandbox, "relay.sh", "setsid bash relay.sh & exit\n").await;
    let line = "bash relay.sh; bash relay.sh; sleep 600";
    time_out(&*sandbox, line, LIMIT).await;
    sandbox.close().await.unwrap();
}

#[tokio::test]
async fn grace_period_follows_the_limit() {
    let sandbox = open().await;
    let token = Token::new();
    let line = "trap 'echo cleaned; exit 0' TERM; sleep 600 & echo ready; wait";
    let started = Instant::now();
    let request = token.shell(line).with_timeout(LONG).with_grace(10 * LONG);
    let output = soon(sandbox.run(request)).await.unwrap();
    assert_eq!(output.exit.status, ExitStatus::TimedOut { limit: LONG });
    assert_eq!(output.stdout.text(), "ready\ncleaned\n");
    assert!(started.elapsed() >= LONG);
    token.all_dead().await;
    sandbox.close().await.unwrap();
}

#[tokio::test]
async fn without_grace_command_is_killed_at_the_limit() {
    let sandbox = open().await;
    let token = Token::new();
    let started = Instant::now();
    let request = token
        .shell("trap 'echo cleaned' TERM; echo ready; while :; do sleep 600 & wait; done")
        .with_timeout(LONG)
        .with_grace(Duration::ZERO);
    let output = soon(sandbox.run(request)).await.unwrap();
    assert!((LONG..LONG + LATE).contains(&started.elapsed()));
    assert_eq!(output.stdout.text(), "ready\n");
    token.dead_since(started + LONG).await;
    sandbox.close().await.unwrap();
}

#[tokio::test]
async fn policy_wall_time_bounds_every_command() {
    let mut policy = Policy::unconfined();
    policy.limits.wall_time = Some(LIMIT);
    let sandbox = open_under(policy).await;
    for asked in [None, Some(Duration::from_secs(600)), Some(Duration::MAX)] {
        let mut request = SpawnRequest::shell("sleep 600");
        request.timeout = asked;
        let output = soon(sandbox.run(request)).await.unwrap();
        assert_eq!(output.exit.status, ExitStatus::TimedOut { limit: LIMIT });
    }
    let short = LIMIT / 2;
    let request = SpawnRequest::shell("sleep 600").with_timeout(short);
    let output = soon(sandbox.run(request)).await.unwrap();
    assert_eq!(output.exit.status, ExitStatus::TimedOut { limit: short });
    sandbox.close().await.unwrap();
}

#[tokio::test]
async fn huge_limit_means_no_limit() {
    let sandbox = open().await;
    let request = SpawnRequest::shell("exit 5").with_timeout(Duration::MAX);
    let output = soon(sandbox.run(request)).await.unwrap();
    assert_eq!(output.exit.status, ExitStatus::Code(5));
    sandbox.close().await.unwrap();
}

#[tokio::test]
async fn timeout_fires_without_wait() {
    let sandbox = open().await;
    let token = Token::new();
    let request = token.shell("setsid sleep 600 & wait").with_timeout(LONG);
    let mut process = sandbox.spawn(request).await.unwrap();
    token.at_least(1).await;
    // No caller waits for the command or reads its output.
    token.all_dead().await;
    let exit = soon(process.wait()).await.unwrap();
    assert_eq!(exit.status, ExitStatus::TimedOut { limit: LONG });
    sandbox.close().await.unwrap();
}

#[tokio::test]
async fn timeout_returns_with_unread_output() {
    let sandbox = open().await;
    let token = Token::new();
    let started = Instant::now();
    let request = token.shell("yes").with_timeout(LONG);
    let mut process = sandbox.spawn(request).await.unwrap();
    let output = process.take_output().unwrap();
    let exit = soon(process.wait()).await.unwrap();
    assert_eq!(exit.status, ExitStatus::TimedOut { limit: LONG });
    assert!(started.elapsed() < LONG + LATE);
    assert!(exit.stdout.total_bytes > 0);
    token.dead_since(started + LONG).await;
    drop(output);
    sandbox.close().await.unwrap();
}

#[tokio::test]
async fn cancellation_kills_descendants() {
    let sandbox = open().await;
    for (line, count) in [
        ("echo partial; touch one; sleep 600", 1),
        (
            "echo partial; trap '' TERM; setsid sleep 600 & touch two; while :; do sleep 600; done",
            2,
        ),
    ] {
        let token = Token::new();
        let cancellation = CancellationToken::new();
        let request = token.shell(line).with_cancellation(cancellation.clone());
        let running = sandbox.run(request.with_grace(Duration::from_secs(600)));
        let written = on_host(&*sandbox, ["one", "two"][count - 1]);
        let cancel = async {
            eventually("it has written", || written.exists()).await;
            token.at_least(count).await;
            cancellation.cancel();
            Instant::now()
        };
        let (output, cancelled) = soon(async { tokio::join!(running, cancel) }).await;
        let output = output.unwrap();
        assert_eq!(output.exit.status, ExitStatus::Cancelled);
        assert_eq!(output.stdout.text(), "partial\n");
        // At most a second of grace and one to kill; the rest allows for a busy machine.
        assert!(cancelled.elapsed() < LATE, "{:?}", cancelled.elapsed());
        token.dead_since(cancelled).await;
    }
    sandbox.close().await.unwrap();
}

#[tokio::test]
async fn command_cancelled_before_start_ends() {
    let sandbox = open().await;
    let token = Token::new();
    let cancellation = CancellationToken::new();
    cancellation.cancel();
    let request = token.shell("sleep 600").with_cancellation(cancellation);
    let started = Instant::now();
    let output = soon(sandbox.run(request)).await.unwrap();
    assert_eq!(output.exit.status, ExitStatus::Cancelled);
    token.dead_since(started).await;
    sandbox.close().await.unwrap();
}

#[tokio::test]
async fn cancellation_does_not_affect_other_commands() {
    let sandbox = open().await;
    let (one, other) = (Token::new(), Token::new());
    let cancellation = CancellationToken::new();
    let request = one
        .shell("setsid sleep 600 & wait")
        .with_cancellation(cancellation.clone());
    let mut first = sandbox.spawn(request).await.unwrap();
    let mut second = sandbox
        .spawn(other.shell("setsid sleep 600 & wait"))
        .await
        .unwrap();
    one.at_least(2).await;
    other.at_least(2).await;
    let cancelled = Instant::now();
    cancellation.cancel();
    assert_eq!(
        soon(first.wait()).await.unwrap().status,
        ExitStatus::Cancelled
    );
    one.dead_since(cancelled).await;
    eventually("the other runs", || other.alive().len() == 2).await;
    second.signal(Signal::KILL).await.unwrap();
    soon(second.wait()).await.unwrap();
    other.all_dead().await;
    sandbox.close().await.unwrap();
}

#[tokio::test]
async fn dropped_command_is_killed_with_descendants() {
    let sandbox = open().await;
    let token = Token::new();
    let process = sandbox
        .spawn(token.shell("trap '' TERM; setsid sleep 600 & sleep 600 & wait"))
        .await
        .unwrap();
    let leader = process.id().unwrap();
    token.at_least(3).await;
    drop(process);
    token.all_dead().await;
    eventually("the leader is reaped", || !exists(leader)).await;
    assert_eq!(stdout(&*sandbox, "echo alive").await, "alive\n");
    sandbox.close().await.unwrap();
}

#[tokio::test]
async fn dropped_run_future_kills_its_command() {
    let sandbox = open().await;
    let token = Token::new();
    let call = sandbox.run(token.shell("setsid sleep 600 & wait"));
    tokio::select! {
        _ = call => panic!("it ended"),
        () = token.at_least(2) => {}
    }
    token.all_dead().await;
    sandbox.close().await.unwrap();
}

/// The handle is dropped while its runtime is not driven.
#[test]
fn idle_runtime_leaves_no_zombie() {
    let runtime = new_runtime();
    let token = Token::new();
    let (sandbox, leader) = runtime.block_on(async {
        let sandbox = open().await;
        let process = sandbox
            .spawn(token.shell("setsid sleep 600 & wait"))
            .await
            .unwrap();
        token.at_least(2).await;
        (sandbox, process.id().unwrap())
    });
    let other = new_runtime();
    other.block_on(async {
        token.all_dead().await;
        eventually("the leader is reaped", || !exists(leader)).await;
    });
    runtime.block_on(sandbox.close()).unwrap();
}

#[test]
fn runtime_shutdown_kills_its_commands() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .unwrap();
    let token = Token::new();
    runtime.block_on(async {
        let sandbox = open().await;
        let request = token.shell("setsid sleep 600 & wait");
        // Owned by the runtime only.
        drop(tokio::spawn(async move { sandbox.run(request).await }));
        token.at_least(2).await;
    });
    runtime.shutdown_timeout(Duration::from_secs(60));
    let other = new_runtime();
    other.block_on(token.all_dead());
}

#[tokio::test]
async fn ended_command_leaves_no_zombie() {
    let sandbox = open().await;
    for line in ["true", "sleep 0.01 & true", "kill -9 $$"] {
        let mut process = sandbox.spawn(SpawnRequest::shell(line)).await.unwrap();
        let leader = process.id().unwrap();
        process.wait().await.unwrap();
        assert!(!exists(leader), "{line}");
    }
    sandbox.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_commands_are_independent() {
    let sandbox = open().await;
    let token = Token::new();
    let mut running = tokio::task::JoinSet::new();
    for number in 0..40 {
        let (sandbox, token) = (sandbox.clone(), token.clone());
        running.spawn(async move {
            let line = match number % 4 {
                0 => format!("echo {number}; setsid sleep 600 & exit {number}"),
                1 => format!("echo {number}; setsid sleep 600 & wait"),
                2 => format!("sleep 0.1; echo {number}; exit {number}"),
                _ => format!("echo {number} | cat; (exit {number})"),
            };
            let request = token.shell(&line);
            let request = if number % 4 == 1 {
                request.with_timeout(LONG)
            } else {
                request
            };
            let output = sandbox.run(request).await.unwrap();
            let status = if number % 4 == 1 {
                ExitStatus::TimedOut { limit: LONG }
            } else {
                ExitStatus::Code(number)
            };
            assert_eq!(output.exit.status, status, "{line}");
            assert_eq!(output.stdout.text(), format!("{number}\n"), "{line}");
        });
    }
    while let Some(result) = running.join_next().await {
        result.unwrap();
    }
    token.all_dead().await;
    sandbox.close().await.unwrap();
}
