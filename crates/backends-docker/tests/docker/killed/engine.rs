//! The engine itself is killed, and comes back.

use cantle_core::policy::Policy;
use cantle_core::sandbox::{Backend as _, SandboxContext};
use futures_util::future::join_all;
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
            losing.push((kind, *phase, Losing::open(&peer, kind).await));
        }
    }
    // One is kept, and one belongs to somebody who is killed as well.
    let kept = Losing::open(&peer, DURABLE).await;
    stdout(&*kept.sandbox, "echo text > file").await;
    let handle = kept.sandbox.persist().await.unwrap();
    let mut owner = Owner::start(&peer, PASSING, "Output");
    owner.says("begun");

    // Together: what copies something is not to be done with it before the others have begun.
    let begin = losing.iter().map(|(_, phase, one)| one.begin(*phase));
    let begun = join_all(begin).await;
    engine.order("kill");
    owner.kill();
    let mut runs = vec![kept.run, owner.run];
    let mut names = vec!["kept".to_owned(), "owned".to_owned()];
    for ((kind, phase, losing), begun) in losing.iter().zip(begun) {
        runs.push(losing.run);
        let of = format!("{kind} {phase:?}");
        losing.is_told(begun, *phase, kind, &of).await;
        let closed = timeout(PATIENCE, losing.sandbox.close()).await;
        assert!(closed.is_ok(), "{of}: closing takes too long");
        names.push(format!("{of}: {closed:?}"));
    }
    drop(kept.sandbox);

    engine.begin();
    eventually("the end of all that ran", || {
        runs.iter().all(|run| marked(*run).is_empty())
    });
    // That of the dead, and what could not be removed when it was closed.
    let mut reclaimed = vec![peer.backend().reclaim().await.unwrap()];
    for (_, _, losing) in &losing {
        let backend = losing.way.backend(&peer);
        reclaimed.push(backend.reclaim().await.unwrap());
    }
    for (run, of) in runs.iter().zip(&names).skip(1) {
        nothing_is_left(&peer, *run, &format!("{of} after {reclaimed:?}")).await;
    }
    let cx = SandboxContext::new(kept.run, Policy::unconfined()).durable();
    let again = peer.backend().reattach(&handle, cx).await.unwrap();
    assert_eq!(stdout(&*again, "cat file").await, "text");
    again.close().await.unwrap();
    nothing_is_left(&peer, kept.run, "after it was closed").await;
}
