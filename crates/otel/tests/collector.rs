//! Spans as a collector receives them.
#![expect(
    clippy::unwrap_used,
    reason = "clippy exempts test functions only, not their helpers"
)]

use std::collections::HashMap;
use std::error::Error as _;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use cantle_core::event::{Event, EventKind, Finish, RunStatus};
use cantle_core::ids::RunId;
use cantle_core::ledger::Ledger;
use cantle_core::llm::StopReason;
use cantle_core::usage::TokenUsage;
use cantle_otel::{ContentFilter, ExportReport, Telemetry, TelemetryErrorKind};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message as _;
use serde_json::json;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpListener;
use tokio::sync::mpsc;

/// The result of a command that failed.
const RESULT: &str = "<shell_results>\n<exit_code>3</exit_code>\n<stdout>no result</stdout>\n<stderr></stderr>\n</shell_results>";

const DEADLINE: Duration = Duration::from_secs(60);

/// Starts a collector that decodes what it receives, and returns its URL.
async fn collector() -> (String, mpsc::UnboundedReceiver<ExportTraceServiceRequest>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (sender, received) = mpsc::unbounded_channel();
    // The test's runtime ends it.
    tokio::spawn(async move {
        loop {
            let (mut connection, _) = listener.accept().await.unwrap();
            let (read, mut write) = connection.split();
            let mut reader = BufReader::new(read);
            let (mut head, mut length) = (String::new(), 0);
            while reader.read_line(&mut head).await.unwrap() > 2 {
                let line = head.lines().last().unwrap().to_lowercase();
                if let Some(value) = line.strip_prefix("content-length: ") {
                    length = value.trim().parse().unwrap();
                }
            }
            assert!(head.starts_with("POST /v1/traces HTTP/1.1"), "{head}");
            assert!(head.contains("application/x-protobuf"), "{head}");
            let mut body = vec![0; length];
            reader.read_exact(&mut body).await.unwrap();
            let request = ExportTraceServiceRequest::decode(&*body).unwrap();
            sender.send(request).unwrap();
            let answer = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
            write.write_all(answer.as_bytes()).await.unwrap();
        }
    });
    (url, received)
}

fn at(seconds: f64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs_f64(1e9 + seconds)
}

/// The events of a run with two tool calls, of which the first starts a sub-agent.
fn events() -> Vec<Event> {
    let (main, sub) = (RunId::new(), RunId::new());
    let mut events = Vec::new();
    let mut add = |run: RunId, seconds: f64, kind: EventKind| {
        let mut event = Event::new(Some(0), run, at(seconds), kind);
        if run == sub {
            (event.parent, event.depth) = (Some(main), 1);
        }
        events.push(event);
    };
    let started = |agent: &str, parent_call: Option<&str>| EventKind::RunStarted {
        agent: agent.to_owned(),
        model: "m1".to_owned(),
        task: "Find sk-secret-1 here".to_owned(),
        max_turns: 3,
        tools: Vec::new(),
        sandbox: None,
        input_files: Vec::new(),
        parent_call: parent_call.map(str::to_owned),
    };
    let usage = TokenUsage {
        input: 10,
        cache_read: 30,
        answer: 5,
        ..TokenUsage::default()
    };
    let answered = EventKind::ModelAnswered {
        turn: 1,
        text: "I ask.".to_owned(),
        tool_calls: 1,
        usage,
        usage_estimated: false,
        cost_usd: Some(0.25),
        list_price_date: None,
        served_by: Some("m-2026".to_owned()),
        stop: Some(StopReason::ToolCalls),
        duration: Duration::from_secs(2),
    };
    let finished = |status, error: Option<&str>| EventKind::RunFinished {
        status,
        finish: Some(Finish::new(
            "finish",
            json!({"reason": "Found sk-secret-1"}),
        )),
        error: error.map(str::to_owned),
        turns: 1,
        duration: Duration::from_secs(5),
        ledger: Ledger::default(),
    };
    add(main, 0.0, started("main", None));
    add(main, 3.0, answered);
    let (call_id, tool) = ("c1".to_owned(), "helper".to_owned());
    let arguments = json!({"task": "sk-secret-1"});
    add(
        main,
        4.0,
        EventKind::ToolStarted {
            call_id: call_id.clone(),
            tool: tool.clone(),
            arguments,
        },
    );
    let other = EventKind::ToolStarted {
        call_id: "c2".to_owned(),
        tool: "other".to_owned(),
        arguments: json!({}),
    };
    add(main, 4.5, other);
    add(sub, 5.0, started("sub", Some("c1")));
    add(
        sub,
        6.0,
        finished(RunStatus::LimitReached, Some("too many turns")),
    );
    let result = RESULT.to_owned();
    let duration = Duration::from_secs(3);
    let arguments = None;
    add(
        main,
        7.0,
        EventKind::ToolFinished {
            call_id,
            tool,
            result,
            success: false,
            arguments_valid: true,
            arguments,
            metadata: None,
            duration,
        },
    );
    add(main, 8.0, finished(RunStatus::Finished, None));
    events
}

async fn close(telemetry: Telemetry, limit: Duration) -> ExportReport {
    tokio::task::spawn_blocking(move || telemetry.close(limit))
        .await
        .unwrap()
}

fn nanos(seconds: f64) -> u64 {
    at(seconds).duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64
}

/// Exports events with so many spans, and returns these by name, with their attributes as text.
async fn exported(
    events: &[Event],
    count: u64,
    content: Option<ContentFilter>,
) -> HashMap<String, (Span, HashMap<String, String>)> {
    let (url, mut received) = collector().await;
    let telemetry = Telemetry::new(Some(&url)).unwrap();
    let mut spans = telemetry.run_spans(Some("openai".to_owned()), content);
    events.iter().for_each(|event| spans.record(event));
    let report = close(telemetry, DEADLINE).await;
    assert_eq!(
        (report.exported, report.lost, report.error),
        (count, 0, None)
    );
    let mut found = HashMap::new();
    while let Ok(request) = received.try_recv() {
        for resource in request.resource_spans {
            let attributes = resource.resource.unwrap().attributes;
            assert!(
                attributes.iter().any(|it| it.key == "service.name"),
                "{attributes:?}"
            );
            for span in resource
                .scope_spans
                .into_iter()
                .flat_map(|scope| scope.spans)
            {
                let attributes = span.attributes.iter().map(|attribute| {
                    let value = match attribute.value.clone().unwrap().value.unwrap() {
                        Value::StringValue(text) => text,
                        Value::IntValue(number) => number.to_string(),
                        other => format!("{other:?}"),
                    };
                    (attribute.key.clone(), value)
                });
                let attributes = attributes.collect();
                found.insert(span.name.clone(), (span, attributes));
            }
        }
    }
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn spans_follow_the_conventions_without_content() {
    let spans = exported(&events(), 5, None).await;
    let (main, attributes) = &spans["invoke_agent main"];
    assert_eq!(attributes["gen_ai.operation.name"], "invoke_agent");
    assert_eq!(attributes["gen_ai.provider.name"], "openai");
    assert_eq!(attributes["cantle.status"], "finished");
    let (chat, attributes) = &spans["chat m1"];
    assert_eq!(attributes["gen_ai.usage.input_tokens"], "40");
    assert_eq!(attributes["gen_ai.usage.cache_read.input_tokens"], "30");
    assert_eq!(attributes["gen_ai.usage.output_tokens"], "5");
    assert_eq!(attributes["gen_ai.response.model"], "m-2026");
    let reasons = &attributes["gen_ai.response.finish_reasons"];
    assert!(reasons.contains("\"tool_call\""), "{reasons}");
    assert_eq!(
        (chat.start_time_unix_nano, chat.end_time_unix_nano),
        (nanos(1.0), nanos(3.0))
    );
    let (tool, attributes) = &spans["execute_tool helper"];
    assert_eq!(attributes["gen_ai.tool.call.id"], "c1");
    assert_eq!(attributes["error.type"], "tool_error");
    assert_eq!(attributes["process.exit.code"], "3");
    let (sub, attributes) = &spans["invoke_agent sub"];
    assert_eq!(attributes["error.type"], "limit_reached");
    assert_eq!(
        (&chat.parent_span_id, &tool.parent_span_id),
        (&main.span_id, &main.span_id)
    );
    assert_eq!(sub.parent_span_id, tool.span_id);
    assert!(main.parent_span_id.is_empty());
    assert!(
        spans
            .values()
            .all(|(span, _)| span.trace_id == main.trace_id)
    );
    for (span, attributes) in spans.values() {
        let text = format!("{span:?} {attributes:?}");
        for content in ["secret", "I ask.", "no result", "too many turns"] {
            assert!(!text.contains(content), "{text}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn content_passes_the_filter() {
    let filter = |text: &str| text.replace("sk-secret-1", "[redacted]");
    let spans = exported(&events(), 5, Some(Box::new(filter))).await;
    let (_, attributes) = &spans["invoke_agent main"];
    assert!(attributes["gen_ai.input.messages"].contains("Find [redacted] here"));
    assert!(attributes["gen_ai.output.messages"].contains("Found [redacted]"));
    let (_, attributes) = &spans["execute_tool helper"];
    assert_eq!(
        attributes["gen_ai.tool.call.arguments"],
        "{\"task\":\"[redacted]\"}"
    );
    assert_eq!(attributes["gen_ai.tool.call.result"], RESULT);
    let (_, attributes) = &spans["chat m1"];
    let message = &attributes["gen_ai.output.messages"];
    assert!(
        message.contains("\"finish_reason\":\"tool_call\""),
        "{message}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_another_process_started_has_a_span() {
    let mut events = events();
    events.retain(|event| {
        let is_own = event.depth == 0;
        let is_earlier = matches!(
            event.kind,
            EventKind::ToolStarted { .. } | EventKind::ModelAnswered { .. }
        );
        is_own && !is_earlier
    });
    for event in &mut events {
        if let EventKind::ToolFinished { tool, .. } = &mut event.kind {
            // Models invent names.
            *tool = "x".repeat(10_000);
        }
    }
    let spans = exported(&events, 2, None).await;
    let (main, _) = &spans["invoke_agent main"];
    let (tool, attributes) = &spans[&format!("execute_tool {}", "x".repeat(100))];
    assert_eq!(tool.parent_span_id, main.span_id);
    assert_eq!(
        (tool.start_time_unix_nano, tool.end_time_unix_nano),
        (nanos(4.0), nanos(7.0))
    );
    assert_eq!(attributes["error.type"], "tool_error");
}

#[tokio::test]
async fn an_invalid_url_is_an_error() {
    for url in ["http://a b", "http://[::1", "http:// "] {
        let error = Telemetry::new(Some(url)).unwrap_err();
        assert_eq!(error.kind(), TelemetryErrorKind::Configuration);
        let (message, cause) = (error.to_string(), error.source().unwrap().to_string());
        assert_eq!(message, "failed to prepare the export of spans");
        assert!(!cause.is_empty() && !message.contains(&cause), "{cause}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_collector_costs_spans_and_no_time() {
    // It accepts connections and never answers.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let telemetry = Telemetry::new(Some(&url)).unwrap();
    let mut spans = telemetry.run_spans(None, None);
    let (events, runs) = (events(), 3_000);
    let begun = std::time::Instant::now();
    for _ in 0..runs {
        events.iter().for_each(|event| spans.record(event));
    }
    let report = close(telemetry, Duration::from_millis(100)).await;
    assert!(begun.elapsed() < DEADLINE / 2, "{:?}", begun.elapsed());
    assert_eq!((report.exported, report.lost), (0, 5 * runs));
    assert!(report.error.is_some());
}
