//! Requests: content, determinism and protection of the API key.

use std::error::Error as StdError;

use cantle_core::llm::{ChatRequest, LlmError, ToolSpecs};
use cantle_core::message::{AssistantMessage, Message, SharedMessage, ToolMessage};
use cantle_core::tool::ToolSpec;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::prelude::*;

cases! { cases for ClientFactory:
    the_same_request_is_the_same_bytes,
    the_key_is_sent_where_it_belongs,
    a_redirect_does_not_forward_the_key,
    the_key_is_not_exposed,
}

cases! { chat_cases for ClientFactory:
    a_conversation_is_sent_whole,
    a_longer_history_begins_with_the_same_bytes,
}

fn tools() -> ToolSpecs {
    let parameters = json!({
        "type": "object",
        "properties": {"zeta": {"type": "string"}, "alpha": {"type": "integer"}},
        "required": ["zeta"],
    });
    ToolSpecs::new(vec![
        ToolSpec::new("look", "Looks.", parameters.clone()),
        ToolSpec::new("see", "Sees.", parameters),
    ])
}

/// Messages of a run, each prefix of which is a valid conversation.
fn history() -> Vec<SharedMessage> {
    let call = Call::new(Some("call_7".to_owned()), "look", "{ \"zeta\":\"größe\" }");
    let turn = AssistantMessage::new(vec![
        AssistantBlock::text("I look."),
        AssistantBlock::ToolCall(call.clone()),
    ]);
    let messages = [
        Message::system("You are tested."),
        Message::user("What is in \"größe.csv\"?\n"),
        turn.into(),
        ToolMessage::new(&call, "two lines\n<b>& more</b>").into(),
        Message::user("Go on."),
    ];
    messages.map(SharedMessage::new).into()
}

async fn a_conversation_is_sent_whole(factory: &ClientFactory<'_>) -> Checked {
    let server = serve(Script::new().then_with(|_| Turn::text("Done."))).await?;
    let client = factory.client(&server.url(), true);
    let request = ChatRequest::new(history(), tools());
    client.complete(request).await?;
    let body = only(&server)?.body();
    let messages = array(&body, "messages");
    let roles = messages
        .iter()
        .map(|it| it["role"].as_str().unwrap_or("none"));
    let expected = ["system", "user", "assistant", "tool", "user"];
    equal("the roles", roles.collect::<Vec<_>>(), expected)?;
    let texts: Vec<String> = messages.iter().map(text).collect();
    let expected = [
        "You are tested.",
        "What is in \"größe.csv\"?\n",
        "I look.",
        "two lines\n<b>& more</b>",
        "Go on.",
    ];
    equal("the texts", texts, expected.to_vec())?;
    let calls = messages.get(2).map(|turn| turn["tool_calls"].clone());
    let function = json!({"name": "look", "arguments": "{ \"zeta\":\"größe\" }"});
    let expected = json!([{"id": "call_7", "type": "function", "function": function}]);
    equal("the tool calls", calls, Some(expected))?;
    let answered = messages.get(3).map(|result| result["tool_call_id"].clone());
    equal("the result's call", answered, Some(json!("call_7")))?;
    let tools = array(&body, "tools");
    let names = tools
        .iter()
        .map(|tool| tool.pointer("/function/name").and_then(Value::as_str));
    equal(
        "the tools",
        names.collect::<Vec<_>>(),
        [Some("look"), Some("see")],
    )
}

fn array(body: &Value, field: &str) -> Vec<Value> {
    let array = body.get(field).and_then(Value::as_array);
    array.cloned().unwrap_or_default()
}

/// Returns the text of a message in either form of the protocol.
fn text(message: &Value) -> String {
    match &message["content"] {
        Value::String(text) => text.clone(),
        Value::Array(parts) => parts
            .iter()
            .filter_map(|part| part["text"].as_str())
            .collect(),
        _ => String::new(),
    }
}

fn only(server: &ScriptedServer) -> Checked<Request> {
    let mut requests = server.requests();
    equal("requests", requests.len(), 1)?;
    requests
        .pop()
        .ok_or_else(|| Failure::new("the server received no request"))
}

async fn the_same_request_is_the_same_bytes(factory: &ClientFactory<'_>) -> Checked {
    for stream in STREAM_MODES {
        let server = serve(Script::new().then_with(|_| Turn::text("Done."))).await?;
        // The same messages twice, then equal ones through another client.
        let shared = ChatRequest::new(history(), tools());
        let client = factory.client(&server.url(), stream);
        client.complete(shared.clone()).await?;
        client.complete(shared).await?;
        let other = factory.client(&server.url(), stream);
        other.complete(ChatRequest::new(history(), tools())).await?;
        let sent: Vec<_> = server.requests().into_iter().map(|it| it.raw).collect();
        let same = sent.len() == 3 && sent.iter().all(|raw| Some(raw) == sent.first());
        ensure!(
            same,
            "the same request was sent as different bytes: {sent:?}"
        );
    }
    Ok(())
}

#[derive(Deserialize)]
struct Parts<'a> {
    #[serde(borrow)]
    messages: Vec<&'a RawValue>,
    #[serde(borrow)]
    tools: &'a RawValue,
}

async fn a_longer_history_begins_with_the_same_bytes(factory: &ClientFactory<'_>) -> Checked {
    let server = serve(Script::new().then_with(|_| Turn::text("Done."))).await?;
    let client = factory.client(&server.url(), true);
    let (history, tools) = (history(), tools());
    for count in [2, 4, 5] {
        let messages = history.iter().take(count).cloned().collect();
        let request = ChatRequest::new(messages, tools.clone());
        client.complete(request).await?;
    }
    let requests = server.requests();
    let mut parts = Vec::new();
    for request in &requests {
        let read = serde_json::from_slice::<Parts<'_>>(&request.raw);
        parts.push(read.map_err(|error| Failure::new(format!("invalid request: {error}")))?);
    }
    for (earlier, later) in parts.iter().zip(parts.iter().skip(1)) {
        equal("the tools", later.tools.get(), earlier.tools.get())?;
        let (before, now) = (earlier.messages.len(), later.messages.len());
        ensure!(
            now > before,
            "a longer history has {now} messages after {before}"
        );
        for (before, now) in earlier.messages.iter().zip(&later.messages) {
            equal("a message that was sent before", now.get(), before.get())?;
        }
    }
    Ok(())
}

async fn the_key_is_sent_where_it_belongs(factory: &ClientFactory<'_>) -> Checked {
    let key_header = match factory.dialect {
        Dialect::Chat | Dialect::Responses => "authorization",
        Dialect::Messages => "x-api-key",
    };
    for stream in STREAM_MODES {
        let script = Script::new().turn(Turn::text("Done."));
        let (record, server) = factory.ask(script, stream).await?;
        record.completion()?;
        let request = only(&server)?;
        for (name, value) in &request.headers {
            let holds = String::from_utf8_lossy(value.as_bytes()).contains(API_KEY);
            ensure!(
                !holds || name == key_header,
                "the key is in the header `{name}`"
            );
        }
        let body = String::from_utf8_lossy(&request.raw);
        ensure!(!body.contains(API_KEY), "the key is in the body");
    }
    Ok(())
}

async fn a_redirect_does_not_forward_the_key(factory: &ClientFactory<'_>) -> Checked {
    for status in [302, 307, 308] {
        let other = ScriptedServer::start(Script::new().turn(Turn::text("Hello."))).await?;
        let to = format!("{}/chat/completions", other.url());
        let redirect = Reply::new(status, "text/plain", "elsewhere").header("location", &to);
        let turn = Turn::text("unused").fault_always(Fault::Reply(redirect));
        // The client may follow or refuse the redirect.
        let _record = factory.ask(Script::new().turn(turn), true).await?;
        for request in other.requests() {
            let shown = format!("{:?}", request.headers);
            ensure!(
                !shown.contains(API_KEY)
                    && !request.headers.contains_key("authorization")
                    && !request.headers.contains_key("x-api-key"),
                "a redirect with status {status} forwarded the key to another server"
            );
        }
    }
    Ok(())
}

async fn the_key_is_not_exposed(factory: &ClientFactory<'_>) -> Checked {
    // Servers echo unknown keys, and proxies echo requests, in their errors.
    let message = format!("Incorrect API key provided: {API_KEY}.");
    let body = json!({"error": {"message": message, "code": "invalid_api_key"}}).to_string();
    for (status, kind) in [
        (401, "application/json"),
        (400, "text/plain"),
        (200, "text/html"),
    ] {
        let reply = Reply::new(status, kind, body.clone());
        let turn = Turn::text("unused").fault_always(Fault::Reply(reply));
        let server = serve(Script::new().turn(turn)).await?;
        let client = factory.client(&server.url(), true);
        let record = record_call(&*client, request("Go.")).await?;
        must_hide_key("the client", &format!("{client:?} {client:#?}"))?;
        must_hide_key("the events", &format!("{:?}", record.events))?;
        must_hide_key("the error", &error_texts(&record.error()?))?;
    }
    Ok(())
}

fn must_hide_key(what: &str, shown: &str) -> Checked {
    ensure!(!shown.contains(API_KEY), "{what} contains the key");
    Ok(())
}

/// Returns all texts of an error and its sources.
fn error_texts(error: &LlmError) -> String {
    let mut shown = format!("{error} {error:?} {error:#?} {:?}", error.advice());
    let mut source = error.source();
    while let Some(cause) = source {
        shown.push_str(&format!(" {cause} {cause:?}"));
        source = cause.source();
    }
    shown
}
