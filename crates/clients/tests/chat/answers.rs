//! Answers: streamed, whole, and equal.

use std::time::Duration;

use cantle_core::llm::{ChatEvent, Completion, StopReason};
use cantle_core::message::{AssistantBlock, ToolCall as Call};
use cantle_core::usage::TokenUsage;
use cantle_testkit::openai::{Fault, Reply, Script, ToolCall, Turn, Usage};
use proptest::prelude::{Just, Strategy, any, prop_oneof};
use proptest::test_runner::{Config, TestRunner};
use serde_json::json;

use crate::support::{MODES, builder, complete, serve, serve_with, told};

#[tokio::test]
async fn a_turn_with_everything() {
    let turn = Turn::text("Let me look.")
        .reasoning("Where is it?")
        .call(ToolCall::new("look", json!({"at": "."})))
        .call(ToolCall::new("look", "not json"))
        .usage(Usage::new(120, 50).cached(64).reasoning(20));
    let server = serve(turn).await;
    for streams in MODES {
        let client = builder(&server.url(), streams).build().unwrap();
        let completion = complete(&client).await.unwrap();
        let call = |id: &str, arguments: &str| {
            AssistantBlock::ToolCall(Call::new(Some(id.to_owned()), "look", arguments))
        };
        assert_eq!(
            completion.message.blocks,
            [
                AssistantBlock::Reasoning {
                    content: "Where is it?".to_owned()
                },
                AssistantBlock::text("Let me look."),
                call("call_0_0", r#"{"at":"."}"#),
                call("call_0_1", "not json"),
            ]
        );
        assert_eq!(completion.stop, StopReason::ToolCalls);
        let usage = TokenUsage {
            input: 56,
            cache_read: 64,
            cache_write: 0,
            answer: 30,
            reasoning: 20,
        };
        assert_eq!(completion.usage, Some(usage));
        assert_eq!(completion.message.token_usage, usage);
        assert_eq!(completion.message.provider_response_id, None);
    }
}

#[tokio::test]
async fn only_streamed_responses_have_deltas() {
    let server = serve(Turn::text("Hello there")).await;
    let (events, _) = told(&builder(&server.url(), true).build().unwrap()).await;
    assert_eq!(
        events[..2],
        [
            ChatEvent::TextDelta("Hello ".to_owned()),
            ChatEvent::TextDelta("there".to_owned())
        ]
    );
    let (events, _) = told(&builder(&server.url(), false).build().unwrap()).await;
    assert_eq!(
        events[0],
        ChatEvent::Block(AssistantBlock::text("Hello there"))
    );
    assert_eq!(events.len(), 2);
}

#[tokio::test]
async fn missing_usage_is_none() {
    let server = serve(Turn::text("Hi").without_usage()).await;
    for streams in MODES {
        let client = builder(&server.url(), streams).build().unwrap();
        let completion = complete(&client).await.unwrap();
        assert_eq!(completion.usage, None);
        assert_eq!(completion.message.token_usage, TokenUsage::default());
    }
}

#[tokio::test]
async fn a_call_without_an_id_gets_one() {
    let call = ToolCall::new("look", "{}").without_id();
    let server = serve(Turn::tool(call)).await;
    for streams in MODES {
        let client = builder(&server.url(), streams).build().unwrap();
        let message = complete(&client).await.unwrap().message;
        let call = message.tool_calls().next().unwrap();
        assert!(!call.has_provider_id && !call.id.is_empty());
    }
}

#[tokio::test]
async fn calls_with_the_same_id_get_distinct_ids() {
    let call = |arguments| ToolCall::new("look", arguments).id("same");
    let server = serve(Turn::tool(call("1")).call(call("2"))).await;
    for streams in MODES {
        let client = builder(&server.url(), streams).build().unwrap();
        let message = complete(&client).await.unwrap().message;
        let calls: Vec<_> = message.tool_calls().collect();
        assert_eq!(calls.len(), 2);
        assert_eq!(
            (calls[0].id.as_str(), calls[0].arguments.as_str()),
            ("same", "1")
        );
        assert!(calls[1].id != "same" && calls[1].arguments == "2");
    }
}

#[tokio::test]
async fn split_characters_are_reassembled() {
    let text = "Grüße, 世界!";
    let slow = Fault::Slow {
        bytes: 3,
        every: Duration::from_micros(100),
    };
    let server = serve(Turn::text(text).fault_always(slow)).await;
    for streams in MODES {
        let client = builder(&server.url(), streams).build().unwrap();
        assert_eq!(complete(&client).await.unwrap().message.text(), text);
    }
}

#[tokio::test]
async fn a_complete_body_instead_of_a_stream_is_accepted() {
    let body = json!({"choices": [{"message": {"content": "Hi"}, "finish_reason": "stop"}]});
    let reply = Reply::new(200, "application/json; charset=utf-8", body.to_string());
    let server = serve(Turn::text("").fault_always(Fault::Reply(reply))).await;
    let client = builder(&server.url(), true).build().unwrap();
    assert_eq!(complete(&client).await.unwrap().message.text(), "Hi");
}

#[tokio::test]
async fn a_complete_body_with_half_a_character_is_accepted() {
    let body = r#"{"choices": [{"message": {"content": "\ud83d\ude00 \ud83d"}, "finish_reason": "stop"}]}"#;
    let reply = Reply::new(200, "application/json", body);
    let server = serve(Turn::text("").fault_always(Fault::Reply(reply))).await;
    let client = builder(&server.url(), false).build().unwrap();
    let text = complete(&client).await.unwrap().message.text();
    assert_eq!(text, "\u{1f600} \u{fffd}");
}

#[tokio::test]
async fn reported_costs_are_read() {
    let body = |cost| {
        json!({"choices": [{"message": {"content": "Hi"}}],
            "usage": {"prompt_tokens": 1, "completion_tokens": 1, "cost": cost}})
        .to_string()
    };
    let cases = [
        (body(json!(0.5)), None, Some(0.5)),
        (body(json!(null)), Some("0.0021"), Some(0.0021)),
        (body(json!(0.5)), Some("7"), Some(0.5)),
        (body(json!(null)), Some("None"), None),
        (body(json!(null)), Some("-1"), None),
        (body(json!(null)), None, None),
    ];
    for (body, header, expected) in cases {
        let mut reply = Reply::new(200, "application/json", body);
        if let Some(cost) = header {
            reply = reply.header("x-litellm-response-cost", cost);
        }
        let server = serve(Turn::text("").fault_always(Fault::Reply(reply))).await;
        let client = builder(&server.url(), false).build().unwrap();
        let completion = complete(&client).await.unwrap();
        assert_eq!(completion.cost_usd, expected, "{header:?}");
    }
}

#[tokio::test]
async fn a_complete_body_without_stop_reason_is_accepted() {
    let body = json!({"choices": [{"message": {"content": "Hi"}, "finish_reason": null}]});
    let reply = Reply::new(200, "application/json", body.to_string());
    let server = serve(Turn::text("").fault_always(Fault::Reply(reply))).await;
    let client = builder(&server.url(), false).build().unwrap();
    assert_eq!(complete(&client).await.unwrap().stop, StopReason::EndTurn);
}

/// The message and what else counts, without the ids that are made here.
fn essence(mut completion: Completion) -> Completion {
    completion.message.id.clear();
    completion
}

fn any_turn() -> impl Strategy<Value = Turn> {
    let call =
        ("(?s).{0,40}", "[a-z_]{1,8}").prop_map(|(arguments, name)| ToolCall::new(name, arguments));
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
        proptest::option::of(1..20usize),
    )
        .prop_map(|(text, reasoning, calls, usage, reason, chars)| {
            let mut turn = Turn::text(text).reasoning(reasoning);
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
            if let Some(reason) = reason {
                turn = turn.finish_reason(reason);
            }
            match chars {
                Some(chars) => turn.delta_chars(chars),
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
    let mut runner = TestRunner::new(Config::with_cases(64));
    let checked = runner.run(
        &(any_turn(), any::<bool>(), any::<bool>()),
        |(turn, in_choice, comments)| {
            runtime.block_on(async {
                let mut script = Script::new().turn(turn);
                if in_choice {
                    script = script.usage_in_choice();
                }
                if comments {
                    script = script.comments();
                }
                let server = serve_with(script).await;
                let mut completions = Vec::new();
                for streams in MODES {
                    let client = builder(&server.url(), streams).build().unwrap();
                    completions.push(essence(complete(&client).await.unwrap()));
                }
                assert_eq!(completions[0], completions[1]);
            });
            Ok(())
        },
    );
    checked.unwrap();
}
