//! Outliving a command, a sandbox or its owner, and attacking the supervisor.

use std::time::{Duration, Instant};

use cantle_backends_local::Mechanism;
use cantle_core::policy::Policy;
use cantle_core::sandbox::{
    Background, ExitStatus, Process, SandboxErrorKind, SandboxExt as _, Signal, SpawnRequest,
};
use tokio::time::timeout;

use crate::arena::{Arena, LATE};
use crate::case::{Case, NegativeControl, Tried};
use crate::owner;
use crate::traces;

pub(super) fn cases() -> Vec<Case> {
    [surviving(), resisting()].concat()
}

/// Whether a process of the attack runs well after the command has returned.
async fn survives(arena: &Arena) -> bool {
    let deadline = Instant::now() + LATE;
    let mut gone_since = None;
    while Instant::now() < deadline {
        if traces::marked(&arena.fixture.token).is_empty() {
            // During an exec, a process has no mark.
            let since = *gone_since.get_or_insert_with(Instant::now);
            if since.elapsed() > Duration::from_millis(100) {
                return false;
            }
        } else {
            gone_since = None;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    true
}

/// Runs a line that leaves a process running.
fn leaves<'a>(arena: &'a Arena, line: &'static str) -> Tried<'a> {
    Box::pin(async move {
        let ran = arena.shell(line).await;
        if ran.error.is_some() {
            return Err(ran.summary());
        }
        Ok(survives(arena).await)
    })
}

const LIMIT: Duration = Duration::from_millis(400);

fn surviving() -> Vec<Case> {
    let leaving = |name, told| {
        Case::custom(name, told)
            .structural()
            .control(NegativeControl::Raw)
    };
    vec![
        leaving("leave a daemon behind", |arena| {
            leaves(
                arena,
                "(setsid bash -c 'trap \"\" TERM HUP INT; sleep 60 & wait; sleep 60' \
                  </dev/null >/dev/null 2>&1 &) ; true",
            )
        }),
        leaving("leave a daemon behind that hides", |arena| {
            leaves(
                arena,
                "env -i setsid bash -c 'exec -a \"$0\" sleep 60' \"$TOKEN\" \
                 </dev/null >/dev/null 2>&1 & sleep 0.05",
            )
        }),
        leaving("leave a stopped process behind", |arena| {
            leaves(
                arena,
                "setsid sleep 60 </dev/null >/dev/null 2>&1 & sleep 0.05; kill -STOP $!",
            )
        }),
        // Without namespaces it takes seconds to kill them all; see `docs/sandbox.md`.
        leaving("leave processes behind that replace each other", |arena| {
            leaves(arena, RELAY)
        })
        .only_with(&[Mechanism::Namespaces])
        .control(NegativeControl::No(
            "each of them is too short to be seen surely",
        )),
        leaving("leave hundreds of sleepers behind", |arena| {
            leaves(
                arena,
                "for i in {1..300}; do setsid sleep 60 </dev/null >/dev/null 2>&1 & done; true",
            )
        }),
        Case::shell(
            "hold the output open",
            "sleep 8 & echo started",
            |_, ran| ran.took > Duration::from_millis(7900),
        )
        .structural()
        .control(NegativeControl::Raw),
        Case::custom("outlive the owner", owner::outlives_its_owner).control(NegativeControl::No(
            "every child of a killed process goes on",
        )),
        Case::promise("survive its time", survives_its_time),
        Case::promise("survive the end of its sandbox", survives_its_sandbox),
    ]
}

/// Twenty processes that keep replacing themselves by a child in a new session, longer than the kill
/// repeats; most of them slowly enough to be found.
const RELAY: &str = r#"
cat > relay.py <<'END'
import os, time
until = time.monotonic() + 40
for number in range(20):
    if os.fork() == 0:
        break
while time.monotonic() < until:
    time.sleep(0.2 * (number > 3))
    if os.fork():
        os._exit(0)
    os.setsid()
END
/usr/bin/python3 -IS relay.py </dev/null >/dev/null 2>&1 & sleep 0.1"#;

/// Runs an endless line with a time limit; returns what is wrong with its end.
async fn time_out(arena: &Arena, line: &str) -> Option<String> {
    let request = SpawnRequest::shell(line)
        .with_timeout(LIMIT)
        .with_grace(LIMIT / 4);
    let started = Instant::now();
    let ran = arena.run(request).await;
    let in_time = ran.took < LIMIT + LATE;
    // Dead by now, or soon after the limit.
    let mut left = Vec::new();
    let rest = (LIMIT + LATE).saturating_sub(started.elapsed());
    traces::soon(rest, || {
        left = traces::marked(&arena.fixture.token);
        left.is_empty()
    })
    .await;
    (!in_time || !left.is_empty()).then(|| format!("`{line}`: left {left:?}, {}", ran.summary()))
}

fn survives_its_time(arena: &Arena) -> Tried<'_> {
    Box::pin(async {
        let lines = [
            "trap '' TERM; while :; do :; done",
            "kill -STOP $$; sleep 20",
            "setsid sleep 20 & sleep 20",
            "trap '' TERM; (setsid bash -c 'trap \"\" TERM; sleep 20; sleep 20' &); sleep 20; sleep 20",
        ];
        for line in lines {
            if let Some(wrong) = time_out(arena, line).await {
                return Err(wrong);
            }
        }
        Ok(false)
    })
}

fn survives_its_sandbox(arena: &Arena) -> Tried<'_> {
    Box::pin(async {
        let request = SpawnRequest::shell(
            "setsid bash -c 'trap \"\" TERM; kill -STOP $$; sleep 20' & \
             (setsid sleep 20 &); kill -9 $PPID & sleep 0.1",
        );
        arena.run(request.with_background(Background::Keep)).await;
        arena.close().await.map_or(Ok(()), Err)?;
        Ok(!traces::marked(&arena.fixture.token).is_empty())
    })
}

/// Attacks on the supervisor. After each the call must have ended in time, no process may be
/// left, and the sandbox must work or report that it is gone.
fn resisting() -> Vec<Case> {
    let attack = |name, told| {
        Case::custom(name, told)
            .structural()
            .control(NegativeControl::No(
                "without a sandbox there is no supervisor",
            ))
    };
    vec![
        attack("kill the keeper", |arena| {
            resists(arena, "kill -9 $PPID; sleep 20")
        }),
        attack("kill the keeper and leave", |arena| {
            resists(arena, "(setsid sleep 20 &); kill -9 $PPID")
        }),
        attack("stop the keeper", |arena| {
            resists(arena, "kill -STOP $PPID; sleep 20")
        }),
        attack("stop the keeper and leave", |arena| {
            resists(arena, "(setsid sleep 20 &); kill -STOP $PPID")
        }),
        attack("keep stopping the keeper", |arena| {
            resists(arena, "while :; do kill -STOP $PPID; done")
        }),
        attack("kill and stop init", |arena| {
            resists(
                arena,
                &format!("{INIT}; kill -STOP $init; kill -TERM $init; kill -9 $init; sleep 20"),
            )
        }),
        attack("keep stopping init", |arena| {
            resists(
                arena,
                &format!("{INIT}; while :; do kill -STOP $init; done"),
            )
        }),
        attack("stop everything", |arena| {
            resists(arena, "kill -STOP -1; sleep 20")
        })
        .only_with(REACH),
        attack("keep stopping everything", |arena| {
            resists(
                arena,
                "python3 -ISc 'import os\nwhile True: os.kill(-1, 19)'",
            )
        })
        .only_with(REACH),
        attack("kill everything", |arena| resists(arena, "kill -9 -1")).only_with(REACH),
        attack("kill everything but oneself again and again", |arena| {
            resists(
                arena,
                "trap '' TERM; (setsid sleep 20 &); while :; do kill -9 -1; done",
            )
        })
        .only_with(REACH),
        attack("limit the supervisor", |arena| {
            resists(
                arena,
                &format!(
                    "{INIT}; for pid in $PPID $init; do prlimit -p $pid --nofile=0 --nproc=0 --fsize=0; done; sleep 20"
                ),
            )
        }),
        attack("starve the supervisor of processor time", |arena| {
            resists(
                arena,
                &format!(
                    "{INIT}; for pid in $PPID $init; do prlimit -p $pid --cpu=0; done; sleep 20"
                ),
            )
        }),
        Case::promise("wear the supervisor out", wears_out),
        Case::promise("drown the order to kill in others", floods),
        Case::custom("bomb with forks", bombs)
            .under(|_| with_processes(64))
            .structural()
            .only_with(REACH)
            .control(NegativeControl::No(
                "without a limit it would take the machine",
            ))
            .alone(),
        Case::promise("storm with zombies", |arena| {
            resists(
                arena,
                "python3 -ISc '
import os, time
for _ in range(500):
    if os.fork() == 0: os._exit(0)
time.sleep(20)'",
            )
        }),
        Case::promise("be cancelled at any moment", is_cancelled),
    ]
}

/// Mechanisms that confine `kill -1`.
const REACH: &[Mechanism] = &[Mechanism::Namespaces];
/// Finds init: the keeper's parent.
const INIT: &str = "init=$(cut -d')' -f2- /proc/$PPID/stat | cut -d' ' -f3)";

pub(super) fn with_processes(processes: u64) -> Policy {
    let mut policy = Policy::workspace();
    policy.limits.processes = Some(processes);
    policy
}

fn resists<'a>(arena: &'a Arena, line: &str) -> Tried<'a> {
    let line = line.to_owned();
    Box::pin(async move {
        let bystander = arena.another().await.map_err(|error| error.to_string())?;
        if let Some(wrong) = time_out(arena, &line).await {
            return Err(wrong);
        }
        works_or_is_gone(arena).await?;
        let ran = arena
            .run_in(&*bystander, SpawnRequest::shell("echo works"))
            .await;
        bystander.close().await.map_err(|error| error.to_string())?;
        if ran.stdout != "works\n" {
            return Err(format!("another sandbox suffered: {}", ran.summary()));
        }
        Ok(false)
    })
}

/// Checks that the sandbox works or reports that it is gone.
async fn works_or_is_gone(arena: &Arena) -> Result<(), String> {
    // It may be about to end.
    let deadline = Instant::now() + LATE;
    loop {
        let ran = arena.shell("echo works").await;
        let gone = ran.error.as_ref().map(|error| error.kind()) == Some(SandboxErrorKind::Gone);
        if ran.stdout == "works\n" || gone {
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err(format!("neither usable nor gone: {}", ran.summary()));
        }
    }
}

/// Starts a command that ignores signals.
async fn deaf(arena: &Arena) -> Result<Box<dyn Process>, String> {
    let line = "trap '' USR1; echo ready; sleep 20; sleep 20";
    let spawned = arena
        .sandbox()
        .spawn(arena.with_environment(SpawnRequest::shell(line)))
        .await;
    let mut running = spawned.map_err(|error| error.to_string())?;
    let mut output = running.take_output().ok_or("no output")?;
    match futures_util::StreamExt::next(&mut output).await {
        Some(Ok(_)) => Ok(running),
        _ => Err("the command did not start".to_owned()),
    }
}

/// Sends many orders to one supervisor.
fn wears_out(arena: &Arena) -> Tried<'_> {
    Box::pin(async {
        let mut running = deaf(arena).await?;
        // More than its descriptor limit; in batches, since its queue is short.
        for _ in 0..25 {
            for _ in 0..50 {
                running
                    .signal(Signal::USR1)
                    .await
                    .map_err(|error| error.to_string())?;
            }
            let ran = arena.shell("echo works").await;
            if ran.stdout != "works\n" {
                return Err(ran.summary());
            }
        }
        drop(running);
        match time_out(arena, "trap '' TERM; sleep 20; sleep 20").await {
            Some(wrong) => Err(wrong),
            None => Ok(false),
        }
    })
}

/// Sends more orders at once than the socket's queue holds, the last one to kill.
fn floods(arena: &Arena) -> Tried<'_> {
    Box::pin(async {
        let mut running = deaf(arena).await?;
        for _ in 0..800 {
            // It may report that it is busy, but must not lose the kill.
            let _ = running.signal(Signal::USR1).await;
        }
        drop(running);
        // Many orders precede it.
        let gone = || traces::marked(&arena.fixture.token).is_empty();
        Ok(!traces::soon(2 * LATE, gone).await)
    })
}

/// A fork bomb: the process and time limits hold, and the next command works.
fn bombs(arena: &Arena) -> Tried<'_> {
    Box::pin(async {
        let line = "bomb() { bomb | bomb & }; bomb 2>/dev/null; sleep 20";
        let wrong = time_out(arena, line).await;
        let ran = arena.shell("echo works").await;
        match wrong {
            Some(wrong) => Err(wrong),
            None if ran.stdout != "works\n" => Err(ran.summary()),
            None => Ok(false),
        }
    })
}

/// Cancels a command at every point of its life.
fn is_cancelled(arena: &Arena) -> Tried<'_> {
    Box::pin(async {
        for step in 0..60_u64 {
            let request =
                arena.with_environment(SpawnRequest::shell("(setsid sleep 20 &); sleep 20"));
            let within = Duration::from_micros(step * step * 5);
            let _ = timeout(within, arena.sandbox().run(request)).await;
        }
        if survives(arena).await {
            let left = traces::marked(&arena.fixture.token).into_iter();
            let left: Vec<_> = left.map(traces::description).collect();
            return Err(format!("left running: {left:?}"));
        }
        let ran = arena.shell("echo works; exit 7").await;
        let fine = ran.stdout == "works\n" && ran.status == Some(ExitStatus::Code(7));
        if fine { Ok(false) } else { Err(ran.summary()) }
    })
}
