//! The engine itself is killed, and comes back.

use cantle_core::policy::Policy;
use cantle_core::sandbox::{Backend as _, SandboxContext};
use tokio::time::timeout;

use super::owner::Owner;
use super::phase::Phase;
use super::{DURABLE, Losing, PASSING, PLAIN, marked, nothing_is_left};
use crate::own_engine::OwnEngine;
use crate::support::{PATIENCE, Peer, eventually, stdout};

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_left_where_the_engine_itself_is_killed() {
    let Some(peer) = Peer::find() else { return };
    let Some(mut engine) = OwnEngine::start(&peer) else {
        return;
    };
    let peer = Peer {
        host: engine.peer.host.clone(),
        ..peer
    };
    let mut losing = Vec::new();
    for (kind, phases) in [(PASSING, &Phase::ALL[..]), (PLAIN, &Phase::PLAIN)] {
        for phase in phases {
            let one = Losing::open(&peer, kind).await;
            let begun = one.begin(*phase).await;
            losing.push((kind, *phase, one, begun));
        }
    }
    // One is kept, and one belongs to somebody who is killed as well.
    let kept = Losing::open(&peer, DURABLE).await;
    stdout(&*kept.sandbox, "echo text > file").await;
    let handle = kept.sandbox.persist().await.unwrap();
    let mut owner = Owner::start(&peer, PASSING, "Output");
    owner.says("begun");

    engine.order("kill");
    owner.kill();
    let mut runs = vec![kept.run, owner.run];
    for (kind, phase, losing, begun) in losing {
        runs.push(losing.run);
        let of = format!("{kind} {phase:?}");
        losing.is_told(begun, phase, kind, &of).await;
        let closed = timeout(PATIENCE, losing.sandbox.close()).await;
        assert!(closed.is_ok(), "{of}: closing takes too long");
    }
    drop(kept.sandbox);

    engine.begin();
    eventually("the end of all that ran", || {
        runs.iter().all(|run| marked(*run).is_empty())
    });
    peer.backend().reclaim().await.unwrap();
    for run in &runs[1..] {
        nothing_is_left(&peer, *run, "after the engine's end").await;
    }
    let cx = SandboxContext::new(kept.run, Policy::unconfined()).durable();
    let again = peer.backend().reattach(&handle, cx).await.unwrap();
    assert_eq!(stdout(&*again, "cat file").await, "text");
    again.close().await.unwrap();
    nothing_is_left(&peer, kept.run, "after it was closed").await;
}
