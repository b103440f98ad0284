//! Mistakes that people make: each says what is wrong and what to try, in every dialect, and without
//! the key.

use std::net::Ipv4Addr;

use cantle_core::llm::{LlmError, LlmErrorKind};
use cantle_testkit::openai::{Fault, Reply, Script, ScriptedServer, Turn};
use serde_json::json;
use tokio::net::TcpSocket;

use crate::support::{DIALECTS, KEY, ask, client};

/// Returns the kind and the message of the error for a request to `base_url`.
async fn told(dialect: &str, base_url: &str) -> (LlmErrorKind, String) {
    let mut said = Vec::new();
    for stream in [true, false] {
        let error = match client(dialect, base_url, stream) {
            Ok(client) => ask(&*client).await.unwrap_err(),
            Err(error) => error,
        };
        said.push((error.kind(), text(&error)));
    }
    assert_eq!(said[0], said[1]);
    assert!(!said[0].1.contains(KEY), "{}", said[0].1);
    said.swap_remove(0)
}

fn text(error: &LlmError) -> String {
    match error.advice() {
        Some(advice) => format!("{error}. {advice}"),
        None => error.to_string(),
    }
}

/// The same where the server always answers with this.
async fn told_of(dialect: &str, reply: Reply) -> (LlmErrorKind, String) {
    let turn = Turn::text("never said").fault_always(Fault::Reply(reply));
    let server = ScriptedServer::start(Script::new().turn(turn))
        .await
        .unwrap();
    let (kind, said) = told(dialect, &server.url()).await;
    (kind, said.replace(&server.url(), "URL"))
}

fn json_reply(status: u16, error: &serde_json::Value) -> Reply {
    let body = json!({"type": "error", "error": error});
    Reply::new(status, "application/json", body.to_string())
}

#[tokio::test]
async fn common_mistakes_have_advice() {
    let page = "<!DOCTYPE html><html><head><title>Welcome</title></head></html>";
    let repeated = format!("invalid x-api-key: {KEY}");
    let mut all = Vec::new();
    for dialect in DIALECTS {
        let key = json_reply(
            401,
            &json!({"type": "authentication_error", "message": repeated}),
        );
        let model = json_reply(
            404,
            &json!({"type": "not_found_error", "message": "model: scripted"}),
        );
        let overloaded = json_reply(
            529,
            &json!({"type": "overloaded_error", "message": "Overloaded"}),
        );
        let credit = json_reply(
            402,
            &json!({"type": "billing_error", "message": "no credit"}),
        );
        let proxy = Reply::new(407, "text/html", "<html><title>Proxy</title></html>");
        let cases = [
            ("a wrong key", told_of(dialect, key).await),
            ("an unknown model", told_of(dialect, model).await),
            ("no credit", told_of(dialect, credit).await),
            ("overload", told_of(dialect, overloaded).await),
            ("a proxy", told_of(dialect, proxy).await),
            (
                "a web page",
                told_of(dialect, Reply::new(200, "text/html", page)).await,
            ),
            (
                "not found",
                told_of(dialect, Reply::new(404, "text/html", page)).await,
            ),
        ];
        for (what, (kind, said)) in cases {
            all.push(format!("{dialect}, {what}: {kind:?}\n  {said}"));
        }
    }
    insta::assert_snapshot!(all.join("\n"));
}

#[tokio::test]
async fn wrong_base_url_paths_have_advice() {
    let server = ScriptedServer::start(Script::new().turn(Turn::text("Hi")))
        .await
        .unwrap();
    let host = server.url().trim_end_matches("/v1").to_owned();
    for dialect in DIALECTS {
        // This server knows both, as others don't.
        let doubled = format!("{host}/v1/v1");
        let (kind, said) = told(dialect, &doubled).await;
        assert_eq!(kind, LlmErrorKind::NotFound);
        assert!(said.contains("contains /v1 more than once"), "{said}");
        let elsewhere = format!("{host}/api");
        let (kind, said) = told(dialect, &elsewhere).await;
        assert_eq!(kind, LlmErrorKind::NotFound);
        assert!(
            said.ends_with(&format!("Most base URLs end in /v1: try {elsewhere}/v1.")),
            "{said}"
        );
        let whole = match dialect {
            "chat" => "/chat/completions",
            "messages" => "/messages",
            _ => "/responses",
        };
        let (kind, said) = told(dialect, &format!("{host}/v1{whole}")).await;
        assert_eq!(kind, LlmErrorKind::InvalidRequest);
        assert!(said.contains("must not end in"), "{said}");
    }
}

#[tokio::test]
async fn a_missing_server_has_advice() {
    // The address stays taken, and nothing listens there.
    let taken = TcpSocket::new_v4().unwrap();
    taken.bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    let url = format!("http://{}/v1", taken.local_addr().unwrap());
    for dialect in DIALECTS {
        let (kind, said) = told(dialect, &url).await;
        assert_eq!(kind, LlmErrorKind::Unreachable);
        assert!(
            said.contains("connection refused. Check that the server is running"),
            "{said}"
        );
    }
    // Once, since where there is no network it takes long.
    let client = client("messages", "http://no-such-host.invalid/v1", true).unwrap();
    let error = ask(&*client).await.unwrap_err();
    assert_eq!(error.kind(), LlmErrorKind::Unreachable);
    assert!(
        text(&error).contains("its host name cannot be resolved"),
        "{error}"
    );
}
