use cantle_core::content::{Content, Media, MediaKind, Part};
use cantle_core::llm::{ChatRequest, LlmErrorKind, ToolSpecs};
use cantle_core::message::{
    AssistantBlock, AssistantMessage, Message, SharedMessage, ToolCall, ToolMessage,
};
use cantle_core::tool::ToolSpec;
use serde_json::{Value, json};

use super::body;
use crate::http::testing::{look, opaque, png, reasoning, redacted_reasoning, signed_reasoning};

const HEAD: &[u8] = br#"{"model":"m""#;

fn sent(messages: Vec<Message>, tools: Vec<ToolSpec>) -> Value {
    let messages = messages.into_iter().map(Into::into).collect();
    let body = body(HEAD, &ChatRequest::new(messages, ToolSpecs::new(tools))).unwrap();
    serde_json::from_slice(&body).unwrap()
}

fn call(id: &str, arguments: &str) -> ToolCall {
    ToolCall::new(Some(id.to_owned()), "look", arguments)
}

fn assistant(blocks: Vec<AssistantBlock>) -> Message {
    AssistantMessage::new(blocks).into()
}

fn result(id: &str, content: impl Into<Content>) -> Message {
    let mut result = ToolMessage::new(&call(id, ""), content);
    result.success = true;
    result.into()
}

fn conversation() -> Vec<Message> {
    let both: Content = vec![Part::Text("Here:".to_owned()), Part::Media(png())].into();
    vec![
        Message::system("Be brief."),
        Message::user("What is here?"),
        Message::user(""),
        assistant(vec![
            signed_reasoning("sig", "Hm."),
            redacted_reasoning("xyz"),
            AssistantBlock::text("Let me look."),
            AssistantBlock::text(""),
            AssistantBlock::ToolCall(call("toolu_1", r#"{"at": "größe",  "n": 1.50}"#)),
            opaque(r#"{"type":"server_tool_use","id":"s"}"#),
            AssistantBlock::ToolCall(call("toolu_2", "")),
            AssistantBlock::ToolCall(call("toolu_3", "{\"at\": ")),
        ]),
        result("toolu_1", both),
        result("toolu_2", ""),
        ToolMessage::new(&call("toolu_3", ""), "That is no JSON.").into(),
        Message::user("Go on."),
    ]
}

#[test]
fn a_conversation_with_everything() {
    insta::assert_json_snapshot!(sent(conversation(), vec![look()]));
}

#[test]
fn arguments_are_sent_back_verbatim() {
    let messages = conversation().into_iter().map(Into::into).collect();
    let body = body(HEAD, &ChatRequest::new(messages, ToolSpecs::default())).unwrap();
    let body = String::from_utf8(body).unwrap();
    assert!(
        body.contains(r#""input":{"at": "größe",  "n": 1.50}}"#),
        "{body}"
    );
}

#[test]
fn tools_are_marked_without_a_system_prompt() {
    let body = sent(vec![Message::user("Hi")], vec![look(), look()]);
    let mark = json!({"type": "ephemeral"});
    assert_eq!(body["tools"][0].get("cache_control"), None);
    assert_eq!(body["tools"][1]["cache_control"], mark);
    assert_eq!(body["messages"][0]["content"][0]["cache_control"], mark);
    assert_eq!(body.get("system"), None);
}

/// Each request without its marks and what closes it begins the next one.
#[test]
fn requests_extend_the_previous_request_except_for_marks() {
    let messages: Vec<SharedMessage> = conversation().into_iter().map(Into::into).collect();
    let tools = ToolSpecs::new(vec![look()]);
    let mut before = String::new();
    let mut marks = Vec::new();
    for count in 1..=messages.len() {
        let request = ChatRequest::new(messages[..count].to_vec(), tools.clone());
        let body = String::from_utf8(body(HEAD, &request).unwrap()).unwrap();
        let mark = String::from_utf8_lossy(super::MARKED_END);
        marks.push(body.matches(&*mark).count());
        let plain = body.replace(&*mark, "}");
        assert!(plain.starts_with(&before), "{plain}\n{before}");
        before = plain.trim_end_matches(['}', ']']).to_owned();
    }
    assert_eq!(marks, [1, 2, 2, 2, 3, 3, 3, 3]);
}

#[test]
fn invalid_ids_are_rewritten_in_calls_and_results() {
    let odd = "call/1 é";
    let body = sent(
        vec![
            Message::user("Hi"),
            assistant(vec![AssistantBlock::ToolCall(call(odd, "{}"))]),
            result(odd, "fine"),
        ],
        Vec::new(),
    );
    let id = &body["messages"][1]["content"][0]["id"];
    assert_eq!(id, "call1-2f-20-c3-a9");
    assert_eq!(&body["messages"][2]["content"][0]["tool_use_id"], id);
}

#[test]
fn unsigned_and_final_thinking_is_left_out() {
    let unsigned = || reasoning("unsigned");
    let signed = || signed_reasoning("sig", "Hm.");
    let redacted = || redacted_reasoning("xyz");
    let body = sent(
        vec![
            Message::user("Hi"),
            assistant(vec![
                unsigned(),
                signed(),
                AssistantBlock::text("Hello"),
                signed(),
                redacted(),
                AssistantBlock::text("\n"),
            ]),
            Message::user("Go on."),
            assistant(vec![signed(), redacted()]),
            Message::user("Go on!"),
        ],
        Vec::new(),
    );
    let mark = json!({"type": "ephemeral"});
    assert_eq!(
        body["messages"],
        json!([
            {"role": "user", "content": [{"type": "text", "text": "Hi", "cache_control": mark}]},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": "sig"},
                {"type": "text", "text": "Hello"},
            ]},
            {"role": "user", "content": [
                {"type": "text", "text": "Go on."},
                {"type": "text", "text": "Go on!", "cache_control": mark},
            ]},
        ])
    );
}

#[test]
fn blank_texts_are_left_out_and_failures_have_content() {
    let blank_part: Content = vec![Part::Text("Hi".to_owned()), Part::Text("\n".to_owned())].into();
    let body = sent(
        vec![
            Message::system(" "),
            Message::user(blank_part),
            assistant(vec![
                AssistantBlock::text("\n\n"),
                AssistantBlock::ToolCall(call("a", "{}")),
                AssistantBlock::ToolCall(call("b", "{}")),
            ]),
            result("a", " "),
            ToolMessage::new(&call("b", ""), "\n").into(),
        ],
        Vec::new(),
    );
    let mark = json!({"type": "ephemeral"});
    let failure = [json!({"type": "text", "text": "The tool failed without output."})];
    assert_eq!(body.get("system"), None);
    assert_eq!(
        body["messages"],
        json!([
            {"role": "user", "content": [{"type": "text", "text": "Hi", "cache_control": mark}]},
            {"role": "assistant", "content": [
                {"type": "tool_use", "id": "a", "name": "look", "input": {}},
                {"type": "tool_use", "id": "b", "name": "look", "input": {}},
            ]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "a"},
                {"type": "tool_result", "tool_use_id": "b", "content": failure, "is_error": true,
                    "cache_control": mark},
            ]},
        ])
    );
}

/// The API refuses images in a result that is marked as an error.
#[test]
fn failures_with_images_are_described_in_words() {
    let content: Content = vec![Part::Text("No such page.".to_owned()), Part::Media(png())].into();
    let failed = ToolMessage::new(&call("a", ""), content);
    let body = sent(vec![Message::user("Hi"), failed.into()], Vec::new());
    let result = &body["messages"][0]["content"][1];
    assert_eq!(result.get("is_error"), None);
    assert_eq!(
        result["content"][0],
        json!({"type": "text", "text": "The tool failed with this output:"})
    );
    assert_eq!(result["content"][1]["text"], "No such page.");
    assert_eq!(result["content"][2]["type"], "image");
}

#[test]
fn unsupported_content_is_rejected() {
    let rejected = |message: Message| {
        let request = ChatRequest::new(vec![message.into()], ToolSpecs::default());
        let error = body(HEAD, &request).unwrap_err();
        assert_eq!(error.kind(), LlmErrorKind::Unsupported);
        error
            .to_string()
            .replace(|c: char| c.is_ascii_hexdigit() && !c.is_alphabetic(), "")
    };
    let audio = Media::new(MediaKind::Audio, &b"RIFF\x24\x00\x00\x00WAVEfmt "[..]).unwrap();
    let bitmap = Media::image(&b"BM\x46\x00\x00\x00\x00\x00\x00\x00\x36\x00"[..]).unwrap();
    let content = |media| Content::from(vec![Part::Media(media)]);
    assert_eq!(
        rejected(Message::user(content(audio))),
        "the conversation contains audio of type audio/x-wav, but Anthropic Messages accepts only text and \
         images as JPEG, PNG, GIF or WebP"
    );
    assert!(rejected(result("a", content(bitmap))).contains("image of type image/bmp"));
    let mut turn = AssistantMessage::new(vec![AssistantBlock::Text {
        text: "x".to_owned(),
        signature: Some("y".to_owned()),
    }]);
    turn.id = "t".to_owned();
    assert_eq!(
        rejected(turn.into()),
        "message t contains a signed `text` block, which Anthropic Messages cannot represent"
    );
    for block in [opaque("no JSON"), AssistantBlock::Media(png())] {
        rejected(assistant(vec![block]));
    }
}
