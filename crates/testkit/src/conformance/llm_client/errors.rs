//! Errors: kinds and retries.

use std::net::Ipv4Addr;

use tokio::net::TcpSocket;

use super::prelude::*;

cases! { cases for ClientFactory:
    rate_limits_are_retried_or_reported,
    retries_of_a_failing_server_are_bounded,
    refusals_have_a_kind_and_are_not_repeated,
    an_overflow_is_recognised,
    a_proxy_error_page_is_a_server_error,
    an_invalid_answer_is_a_protocol_error,
    a_connection_that_is_closed_is_a_connection_error,
    a_refused_connection_is_unreachable,
}

fn failing(reply: Reply) -> Turn {
    Turn::text("unused").fault_always(Fault::Reply(reply))
}

async fn rate_limits_are_retried_or_reported(factory: &ClientFactory<'_>) -> Checked {
    const PAUSE: Duration = Duration::from_secs(1);
    for stream in STREAM_MODES {
        let busy = Reply::error(429).header("retry-after", "1");
        let turn = Turn::text("At last.").fault(Fault::Reply(busy));
        let (record, server) = factory.ask(Script::new().turn(turn), stream).await?;
        let requests = server.requests();
        if record.retries() == 0 {
            let error = record.error()?;
            of_kind("status 429", &error, &[LlmErrorKind::RateLimited])?;
            equal("the time to wait", error.retry_after(), Some(PAUSE))?;
            equal("requests", requests.len(), 1)?;
            continue;
        }
        equal("retries", record.retries(), 1)?;
        let first = record.events.first().cloned();
        let Some(ChatEvent::AttemptFailed(failed)) = first else {
            return Err(Failure::new("the first event is not `AttemptFailed`"));
        };
        ensure!(
            !failed.reason.is_empty(),
            "the failed attempt has no reason"
        );
        equal("its kind", failed.kind, LlmErrorKind::RateLimited)?;
        ensure!(
            failed.delay >= PAUSE,
            "the next attempt was announced after {:?}",
            failed.delay
        );
        equal("the turn", record.completion()?.message.text(), "At last.")?;
        let [one, two] = &requests[..] else {
            let count = requests.len();
            return Err(Failure::new(format!("expected 2 requests, got {count}")));
        };
        let waited = two.at.duration_since(one.at);
        ensure!(waited >= PAUSE, "the second request came after {waited:?}");
    }
    Ok(())
}

async fn retries_of_a_failing_server_are_bounded(factory: &ClientFactory<'_>) -> Checked {
    const MAX_ATTEMPTS: usize = 40;
    for status in [500, 503] {
        let turn = failing(Reply::error(status).header("retry-after", "0"));
        let (record, server) = factory.ask(Script::new().turn(turn), true).await?;
        let attempts = server.requests().len();
        ensure!(attempts <= MAX_ATTEMPTS, "{attempts} requests were sent");
        equal("reported retries", record.retries(), attempts - 1)?;
        let error = record.error()?;
        of_kind("a failing server", &error, &[LlmErrorKind::Server])?;
        equal("the status", error.status(), Some(status))?;
    }
    Ok(())
}

async fn refusals_have_a_kind_and_are_not_repeated(factory: &ClientFactory<'_>) -> Checked {
    let refusals = [
        (400, LlmErrorKind::InvalidRequest),
        (401, LlmErrorKind::Authentication),
        (403, LlmErrorKind::Permission),
        (404, LlmErrorKind::NotFound),
        (422, LlmErrorKind::InvalidRequest),
    ];
    for (status, kind) in refusals {
        for stream in STREAM_MODES {
            let script = Script::new().turn(failing(Reply::error(status)));
            let (record, server) = factory.ask(script, stream).await?;
            let error = record.error()?;
            of_kind(&format!("status {status}"), &error, &[kind])?;
            equal("the status", error.status(), Some(status))?;
            equal("requests", server.requests().len(), 1)?;
        }
    }
    Ok(())
}

async fn an_overflow_is_recognised(factory: &ClientFactory<'_>) -> Checked {
    // OpenAI's wording.
    let message = "This model's maximum context length is 8192 tokens. However, your messages \
                   resulted in 10240 tokens. Please reduce the length of the messages.";
    let body = json!({"error": {
        "message": message,
        "type": "invalid_request_error",
        "param": "messages",
        "code": "context_length_exceeded",
    }});
    let turn = failing(Reply::new(400, "application/json", body.to_string()));
    let kind = LlmErrorKind::ContextOverflow;
    factory.fail_in_both_modes("an overflow", &turn, kind).await
}

const PAGE: &str = "<html><body><h1>502 Bad Gateway</h1></body></html>";

async fn a_proxy_error_page_is_a_server_error(factory: &ClientFactory<'_>) -> Checked {
    let page = Reply::new(502, "text/html", PAGE).header("retry-after", "0");
    let error = factory.fail(failing(page), true).await?;
    of_kind("a proxy's page", &error, &[LlmErrorKind::Server])?;
    equal("the status", error.status(), Some(502))
}

async fn an_invalid_answer_is_a_protocol_error(factory: &ClientFactory<'_>) -> Checked {
    let json = "application/json";
    let answers = [
        ("a page", "text/html", PAGE),
        ("truncated JSON", json, "{\"choices\": [{\"mess"),
        ("an empty object", json, "{}"),
        ("no choice", json, "{\"id\": \"x\", \"choices\": []}"),
        ("a list", json, "[]"),
        (
            "another shape",
            json,
            r#"{"choices": [{"message": "text"}]}"#,
        ),
    ];
    for (what, kind, body) in answers {
        let turn = failing(Reply::new(200, kind, body));
        let kind = LlmErrorKind::Protocol;
        factory.fail_in_both_modes(what, &turn, kind).await?;
    }
    Ok(())
}

async fn a_connection_that_is_closed_is_a_connection_error(factory: &ClientFactory<'_>) -> Checked {
    let turn = Turn::text("unused").fault_always(Fault::Close);
    let (what, kind) = ("a closed connection", LlmErrorKind::Connection);
    factory.fail_in_both_modes(what, &turn, kind).await
}

async fn a_refused_connection_is_unreachable(factory: &ClientFactory<'_>) -> Checked {
    // Bound, so that the port stays reserved, but not listening.
    let socket = TcpSocket::new_v4()?;
    socket.bind((Ipv4Addr::LOCALHOST, 0).into())?;
    let address = socket.local_addr()?;
    let client = factory.client(&format!("http://{address}/v1"), true);
    let error = record_call(&*client, request("Go.")).await?.error()?;
    of_kind("a closed port", &error, &[LlmErrorKind::Unreachable])
}
