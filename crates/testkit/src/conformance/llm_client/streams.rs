//! Streams: those that break, and those that are given up.

use std::pin::pin;
use std::time::Duration;

use cantle_core::llm::{ChatEvent, LlmClientExt as _, LlmErrorKind};
use futures_util::{StreamExt as _, stream};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

use super::super::check::{Checked, Failure, ensure, equal, within};
use super::super::suite::Case;
use super::bench::{API_KEY, Harness, WAYS, asks_for_a_stream, hear, of_kind, request, serve};
use super::{Dialect, case};
use crate::openai::{Fault, Reply, Request, Script, ToolCall, Turn};

/// For what must come at all, and should take no time.
const PATIENCE: Duration = Duration::from_secs(30);

pub(super) fn cases<'c>() -> Vec<Case<Harness<'c>>> {
    vec![
        case!(nothing_is_sent_before_the_stream_is_polled),
        case!(a_stream_outlives_its_client),
        case!(pieces_come_as_they_are_sent).optional(),
        case!(a_stream_that_breaks_off_is_interrupted),
        case!(a_stream_that_ends_early_is_no_turn),
        case!(an_error_within_a_stream_is_an_error),
        case!(a_stream_that_makes_no_sense_is_an_error),
        case!(a_turn_cut_at_any_byte_is_not_finished),
        case!(dropping_the_stream_ends_the_request),
    ]
}

const EARLY_END: [LlmErrorKind; 2] = [LlmErrorKind::Interrupted, LlmErrorKind::Protocol];

async fn nothing_is_sent_before_the_stream_is_polled(harness: &Harness<'_>) -> Checked {
    let server = serve(Script::new().turn(Turn::text("Hello."))).await?;
    let client = harness.client(&server.url(), true);
    drop(client.stream(request("Never asked.")));
    client.complete(request("Asked.")).await?;
    equal("requests", server.requests().len(), 1)
}

async fn a_stream_outlives_its_client(harness: &Harness<'_>) -> Checked {
    let server = serve(Script::new().turn(Turn::text("Hello."))).await?;
    let client = harness.client(&server.url(), true);
    let mut stream = client.stream(request("Go."));
    drop(client);
    while let Some(event) = stream.next().await {
        if matches!(event?, ChatEvent::Finished(_)) {
            return Ok(());
        }
    }
    Err(Failure::new("the stream ended without `Finished`"))
}

async fn pieces_come_as_they_are_sent(harness: &Harness<'_>) -> Checked {
    let (_heard, server) = harness
        .ask(Script::new().turn(Turn::text("Hello.")), true)
        .await?;
    if !server.requests().iter().all(asks_for_a_stream) {
        return Err(Failure::skip("the client doesn't stream"));
    }
    // What begins a turn, and a block where they are begun, and two words.
    let events = match harness.dialect {
        Dialect::Chat => 3,
        Dialect::Messages | Dialect::Responses => 4,
    };
    let turn = Turn::text("one two three").fault(Fault::StallAfterEvents(events));
    let server = serve(Script::new().turn(turn)).await?;
    let client = harness.client(&server.url(), true);
    let mut stream = client.stream(request("Go."));
    let hearing = async {
        let mut text = String::new();
        while text != "one two " {
            match stream.next().await.transpose()? {
                Some(ChatEvent::TextDelta(piece)) => text.push_str(&piece),
                Some(_) => {}
                None => return Err(Failure::new("the stream ended while the server stalled")),
            }
        }
        Ok(())
    };
    within("a piece of the text", PATIENCE, hearing).await?
}

async fn a_stream_that_breaks_off_is_interrupted(harness: &Harness<'_>) -> Checked {
    // After some text; within a tool call; after everything but the finish reason.
    let turn = Turn::text("one two").call(ToolCall::new("look", r#"{"at":"here"}"#));
    for events in [2, 4, 6] {
        let cut = turn.clone().fault_always(Fault::CutAfterEvents(events));
        let (heard, server) = harness.ask(Script::new().turn(cut), true).await?;
        let streamed = heard.events.len() > heard.retries();
        let error = heard.error()?;
        if !streamed {
            // Nothing had come of it as far as anybody could see, so it could be tried again.
            let kinds = [LlmErrorKind::Interrupted, LlmErrorKind::Connection];
            of_kind("an answer that broke off", &error, &kinds)?;
            continue;
        }
        of_kind(
            "an answer that broke off",
            &error,
            &[LlmErrorKind::Interrupted],
        )?;
        equal("requests", server.requests().len(), 1)?;
    }
    Ok(())
}

async fn a_stream_that_ends_early_is_no_turn(harness: &Harness<'_>) -> Checked {
    for events in [0, 1, 2, 3] {
        let turn = Turn::text("one two").fault_always(Fault::EndAfterEvents(events));
        let (heard, server) = harness.ask(Script::new().turn(turn), true).await?;
        // An answer that isn't streamed is one event, and whole with it.
        if events > 0 && !server.requests().iter().all(asks_for_a_stream) {
            continue;
        }
        let what = format!("a stream that ends after {events} events");
        of_kind(&what, &heard.error()?, &EARLY_END)?;
    }
    Ok(())
}

async fn an_error_within_a_stream_is_an_error(harness: &Harness<'_>) -> Checked {
    for stream in WAYS {
        for after in [0, 2] {
            let error = json!({"message": "the engine died", "type": "server_error", "code": 500});
            let turn = Turn::text("one two").fault_always(Fault::ErrorEvent { after, error });
            let (heard, _server) = harness.ask(Script::new().turn(turn), stream).await?;
            let text = heard.error()?.to_string();
            ensure!(
                text.contains("the engine died"),
                "the error leaves out what the server said: {text}"
            );
        }
    }
    Ok(())
}

async fn a_stream_that_makes_no_sense_is_an_error(harness: &Harness<'_>) -> Checked {
    let streams = [
        "data: {\"choices\": [{\"del\n\n",
        "data: no JSON\n\ndata: [DONE]\n\n",
        "data: [DONE]\n\n",
        "data: []\n\n",
        "event: ping\n\n",
        "",
    ];
    for body in streams {
        let reply = Reply::new(200, "text/event-stream", body);
        let turn = Turn::text("never said").fault_always(Fault::Reply(reply));
        let error = harness.fail(turn, true).await?;
        of_kind(&format!("the stream {body:?}"), &error, &EARLY_END)?;
    }
    Ok(())
}

fn small_turn() -> Turn {
    Turn::text("é").call(ToolCall::new("look", r#"{"a":1}"#))
}

/// Cuts the answer where the request says.
fn cut_where_asked(request: &Request) -> Turn {
    let raw = String::from_utf8_lossy(&request.raw);
    let count = raw
        .split("cut-at-")
        .nth(1)
        .and_then(|rest| rest.split('.').next());
    match count.and_then(|count| count.parse().ok()) {
        Some(count) => small_turn().fault_always(Fault::CutAfterBytes(count)),
        None => small_turn(),
    }
}

async fn a_turn_cut_at_any_byte_is_not_finished(harness: &Harness<'_>) -> Checked {
    const AT_ONCE: usize = 200;
    for stream in WAYS {
        let server = serve(Script::new().then_with(cut_where_asked)).await?;
        let client = harness.client(&server.url(), stream);
        hear(&*client, request("Whole.")).await?.completion()?;
        let body = answer_again(harness.dialect, &server.url(), &server.requests()).await?;
        // What comes after the last of the turn's own bytes says nothing that isn't known.
        let after = match harness.dialect {
            Dialect::Chat => body.rfind("data: [DONE]"),
            Dialect::Messages => body.rfind("event: message_stop"),
            Dialect::Responses => None,
        };
        let end = after.unwrap_or(body.len());
        let end = body.get(..end).unwrap_or_default().trim_end().len();
        let cuts = stream::iter(0..end).map(async |count| {
            let asked = request(&format!("cut-at-{count}."));
            let heard = hear(&*client, asked).await?;
            let heard = heard.error();
            heard
                .map_err(|failure| Failure::new(format!("cut at byte {count} of {end}: {failure}")))
        });
        let mut cuts = cuts.buffer_unordered(AT_ONCE);
        while let Some(cut) = cuts.next().await {
            cut?;
        }
    }
    Ok(())
}

/// The body of the answer to a request, without a client between.
async fn answer_again(dialect: Dialect, url: &str, requests: &[Request]) -> Checked<String> {
    let path = match dialect {
        Dialect::Chat => "chat/completions",
        Dialect::Messages => "messages",
        Dialect::Responses => "responses",
    };
    let request = requests.first();
    let request = request.ok_or_else(|| Failure::new("no request came"))?;
    let address = url.trim_start_matches("http://").trim_end_matches("/v1");
    let mut connection = TcpStream::connect(address).await?;
    // In HTTP/1.0 the body comes as it is and ends with the connection.
    let head = format!(
        "POST /v1/{path} HTTP/1.0\r\nauthorization: Bearer {API_KEY}\r\ncontent-length: {}\r\n\r\n",
        request.raw.len()
    );
    connection.write_all(head.as_bytes()).await?;
    connection.write_all(&request.raw).await?;
    let mut answer = Vec::new();
    connection.read_to_end(&mut answer).await?;
    let answer = String::from_utf8_lossy(&answer);
    let body = answer
        .split_once("\r\n\r\n")
        .map(|(_, body)| body.to_owned());
    body.ok_or_else(|| Failure::new("on the suite's own side: no answer to a plain request"))
}

async fn dropping_the_stream_ends_the_request(harness: &Harness<'_>) -> Checked {
    for way in WAYS {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("http://{}/v1", listener.local_addr()?);
        let client = harness.client(&url, way);
        let answered = Notify::new();
        let server = async {
            let (mut connection, _) = listener.accept().await?;
            read_request(&mut connection).await?;
            connection
                .write_all(half_an_answer(harness.dialect, way).as_bytes())
                .await?;
            answered.notify_one();
            // Ends when the client closes the connection, in whatever way.
            let _ = connection.read_to_end(&mut Vec::new()).await;
            Checked::Ok(())
        };
        let caller = async {
            let mut call = client.stream(request("Go."));
            let hearing = async { while let Some(Ok(_)) = call.next().await {} };
            tokio::select! {
                () = pin!(hearing) => Err(Failure::new("the call ended by half an answer")),
                () = answered.notified() => Ok(()),
            }
        };
        let both = Box::pin(async { tokio::try_join!(server, caller) });
        within("the end of the connection", PATIENCE, both).await??;
    }
    Ok(())
}

async fn read_request(connection: &mut TcpStream) -> Checked {
    let mut received = Vec::new();
    loop {
        let mut piece = [0; 4096];
        let count = connection.read(&mut piece).await?;
        ensure!(count > 0, "the request broke off");
        received.extend(piece.iter().take(count));
        let text = String::from_utf8_lossy(&received).to_ascii_lowercase();
        let Some((head, body)) = text.split_once("\r\n\r\n") else {
            continue;
        };
        let length = head.split("content-length:").nth(1);
        let length = length.and_then(|rest| rest.lines().next()?.trim().parse().ok());
        let whole = length.is_none_or(|length: usize| body.len() >= length);
        if whole || body.ends_with("0\r\n\r\n") {
            return Ok(());
        }
    }
}

fn half_an_answer(dialect: Dialect, stream: bool) -> String {
    if !stream {
        return "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 1000\r\n\r\n{\"id\""
            .to_owned();
    }
    let delta = match dialect {
        Dialect::Chat => json!({"choices": [{"index": 0, "delta": {"content": "one"}}]}),
        Dialect::Messages => json!({"type": "ping"}),
        Dialect::Responses => json!({"type": "response.output_text.delta", "delta": "one"}),
    };
    let event = format!("data: {delta}\n\n");
    format!(
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n{:x}\r\n{event}\r\n",
        event.len()
    )
}
