//! Streams: broken and dropped ones.

use std::pin::pin;

use futures_util::stream;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

use super::prelude::*;

/// Limit for a single step of a case, normally instantaneous.
const STEP_TIMEOUT: Duration = Duration::from_secs(30);

cases! { cases for ClientFactory:
    nothing_is_sent_before_the_stream_is_polled,
    a_stream_outlives_its_client,
    pieces_come_as_they_are_sent.optional(),
    a_stream_that_breaks_off_is_interrupted,
    a_stream_that_ends_early_is_an_error,
    an_error_within_a_stream_is_an_error,
    a_malformed_stream_is_an_error,
    a_turn_cut_at_any_byte_is_not_finished,
    dropping_the_stream_ends_the_request,
}

const EARLY_END: [LlmErrorKind; 2] = [LlmErrorKind::Interrupted, LlmErrorKind::Protocol];

async fn nothing_is_sent_before_the_stream_is_polled(factory: &ClientFactory<'_>) -> Checked {
    let server = serve(Script::new().turn(Turn::text("Hello."))).await?;
    let client = factory.client(&server.url(), true);
    drop(client.stream(request("Dropped.")));
    client.complete(request("Sent.")).await?;
    equal("requests", server.requests().len(), 1)
}

async fn a_stream_outlives_its_client(factory: &ClientFactory<'_>) -> Checked {
    let server = serve(Script::new().turn(Turn::text("Hello."))).await?;
    let client = factory.client(&server.url(), true);
    let mut stream = client.stream(request("Go."));
    drop(client);
    while let Some(event) = stream.next().await {
        if matches!(event?, ChatEvent::Finished(_)) {
            return Ok(());
        }
    }
    Err(Failure::new("the stream ended without `Finished`"))
}

async fn pieces_come_as_they_are_sent(factory: &ClientFactory<'_>) -> Checked {
    let (_record, server) = factory
        .ask(Script::new().turn(Turn::text("Hello.")), true)
        .await?;
    if !server.requests().iter().all(asks_for_a_stream) {
        return Err(Failure::skip("the client doesn't stream"));
    }
    // Start of the turn, start of the block where the dialect has one, and two words.
    let events = match factory.dialect {
        Dialect::Chat => 3,
        Dialect::Messages | Dialect::Responses => 4,
    };
    let turn = Turn::text("one two three").fault(Fault::StallAfterEvents(events));
    let server = serve(Script::new().turn(turn)).await?;
    let client = factory.client(&server.url(), true);
    let mut stream = client.stream(request("Go."));
    let reading = async {
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
    within("a piece of the text", STEP_TIMEOUT, reading).await?
}

async fn a_stream_that_breaks_off_is_interrupted(factory: &ClientFactory<'_>) -> Checked {
    // After some text; within a tool call; after everything except the finish reason.
    let turn = Turn::text("one two").call(ToolCall::new("look", r#"{"at":"here"}"#));
    for events in [2, 4, 6] {
        let cut = turn.clone().fault_always(Fault::CutAfterEvents(events));
        let (record, server) = factory.ask(Script::new().turn(cut), true).await?;
        let attempts = record.retries() + 1;
        let streamed = record.events.len() >= attempts;
        let error = record.error()?;
        // A client that doesn't stream has no part of the answer.
        let kinds = match streamed {
            true => &[LlmErrorKind::Interrupted][..],
            false => &[LlmErrorKind::Interrupted, LlmErrorKind::Connection],
        };
        of_kind("an answer that broke off", &error, kinds)?;
        equal("requests", server.requests().len(), attempts)?;
    }
    Ok(())
}

async fn a_stream_that_ends_early_is_an_error(factory: &ClientFactory<'_>) -> Checked {
    for events in [0, 1, 2, 3] {
        let turn = Turn::text("one two").fault_always(Fault::EndAfterEvents(events));
        let (record, server) = factory.ask(Script::new().turn(turn), true).await?;
        // An answer that isn't streamed is a single event.
        if events > 0 && !server.requests().iter().all(asks_for_a_stream) {
            continue;
        }
        let what = format!("a stream that ends after {events} events");
        of_kind(&what, &record.error()?, &EARLY_END)?;
    }
    Ok(())
}

async fn an_error_within_a_stream_is_an_error(factory: &ClientFactory<'_>) -> Checked {
    for stream in STREAM_MODES {
        for after in [0, 2] {
            let error = json!({"message": "the engine died", "type": "server_error", "code": 500});
            let turn = Turn::text("one two").fault_always(Fault::ErrorEvent { after, error });
            let (record, _server) = factory.ask(Script::new().turn(turn), stream).await?;
            let text = record.error()?.to_string();
            ensure!(
                text.contains("the engine died"),
                "the error omits the server's message: {text}"
            );
        }
    }
    Ok(())
}

async fn a_malformed_stream_is_an_error(factory: &ClientFactory<'_>) -> Checked {
    let streams = [
        "data: {\"choices\": [{\"del\n\n",
        "data: invalid JSON\n\ndata: [DONE]\n\n",
        "data: [DONE]\n\n",
        "data: []\n\n",
        "event: ping\n\n",
        "",
    ];
    for body in streams {
        let reply = Reply::new(200, "text/event-stream", body);
        let turn = Turn::text("unused").fault_always(Fault::Reply(reply));
        let error = factory.fail(turn, true).await?;
        of_kind(&format!("the stream {body:?}"), &error, &EARLY_END)?;
    }
    Ok(())
}

fn small_turn() -> Turn {
    Turn::text("é").call(ToolCall::new("look", r#"{"a":1}"#))
}

/// Cuts the answer at the byte that the request names.
fn cut_as_requested(request: &Request) -> Turn {
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

async fn a_turn_cut_at_any_byte_is_not_finished(factory: &ClientFactory<'_>) -> Checked {
    const AT_ONCE: usize = 200;
    for stream in STREAM_MODES {
        let server = serve(Script::new().then_with(cut_as_requested)).await?;
        let client = factory.client(&server.url(), stream);
        record_call(&*client, request("Whole."))
            .await?
            .completion()?;
        let body = answer_again(factory.dialect, &server.url(), &server.requests()).await?;
        // The turn is complete before the terminator, so cuts within it are not errors.
        let after = match factory.dialect {
            Dialect::Chat => body.rfind("data: [DONE]"),
            Dialect::Messages => body.rfind("event: message_stop"),
            Dialect::Responses => None,
        };
        let end = after.unwrap_or(body.len());
        let end = body.get(..end).unwrap_or_default().trim_end().len();
        let cuts = stream::iter(0..end).map(async |count| {
            let request = request(&format!("cut-at-{count}."));
            let record = record_call(&*client, request).await?;
            record
                .error()
                .map_err(|failure| Failure::new(format!("cut at byte {count} of {end}: {failure}")))
        });
        let mut cuts = cuts.buffer_unordered(AT_ONCE);
        while let Some(cut) = cuts.next().await {
            cut?;
        }
    }
    Ok(())
}

/// Repeats a request without a client and returns the body of the answer.
async fn answer_again(dialect: Dialect, url: &str, requests: &[Request]) -> Checked<String> {
    let path = match dialect {
        Dialect::Chat => "chat/completions",
        Dialect::Messages => "messages",
        Dialect::Responses => "responses",
    };
    let request = requests.first();
    let request = request.ok_or_else(|| Failure::new("the server received no request"))?;
    let address = url.trim_start_matches("http://").trim_end_matches("/v1");
    let mut connection = TcpStream::connect(address).await?;
    // HTTP/1.0: the body is not chunked and ends with the connection.
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
    body.ok_or_else(|| Failure::new("test setup: no answer to a plain request"))
}

async fn dropping_the_stream_ends_the_request(factory: &ClientFactory<'_>) -> Checked {
    for stream in STREAM_MODES {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("http://{}/v1", listener.local_addr()?);
        let client = factory.client(&url, stream);
        let answered = Notify::new();
        let server = async {
            let (mut connection, _) = listener.accept().await?;
            read_request(&mut connection).await?;
            connection
                .write_all(partial_answer(factory.dialect, stream).as_bytes())
                .await?;
            answered.notify_one();
            // Ends when the client closes or resets the connection.
            let _ = connection.read_to_end(&mut Vec::new()).await;
            Checked::Ok(())
        };
        let caller = async {
            let mut call = client.stream(request("Go."));
            let reading = async { while let Some(Ok(_)) = call.next().await {} };
            tokio::select! {
                () = pin!(reading) => Err(Failure::new("the call ended on a partial answer")),
                () = answered.notified() => Ok(()),
            }
        };
        let both = Box::pin(async { tokio::try_join!(server, caller) });
        within("the end of the connection", STEP_TIMEOUT, both).await??;
    }
    Ok(())
}

async fn read_request(connection: &mut TcpStream) -> Checked {
    let mut received = Vec::new();
    loop {
        let mut piece = [0; 4096];
        let count = connection.read(&mut piece).await?;
        ensure!(count > 0, "the request was truncated");
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

fn partial_answer(dialect: Dialect, stream: bool) -> String {
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
