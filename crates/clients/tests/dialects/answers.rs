//! Answers: the same streamed or not, also where they are odd, and refusals of every provider.

use std::fs;
use std::path::Path;
use std::time::Duration;

use cantle_core::llm::{Completion, LlmErrorKind};
use cantle_testkit::openai::{Fault, Reply, Script, ScriptedServer, ToolCall, Turn, Usage};
use proptest::prelude::{Just, Strategy, any, prop_oneof};
use proptest::test_runner::{Config, TestRunner};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::support::{DIALECTS, ask, client};

/// The answer without what is new each time.
async fn answered(dialect: &str, turn: Turn, stream: bool) -> Completion {
    let server = ScriptedServer::start(Script::new().turn(turn))
        .await
        .unwrap();
    let client = client(dialect, &server.url(), stream).unwrap();
    let mut completion = ask(&*client).await.unwrap();
    completion.message.id.clear();
    completion
}

fn any_turn() -> impl Strategy<Value = Turn> {
    let call = ("(?s).{0,40}", "[a-z_]{1,8}")
        .prop_map(|(text, name)| ToolCall::new(name, json!({ "text": text })));
    let usage = (
        0..1_000_000u64,
        0..1_000_000u64,
        any::<Option<(u16, u16)>>(),
    );
    let reason = prop_oneof![
        Just(None),
        Just(Some("length")),
        Just(Some("content_filter")),
        Just(Some("odd"))
    ];
    (
        "(?s).{0,80}",
        "(?s).{0,80}",
        proptest::collection::vec(call, 0..4),
        proptest::option::of(usage),
        reason,
        1..20usize,
    )
        .prop_map(|(text, reasoning, calls, usage, reason, chars)| {
            let mut turn = Turn::text(text).reasoning(reasoning).delta_chars(chars);
            for call in calls {
                turn = turn.call(call);
            }
            turn = match usage {
                None => turn.without_usage(),
                Some((prompt, completion, None)) => turn.usage(Usage::new(prompt, completion)),
                Some((prompt, completion, Some((cached, reasoning)))) => turn.usage(
                    Usage::new(prompt, completion)
                        .cached(cached.into())
                        .reasoning(reasoning.into()),
                ),
            };
            match reason {
                Some(reason) => turn.finish_reason(reason),
                None => turn,
            }
        })
}

#[test]
fn streaming_does_not_change_the_message() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let mut runner = TestRunner::new(Config::with_cases(48));
    let checked = runner.run(&any_turn(), |turn| {
        runtime.block_on(async {
            for dialect in ["messages", "responses"] {
                let streamed = answered(dialect, turn.clone(), true).await;
                assert_eq!(
                    streamed,
                    answered(dialect, turn.clone(), false).await,
                    "{dialect}"
                );
            }
        });
        Ok(())
    });
    checked.unwrap();
}

#[tokio::test]
async fn very_long_arguments_are_complete() {
    let arguments = json!({"text": "größer ".repeat(400_000)}).to_string();
    for dialect in DIALECTS {
        for stream in [true, false] {
            let call = ToolCall::new("write", &arguments);
            let turn = Turn::tool(call).delta_chars(50_000);
            let message = answered(dialect, turn, stream).await.message;
            let call = message.tool_calls().next().unwrap();
            assert!(
                call.arguments == arguments,
                "{dialect}: {}",
                call.arguments.len()
            );
        }
    }
}

#[tokio::test]
async fn calls_without_unique_ids_get_distinct_ids() {
    let call = || ToolCall::new("look", "{}");
    let turn = Turn::tool(call().id("same"))
        .call(call().id("same"))
        .call(call().without_id());
    for dialect in DIALECTS {
        for stream in [true, false] {
            let message = answered(dialect, turn.clone(), stream).await.message;
            let ids: Vec<_> = message.tool_calls().map(|call| &*call.id).collect();
            assert_eq!((ids.len(), ids[0]), (3, "same"), "{dialect}");
            assert!(ids[1] != ids[0] && ids[2] != ids[1], "{dialect}: {ids:?}");
            let provided: Vec<_> = message.tool_calls().map(|it| it.has_provider_id).collect();
            assert_eq!(provided, [true, false, false], "{dialect}");
        }
    }
}

#[tokio::test]
async fn split_characters_are_reassembled() {
    let text = "Grüße, 世界!";
    let slow = Fault::Slow {
        bytes: 3,
        every: Duration::from_micros(100),
    };
    for dialect in DIALECTS {
        let turn = Turn::text(text).fault_always(slow.clone());
        for stream in [true, false] {
            let message = answered(dialect, turn.clone(), stream).await.message;
            assert_eq!(message.text(), text, "{dialect}");
        }
    }
}

#[tokio::test]
async fn invalid_utf8_is_an_error() {
    for dialect in DIALECTS {
        let reply = Reply::new(200, "text/event-stream", &b"data: \xff\xfe\n\n"[..]);
        let turn = Turn::text("never said").fault_always(Fault::Reply(reply));
        let server = ScriptedServer::start(Script::new().turn(turn))
            .await
            .unwrap();
        let client = client(dialect, &server.url(), true).unwrap();
        let error = ask(&*client).await.unwrap_err();
        assert_eq!(error.kind(), LlmErrorKind::Protocol, "{dialect}: {error}");
    }
}

#[derive(Deserialize)]
struct Recorded {
    status: u16,
    kind: LlmErrorKind,
    body: Value,
}

/// The recordings are of whatever dialect: a proxy hands on what the provider behind it says.
#[tokio::test]
async fn overflow_fixtures_are_classified_in_every_dialect() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/overflow");
    let mut seen = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "json") {
            continue;
        }
        let recorded: Recorded = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        let body = recorded.body.to_string();
        let reply = Reply::new(recorded.status, "application/json", body);
        let turn = Turn::text("never said").fault_always(Fault::Reply(reply));
        let server = ScriptedServer::start(Script::new().turn(turn))
            .await
            .unwrap();
        for dialect in ["messages", "responses"] {
            let client = client(dialect, &server.url(), true).unwrap();
            let error = ask(&*client).await.unwrap_err();
            assert_eq!(
                error.kind(),
                recorded.kind,
                "{dialect}, {}: {error}",
                path.display()
            );
        }
        seen += 1;
    }
    assert!(seen > 30, "{seen} recordings were found");
}
