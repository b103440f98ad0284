//! Making sandboxes at a service that is busy, in trouble, or whose answers get lost.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use cantle_core::policy::{Network, PolicyField};
use cantle_core::sandbox::{Backend as _, SandboxErrorKind, SandboxExt as _, SpawnRequest};
use serde_json::Value;

use crate::proxy::{Fate, Proxy, Seen, api, refusal};
use crate::support::Served;
use crate::{context, refused, through};

/// What becomes of the requests that make a sandbox, by their number.
fn of_creations(
    fate: impl Fn(usize) -> Fate + Send + Sync + 'static,
) -> impl Fn(&Seen) -> Fate + Send + Sync + 'static {
    let number = AtomicUsize::new(0);
    move |seen| match seen.makes_a_sandbox() {
        true => fate(number.fetch_add(1, Ordering::Relaxed)),
        false => Fate::Passed,
    }
}

const BUSY: &str = r#"{"code":429,"message":"too many requests"}"#;

/// How many sandboxes the server has.
async fn sandboxes(served: &Served) -> usize {
    let (_, all) = api(&served.url, "GET", "/sandboxes", Value::Null).await;
    all.as_array().unwrap().len()
}

#[tokio::test]
async fn everybody_waits_when_the_service_asks_one_to() {
    let served = Served::start().await;
    // The last of one's tries is asked to wait, so that this is known when that one has failed.
    let plan = of_creations(|number| match number {
        0..4 => refusal(429, &[("retry-after", "0")], BUSY),
        4 => refusal(429, &[("retry-after", "2")], BUSY),
        _ => Fate::Passed,
    });
    let proxy = Proxy::start(&served.url, plan).await;
    let backend = through(&proxy).build().unwrap();
    let error = refused(&backend).await;
    assert_eq!(error.kind(), SandboxErrorKind::Unavailable);
    assert_eq!(
        error.to_string(),
        "failed to make a sandbox: the API answered 429: too many requests"
    );
    // A clone has the same gate.
    let others = backend.clone();
    let (one, two, three) = tokio::join!(
        backend.open(context()),
        others.open(context()),
        others.open(context())
    );
    for opened in [one, two, three] {
        opened.unwrap().close().await.unwrap();
    }
    let tries = proxy.seen(Seen::makes_a_sandbox);
    assert_eq!(tries.len(), 8);
    for later in &tries[5..] {
        assert!(later.at - tries[4].at >= Duration::from_secs(2));
    }
    served.stop().await;
}

#[tokio::test]
async fn a_date_to_try_again_at_is_heeded() {
    let served = Served::start().await;
    let plan = of_creations(|number| match number {
        0 => {
            // Dates have whole seconds: two at least are left of three.
            let date = SystemTime::now() + Duration::from_secs(3);
            let date = httpdate::fmt_http_date(date);
            refusal(429, &[("retry-after", &date)], BUSY)
        }
        _ => Fate::Passed,
    });
    let proxy = Proxy::start(&served.url, plan).await;
    let sandbox = through(&proxy).build().unwrap().open(context()).await;
    sandbox.unwrap().close().await.unwrap();
    let tries = proxy.seen(Seen::makes_a_sandbox);
    assert_eq!(tries.len(), 2);
    assert!(tries[1].at - tries[0].at >= Duration::from_millis(1900));
    served.stop().await;
}

#[tokio::test]
async fn what_the_service_refuses_for_good_is_not_tried_again() {
    let served = Served::start().await;
    let plan = of_creations(|_| {
        let body = r#"{"code":503,"message":"no room here"}"#;
        refusal(503, &[("should-retry", "false")], body)
    });
    let proxy = Proxy::start(&served.url, plan).await;
    let error = refused(&through(&proxy).build().unwrap()).await;
    assert_eq!(
        error.to_string(),
        "failed to make a sandbox: the API answered 503: no room here"
    );
    assert_eq!(proxy.seen(Seen::makes_a_sandbox).len(), 1);
    served.stop().await;
}

#[tokio::test]
async fn nobody_waits_for_a_day() {
    // The longest is more seconds than a clock has.
    for asked in ["86400", "10000000000000000000"] {
        let served = Served::start().await;
        let plan = of_creations(move |_| refusal(429, &[("retry-after", asked)], BUSY));
        let proxy = Proxy::start(&served.url, plan).await;
        let backend = through(&proxy).build().unwrap();
        let error = refused(&backend).await;
        assert_eq!(error.kind(), SandboxErrorKind::Unavailable);
        assert_eq!(proxy.seen(Seen::makes_a_sandbox).len(), 1);
        if asked == "86400" {
            // The next one does not even ask.
            let error = refused(&backend).await;
            let expected = "failed to make a sandbox: the service asks to wait for 863";
            assert!(error.to_string().starts_with(expected), "{error}");
            assert!(error.advice().is_some());
            assert_eq!(proxy.seen(Seen::makes_a_sandbox).len(), 1);
        }
        served.stop().await;
    }
}

#[tokio::test]
async fn a_lost_answer_makes_no_second_sandbox() {
    let fates: [fn() -> Fate; 2] = [|| Fate::Lost, || Fate::Halved];
    for fate in fates {
        let served = Served::start().await;
        let plan = of_creations(move |number| match number {
            0 => fate(),
            _ => Fate::Passed,
        });
        let proxy = Proxy::start(&served.url, plan).await;
        let sandbox = through(&proxy).build().unwrap().open(context()).await;
        let sandbox = sandbox.unwrap();
        assert_eq!(sandboxes(&served).await, 1);
        let tries = proxy.seen(Seen::makes_a_sandbox);
        let keys: Vec<&str> = tries
            .iter()
            .map(|it| it.header("idempotency-key"))
            .collect();
        assert_eq!(keys.len(), 2);
        assert!(!keys[0].is_empty() && keys[0] == keys[1], "{keys:?}");
        sandbox.close().await.unwrap();
        assert_eq!(sandboxes(&served).await, 0);
        served.stop().await;
    }
}

#[tokio::test]
async fn a_lost_answer_to_the_end_of_a_sandbox_is_asked_for_again() {
    let served = Served::start().await;
    let number = AtomicUsize::new(0);
    let plan = move |seen: &Seen| match seen.method.as_str() {
        "DELETE" if number.fetch_add(1, Ordering::Relaxed) == 0 => {
            refusal(503, &[("retry-after", "0")], "")
        }
        "DELETE" if number.load(Ordering::Relaxed) == 2 => Fate::Lost,
        _ => Fate::Passed,
    };
    let proxy = Proxy::start(&served.url, plan).await;
    let sandbox = through(&proxy).build().unwrap().open(context()).await;
    sandbox.unwrap().close().await.unwrap();
    assert_eq!(sandboxes(&served).await, 0);
    assert_eq!(proxy.seen(|seen| seen.method == "DELETE").len(), 3);
    served.stop().await;
}

#[tokio::test]
async fn one_that_is_being_made_already_is_waited_for() {
    let served = Served::start().await;
    let plan = of_creations(|number| match number {
        0 => {
            let body = r#"{"code":409,"message":"not yet","error_code":"idempotency_in_progress"}"#;
            refusal(409, &[], body)
        }
        _ => Fate::Passed,
    });
    let proxy = Proxy::start(&served.url, plan).await;
    let sandbox = through(&proxy).build().unwrap().open(context()).await;
    let sandbox = sandbox.unwrap();
    let output = sandbox.run(SpawnRequest::shell("echo made")).await.unwrap();
    assert_eq!(output.stdout.text(), "made\n");
    sandbox.close().await.unwrap();
    served.stop().await;
}

#[tokio::test]
async fn a_network_that_a_service_cannot_keep_off_is_told_from_other_mistakes() {
    let served = Served::start().await;
    let cases = [
        ("", true),
        ("unknown field allow_internet_access", true),
        ("network.denyOut: not supported", true),
        ("the timeout can't be greater than 3600 seconds", false),
    ];
    for (words, is_about_the_network) in cases {
        let plan = of_creations(move |_| {
            let body = serde_json::json!({ "code": 400, "message": words }).to_string();
            refusal(400, &[], &body)
        });
        let proxy = Proxy::start(&served.url, plan).await;
        let backend = through(&proxy).build().unwrap();
        let mut cx = context();
        cx.policy.network = Some(Network::Off);
        let error = backend.open(cx).await.map(drop).unwrap_err();
        if is_about_the_network {
            assert_eq!(error.unenforced(), [PolicyField::Network], "{words}");
        } else {
            assert_eq!(error.kind(), SandboxErrorKind::InvalidInput);
            assert!(error.to_string().contains(words), "{error}");
        }
    }
    served.stop().await;
}

#[tokio::test]
async fn an_answer_that_makes_no_sense_is_told_as_that() {
    let served = Served::start().await;
    let strange = "does not speak E2B's API";
    let made =
        r#"{"sandboxID":"../../x","clientID":"c","templateID":"base","envdVersion":"0.6.13"}"#;
    let cases = [
        (201, r#"{"sandboxID":"#, strange),
        (201, "", strange),
        (200, "<html>Welcome</html>", strange),
        (201, r#"{"templateID":"base"}"#, strange),
        // Its name would become part of addresses.
        (201, made, strange),
        (500, "", "the API answered 500"),
        (500, "Internal Server Error", "the API answered 500"),
        (
            500,
            r#"{"code":500,"message":"out of machines"}"#,
            "500: out of machines",
        ),
        (302, "", "the API answered 302"),
    ];
    for (status, body, expected) in cases {
        let plan = of_creations(move |_| refusal(status, &[], body));
        let proxy = Proxy::start(&served.url, plan).await;
        let error = refused(&through(&proxy).build().unwrap()).await;
        assert_eq!(error.kind(), SandboxErrorKind::Unavailable, "{error:?}");
        let text = error.to_string();
        assert!(text.contains(expected), "{status} {body}: {text}");
        assert!(status == 302 || error.advice().is_some(), "{error:?}");
        assert_eq!(
            proxy.seen(Seen::makes_a_sandbox).len(),
            1,
            "{status} {body}"
        );
    }
    assert_eq!(sandboxes(&served).await, 0);
    served.stop().await;
}
