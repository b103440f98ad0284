use cantle_core::content::{Content, Part};
use cantle_core::llm::{ChatRequest, LlmErrorKind, ToolSpecs};
use cantle_core::message::{
    AssistantBlock, AssistantMessage, Message, SharedMessage, ToolCall, ToolMessage,
};
use cantle_core::tool::ToolSpec;
use serde_json::{Value, json};

use super::{ConversationMode, body};
use crate::http::testing::{look, opaque, png, reasoning, signed_reasoning};

const HEAD: &[u8] = br#"{"model":"m""#;

fn call(id: &str) -> ToolCall {
    ToolCall::new(
        Some(id.to_owned()),
        "look",
        r#"{"at": "größe",  "n": 1.50}"#,
    )
}

fn text(text: &str, phase: Option<&str>) -> AssistantBlock {
    AssistantBlock::Text {
        text: text.to_owned(),
        signature: phase.map(str::to_owned),
    }
}

/// A conversation whose turn the provider keeps, where `id` is its name for it.
fn conversation(id: Option<&str>) -> Vec<SharedMessage> {
    let mut turn = AssistantMessage::new(vec![
        AssistantBlock::EncryptedReasoning {
            id: "rs_1".to_owned(),
            encrypted_content: "ZW5j".to_owned(),
            content: None,
            summary: vec!["Where?".to_owned()],
        },
        text("Let me ", Some("commentary")),
        text("look.", Some("commentary")),
        AssistantBlock::ToolCall(call("call_1")),
        opaque(r#"{"type":"web_search_call","id":"ws_1"}"#),
        text("And here.", None),
        reasoning("in plain sight"),
        AssistantBlock::ToolCall(call("call_2")),
    ]);
    turn.provider_response_id = id.map(str::to_owned);
    let both: Content = vec![Part::Text("Here:".to_owned()), Part::Media(png())].into();
    [
        Message::system("Be brief."),
        Message::user("What is here?"),
        Message::user(""),
        turn.into(),
        ToolMessage::new(&call("call_1"), "two files").into(),
        ToolMessage::new(&call("call_2"), both).into(),
    ]
    .map(SharedMessage::new)
    .into()
}

fn sent(messages: Vec<SharedMessage>, mode: ConversationMode) -> String {
    let request = ChatRequest::new(messages, ToolSpecs::new(vec![look()]));
    String::from_utf8(body(HEAD, &request, mode, true, false).unwrap()).unwrap()
}

fn json_of(messages: Vec<SharedMessage>, mode: ConversationMode) -> Value {
    serde_json::from_str(&sent(messages, mode)).unwrap()
}

#[test]
fn tools_without_parameters_have_empty_properties() {
    let spec = ToolSpec::new("now", "Tells the time.", json!({"type": "object"}));
    let messages = vec![Message::user("When?").into()];
    let request = ChatRequest::new(messages, ToolSpecs::new(vec![spec]));
    let sent = body(HEAD, &request, ConversationMode::Stateless, true, false).unwrap();
    let sent: Value = serde_json::from_slice(&sent).unwrap();
    let expected = json!({"type": "object", "properties": {}});
    assert_eq!(sent["tools"][0]["parameters"], expected);
}

#[test]
fn a_conversation_with_everything() {
    insta::assert_json_snapshot!(json_of(
        conversation(Some("resp_1")),
        ConversationMode::Stateless
    ));
}

#[test]
fn arguments_are_sent_back_verbatim() {
    let body = sent(conversation(None), ConversationMode::Stateless);
    let arguments = serde_json::to_string(&call("").arguments).unwrap();
    assert!(body.contains(&arguments), "{body}");
}

#[test]
fn reasoning_without_an_id_is_sent_back_without_one() {
    let nameless = AssistantBlock::EncryptedReasoning {
        id: String::new(),
        encrypted_content: "ZW5j".to_owned(),
        content: None,
        summary: Vec::new(),
    };
    let turn = Message::from(AssistantMessage::new(vec![nameless, text("A", None)]));
    let body = json_of(vec![turn.into()], ConversationMode::Stateless);
    assert_eq!(
        body["input"][0],
        json!({"type": "reasoning", "summary": [], "encrypted_content": "ZW5j"})
    );
}

/// The API refuses reasoning without the item that followed it.
#[test]
fn reasoning_at_the_end_of_a_turn_is_left_out() {
    let reasoning = |id: &str| AssistantBlock::EncryptedReasoning {
        id: id.to_owned(),
        encrypted_content: "ZW5j".to_owned(),
        content: None,
        summary: Vec::new(),
    };
    let turn = |blocks| Message::from(AssistantMessage::new(blocks)).into();
    let messages = vec![
        turn(vec![reasoning("rs_1"), text("A", None), reasoning("rs_2")]),
        turn(vec![reasoning("rs_3")]),
        Message::user("Go on.").into(),
    ];
    let body = json_of(messages, ConversationMode::Stateless);
    let items = body["input"].as_array().unwrap();
    assert_eq!(items.len(), 3);
    assert_eq!(items[0]["id"], "rs_1");
}

#[test]
fn invalid_arguments_are_wrapped() {
    let call = ToolCall::new(Some("a".to_owned()), "look", "{\"at\": ");
    let turn = Message::from(AssistantMessage::new(vec![AssistantBlock::ToolCall(call)]));
    let body = json_of(vec![turn.into()], ConversationMode::Stateless);
    assert_eq!(
        body["input"][0]["arguments"],
        r#"{"INVALID_JSON":"{\"at\": "}"#
    );
}

#[test]
fn stored_responses_are_referenced() {
    let body = json_of(conversation(Some("resp_1")), ConversationMode::Stateful);
    assert_eq!(body["previous_response_id"], "resp_1");
    let kinds: Vec<_> = body["input"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| &item["call_id"])
        .collect();
    assert_eq!(kinds, ["call_1", "call_2"]);
    // Where it has nothing, it gets everything.
    let body = json_of(conversation(None), ConversationMode::Stateful);
    assert_eq!(body.get("previous_response_id"), None);
    assert_eq!(body["input"].as_array().unwrap().len(), 10);
}

#[test]
fn requests_extend_the_previous_request() {
    let messages = conversation(None);
    let mut before = String::new();
    for count in 1..=messages.len() {
        let body = sent(messages[..count].to_vec(), ConversationMode::Stateless);
        assert!(body.starts_with(&before), "{body}\n{before}");
        before = body.strip_suffix("]}").unwrap().to_owned();
    }
}

#[test]
fn unsupported_content_is_rejected() {
    let only_named = AssistantBlock::ReasoningRef {
        id: "rs".to_owned(),
        content: None,
        summary: Vec::new(),
    };
    let mut signed = call("call_1");
    signed.signature = Some("sig".to_owned());
    let cases = [
        (only_named.clone(), "`reasoning_ref`"),
        (signed_reasoning("s", "c"), "`signed_reasoning`"),
        (AssistantBlock::ToolCall(signed), "signed `tool_call`"),
        (AssistantBlock::Media(png()), "`image_content_block`"),
        (opaque("no JSON"), "`opaque`"),
    ];
    for (block, named) in cases {
        let turn = Message::from(AssistantMessage::new(vec![block]));
        let request = ChatRequest::new(vec![turn.into()], ToolSpecs::default());
        let error = body(HEAD, &request, ConversationMode::Stateless, true, false).unwrap_err();
        assert_eq!(error.kind(), LlmErrorKind::Unsupported);
        assert!(error.to_string().contains(named), "{error}");
    }
    // Where the provider has it, its name is enough.
    let turn = Message::from(AssistantMessage::new(vec![only_named]));
    let request = ChatRequest::new(vec![turn.into()], ToolSpecs::default());
    assert!(body(HEAD, &request, ConversationMode::Stateful, true, false).is_ok());
}
