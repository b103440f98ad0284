//! Conversations that the provider keeps, and what is done where it can't.

use cantle_clients::responses::ResponsesClient;
use cantle_clients::retry::RetryPolicy;
use cantle_core::llm::{Completion, LlmClientExt as _, LlmError, LlmErrorKind};
use cantle_core::message::{AssistantBlock, AssistantMessage, Message, ToolMessage};
use cantle_testkit::openai::{Fault, Reply, Script, ScriptedServer, ToolCall, Turn};
use serde_json::{Value, json};

use crate::support::{ask, request};

async fn server() -> ScriptedServer {
    let script = Script::new()
        .turn(Turn::tool(ToolCall::new("look", "{}")).reasoning("Hm."))
        .turn(Turn::text("Two files."));
    ScriptedServer::start(script).await.unwrap()
}

fn client(server: &ScriptedServer) -> ResponsesClient {
    let builder = ResponsesClient::builder("m").base_url(server.url());
    builder
        .stateful(true)
        .retry(RetryPolicy::never())
        .build()
        .unwrap()
}

/// Goes on from a first turn.
async fn go_on(client: &ResponsesClient, first: AssistantMessage) -> Result<Completion, LlmError> {
    let call = first.tool_calls().next().unwrap();
    let result = Message::from(ToolMessage::new(call, "a, b"));
    let messages = [Message::user("What is here?"), first.into(), result];
    client.complete(request(messages)).await
}

/// The types of the items in each request.
fn inputs(server: &ScriptedServer) -> Vec<Vec<String>> {
    let kinds = |body: Value| {
        let items = body["input"].as_array().unwrap().iter();
        items
            .map(|item| item["type"].as_str().unwrap().to_owned())
            .collect()
    };
    let requests = server.requests().into_iter();
    requests.map(|request| kinds(request.body())).collect()
}

#[tokio::test]
async fn stateful_requests_contain_only_new_messages() {
    let server = server().await;
    let client = client(&server);
    let first = ask(&client).await.unwrap().message;
    assert_eq!(first.provider_response_id.as_deref(), Some("resp-0-0"));
    let second = go_on(&client, first).await.unwrap().message;
    assert_eq!(second.text(), "Two files.");
    assert_eq!(
        inputs(&server),
        [vec!["message"], vec!["function_call_output"]]
    );
}

#[tokio::test]
async fn a_lost_response_is_replaced_by_the_conversation_once() {
    let server = server().await;
    let client = client(&server);
    let mut first = ask(&client).await.unwrap().message;
    first.provider_response_id = Some("resp_of_last_year".to_owned());
    let second = go_on(&client, first).await.unwrap().message;
    assert_eq!(second.text(), "Two files.");
    let whole = vec![
        "message",
        "reasoning",
        "function_call",
        "function_call_output",
    ];
    let refused = vec!["function_call_output"];
    assert_eq!(inputs(&server), [vec!["message"], refused, whole]);
}

#[tokio::test]
async fn stored_reasoning_cannot_be_resent() {
    let server = server().await;
    let client = client(&server);
    let mut first = ask(&client).await.unwrap().message;
    first.provider_response_id = Some("resp_of_last_year".to_owned());
    first.blocks.insert(
        0,
        AssistantBlock::ReasoningRef {
            id: "rs_gone".to_owned(),
            content: None,
            summary: Vec::new(),
        },
    );
    let error = go_on(&client, first).await.unwrap_err();
    assert_eq!(error.kind(), LlmErrorKind::Unsupported, "{error}");
}

#[tokio::test]
async fn encrypted_reasoning_is_requested_until_rejected() {
    let message = "Encrypted content is not supported with this model.";
    let body =
        json!({"error": {"message": message, "type": "invalid_request_error", "param": "include"}});
    let refused = Fault::Reply(Reply::new(400, "application/json", body.to_string()));
    let turn = Turn::text("Hi").fault(refused);
    let server = ScriptedServer::start(Script::new().turn(turn))
        .await
        .unwrap();
    let client = client(&server);
    for _ in 0..2 {
        ask(&client).await.unwrap();
    }
    let asked = server.requests().into_iter();
    let asked: Vec<_> = asked.map(|it| it.body().get("include").is_some()).collect();
    assert_eq!(asked, [true, false, false]);
}
