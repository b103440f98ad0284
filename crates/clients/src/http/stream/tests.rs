use std::sync::Arc;

use bytes::Bytes;
use cantle_core::llm::{ChatEvent, Fold, LlmError, LlmErrorKind, StopReason};
use cantle_core::message::{AssistantBlock, ToolCall};
use cantle_core::usage::TokenUsage;
use futures_util::{StreamExt as _, stream};
use reqwest::header::HeaderMap;

use super::events;
use crate::chat::ChatClient;

/// As OpenAI streams it, with two-byte characters, a comment and Windows line breaks among it.
const RECORDED: &str = concat!(
    "data: {\"id\":\"c\",\"object\":\"chat.completion.chunk\",\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":null},\"finish_reason\":null}],\"usage\":null}\n\n",
    ": keep-alive\n\n",
    "data: {\"choices\":[{\"index\":0,\"delta\":{\"reasoning_content\":\"Hm\"}}]}\n\n",
    "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"Gr\u{fc}\"}}]}\r\n\r\n",
    "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"\u{df}e\"}}]}\n\n",
    "data: {\"choices\":[{\"index\":0,\"delta\":{\"tool_calls\":[{\"index\":0,\"id\":\"a\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"\"}}]}}]}\n\n",
    "data: {\"choices\":[{\"index\":0,\"delta\":{\"tool_calls\":[{\"index\":0,\"function\":{\"arguments\":\"{}\"}}]}}]}\n\n",
    "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"tool_calls\"}]}\n\n",
    "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":4,\"total_tokens\":13,\"cost\":0.25}}\n\n",
    "data: [DONE]\n\n",
);

type Pieces = Vec<Result<Bytes, LlmError>>;

async fn decoded(pieces: Pieces) -> (Vec<ChatEvent>, Option<LlmError>) {
    let client = ChatClient::builder("m")
        .base_url("http://localhost/v1")
        .build()
        .unwrap();
    let stream = events(
        stream::iter(pieces),
        HeaderMap::new(),
        Arc::clone(&client.endpoint),
    );
    let mut stream = std::pin::pin!(stream);
    let (mut told, mut failed) = (Vec::new(), None);
    while let Some(event) = stream.next().await {
        assert!(failed.is_none(), "something came after an error");
        match event {
            Ok(event) => told.push(event),
            Err(error) => failed = Some(error),
        }
    }
    (told, failed)
}

fn piece(bytes: &[u8]) -> Result<Bytes, LlmError> {
    Ok(Bytes::copy_from_slice(bytes))
}

async fn text(text: &str) -> (Vec<ChatEvent>, Option<LlmError>) {
    decoded(vec![piece(text.as_bytes())]).await
}

fn blocks() -> Vec<AssistantBlock> {
    vec![
        AssistantBlock::Reasoning {
            content: "Hm".to_owned(),
        },
        AssistantBlock::text("Grüße"),
        AssistantBlock::ToolCall(ToolCall::new(Some("a".to_owned()), "f", "{}")),
    ]
}

#[tokio::test(start_paused = true)]
async fn deltas_come_first_and_then_whole_blocks_and_the_end() {
    let (told, failed) = text(RECORDED).await;
    assert!(failed.is_none());
    insta::assert_debug_snapshot!(told);
}

#[tokio::test(start_paused = true)]
async fn where_the_bytes_are_split_does_not_matter() {
    let (whole, _) = text(RECORDED).await;
    let bytes = RECORDED.as_bytes();
    for middle in 0..=bytes.len() {
        let (left, right) = bytes.split_at(middle);
        let (told, failed) = decoded(vec![piece(left), piece(right)]).await;
        assert!(failed.is_none(), "split at {middle}: {failed:?}");
        assert_eq!(told, whole, "split at {middle}");
    }
    let single = bytes.chunks(1).map(piece).collect();
    assert_eq!(decoded(single).await.0, whole);
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_breaks_before_the_end_is_an_interruption() {
    let end = RECORDED.len() - 1;
    for cut in 0..=RECORDED.len() {
        let pieces = vec![
            piece(&RECORDED.as_bytes()[..cut]),
            Err(LlmError::new(LlmErrorKind::Interrupted, "cut")),
        ];
        let (told, failed) = decoded(pieces).await;
        let whole = told
            .iter()
            .any(|event| matches!(event, ChatEvent::Block(_)));
        let failed = failed.map(|error| error.to_string());
        if cut <= end {
            assert_eq!((whole, failed.as_deref()), (false, Some("cut")), "at {cut}");
        } else {
            assert_eq!((whole, failed), (true, None), "at {cut}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_ends_early_is_no_turn_until_the_reason_to_stop_is_told() {
    // The last event of the message ends where that with the usage begins.
    let stopped = RECORDED.find("data: {\"choices\":[],\"usage\"").unwrap();
    let usage_told = RECORDED.find("data: [DONE]").unwrap();
    for cut in 0..=RECORDED.len() {
        let (told, failed) = decoded(vec![piece(&RECORDED.as_bytes()[..cut])]).await;
        if cut < stopped {
            assert_eq!(
                failed.unwrap().kind(),
                LlmErrorKind::Interrupted,
                "at {cut}"
            );
            assert!(
                !told
                    .iter()
                    .any(|event| matches!(event, ChatEvent::Block(_)))
            );
            continue;
        }
        assert!(failed.is_none(), "at {cut}: {failed:?}");
        let mut fold = Fold::default();
        let completion = told.into_iter().find_map(|e| fold.push(e)).unwrap();
        assert_eq!(completion.message.blocks, blocks(), "at {cut}");
        assert_eq!(completion.stop, StopReason::ToolCalls);
        let usage = TokenUsage {
            input: 9,
            answer: 4,
            ..TokenUsage::default()
        };
        let expected = (cut >= usage_told).then_some(usage);
        assert_eq!(completion.usage, expected, "at {cut}");
    }
}

async fn kind(body: &str) -> LlmErrorKind {
    text(body).await.1.unwrap().kind()
}

#[tokio::test(start_paused = true)]
async fn an_error_under_way_has_its_own_kind() {
    let before = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"He\"}}]}\n\n";
    let cases = [
        (
            "data: {\"error\":{\"message\":\"overloaded\",\"code\":503}}\n\n",
            LlmErrorKind::Server,
        ),
        (
            "data: {\"error\":{\"message\":\"slow down\",\"code\":429}}\n\n",
            LlmErrorKind::RateLimited,
        ),
        (
            "data: {\"error\":{\"message\":\"maximum context length\"}}\n\n",
            LlmErrorKind::ContextOverflow,
        ),
        (
            "data: {\"object\":\"error\",\"message\":\"no\",\"type\":\"BadRequestError\",\"code\":400}\n\n",
            LlmErrorKind::InvalidRequest,
        ),
        (
            "event: error\ndata: everything is broken\n\n",
            LlmErrorKind::Server,
        ),
        ("event: error\ndata: {\"what\":1}\n\n", LlmErrorKind::Server),
        // OpenRouter's: https://openrouter.ai/docs/api-reference/streaming
        (
            "data: {\"error\":{\"code\":\"server_error\",\"message\":\"Provider disconnected\"},\"choices\":[{\"index\":0,\"delta\":{\"content\":\"\"},\"finish_reason\":\"error\"}]}\n\n",
            LlmErrorKind::Server,
        ),
        (
            "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"error\",\"error\":{\"code\":429,\"message\":\"x\"}}]}\n\n",
            LlmErrorKind::RateLimited,
        ),
        (
            "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"error\"}]}\n\ndata: [DONE]\n\n",
            LlmErrorKind::Server,
        ),
    ];
    for (event, expected) in cases {
        assert_eq!(kind(event).await, expected, "{event}");
        let (told, failed) = text(&format!("{before}{event}data: [DONE]\n\n")).await;
        assert_eq!(told, [ChatEvent::TextDelta("He".to_owned())], "{event}");
        assert_eq!(failed.unwrap().kind(), expected, "{event}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_not_the_protocol_is_said_to_be_so() {
    assert_eq!(kind("data: not json\n\n").await, LlmErrorKind::Protocol);
    assert_eq!(
        kind("data: {\"choices\":[{\"delta\":{\"content\":[1]}}]}\n\n").await,
        LlmErrorKind::Protocol
    );
    let (_, failed) = decoded(vec![piece(b"data: \xff\xfe\n\n")]).await;
    assert_eq!(failed.unwrap().kind(), LlmErrorKind::Protocol);
    for without_end in ["", "\n\n", "data: [DONE]\n\n", "<html></html>"] {
        assert_eq!(kind(without_end).await, LlmErrorKind::Interrupted);
    }
}

#[tokio::test(start_paused = true)]
async fn habits_of_servers_are_understood() {
    let body = concat!(
        // Azure, before the first choice.
        "data: {\"choices\":[],\"prompt_filter_results\":[]}\n\n",
        "data: {}\n\n",
        "event: ping\ndata: {\"type\":\"ping\"}\n\n",
        "retry: 3000\n\n",
        "data:\n\n",
        // Empty in place of null.
        "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"Hi\",\"tool_calls\":[],\"reasoning\":\"\"},\"finish_reason\":\"\"}],\"error\":null}\n\n",
        // A choice that was not asked for.
        "data: {\"choices\":[{\"index\":1,\"delta\":{\"content\":\"No\"},\"finish_reason\":\"length\"}]}\n\n",
        // The end in one event with the usage, which was told before, too.
        "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"!\"},\"finish_reason\":\"stop\"}],\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":1}}\n\n",
        // LiteLLM: with an empty choice.
        "data: {\"choices\":[{\"index\":0,\"delta\":{}}],\"usage\":{\"prompt_tokens\":2,\"completion_tokens\":3,\"total_tokens\":5}}\n\n",
    );
    let (told, failed) = text(body).await;
    assert!(failed.is_none(), "{failed:?}");
    let mut fold = Fold::default();
    let completion = told.into_iter().find_map(|e| fold.push(e)).unwrap();
    assert_eq!(completion.message.text(), "Hi!");
    assert_eq!(completion.stop, StopReason::EndTurn);
    let usage = TokenUsage {
        input: 2,
        answer: 3,
        ..TokenUsage::default()
    };
    assert_eq!(completion.usage, Some(usage));
    assert_eq!(completion.cost_usd, None);
}

#[tokio::test(start_paused = true)]
async fn a_body_without_end_does_not_hold_up_the_turn() {
    let client = ChatClient::builder("m")
        .base_url("http://localhost/v1")
        .build()
        .unwrap();
    let pieces = stream::iter([piece(RECORDED.as_bytes())]).chain(stream::pending());
    let stream = events(pieces, HeaderMap::new(), Arc::clone(&client.endpoint));
    let told: Vec<_> = stream.map(Result::unwrap).collect().await;
    assert!(matches!(told.last(), Some(ChatEvent::Finished(_))));
}
