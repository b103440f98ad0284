use cantle_core::llm::{
    ChatEvent, ChatRequest, LlmClient as _, LlmClientExt as _, LlmErrorKind, StopReason, ToolSpecs,
};
use cantle_core::message::{AssistantBlock, AssistantMessage, Message, ToolCall};
use cantle_core::usage::TokenUsage;
use futures_util::StreamExt as _;

use super::{RecordingErrorKind, RecordingSource, ReplayClient};

const RECORDING: &str = r#"{"format": "cantle-recording", "version": 1, "model": "demo"}
{"role": "assistant", "blocks": [{"kind": "reasoning", "content": "I look"}, {"kind": "text", "text": "Let me look."}, {"kind": "tool_call", "name": "code_exec", "arguments": "{\"cmd\": \"ls\"}", "tool_call_id": "call_1"}], "token_usage": {"input": 10, "answer": 5}}

{"role": "assistant", "blocks": [{"kind": "text", "text": "Too much to s"}], "stop": "length"}
{"role": "assistant", "blocks": [], "stop": {"other": "bored"}}
"#;

fn request(turns_taken: usize) -> ChatRequest {
    let mut messages = vec![Message::user("Hi").into()];
    for _ in 0..turns_taken {
        messages.push(Message::from(AssistantMessage::new(vec![])).into());
        messages.push(Message::user("Go on").into());
    }
    ChatRequest::new(messages, ToolSpecs::default())
}

fn recorded_call() -> AssistantBlock {
    let id = Some("call_1".to_owned());
    AssistantBlock::ToolCall(ToolCall::new(id, "code_exec", r#"{"cmd": "ls"}"#))
}

#[tokio::test]
async fn turns_are_streamed_by_word() {
    let client = ReplayClient::from_jsonl(RECORDING.as_bytes()).unwrap();
    assert_eq!(client.model().slug, "demo");
    let events: Vec<_> = client
        .stream(request(0))
        .map(Result::unwrap)
        .collect()
        .await;
    let text = |text: &str| ChatEvent::TextDelta(text.to_owned());
    let reasoning = |text: &str| ChatEvent::ReasoningDelta(text.to_owned());
    assert_eq!(
        events[..events.len() - 1],
        [
            reasoning("I "),
            reasoning("look"),
            text("Let "),
            text("me "),
            text("look."),
            ChatEvent::ToolCallDelta {
                index: 0,
                name: Some("code_exec".to_owned()),
                arguments: r#"{"cmd": "ls"}"#.to_owned()
            },
            ChatEvent::Block(AssistantBlock::Reasoning {
                content: "I look".to_owned()
            }),
            ChatEvent::Block(AssistantBlock::text("Let me look.")),
            ChatEvent::Block(recorded_call()),
        ]
    );
}

#[tokio::test]
async fn the_number_of_assistant_messages_selects_the_turn() {
    let client = ReplayClient::from_jsonl(RECORDING.as_bytes()).unwrap();
    let second = client.complete(request(1)).await.unwrap();
    let first = client.complete(request(0)).await.unwrap();
    let third = client.complete(request(2)).await.unwrap();
    assert_eq!(first.stop, StopReason::ToolCalls);
    let usage = TokenUsage {
        input: 10,
        answer: 5,
        ..TokenUsage::default()
    };
    assert_eq!(
        (first.usage, first.message.token_usage),
        (Some(usage), usage)
    );
    assert_eq!(
        (second.stop, second.message.text(), second.usage),
        (StopReason::Length, "Too much to s".to_owned(), None)
    );
    assert_eq!(third.stop, StopReason::Other("bored".to_owned()));
}

#[tokio::test]
async fn replayed_messages_have_new_ids() {
    let recorded = AssistantMessage::new(vec![AssistantBlock::text("Hello!")]);
    let client = ReplayClient::new("m", vec![recorded.clone()]);
    let one = client.complete(request(0)).await.unwrap().message;
    let two = client.complete(request(0)).await.unwrap().message;
    assert_eq!(one.blocks, recorded.blocks);
    assert!(one.id != recorded.id && one.id != two.id);
}

#[tokio::test]
async fn a_request_past_the_end_names_the_number_of_turns() {
    let client = ReplayClient::from_jsonl(RECORDING.as_bytes()).unwrap();
    let error = client.complete(request(3)).await.unwrap_err();
    assert_eq!(error.kind(), LlmErrorKind::InvalidRequest);
    assert_eq!(
        error.to_string(),
        "the recording of `demo` has 3 turns, but turn 4 was requested"
    );
}

#[test]
fn malformed_recordings_are_rejected_by_line() {
    let header = r#"{"format": "cantle-recording", "version": 1, "model": "m"}"#;
    let turn = r#"{"role": "assistant", "blocks": []}"#;
    let files = [
        String::new(),
        "\n  \n".to_owned(),
        "not json".to_owned(),
        r#"{"role": "assistant", "blocks": []}"#.to_owned(),
        r#"{"format": "other", "version": 1, "model": "m"}"#.to_owned(),
        r#"{"format": "cantle-recording", "version": 3, "model": "m"}"#.to_owned(),
        format!(
            "{}\n{{\"call\": {{\"messages\": [0], \"tools\": 0, \"error\": {{\"kind\": \"server\", \"message\": \"m\"}}}}}}",
            header.replace('1', "2")
        ),
        format!("{}\n{turn}", header.replace('1', "2")),
        format!("{header}\n{turn}\n{{\"role\": \"assistant\", \"blocks\": [\n"),
        format!("{header}\n\n{{\"role\": \"user\", \"kind\": \"user\", \"content\": \"Hi\"}}"),
        format!("{header}\n{{\"role\": \"assistant\", \"blocks\": [{{\"kind\": \"new\"}}]}}"),
        format!("{header}\n{{\"role\": \"assistant\", \"blocks\": [], \"stop\": \"bored\"}}"),
        format!("{header}\n{turn} {turn}"),
    ];
    let errors: Vec<_> = files
        .iter()
        .map(|file| {
            ReplayClient::from_jsonl(file.as_bytes())
                .unwrap_err()
                .to_string()
        })
        .collect();
    insta::assert_snapshot!(errors.join("\n"));
}

#[test]
fn errors_have_kinds() {
    let kind = |file: &str| {
        ReplayClient::from_jsonl(file.as_bytes())
            .unwrap_err()
            .kind()
    };
    let header = r#"{"format": "cantle-recording", "version": 1, "model": "m"}"#;
    assert_eq!(kind("not json"), RecordingErrorKind::Header);
    assert_eq!(kind(&header.replace('1', "3")), RecordingErrorKind::Version);
    assert_eq!(kind(&format!("{header}\n{{}}")), RecordingErrorKind::Line);
}

#[test]
fn crlf_line_endings_are_accepted() {
    let recording = RECORDING.replace('\n', "\r\n");
    let client = ReplayClient::from_jsonl(recording.as_bytes()).unwrap();
    let RecordingSource::Turns(turns) = client.source else {
        panic!("{client:?}");
    };
    assert_eq!(turns.len(), 3);
}
