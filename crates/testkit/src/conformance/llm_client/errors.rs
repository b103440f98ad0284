//! Errors: of which kind, and what is tried again.

use std::net::Ipv4Addr;
use std::time::Duration;

use cantle_core::llm::{ChatEvent, LlmErrorKind};
use serde_json::json;
use tokio::net::TcpSocket;

use super::super::check::{Checked, Failure, ensure, equal};
use super::super::suite::Case;
use super::bench::{Harness, WAYS, hear, of_kind, request};
use super::case;
use crate::openai::{Fault, Reply, Script, Turn};

pub(super) fn cases<'c>() -> Vec<Case<Harness<'c>>> {
    vec![
        case!(a_busy_server_is_waited_for_or_reported),
        case!(a_server_that_keeps_failing_is_given_up),
        case!(refusals_have_a_kind_and_are_not_repeated),
        case!(an_overflow_is_recognised),
        case!(a_page_of_a_proxy_is_a_server_error),
        case!(what_is_no_answer_is_a_protocol_error),
        case!(a_connection_that_is_closed_is_a_connection_error),
        case!(nobody_listening_is_a_connection_error),
    ]
}

fn failing(reply: Reply) -> Turn {
    Turn::text("never said").fault_always(Fault::Reply(reply))
}

async fn a_busy_server_is_waited_for_or_reported(harness: &Harness<'_>) -> Checked {
    const PAUSE: Duration = Duration::from_secs(1);
    for stream in WAYS {
        let busy = Reply::error(429).header("retry-after", "1");
        let turn = Turn::text("At last.").fault(Fault::Reply(busy));
        let (heard, server) = harness.ask(Script::new().turn(turn), stream).await?;
        let requests = server.requests();
        if heard.retries() == 0 {
            let error = heard.error()?;
            of_kind("status 429", &error, &[LlmErrorKind::RateLimited])?;
            equal("the time to wait", error.retry_after(), Some(PAUSE))?;
            equal("requests", requests.len(), 1)?;
            continue;
        }
        equal("tries beside the first", heard.retries(), 1)?;
        let first = heard.events.first().cloned();
        let Some(ChatEvent::Retrying { after, reason, .. }) = first else {
            return Err(Failure::new("something came before the retry was told"));
        };
        ensure!(!reason.is_empty(), "the retry has no reason");
        ensure!(after >= PAUSE, "the retry was announced after {after:?}");
        equal("the turn", heard.completion()?.message.text(), "At last.")?;
        let [one, two] = &requests[..] else {
            return Err(Failure::new(format!(
                "{} requests came, not 2",
                requests.len()
            )));
        };
        let waited = two.at.duration_since(one.at);
        ensure!(waited >= PAUSE, "the second request came after {waited:?}");
    }
    Ok(())
}

async fn a_server_that_keeps_failing_is_given_up(harness: &Harness<'_>) -> Checked {
    const MOST_ATTEMPTS: usize = 12;
    for status in [500, 503] {
        let turn = failing(Reply::error(status).header("retry-after", "0"));
        let (heard, server) = harness.ask(Script::new().turn(turn), true).await?;
        let attempts = server.requests().len();
        ensure!(attempts <= MOST_ATTEMPTS, "{attempts} requests were sent");
        equal(
            "tries told of, beside the first",
            heard.retries(),
            attempts - 1,
        )?;
        let error = heard.error()?;
        of_kind("a failing server", &error, &[LlmErrorKind::Server])?;
        equal("the status", error.status(), Some(status))?;
    }
    Ok(())
}

async fn refusals_have_a_kind_and_are_not_repeated(harness: &Harness<'_>) -> Checked {
    let refusals = [
        (400, LlmErrorKind::InvalidRequest),
        (401, LlmErrorKind::Authentication),
        (403, LlmErrorKind::Permission),
        (404, LlmErrorKind::NotFound),
        (422, LlmErrorKind::InvalidRequest),
    ];
    for (status, kind) in refusals {
        for stream in WAYS {
            let script = Script::new().turn(failing(Reply::error(status)));
            let (heard, server) = harness.ask(script, stream).await?;
            let error = heard.error()?;
            of_kind(&format!("status {status}"), &error, &[kind])?;
            equal("the status", error.status(), Some(status))?;
            equal("requests", server.requests().len(), 1)?;
        }
    }
    Ok(())
}

async fn an_overflow_is_recognised(harness: &Harness<'_>) -> Checked {
    // As OpenAI says it.
    let message = "This model's maximum context length is 8192 tokens. However, your messages \
                   resulted in 10240 tokens. Please reduce the length of the messages.";
    let body = json!({"error": {
        "message": message,
        "type": "invalid_request_error",
        "param": "messages",
        "code": "context_length_exceeded",
    }});
    for stream in WAYS {
        let reply = Reply::new(400, "application/json", body.to_string());
        let error = harness.fail(failing(reply), stream).await?;
        of_kind("an overflow", &error, &[LlmErrorKind::ContextOverflow])?;
    }
    Ok(())
}

const PAGE: &str = "<html><body><h1>502 Bad Gateway</h1></body></html>";

async fn a_page_of_a_proxy_is_a_server_error(harness: &Harness<'_>) -> Checked {
    let page = Reply::new(502, "text/html", PAGE).header("retry-after", "0");
    let error = harness.fail(failing(page), true).await?;
    of_kind("a proxy's page", &error, &[LlmErrorKind::Server])?;
    equal("the status", error.status(), Some(502))
}

async fn what_is_no_answer_is_a_protocol_error(harness: &Harness<'_>) -> Checked {
    let json = "application/json";
    let answers = [
        ("a page", "text/html", PAGE),
        ("no JSON", json, "{\"choices\": [{\"mess"),
        ("an empty object", json, "{}"),
        ("no choice", json, "{\"id\": \"x\", \"choices\": []}"),
        ("a list", json, "[]"),
        (
            "another shape",
            json,
            "{\"choices\": [{\"message\": \"text\"}]}",
        ),
    ];
    for (what, kind, body) in answers {
        for stream in WAYS {
            let error = harness
                .fail(failing(Reply::new(200, kind, body)), stream)
                .await?;
            of_kind(what, &error, &[LlmErrorKind::Protocol])?;
        }
    }
    Ok(())
}

async fn a_connection_that_is_closed_is_a_connection_error(harness: &Harness<'_>) -> Checked {
    for stream in WAYS {
        let turn = Turn::text("never said").fault_always(Fault::Close);
        let error = harness.fail(turn, stream).await?;
        of_kind("a closed connection", &error, &[LlmErrorKind::Connection])?;
    }
    Ok(())
}

async fn nobody_listening_is_a_connection_error(harness: &Harness<'_>) -> Checked {
    // Bound, so that nobody else gets the port, and not listened to.
    let socket = TcpSocket::new_v4()?;
    socket.bind((Ipv4Addr::LOCALHOST, 0).into())?;
    let address = socket.local_addr()?;
    let client = harness.client(&format!("http://{address}/v1"), true);
    let error = hear(&*client, request("Go.")).await?.error()?;
    of_kind(
        "a port where nobody listens",
        &error,
        &[LlmErrorKind::Connection],
    )
}
