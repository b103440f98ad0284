use std::sync::Arc;

use bytes::Bytes;
use cantle_core::llm::{ChatEvent, Fold, LlmError, LlmErrorKind, StopReason};
use cantle_core::message::{AssistantBlock, ToolCall};
use cantle_core::usage::TokenUsage;
use futures_util::{StreamExt as _, stream};
use reqwest::header::HeaderMap;

use super::event_stream;
use crate::chat::ChatClient;
use crate::http::testing::reasoning;

/// OpenAI's stream format, with two-byte characters, a comment and CRLF line endings.
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

type Chunks = Vec<Result<Bytes, LlmError>>;

async fn decode(chunks: Chunks) -> (Vec<ChatEvent>, Option<LlmError>) {
    let client = ChatClient::builder("m")
        .base_url("http://localhost/v1")
        .build()
        .unwrap();
    let stream = event_stream(
        Box::pin(stream::iter(chunks)),
        HeaderMap::new(),
        Arc::clone(&client.endpoint),
    );
    let mut stream = std::pin::pin!(stream);
    let (mut events, mut failed) = (Vec::new(), None);
    while let Some(event) = stream.next().await {
        assert!(failed.is_none(), "an event follows an error");
        match event {
            Ok(event) => events.push(event),
            Err(error) => failed = Some(error),
        }
    }
    (events, failed)
}

fn chunk(bytes: &[u8]) -> Result<Bytes, LlmError> {
    Ok(Bytes::copy_from_slice(bytes))
}

async fn text(text: &str) -> (Vec<ChatEvent>, Option<LlmError>) {
    decode(vec![chunk(text.as_bytes())]).await
}

fn blocks() -> Vec<AssistantBlock> {
    vec![
        reasoning("Hm"),
        AssistantBlock::text("Grüße"),
        AssistantBlock::ToolCall(ToolCall::new(Some("a".to_owned()), "f", "{}")),
    ]
}

#[tokio::test(start_paused = true)]
async fn deltas_precede_blocks_and_the_end() {
    let (events, failed) = text(RECORDED).await;
    assert!(failed.is_none());
    insta::assert_debug_snapshot!(events);
}

#[tokio::test(start_paused = true)]
async fn chunk_boundaries_do_not_matter() {
    let (whole, _) = text(RECORDED).await;
    let bytes = RECORDED.as_bytes();
    for middle in 0..=bytes.len() {
        let (left, right) = bytes.split_at(middle);
        let (events, failed) = decode(vec![chunk(left), chunk(right)]).await;
        assert!(failed.is_none(), "split at {middle}: {failed:?}");
        assert_eq!(events, whole, "split at {middle}");
    }
    let single = bytes.chunks(1).map(chunk).collect();
    assert_eq!(decode(single).await.0, whole);
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_breaks_early_is_an_interruption() {
    let end = RECORDED.len() - 1;
    for cut in 0..=RECORDED.len() {
        let chunks = vec![
            chunk(&RECORDED.as_bytes()[..cut]),
            Err(LlmError::new(LlmErrorKind::Interrupted, "cut")),
        ];
        let (events, failed) = decode(chunks).await;
        let whole = events
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
async fn a_stream_without_a_stop_reason_is_interrupted() {
    let stopped = RECORDED.find("data: {\"choices\":[],\"usage\"").unwrap();
    let usage_sent = RECORDED.find("data: [DONE]").unwrap();
    for cut in 0..=RECORDED.len() {
        let (events, failed) = decode(vec![chunk(&RECORDED.as_bytes()[..cut])]).await;
        if cut < stopped {
            assert_eq!(
                failed.unwrap().kind(),
                LlmErrorKind::Interrupted,
                "at {cut}"
            );
            assert!(
                !events
                    .iter()
                    .any(|event| matches!(event, ChatEvent::Block(_)))
            );
            continue;
        }
        assert!(failed.is_none(), "at {cut}: {failed:?}");
        let mut fold = Fold::default();
        let completion = events.into_iter().find_map(|e| fold.push(e)).unwrap();
        assert_eq!(completion.message.blocks, blocks(), "at {cut}");
        assert_eq!(completion.stop, StopReason::ToolCalls);
        let usage = TokenUsage {
            input: 9,
            answer: 4,
            ..TokenUsage::default()
        };
        let expected = (cut >= usage_sent).then_some(usage);
        assert_eq!(completion.usage, expected, "at {cut}");
    }
}

async fn kind(body: &str) -> LlmErrorKind {
    text(body).await.1.unwrap().kind()
}

#[tokio::test(start_paused = true)]
async fn an_error_event_keeps_its_kind() {
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
        let (events, failed) = text(&format!("{before}{event}data: [DONE]\n\n")).await;
        assert_eq!(events, [ChatEvent::TextDelta("He".to_owned())], "{event}");
        assert_eq!(failed.unwrap().kind(), expected, "{event}");
    }
}

#[tokio::test(start_paused = true)]
async fn malformed_events_are_protocol_errors() {
    assert_eq!(kind("data: not json\n\n").await, LlmErrorKind::Protocol);
    assert_eq!(
        kind("data: {\"choices\":[{\"delta\":{\"content\":[1]}}]}\n\n").await,
        LlmErrorKind::Protocol
    );
    let (_, failed) = decode(vec![chunk(b"data: \xff\xfe\n\n")]).await;
    assert_eq!(failed.unwrap().kind(), LlmErrorKind::Protocol);
    for without_end in ["", "\n\n", "data: [DONE]\n\n", "<html></html>"] {
        assert_eq!(kind(without_end).await, LlmErrorKind::Interrupted);
    }
}

#[tokio::test(start_paused = true)]
async fn an_event_with_half_a_json_value_is_an_interruption() {
    let event = r#"{"choices":[{"index":0,"delta":{"content":"He"}}]}"#;
    for end in 1..event.len() {
        let (half, _) = event.split_at(end);
        assert_eq!(
            kind(&format!("data: {event}\n\ndata: {half}\n\n")).await,
            LlmErrorKind::Interrupted,
            "{half}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_surrogate_pair_in_two_deltas_is_joined() {
    let delta =
        |delta: &str| format!("data: {{\"choices\":[{{\"index\":0,\"delta\":{delta}}}]}}\n\n");
    let arguments = |text: &str| {
        delta(&format!(
            "{{\"tool_calls\":[{{\"index\":0,\"function\":{{\"arguments\":\"{text}\"}}}}]}}"
        ))
    };
    let body = [
        delta(r#"{"content":"Hi \ud83d"}"#),
        ": keep-alive\n\n".to_owned(),
        delta(r#"{"content":"\ude00!"}"#),
        delta(r#"{"tool_calls":[{"index":0,"id":"a","function":{"name":"f","arguments":""}}]}"#),
        arguments(r#"{\"x\":\"\ud83d"#),
        arguments(r#"\ude01\"}"#),
        "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"tool_calls\"}]}\n\n"
            .to_owned(),
    ];
    let (events, failed) = text(&body.concat()).await;
    assert!(failed.is_none(), "{failed:?}");
    let mut fold = Fold::default();
    let completion = events.into_iter().find_map(|e| fold.push(e)).unwrap();
    let call = ToolCall::new(Some("a".to_owned()), "f", r#"{"x":"😁"}"#);
    assert_eq!(
        completion.message.blocks,
        [
            AssistantBlock::text("Hi 😀!"),
            AssistantBlock::ToolCall(call)
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn deviations_of_servers_are_accepted() {
    let body = concat!(
        // Azure, before the first choice.
        "data: {\"choices\":[],\"prompt_filter_results\":[]}\n\n",
        "data: {}\n\n",
        "event: ping\ndata: {\"type\":\"ping\"}\n\n",
        "retry: 3000\n\n",
        "data:\n\n",
        // Empty values instead of null.
        "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"Hi\",\"tool_calls\":[],\"reasoning\":\"\"},\"finish_reason\":\"\"}],\"error\":null}\n\n",
        // A choice that was not requested.
        "data: {\"choices\":[{\"index\":1,\"delta\":{\"content\":\"No\"},\"finish_reason\":\"length\"}]}\n\n",
        // The stop reason in one event with the usage, which is sent again later.
        "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"!\"},\"finish_reason\":\"stop\"}],\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":1}}\n\n",
        // LiteLLM: usage with an empty choice.
        "data: {\"choices\":[{\"index\":0,\"delta\":{}}],\"usage\":{\"prompt_tokens\":2,\"completion_tokens\":3,\"total_tokens\":5}}\n\n",
    );
    let (events, failed) = text(body).await;
    assert!(failed.is_none(), "{failed:?}");
    let mut fold = Fold::default();
    let completion = events.into_iter().find_map(|e| fold.push(e)).unwrap();
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
async fn a_body_that_stays_open_does_not_delay_the_turn() {
    let client = ChatClient::builder("m")
        .base_url("http://localhost/v1")
        .build()
        .unwrap();
    let chunks = stream::iter([chunk(RECORDED.as_bytes())]).chain(stream::pending());
    let stream = event_stream(
        Box::pin(chunks),
        HeaderMap::new(),
        Arc::clone(&client.endpoint),
    );
    let events: Vec<_> = stream.map(Result::unwrap).collect().await;
    assert!(matches!(events.last(), Some(ChatEvent::Finished(_))));
}
