use std::collections::BTreeMap;

use axum::response::IntoResponse as _;
use cantle_core::policy::Policy;
use http::StatusCode;

use super::*;
use crate::keys::Keys;
use crate::settings::ServerLimits;

/// Returns a fleet without templates, and a paused sandbox.
async fn paused() -> (Arc<Fleet>, Arc<Member>) {
    let fleet = fleet(ServerLimits::default()).await;
    let member = member(&fleet, "i1");
    (fleet, member)
}

/// Returns a fleet without templates.
async fn fleet(limits: ServerLimits) -> Arc<Fleet> {
    let settings = Settings {
        templates: BTreeMap::new(),
        interpreter: None,
        policy: Policy::workspace(),
        keys: Keys::default(),
        limits,
        state: None,
        domain: None,
        user: "user".to_owned(),
        machine_memory_bytes: 0,
    };
    Fleet::open(settings).await.unwrap()
}

/// Returns a paused sandbox, which the fleet does not list.
fn member(fleet: &Fleet, id: &str) -> Arc<Member> {
    let identity = SandboxIdentity {
        id: id.to_owned(),
        owner: Keys::default().owner("any").unwrap(),
        run: RunId::new(),
        token: "".into(),
        started_at: Timestamp::now(),
        spec: SandboxSpec {
            template: "none".to_owned(),
            metadata: BTreeMap::new(),
            environment: BTreeMap::new(),
            auto_pause: true,
            auto_resume: true,
            network: None,
            internet: None,
            requested_network: None,
        },
    };
    let handle = SandboxHandle::new("none", "");
    let kept = Account::new(&fleet.accounts, &identity.owner).charge();
    Arc::new(Member::new(identity, SandboxState::Paused(handle), kept))
}

#[tokio::test]
async fn a_sandbox_is_not_resumed_after_the_server_has_left_it_paused() {
    let (fleet, member) = paused().await;
    let connect = async || {
        let refused = fleet.connect(&member, Duration::ZERO).await;
        refused.unwrap_err().into_response().status()
    };
    // Reaches the template.
    assert_eq!(connect().await, StatusCode::NOT_FOUND);
    let leaving = member.transition.lock().await;
    let stop = async {
        tokio::task::yield_now().await;
        fleet.stopping.cancel();
        drop(leaving);
    };
    let (status, ()) = futures_util::future::join(connect(), stop).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
}

#[tokio::test]
async fn concurrent_pauses_count_each_other() {
    let limits = ServerLimits {
        paused_per_key: 1,
        ..ServerLimits::default()
    };
    let fleet = fleet(limits).await;
    let sandboxes = ["i1", "i2"].map(|id| {
        let member = member(&fleet, id);
        member.set_state(SandboxState::Ended);
        let listed = Arc::clone(&member);
        fleet.members.lock().insert(id.to_owned(), listed);
        member
    });
    let [one, other] = &sandboxes;
    let pause = fleet.begin_pause(one).ok();
    assert!(pause.is_some() && fleet.begin_pause(other).is_err());
    drop(pause);
    assert!(fleet.begin_pause(other).is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_transition_that_hangs_does_not_keep_the_server_from_stopping() {
    let (fleet, member) = paused().await;
    let listed = Arc::clone(&member);
    fleet.members.lock().insert("i1".to_owned(), listed);
    let _hanging = member.transition.lock().await;
    let error = fleet.stop().await.unwrap_err();
    assert_eq!(error.kind(), ServeErrorKind::LeftBehind);
}
