//! Requests repeat earlier messages byte for byte: provider caches match equal prefixes.

use cantle_clients::anthropic::AnthropicClient;
use cantle_clients::chat::{ChatClient, Server};
use cantle_clients::responses::ResponsesClient;
use cantle_core::content::{Content, Media, Part};
use cantle_core::llm::{ChatRequest, LlmError, ToolSpecs};
use cantle_core::message::{
    AssistantBlock, AssistantMessage, Message, SharedMessage, ToolCall, ToolMessage,
};
use cantle_core::tool::ToolSpec;
use proptest::prelude::Strategy;
use proptest::test_runner::{Config, TestRunner};
use serde_json::json;

const MARK: &str = ",\"cache_control\":{\"type\":\"ephemeral\"}";

/// A client of every dialect, and one of a server that wants marks in the same dialect.
struct Clients {
    chat: [ChatClient; 2],
    anthropic: AnthropicClient,
    responses: ResponsesClient,
}

impl Clients {
    fn new() -> Self {
        // Nothing is sent, and an address without TLS is made ready faster.
        let url = "http://localhost/v1";
        let chat = |server| {
            let client = ChatClient::builder("anthropic/claude").base_url(url);
            client.server(server).build().unwrap()
        };
        Self {
            chat: [chat(Server::Unknown), chat(Server::OpenRouter)],
            anthropic: AnthropicClient::builder("m").base_url(url).build().unwrap(),
            responses: ResponsesClient::builder("m").base_url(url).build().unwrap(),
        }
    }

    /// The bodies of a request, without what stands behind the conversation and without the marks of
    /// caches, which move on with it.
    fn bodies(&self, request: &ChatRequest) -> Vec<String> {
        let bodies = [
            self.chat[0].request_body(request),
            self.chat[1].request_body(request),
            self.anthropic.request_body(request),
            self.responses.request_body(request),
        ];
        let unmarked = |body: Result<Vec<u8>, LlmError>| {
            let body = String::from_utf8(body.unwrap()).unwrap();
            body.replace(MARK, "")
                .trim_end_matches(['}', ']'])
                .to_owned()
        };
        bodies.map(unmarked).into()
    }
}

fn any_content() -> impl Strategy<Value = Content> {
    ("(?s).{1,40}", proptest::bool::ANY).prop_map(|(text, image)| {
        let png = Media::image(&b"\x89PNG\r\n\x1a\n"[..]).unwrap();
        match image {
            true => vec![Part::Text(text), Part::Media(png)].into(),
            false => text.into(),
        }
    })
}

/// A turn with calls, their results, and sometimes a word of the user.
fn any_turn() -> impl Strategy<Value = Vec<Message>> {
    let calls = proptest::collection::vec((".{0,20}", any_content(), proptest::bool::ANY), 0..3);
    let user = proptest::option::of(any_content());
    ("(?s).{1,40}", calls, user).prop_map(|(text, calls, user)| {
        let mut blocks = vec![AssistantBlock::text(text)];
        let mut results = Vec::new();
        for (at, (argument, content, success)) in calls.into_iter().enumerate() {
            let arguments = json!({"text": argument}).to_string();
            let call = ToolCall::new(Some(format!("call_{at}")), "look", arguments);
            let mut result = ToolMessage::new(&call, content);
            result.success = success;
            results.push(result.into());
            blocks.push(AssistantBlock::ToolCall(call));
        }
        let turn = Message::Assistant(AssistantMessage::new(blocks));
        let user = user.unwrap_or_else(|| "Go on.".into());
        [turn]
            .into_iter()
            .chain(results)
            .chain([Message::user(user)])
            .collect()
    })
}

#[test]
fn requests_extend_the_previous_request() {
    let clients = Clients::new();
    let tools = ToolSpecs::new(vec![
        ToolSpec::new(
            "look",
            "Looks.",
            json!({"type": "object", "properties": {}}),
        ),
        ToolSpec::new("act", "Acts.", json!({"type": "object", "properties": {}})),
    ]);
    let bodies = |messages: &[SharedMessage]| {
        clients.bodies(&ChatRequest::new(messages.to_vec(), tools.clone()))
    };
    let conversation = (any_content(), proptest::collection::vec(any_turn(), 1..5));
    let mut runner = TestRunner::new(Config::with_cases(64));
    let checked = runner.run(&conversation, |(task, turns)| {
        let mut messages: Vec<SharedMessage> = vec![
            Message::system("Be brief.").into(),
            Message::user(task).into(),
        ];
        let mut before = bodies(&messages);
        for turn in turns {
            messages.extend(turn.into_iter().map(SharedMessage::new));
            let now = bodies(&messages);
            for (before, now) in before.iter().zip(&now) {
                assert!(now.starts_with(before), "{before}\n{now}");
            }
            before = now;
        }
        Ok(())
    });
    checked.unwrap();
}
