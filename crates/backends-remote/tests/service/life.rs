//! How long a sandbox lives where its service has troubles of its own.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use cantle_core::sandbox::{Backend as _, SandboxErrorKind, SandboxExt as _, SpawnRequest};
use hyper::StatusCode;
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::proxy::{Fate, Proxy, Seen, api, refusal};
use crate::support::{DEADLINE, Served};
use crate::{context, through};

fn prolongs(seen: &Seen) -> bool {
    seen.path.ends_with("/timeout")
}

#[tokio::test]
async fn a_life_that_could_not_be_prolonged_is_tried_again_before_its_end() {
    let served = Served::start().await;
    let number = AtomicUsize::new(0);
    let plan = move |seen: &Seen| match prolongs(seen) {
        true if number.fetch_add(1, Ordering::Relaxed) < 3 => refusal(500, &[], ""),
        _ => Fate::Passed,
    };
    let proxy = Proxy::start(&served.url, plan).await;
    // The shortest there is.
    let builder = through(&proxy).lifetime(Duration::ZERO);
    let sandbox = builder.build().unwrap().open(context()).await.unwrap();
    let path = format!("/sandboxes/{}", sandbox.info().id);
    let end = async || {
        let (status, detail) = api(&served.url, "GET", &path, Value::Null).await;
        assert_eq!(status, StatusCode::OK);
        // All of one form: what is later is greater.
        detail["endAt"].as_str().unwrap().to_owned()
    };
    let before = end().await;
    proxy.wait_for(1, |it| prolongs(it) && it.is_answered).await;
    assert_eq!(proxy.seen(prolongs).len(), 4);
    assert!(end().await > before);
    sandbox.close().await.unwrap();
    served.stop().await;
}

#[tokio::test]
async fn a_sandbox_whose_life_is_over_is_gone() {
    let served = Served::start().await;
    let proxy = Proxy::start(&served.url, |_| Fate::Passed).await;
    let sandbox = through(&proxy)
        .build()
        .unwrap()
        .open(context())
        .await
        .unwrap();
    let request = SpawnRequest::shell("sleep 1000");
    let mut process = sandbox.spawn(request).await.unwrap();
    let path = format!("/sandboxes/{}/timeout", sandbox.info().id);
    let (status, _) = api(&served.url, "POST", &path, json!({ "timeout": 1 })).await;
    assert_eq!(status, StatusCode::NO_CONTENT);
    let ended = timeout(DEADLINE, process.wait())
        .await
        .expect("it is noticed");
    assert_eq!(ended.unwrap_err().kind(), SandboxErrorKind::Gone);
    let error = sandbox
        .read_bytes(&"file".parse().unwrap(), 1)
        .await
        .unwrap_err();
    assert_eq!(error.kind(), SandboxErrorKind::Gone);
    // There is nothing to end any more.
    sandbox.close().await.unwrap();
    served.stop().await;
}
