//! Services that know only one generation of the API.

use std::time::Duration;

use cantle_backends_remote::ApiGeneration;
use cantle_core::sandbox::{Backend as _, SandboxErrorKind, SandboxExt as _, SpawnRequest};
use tokio::time::{Instant, sleep};

use crate::proxy::{Fate, Proxy, Seen, refusal};
use crate::support::{DEADLINE, Served};
use crate::{context, refused, through};

fn is_of_the_api(seen: &Seen) -> bool {
    seen.path.contains("sandboxes") && seen.method == "POST"
}

/// Answers as one that has never heard of a second generation.
fn without_second(status: u16, body: &'static str) -> impl Fn(&Seen) -> Fate + Send + Sync {
    move |seen| match seen.path.starts_with("/v2/") {
        true => refusal(status, &[], body),
        false => Fate::Passed,
    }
}

#[tokio::test]
async fn a_service_without_the_second_generation_is_used_by_the_first() {
    let cases = [
        (404, "404 page not found"),
        (404, r#"{"code":404,"message":"not found"}"#),
        (405, "Method Not Allowed"),
    ];
    for (status, body) in cases {
        let served = Served::start().await;
        let proxy = Proxy::start(&served.url, without_second(status, body)).await;
        let backend = through(&proxy).build().unwrap();
        let sandbox = backend.open(context()).await.unwrap();
        let output = sandbox.run(SpawnRequest::shell("echo here")).await.unwrap();
        assert_eq!(output.stdout.text(), "here\n");
        sandbox.close().await.unwrap();
        // What was found out once is known.
        let sandbox = backend.open(context()).await.unwrap();
        sandbox.close().await.unwrap();
        let paths: Vec<String> = proxy
            .seen(is_of_the_api)
            .into_iter()
            .map(|seen| seen.path)
            .collect();
        assert_eq!(paths, ["/v2/sandboxes", "/sandboxes", "/sandboxes"]);
        served.stop().await;
    }
}

#[tokio::test]
async fn a_paused_sandbox_is_woken_by_the_first_generation_too() {
    let served = Served::start().await;
    let plan = without_second(404, "404 page not found");
    let proxy = Proxy::start(&served.url, plan).await;
    let backend = through(&proxy)
        .pause_when_idle(Duration::from_millis(200))
        .build()
        .unwrap();
    let sandbox = backend.open(context()).await.unwrap();
    let deadline = Instant::now() + DEADLINE;
    while served.state(&sandbox.info().id).await.as_deref() != Some("paused") {
        assert!(Instant::now() < deadline, "it was not paused");
        sleep(Duration::from_millis(20)).await;
    }
    let output = sandbox
        .run(SpawnRequest::shell("echo awake"))
        .await
        .unwrap();
    assert_eq!(output.stdout.text(), "awake\n");
    let connects = proxy.seen(|seen| seen.path.ends_with("/connect"));
    assert!(connects.iter().all(|it| it.path.starts_with("/sandboxes/")));
    sandbox.close().await.unwrap();
    served.stop().await;
}

#[tokio::test]
async fn no_other_generation_is_tried_than_the_one_that_was_asked_for() {
    let served = Served::start().await;
    let plan = without_second(404, "404 page not found");
    let proxy = Proxy::start(&served.url, plan).await;
    let builder = through(&proxy).api_generation(ApiGeneration::V2);
    let error = refused(&builder.build().unwrap()).await;
    assert_eq!(error.kind(), SandboxErrorKind::Unavailable);
    assert_eq!(proxy.seen(is_of_the_api).len(), 1);

    let builder = through(&proxy).api_generation(ApiGeneration::V1);
    let sandbox = builder.build().unwrap().open(context()).await.unwrap();
    sandbox.close().await.unwrap();
    assert_eq!(proxy.seen(is_of_the_api).len(), 2);
    served.stop().await;
}

#[tokio::test]
async fn what_goes_wrong_in_the_first_generation_is_what_is_told() {
    let served = Served::start().await;
    let plan = |seen: &Seen| match seen.path.as_str() {
        "/v2/sandboxes" => refusal(404, &[], "404 page not found"),
        "/sandboxes" => refusal(500, &[], "Internal Server Error"),
        _ => Fate::Passed,
    };
    let proxy = Proxy::start(&served.url, plan).await;
    let error = refused(&through(&proxy).build().unwrap()).await;
    assert_eq!(
        error.to_string(),
        "failed to make a sandbox: the API answered 500"
    );
    served.stop().await;
}
