//! The engine is killed and restarted.

use cantle_core::policy::Policy;
use cantle_core::sandbox::{Backend as _, SandboxContext};
use futures_util::future::join_all;
use tokio::time::timeout;

use super::owner::Owner;
use super::phase::Phase;
use super::{DURABLE, EPHEMERAL, KillScenario, PLAIN, assert_nothing_left, marked};
use crate::own_engine::OwnEngine;
use crate::support::{DEADLINE, TestEngine, eventually, stdout};

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_left_after_the_engine_is_killed() {
    let Some(engine) = TestEngine::from_env() else {
        return;
    };
    let Some(mut own) = OwnEngine::start(&engine) else {
        return;
    };
    let engine = TestEngine {
        host: own.engine.host.clone(),
        ..engine
    };
    let mut scenarios = Vec::new();
    for (kind, phases) in [(EPHEMERAL, &Phase::ALL[..]), (PLAIN, &Phase::PLAIN)] {
        for phase in phases {
            scenarios.push((kind, *phase, KillScenario::open(&engine, kind).await));
        }
    }
    // One sandbox is kept, and one belongs to an owner that is killed, too.
    let kept = KillScenario::open(&engine, DURABLE).await;
    stdout(&*kept.sandbox, "echo text > file").await;
    let handle = kept.sandbox.persist().await.unwrap();
    let mut owner = Owner::start(&engine, EPHEMERAL, "Output");
    owner.wait_for("begun");

    // Concurrently, so that no transfer completes before the others have begun.
    let begin = scenarios.iter().map(|(_, phase, one)| one.begin(*phase));
    let begun = join_all(begin).await;
    own.kill();
    owner.kill();
    let mut runs = vec![kept.run, owner.run];
    let mut names = vec!["kept".to_owned(), "owned".to_owned()];
    for ((kind, phase, scenario), begun) in scenarios.iter().zip(begun) {
        runs.push(scenario.run);
        let of = format!("{kind} {phase:?}");
        scenario.assert_gone(begun, *phase, kind, &of).await;
        let closed = timeout(DEADLINE, scenario.sandbox.close()).await;
        assert!(closed.is_ok(), "{of}: closing takes too long");
        names.push(format!("{of}: {closed:?}"));
    }
    drop(kept.sandbox);

    own.restart();
    eventually("the end of all processes", || {
        runs.iter().all(|run| marked(*run).is_empty())
    });
    // Containers of the killed owner, and those that could not be removed on close.
    let mut reclaimed = vec![engine.backend().reclaim().await.unwrap()];
    for (_, _, scenario) in &scenarios {
        let backend = scenario.proxy.backend(&engine);
        reclaimed.push(backend.reclaim().await.unwrap());
    }
    for (run, of) in runs.iter().zip(&names).skip(1) {
        assert_nothing_left(&engine, *run, &format!("{of} after {reclaimed:?}")).await;
    }
    let cx = SandboxContext::new(kept.run, Policy::unconfined()).durable();
    let again = engine.backend().reattach(&handle, cx).await.unwrap();
    assert_eq!(stdout(&*again, "cat file").await, "text");
    again.close().await.unwrap();
    assert_nothing_left(&engine, kept.run, "after it was closed").await;
}
