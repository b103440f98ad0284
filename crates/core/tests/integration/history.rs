//! Histories: what Stirrup wrote opens here, and nothing is lost on the way out and in again.

use std::collections::HashMap;

use cantle_core::content::{Content, Media, MediaKind, Part};
use cantle_core::message::{
    AssistantBlock, AssistantMessage, Message, SystemMessage, ToolCall, ToolMessage, UserKind,
    UserMessage, history,
};
use cantle_core::usage::TokenUsage;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use serde_json::{Map, Value, json};

const V01: &str = include_str!("../fixtures/stirrup/history-v0.1.json");
const V01_UPGRADED: &str = include_str!("../fixtures/stirrup/history-v0.1.upgraded.json");
const V02: &str = include_str!("../fixtures/stirrup/history-v0.2.json");

fn value(json: &str) -> Value {
    serde_json::from_str(json).expect("the fixture is JSON")
}

fn read(json: &Value) -> Result<Vec<Message>, history::InvalidHistory> {
    history::from_json(json.to_string().as_bytes())
}

fn written(messages: &[Message]) -> Value {
    serde_json::from_slice(&history::to_json(messages).expect("it is written")).expect("JSON")
}

/// The same history with ids that were made up while reading replaced, in the order they appear.
fn with_stable_ids(mut history: Value, original: &str) -> Value {
    let mut made_up = HashMap::new();
    let mut stable = |id: Option<&mut Value>| {
        let Some(Value::String(id)) = id else { return };
        if id.is_empty() || !original.contains(&format!("\"{id}\"")) {
            let next = format!("<synthesized-{}>", made_up.len() + 1);
            *id = made_up.entry(id.clone()).or_insert(next).clone();
        }
    };
    for message in history.as_array_mut().expect("a list") {
        for block in message
            .get_mut("blocks")
            .and_then(Value::as_array_mut)
            .into_iter()
            .flatten()
        {
            stable(block.get_mut("tool_call_id"));
        }
        stable(message.get_mut("tool_call_id"));
    }
    history
}

#[test]
fn the_last_group_of_a_dump_is_the_conversation() {
    let (old, new) = (
        json!({"role": "user", "content": "old"}),
        json!({"role": "user", "content": "new"}),
    );
    let expected = read(&json!([new])).expect("it opens");
    for dump in [
        json!([[old], [new]]),
        json!([[new]]),
        json!({"message_history": [[old], [new]], "run_metadata": {}}),
        json!({"msgs": [new], "full_msg_history": [[old]], "turn": 3}),
    ] {
        let messages = read(&dump).expect("it opens");
        assert_eq!(written(&messages), written(&expected), "{dump}");
    }
    assert_eq!(read(&json!([])).expect("it opens"), []);
    assert_eq!(read(&json!([[]])).expect("it opens"), []);
    for wrong in [
        json!("text"),
        json!({"messages": []}),
        json!([[old], new]),
        json!([[[old]]]),
    ] {
        assert!(read(&wrong).is_err(), "{wrong}");
    }
}

#[test]
fn calls_without_a_result_are_answered_in_place() {
    let call = |id: &str| json!({"kind": "tool_call", "tool_call_id": id, "name": "work", "arguments": "{}"});
    let result = |id: &str| json!({"role": "tool", "tool_call_id": id, "content": "done"});
    let messages = read(&json!([
        {"role": "user", "content": "go"},
        {"role": "assistant", "blocks": [call("a"), call("b")]},
        result("b"),
        {"role": "user", "content": "and on"},
        {"role": "assistant", "blocks": [call("c")]},
    ]));
    let answered = history::answer_open_calls(messages.expect("it opens"));
    let results: Vec<_> = answered
        .iter()
        .enumerate()
        .filter_map(|(at, message)| match message {
            Message::Tool(result) => Some((at, &*result.tool_call_id, result.success)),
            _ => None,
        })
        .collect();
    assert_eq!(results, [(2, "b", false), (3, "a", false), (6, "c", false)]);
    assert_eq!(history::answer_open_calls(answered.clone()), answered);
}

#[test]
fn a_history_of_stirrup_0_2_comes_back_as_it_was() {
    let messages = history::from_json(V02.as_bytes()).expect("it opens");
    assert_eq!(written(&messages), value(V02));
}

#[test]
fn a_history_of_stirrup_0_1_becomes_what_stirrup_0_2_makes_of_it() {
    let messages = history::from_json(V01.as_bytes()).expect("it opens");
    let ours = with_stable_ids(written(&messages), V01);
    assert_eq!(ours, value(V01_UPGRADED));
}

#[test]
fn calls_record_whether_the_provider_assigned_their_id() {
    let messages = history::from_json(V02.as_bytes()).expect("it opens");
    let calls: Vec<_> = messages
        .iter()
        .filter_map(|message| match message {
            Message::Assistant(message) => Some(message.tool_calls()),
            _ => None,
        })
        .flatten()
        .map(|call| (call.id.as_str(), call.has_provider_id))
        .collect();
    assert_eq!(
        calls,
        [
            ("call_1", true),
            ("call_2", true),
            ("made-up-1", false),
            ("call_3", true)
        ]
    );
}

#[test]
fn unknown_fields_are_ignored() {
    let messages = read(&json!([
        {"role": "system", "content": "x", "cache": true},
        {"role": "user", "content": "y", "name": "Ada"},
        {"role": "assistant", "id": "1", "blocks": [{"kind": "text", "text": "z", "extra": 1}], "v": 3},
    ]));
    let mut answer = AssistantMessage::new(vec![AssistantBlock::text("z")]);
    answer.id = "1".to_owned();
    assert_eq!(
        messages.expect("it opens"),
        [Message::system("x"), Message::user("y"), answer.into()]
    );
}

#[test]
fn invalid_histories_are_rejected_with_an_index() {
    let cases = [
        (
            json!({}),
            "failed to read the history: expected an array of messages, or an object with `msgs` or `message_history`",
        ),
        (
            json!(["x"]),
            "failed to read the history at message 0: expected an object",
        ),
        (
            json!([{"role": "user", "content": "x"}, {"role": "robot", "content": "x"}]),
            "failed to read the history at message 1: unknown variant `robot`, expected one of `system`, `user`, `assistant`, `tool`",
        ),
        (
            json!([{"role": "assistant", "blocks": [], "content": "x"}]),
            "failed to read the history at message 0: has both `blocks` and the fields of version 0.1",
        ),
        (
            json!([{"role": "assistant", "content": 1}]),
            "failed to read the history at message 0: `content` must be a string or a list",
        ),
        (
            json!([{"role": "assistant", "tool_calls": {}}]),
            "failed to read the history at message 0: `tool_calls` must be a list",
        ),
        (
            json!([{"role": "assistant", "reasoning": "x"}]),
            "failed to read the history at message 0: `reasoning` must be an object",
        ),
        (
            json!([{"role": "tool", "content": "x", "tool_call_id": null}]),
            "failed to read the history at message 0: a tool result without an id has no call before it",
        ),
        (
            json!([
                {"role": "assistant", "tool_calls": [{"name": "a", "arguments": "{}"}]},
                {"role": "tool", "content": "x", "name": "b", "tool_call_id": null},
            ]),
            "failed to read the history at message 1: a tool result of `b` without an id follows a call of `a`",
        ),
        (
            json!([{"role": "user", "kind": "shout", "content": "x"}]),
            "failed to read the history at message 0: unknown variant `shout`, expected one of `user`, `summary`, `turn_warning`",
        ),
    ];
    for (json, message) in cases {
        let error = read(&json).expect_err(message).to_string();
        // serde_json says where in the text; that is not the point here.
        let error = error.split(" at line ").next().unwrap_or_default();
        assert_eq!(error, message);
    }
}

#[test]
fn speed_needs_times_and_tokens() {
    let mut message = AssistantMessage::new(Vec::new());
    assert_eq!(message.output_tokens_per_second(), None);
    message.request_start_time = Some(10.0);
    message.request_end_time = Some(12.0);
    assert_eq!(message.output_tokens_per_second(), None);
    message.token_usage.answer = 30;
    message.token_usage.reasoning = 10;
    assert_eq!(message.output_tokens_per_second(), Some(20.0));
    message.request_end_time = Some(10.0);
    assert_eq!(message.output_tokens_per_second(), None);
}

/// Text as it may come from anywhere: control characters, quotes, other scripts.
fn text() -> impl Strategy<Value = String> {
    prop_oneof![".{0,20}", any::<String>(), Just(String::new())]
}

fn media() -> impl Strategy<Value = Media> {
    const KINDS: [(MediaKind, &[u8]); 9] = [
        (MediaKind::Image, b"\x89PNG\r\n\x1a\n"),
        (MediaKind::Image, b"\xff\xd8\xff"),
        (MediaKind::Image, b"GIF89a"),
        (MediaKind::Image, b"RIFF\x10\0\0\0WEBP"),
        (MediaKind::Video, b"\0\0\0\x1cftypisom"),
        (MediaKind::Video, b"\0\0\0\x1cftypmp42"),
        (MediaKind::Audio, b"RIFF\x24\0\0\0WAVE"),
        (MediaKind::Audio, b"ID3"),
        (MediaKind::Audio, b"fLaC"),
    ];
    (proptest::sample::select(&KINDS), vec(any::<u8>(), 0..40)).prop_map(|((kind, magic), rest)| {
        let data = [magic, rest.as_slice()].concat();
        Media::new(kind, data).expect("the magic bytes decide")
    })
}

fn content() -> impl Strategy<Value = Content> {
    let part = prop_oneof![text().prop_map(Part::Text), media().prop_map(Part::Media)];
    prop_oneof![
        text().prop_map(Content::Text),
        vec(part, 0..4).prop_map(Content::Parts),
    ]
}

fn tool_call() -> impl Strategy<Value = ToolCall> {
    let id = option::of("[a-zA-Z0-9_-]{1,12}");
    (id, text(), text(), option::of(text())).prop_map(|(id, name, arguments, signature)| {
        let mut call = ToolCall::new(id, name, arguments);
        call.signature = signature;
        call
    })
}

fn block() -> impl Strategy<Value = AssistantBlock> {
    let details = || (text(), option::of(text()), vec(text(), 0..3));
    prop_oneof![
        (text(), option::of(text()))
            .prop_map(|(text, signature)| AssistantBlock::Text { text, signature }),
        text().prop_map(|content| AssistantBlock::Reasoning { content }),
        (text(), text()).prop_map(|(signature, content)| AssistantBlock::SignedReasoning {
            signature,
            content
        }),
        text().prop_map(|data| AssistantBlock::RedactedReasoning { data }),
        details().prop_map(|(id, content, summary)| AssistantBlock::ReasoningRef {
            id,
            content,
            summary
        }),
        (text(), details()).prop_map(|(encrypted_content, (id, content, summary))| {
            AssistantBlock::EncryptedReasoning {
                id,
                encrypted_content,
                content,
                summary,
            }
        }),
        text().prop_map(|data| AssistantBlock::Opaque { data }),
        tool_call().prop_map(AssistantBlock::ToolCall),
        media().prop_map(AssistantBlock::Media),
    ]
}

fn json_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        text().prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 12, 4, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..4).prop_map(Value::from),
            vec((text(), inner), 0..4).prop_map(|fields| Value::Object(Map::from_iter(fields))),
        ]
    })
}

fn times() -> impl Strategy<Value = (Option<f64>, Option<f64>)> {
    let time = || option::of(proptest::num::f64::NORMAL | proptest::num::f64::ZERO);
    (time(), time())
}

fn usage() -> impl Strategy<Value = TokenUsage> {
    any::<[u32; 5]>().prop_map(|counters| {
        let [input, cache_read, cache_write, answer, reasoning] = counters.map(u64::from);
        TokenUsage {
            input,
            cache_read,
            cache_write,
            answer,
            reasoning,
        }
    })
}

fn assistant() -> impl Strategy<Value = AssistantMessage> {
    (
        vec(block(), 0..5),
        text(),
        option::of(text()),
        usage(),
        vec((text(), json_value()), 0..3),
        times(),
    )
        .prop_map(|(blocks, id, response, usage, metadata, (start, end))| {
            let mut message = AssistantMessage::new(blocks);
            message.id = id;
            message.provider_response_id = response;
            message.token_usage = usage;
            message.metadata = Map::from_iter(metadata);
            message.request_start_time = start;
            message.request_end_time = end;
            message
        })
}

fn tool_message() -> impl Strategy<Value = ToolMessage> {
    (tool_call(), content(), any::<(bool, bool, bool)>(), times()).prop_map(
        |(call, content, (named, valid, success), (start, end))| {
            let mut message = ToolMessage::new(&call, content);
            message.name = message.name.filter(|_| named);
            message.arguments_valid = valid;
            message.success = success;
            message.tool_start_time = start;
            message.tool_end_time = end;
            message
        },
    )
}

fn message() -> impl Strategy<Value = Message> {
    let kind = prop_oneof![
        Just(UserKind::User),
        vec(text(), 0..3).prop_map(|replaced_ids| UserKind::Summary { replaced_ids }),
        Just(UserKind::TurnWarning),
    ];
    prop_oneof![
        content().prop_map(|content| Message::System(SystemMessage::new(content))),
        (kind, content())
            .prop_map(|(kind, content)| Message::User(UserMessage::new(kind, content))),
        assistant().prop_map(Message::from),
        tool_message().prop_map(Message::from),
    ]
}

proptest! {
    #[test]
    fn histories_round_trip(messages in vec(message(), 0..6)) {
        let json = history::to_json(&messages).expect("it is written");
        let again = history::from_json(&json).expect("it opens");
        prop_assert_eq!(&again, &messages);
        prop_assert_eq!(history::to_json(&again).expect("it is written"), json);
    }

    #[test]
    fn no_input_causes_a_panic(json in json_value()) {
        let _ = read(&json);
        let _ = read(&json!([json]));
        let _ = read(&json!([{"role": "assistant", "blocks": json}]));
        let _ = read(&json!([{"role": "tool", "content": "x", "tool_call_id": json}]));
    }
}
