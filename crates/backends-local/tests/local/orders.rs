//! A busy init never blocks the runtime, and loses no order.

use std::fs;
use std::time::Duration;

use cantle_backends_local::{LocalBackend, Mechanism};
use cantle_core::ids::RunId;
use cantle_core::policy::Policy;
use cantle_core::sandbox::{
    Backend as _, ExitStatus, SandboxContext, SandboxExt as _, Signal, SpawnRequest,
};
use rustix::process::{Pid, kill_process};
use tokio_util::sync::CancellationToken;

use crate::support::{Token, eventually, new_runtime, read_until, soon};

/// More orders than fit in init's socket.
const MANY_ORDERS: usize = 2000;

/// Returns the parent of a process.
fn parent(pid: u32) -> u32 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let (_, rest) = stat.rsplit_once(')').unwrap();
    rest.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// The init of a sandbox, which is stopped until this is dropped, and its guard, which would continue it.
struct StoppedInit([Pid; 2]);

impl StoppedInit {
    /// Stops the init of the first command with this token.
    async fn of(token: &Token) -> Self {
        let mut command = 0;
        eventually("a command runs", || {
            command = token.alive().into_iter().min().unwrap_or(0);
            command != 0
        })
        .await;
        let init = parent(parent(command));
        let both = [parent(init), init].map(|pid| {
            let pid = Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
            kill_process(pid, rustix::process::Signal::STOP).unwrap();
            pid
        });
        Self(both)
    }
}

impl Drop for StoppedInit {
    fn drop(&mut self) {
        for pid in self.0 {
            let _ = kill_process(pid, rustix::process::Signal::CONT);
        }
    }
}

/// On a runtime of one thread: an order that waited for init would wait for ever, because what lets init
/// continue comes after it on the same thread.
#[tokio::test(flavor = "current_thread")]
async fn stopping_commands_does_not_wait_for_init() {
    for backend in [
        LocalBackend::new(),
        LocalBackend::new().without(Mechanism::Namespaces),
    ] {
        let cx = SandboxContext::new(RunId::new(), Policy::workspace());
        let sandbox = backend.open(cx).await.unwrap();
        let token = Token::new();
        let cancellation = CancellationToken::new();
        let mut busy = sandbox.spawn(token.shell("sleep 600")).await.unwrap();
        let dropped = sandbox.spawn(token.shell("sleep 600")).await.unwrap();
        // The shell also reports that `sleep` was terminated.
        let mut request = token.shell(
            "exec 2>/dev/null; trap 'echo terminated; exit' TERM; while :; do sleep 0.01; done",
        );
        request.cancellation = cancellation.clone();
        request.grace = Duration::from_secs(60);
        let mut cancelled = sandbox.spawn(request).await.unwrap();
        let mut output = cancelled.take_output().unwrap();
        token.at_least(3).await;
        let init = StoppedInit::of(&token).await;
        for number in 0..MANY_ORDERS {
            // Different ones: equal orders are sent once.
            let signal = [Signal::INT, Signal::HUP][number % 2];
            let _ = soon(busy.signal(signal)).await;
        }
        drop(dropped);
        cancellation.cancel();
        // Lets the driver's task see the cancellation.
        tokio::task::yield_now().await;
        tokio::task::yield_now().await;
        drop(init);
        assert_eq!(read_until(&mut output, "\n").await, "terminated\n");
        let exit = soon(cancelled.wait()).await.unwrap();
        assert_eq!(exit.status, ExitStatus::Cancelled);
        soon(busy.wait()).await.unwrap();
        // And so has KILL.
        token.all_dead().await;
        let output = sandbox.run(SpawnRequest::shell("echo works")).await;
        assert_eq!(output.unwrap().stdout.text(), "works\n");
        sandbox.close().await.unwrap();
    }
}

/// The sandbox is ended on another thread, for which the runtime waits when it shuts down.
#[test]
fn dropping_a_sandbox_does_not_wait_for_its_end() {
    let runtime = new_runtime();
    let place = tempfile::tempdir().unwrap();
    let token = Token::new();
    runtime.block_on(async {
        let backend = LocalBackend::new()
            .in_directory(place.path())
            .without(Mechanism::Identity);
        let cx = SandboxContext::new(RunId::new(), Policy::workspace());
        let sandbox = backend.open(cx).await.unwrap();
        let process = sandbox.spawn(token.shell("sleep 600")).await.unwrap();
        token.at_least(1).await;
        let init = StoppedInit::of(&token).await;
        drop(process);
        drop(sandbox);
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 1);
        drop(init);
    });
    drop(runtime);
    assert_eq!(token.alive(), [0; 0]);
    assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0);
}
