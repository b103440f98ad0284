use std::error::Error as _;
use std::sync::Arc;

use futures_util::stream;
use serde_json::json;

use super::*;
use crate::message::{Message, ToolCall};
use crate::tool::ToolSpec;

/// A model that always gives these events.
#[derive(Debug)]
struct Canned {
    model: ModelInfo,
    events: Vec<Result<ChatEvent, LlmErrorKind>>,
}

impl Canned {
    fn new(events: impl IntoIterator<Item = Result<ChatEvent, LlmErrorKind>>) -> Self {
        Self {
            model: ModelInfo::new("canned"),
            events: events.into_iter().collect(),
        }
    }
}

impl LlmClient for Canned {
    fn model(&self) -> &ModelInfo {
        &self.model
    }

    fn stream(&self, _: ChatRequest) -> ChatStream {
        let events = self.events.clone();
        let fail = |kind| LlmError::new(kind, "failed");
        Box::pin(stream::iter(
            events.into_iter().map(move |event| event.map_err(fail)),
        ))
    }
}

fn request() -> ChatRequest {
    ChatRequest::new(vec![Message::user("x").into()], ToolSpecs::default())
}

fn end() -> TurnEnd {
    let usage = TokenUsage {
        input: 5,
        answer: 3,
        ..TokenUsage::default()
    };
    TurnEnd {
        stop: StopReason::ToolCalls,
        usage: Some(usage),
        response_id: Some("resp_1".to_owned()),
        cost_usd: Some(0.5),
        list_price_date: None,
        model: None,
        served_by: None,
        extra: Map::new(),
    }
}

fn blocks() -> Vec<AssistantBlock> {
    vec![
        AssistantBlock::Reasoning {
            content: "Hm.".to_owned(),
        },
        AssistantBlock::text("Look."),
        AssistantBlock::ToolCall(ToolCall::new(Some("call_1".to_owned()), "ls", "{}")),
    ]
}

fn whole() -> impl Iterator<Item = Result<ChatEvent, LlmErrorKind>> {
    blocks()
        .into_iter()
        .map(ChatEvent::Block)
        .chain([ChatEvent::Finished(end())])
        .map(Ok)
}

#[tokio::test]
async fn blocks_and_the_end_form_the_turn() {
    let completion = Canned::new(whole())
        .complete(request())
        .await
        .expect("it ends");
    assert_eq!(completion.message.blocks, blocks());
    assert_eq!(
        completion.message.provider_response_id.as_deref(),
        Some("resp_1")
    );
    assert_eq!(Some(completion.message.token_usage), end().usage);
    assert_eq!(completion.stop, StopReason::ToolCalls);
    assert_eq!(completion.usage, end().usage);
    assert_eq!(completion.cost_usd, Some(0.5));
}

#[tokio::test]
async fn deltas_failed_attempts_and_late_events_are_ignored() {
    let noise = [
        ChatEvent::ReasoningDelta("H".to_owned()),
        ChatEvent::TextDelta("Lo".to_owned()),
        ChatEvent::ToolCallDelta {
            index: 0,
            name: Some("ls".to_owned()),
            arguments: String::new(),
        },
    ];
    let error = LlmError::new(LlmErrorKind::Interrupted, "broken");
    let partial = AssistantBlock::ToolCall(ToolCall::new(None, "rm", "{}"));
    let failed = [
        ChatEvent::Block(partial),
        ChatEvent::AttemptFailed(FailedAttempt::new(1, &error, Duration::ZERO)),
    ];
    let late = ChatEvent::Block(AssistantBlock::text("late"));
    let events = noise.into_iter().chain(failed).map(Ok);
    let events = events.chain(whole()).chain([Ok(late)]);
    let streamed = Canned::new(events)
        .complete(request())
        .await
        .expect("it ends");
    let plain = Canned::new(whole())
        .complete(request())
        .await
        .expect("it ends");
    assert_eq!(streamed.message.blocks, plain.message.blocks);
    assert_eq!((streamed.stop, streamed.usage), (plain.stop, plain.usage));
}

#[tokio::test]
async fn unreported_usage_is_none() {
    let end = TurnEnd::new(StopReason::EndTurn, None);
    let client = Canned::new([Ok(ChatEvent::Finished(end))]);
    let completion = client.complete(request()).await.expect("it ends");
    assert_eq!(completion.usage, None);
    assert_eq!(completion.message.token_usage, TokenUsage::default());
    assert_eq!(completion.cost_usd, None);
}

#[tokio::test]
async fn a_stream_without_an_end_is_an_error() {
    for events in [
        Vec::new(),
        vec![Ok(ChatEvent::Block(AssistantBlock::text("half")))],
    ] {
        let error = Canned::new(events).complete(request()).await.unwrap_err();
        assert_eq!(error.kind(), LlmErrorKind::Protocol);
        assert_eq!(
            error.to_string(),
            "the stream ended before the turn was finished"
        );
    }
}

#[tokio::test]
async fn an_error_ends_the_turn() {
    let events = [
        Ok(ChatEvent::Block(AssistantBlock::text("half"))),
        Err(LlmErrorKind::Interrupted),
        Ok(ChatEvent::Finished(end())),
    ];
    let error = Canned::new(events).complete(request()).await.unwrap_err();
    assert_eq!(error.kind(), LlmErrorKind::Interrupted);
}

#[tokio::test]
async fn arcs_and_boxes_of_clients_are_clients() {
    let client: Arc<dyn LlmClient> = Arc::new(Canned::new(whole()));
    assert_eq!(LlmClient::model(&client).slug, "canned");
    let completion = client.complete(request()).await.expect("it ends");
    assert_eq!(completion.message.blocks, blocks());
}

#[test]
fn invalid_limits_are_rejected() {
    let limits = |window, output| {
        let model = ModelInfo::new("m").with_limits(window, output);
        model.map(|model| (model.context_window, model.max_output_tokens))
    };
    for (window, output) in [
        (None, None),
        (Some(10), Some(10)),
        (Some(10), None),
        (None, Some(1)),
    ] {
        assert_eq!(limits(window, output).expect("fine"), (window, output));
    }
    let cases = [
        (
            Some(0),
            None,
            "the context window must be larger than 0 tokens",
        ),
        (
            Some(10),
            Some(0),
            "the output limit must be larger than 0 tokens",
        ),
        (
            Some(10),
            Some(11),
            "the output limit (11 tokens) must not exceed the context window (10 tokens)",
        ),
    ];
    for (window, output, message) in cases {
        let error = limits(window, output).unwrap_err();
        assert_eq!(error.kind(), LlmErrorKind::InvalidRequest);
        assert_eq!(error.to_string(), message);
    }
}

#[test]
fn an_error_keeps_its_facts() {
    let error = LlmError::new(LlmErrorKind::RateLimited, "slow down")
        .with_status(429)
        .with_retry_after(Some(Duration::from_secs(3)))
        .with_advice("Wait.")
        .with_source(std::io::Error::other("below"));
    assert_eq!(error.to_string(), "slow down (HTTP 429)");
    assert_eq!(error.status(), Some(429));
    assert_eq!(error.retry_after(), Some(Duration::from_secs(3)));
    assert_eq!(error.advice(), Some("Wait."));
    assert_eq!(
        error.source().map(ToString::to_string),
        Some("below".to_owned())
    );
    assert!(error.kind().is_transient());
    assert!(!LlmErrorKind::ContextOverflow.is_transient());
}

#[test]
fn specs_are_shared_with_their_forms() {
    let specs = ToolSpecs::new(vec![ToolSpec::new("ls", "Lists.", json!({}))]);
    assert_eq!(specs.iter().map(ToolSpec::name).collect::<Vec<_>>(), ["ls"]);
    assert_eq!(format!("{specs:?}"), "[\"ls\"]");
    assert!(std::ptr::eq(specs.forms(), specs.clone().forms()));
}
