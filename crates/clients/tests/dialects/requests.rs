//! Request parameters beside the conversation, and requests refused before they are sent.

use cantle_clients::anthropic::{AnthropicClient, AnthropicClientBuilder};
use cantle_clients::chat::{ChatClient, ChatClientBuilder, Server};
use cantle_clients::http::{Dialect, HttpClientBuilder};
use cantle_clients::responses::{ResponsesClient, ResponsesClientBuilder};
use cantle_core::content::{Content, Media, Part};
use cantle_core::llm::{
    ChatRequest, InputModalities, LlmClient as _, LlmClientExt as _, LlmErrorKind, Prices,
    ToolSpecs,
};
use cantle_core::message::{AssistantBlock, AssistantMessage, Message};
use cantle_core::tool::ToolSpec;
use cantle_testkit::openai::{Fault, Reply, Script, ScriptedServer, Turn, Usage};
use serde_json::{Map, Value, json};

use crate::support::{ask, request};

fn extra(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(fields) => fields,
        other => panic!("{other}"),
    }
}

#[tokio::test]
async fn options_are_encoded() {
    let server = ScriptedServer::start(Script::new().turn(Turn::text("Hi")))
        .await
        .unwrap();
    let anthropic = AnthropicClient::builder("m").base_url(server.url());
    let responses = ResponsesClient::builder("m").base_url(server.url());
    ask(&anthropic.stream(false).build().unwrap())
        .await
        .unwrap();
    let anthropic = AnthropicClient::builder("m")
        .base_url(server.url())
        .api_key(" sk-1 ")
        .max_output_tokens(9_000)
        .thinking_budget(2_000)
        .extra(extra(json!({"metadata": {"user_id": "u"}})));
    ask(&anthropic.build().unwrap()).await.unwrap();
    ask(&responses.build().unwrap()).await.unwrap();
    let responses = ResponsesClient::builder("m")
        .base_url(server.url())
        .stream(false)
        .stateful(true)
        .max_output_tokens(9_000)
        .reasoning_effort("high")
        .extra(extra(json!({"service_tier": "flex"})));
    ask(&responses.build().unwrap()).await.unwrap();

    let requests = server.requests();
    let bodies: Vec<_> = requests
        .iter()
        .map(|request| String::from_utf8_lossy(&request.raw).into_owned())
        .collect();
    insta::assert_snapshot!(bodies.join("\n"));
    let header = |name| requests[1].headers.get(name).unwrap().to_str().unwrap();
    assert_eq!(header("x-api-key"), "sk-1");
    assert_eq!(header("anthropic-version"), "2023-06-01");
}

#[test]
fn invalid_options_are_rejected_with_a_reason() {
    let anthropic: [fn(AnthropicClientBuilder) -> AnthropicClientBuilder; 8] = [
        |b| b.thinking_budget(1_000),
        |b| b.max_output_tokens(2_000).thinking_budget(2_000),
        |b| {
            b.thinking_budget(2_000)
                .extra(extra(json!({"thinking": {"type": "adaptive"}})))
        },
        |b| b.temperature(f64::NAN),
        |b| b.temperature(0.5).extra(extra(json!({"temperature": 1}))),
        |b| {
            b.reasoning_effort("high")
                .extra(extra(json!({"output_config": {}})))
        },
        |b| b.extra(extra(json!({"system": "x"}))),
        |b| b.base_url("https://api.anthropic.com/v1/messages"),
    ];
    let responses: [fn(ResponsesClientBuilder) -> ResponsesClientBuilder; 4] = [
        |b| {
            b.reasoning_effort("low")
                .extra(extra(json!({"reasoning": {"summary": "auto"}})))
        },
        |b| b.extra(extra(json!({"store": true}))),
        |b| b.extra(extra(json!({"previous_response_id": "resp_1"}))),
        |b| b.extra(extra(json!({"instructions": "x"}))),
    ];
    let mut errors = Vec::new();
    for change in anthropic {
        errors.push(change(AnthropicClient::builder("m")).build().unwrap_err());
    }
    for change in responses {
        errors.push(change(ResponsesClient::builder("m")).build().unwrap_err());
    }
    let texts: Vec<_> = errors
        .iter()
        .map(|error| {
            assert_eq!(error.kind(), LlmErrorKind::InvalidRequest);
            error.to_string()
        })
        .collect();
    insta::assert_snapshot!(texts.join("\n"));
}

#[test]
fn effort_and_temperature_are_sent_as_each_provider_names_them() {
    fn params<D: Dialect>(builder: HttpClientBuilder<D>) -> Value {
        let builder = builder.reasoning_effort("high").temperature(0.5);
        let client = builder.build().unwrap();
        let body = client.request_body(&request([])).unwrap();
        let mut body: Value = serde_json::from_slice(&body).unwrap();
        let fields = body.as_object_mut().unwrap();
        fields.retain(|name, _| {
            [
                "reasoning",
                "effort",
                "output_config",
                "temperature",
                "thinking",
            ]
            .iter()
            .any(|part| name.contains(part))
        });
        let set = json!({"reasoning_effort": "high", "temperature": 0.5});
        assert_eq!(Value::Object(client.model().parameters.clone()), set);
        body
    }
    let plain = json!({"reasoning_effort": "high", "temperature": 0.5});
    assert_eq!(params(ChatClient::builder("m")), plain);
    let nested = json!({"reasoning": {"effort": "high"}, "temperature": 0.5});
    let router = ChatClient::builder("m").server(Server::OpenRouter);
    assert_eq!(params(router), nested);
    assert_eq!(params(ResponsesClient::builder("m")), nested);

    let adaptive = json!({
        "output_config": {"effort": "high"}, "temperature": 0.5, "thinking": {"type": "adaptive"},
    });
    for model in [
        "claude-opus-5",
        "claude-sonnet-4-6",
        "claude-opus-4-10",
        "claude-opus-4-7@default",
        "anthropic/claude-opus-4.7",
        "anthropic.claude-opus-4-6-v1",
        "m",
    ] {
        assert_eq!(params(AnthropicClient::builder(model)), adaptive, "{model}");
    }
    let budget = json!({
        "temperature": 0.5, "thinking": {"type": "enabled", "budget_tokens": 25_600},
    });
    for model in [
        "claude-haiku-4-5-20251001",
        "claude-opus-4-1",
        "claude-sonnet-4-20250514",
        "claude-opus-4",
        "claude-opus-4-5@20251101",
        "claude-sonnet-4@20250514",
        "anthropic/claude-opus-4.5",
        "claude-3-7-sonnet-latest",
    ] {
        assert_eq!(params(AnthropicClient::builder(model)), budget, "{model}");
    }
}

#[test]
fn the_default_output_limit_leaves_room_for_thinking() {
    for (model, expected) in [
        ("claude-opus-5-5", 64_000),
        ("claude-sonnet-4-6", 64_000),
        ("claude-opus-4-1", 32_000),
        ("m", 32_000),
    ] {
        let client = AnthropicClient::builder(model).build().unwrap();
        let body = client.request_body(&request([])).unwrap();
        let body: Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(body["max_tokens"], expected, "{model}");
    }
}

#[test]
fn mistral_gets_a_cache_key_instead_of_stream_options() {
    let params = |parameters: Value| {
        let client = ChatClient::builder("m").base_url("https://api.mistral.ai/v1");
        let client = client.extra(extra(parameters)).build().unwrap();
        let body = client.request_body(&request([])).unwrap();
        let body: Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(
            (&body["stream"], body.get("stream_options")),
            (&json!(true), None)
        );
        body["prompt_cache_key"].as_str().unwrap().to_owned()
    };
    assert!(params(json!({})).starts_with("cantle-"));
    assert_ne!(params(json!({})), params(json!({})));
    assert_eq!(params(json!({"prompt_cache_key": "mine"})), "mine");
}

#[tokio::test]
async fn thinking_of_another_conversation_is_dropped_once_it_was_rejected() {
    let message = "messages.3.content.0: The block is bound to a different conversation.";
    let body =
        json!({"type": "error", "error": {"type": "invalid_request_error", "message": message}});
    let refused = Fault::Reply(Reply::new(400, "application/json", body.to_string()));
    let turn = Turn::text("Hi").fault(refused);
    let server = ScriptedServer::start(Script::new().turn(turn))
        .await
        .unwrap();
    let client = AnthropicClient::builder("m")
        .base_url(server.url())
        .reasoning_effort("high")
        .build()
        .unwrap();
    for _ in 0..2 {
        ask(&client).await.unwrap();
    }
    let requests = server.requests().into_iter();
    let sent: Vec<_> = requests
        .map(|request| {
            let beta = request.headers.get("anthropic-beta");
            let beta = beta.map(|value| value.to_str().unwrap().to_owned());
            (beta, request.body()["thinking"].clone())
        })
        .collect();
    let dropping = (
        Some("thinking-binding-controls-2026-08-01".to_owned()),
        json!({"type": "adaptive", "block_binding": {"prefix_mismatch_behavior": "drop_block"}}),
    );
    let usual = (None, json!({"type": "adaptive"}));
    assert_eq!(sent, [usual, dropping.clone(), dropping]);
}

#[tokio::test]
async fn thinking_that_a_model_behind_a_proxy_rejects_is_left_out() {
    let message = "litellm.BadRequestError: AnthropicException - messages.1.content.0: Invalid `signature` in \
        `thinking` block. The block is bound to a different conversation.";
    let body = json!({"error": {"message": message, "type": null, "code": "400"}});
    let refused = Fault::Reply(Reply::new(400, "application/json", body.to_string()));
    let script = Script::new()
        .turn(Turn::text("Hello."))
        .turn(Turn::text("Bye.").fault(refused));
    let server = ScriptedServer::start(script).await.unwrap();
    let client = ChatClient::builder("anthropic/claude")
        .base_url(server.url())
        .server(Server::LiteLlm)
        .build()
        .unwrap();
    let thinking = AssistantBlock::SignedReasoning {
        signature: "sig".to_owned(),
        content: "Hm.".to_owned(),
    };
    let turn = AssistantMessage::new(vec![thinking, AssistantBlock::text("Hello.")]);
    let conversation = request([Message::user("Hi"), turn.into(), Message::user("Bye")]);
    let answer = client.complete(conversation).await.unwrap();
    assert_eq!(answer.message.text(), "Bye.");
    let requests = server.requests().into_iter();
    let sent: Vec<_> = requests
        .map(|request| request.body()["messages"][1].clone())
        .collect();
    let text = json!([{"type": "text", "text": "Hello."}]);
    let thinking = json!([{"type": "thinking", "thinking": "Hm.", "signature": "sig"}]);
    let whole = json!({
        "role": "assistant", "content": text, "reasoning_content": "Hm.", "thinking_blocks": thinking,
    });
    let rest = json!({"role": "assistant", "content": text});
    assert_eq!(sent, [whole, rest]);
}

#[tokio::test]
async fn unsupported_media_fail_before_sending() {
    let server = ScriptedServer::start(Script::new().turn(Turn::text("Hi")))
        .await
        .unwrap();
    let client = AnthropicClient::builder("m")
        .base_url(server.url())
        .input_modalities(InputModalities::text_only())
        .build()
        .unwrap();
    let image = Media::image(&b"\x89PNG\r\n\x1a\n"[..]).unwrap();
    let content = Content::from(vec![Part::Media(image)]);
    let error = client.complete(request([Message::user(content)])).await;
    let error = error.unwrap_err();
    assert_eq!(error.kind(), LlmErrorKind::Unsupported);
    assert_eq!(
        error.to_string(),
        "the conversation holds images, and `m` takes text there"
    );
    assert_eq!(server.requests().len(), 0);
}

#[test]
fn list_prices_and_windows_give_way_to_options() {
    fn known<D: Dialect>(builder: HttpClientBuilder<D>) -> (Option<u64>, Option<bool>) {
        let client = builder.build().unwrap();
        let model = client.model();
        let prices = model.prices.as_ref();
        (
            model.context_window,
            prices.map(|prices| prices.list_date().is_some()),
        )
    }
    let gpt = || ChatClient::builder("gpt-5");
    assert_eq!(known(gpt()), (Some(400_000), Some(true)));
    let claude = AnthropicClient::builder("claude-haiku-4-5-20251001");
    assert_eq!(known(claude), (Some(200_000), Some(true)));
    assert_eq!(known(ChatClient::builder("m")), (None, None));
    assert_eq!(
        known(gpt().base_url("http://localhost:8000/v1")),
        (None, None)
    );

    let own = gpt()
        .context_window(9_000)
        .prices(Prices::per_million(1.0, 2.0));
    assert_eq!(known(own), (Some(9_000), Some(false)));
    // A window that the output limit exceeds must be wrong.
    assert_eq!(known(gpt().max_output_tokens(500_000)).0, None);
    let flex = extra(json!({"service_tier": "flex"}));
    assert_eq!(known(gpt().extra(flex)), (Some(400_000), None));
}

#[tokio::test]
async fn costs_are_computed_from_prices() {
    let turn = Turn::text("Hi").usage(Usage::new(1_000_000, 100_000).cached(500_000));
    let server = ScriptedServer::start(Script::new().turn(turn))
        .await
        .unwrap();
    let prices = Prices::per_million(3.0, 15.0).with_cache_per_million(0.3, 3.75);
    let client = AnthropicClient::builder("m")
        .base_url(server.url())
        .prices(prices);
    let cost = ask(&client.build().unwrap())
        .await
        .unwrap()
        .cost_usd
        .unwrap();
    assert!((cost - 3.15).abs() < 1e-9, "{cost}");
}

/// The tools of a request, by name, and whether each is held to strictly.
fn strictness(body: &[u8]) -> Vec<(String, Value)> {
    let body: Value = serde_json::from_slice(body).unwrap();
    let tools = body["tools"].as_array().unwrap().iter();
    let told = tools.map(|tool| {
        let tool = tool.get("function").unwrap_or(tool);
        (
            tool["name"].as_str().unwrap().to_owned(),
            tool["strict"].clone(),
        )
    });
    told.collect()
}

#[test]
fn strict_mode_applies_to_qualifying_schemas() {
    let closed = json!({"type": "object", "properties": {"at": {"type": "string"}},
        "required": ["at"], "additionalProperties": false});
    let open = json!({"type": "object", "properties": {"at": {"type": "string"}}});
    let tools = ToolSpecs::new(vec![
        ToolSpec::new("closed", "", closed),
        ToolSpec::new("open", "", open),
        ToolSpec::new("bare", "", json!({"type": "object", "properties": {}})),
    ]);
    let request = ChatRequest::new(vec![Message::user("Hi").into()], tools);
    let chat = |server, strict| {
        let client = ChatClient::builder("m").server(server).strict_tools(strict);
        strictness(&client.build().unwrap().request_body(&request).unwrap())
    };
    let responses = |strict| {
        let client = ResponsesClient::builder("m").strict_tools(strict);
        strictness(&client.build().unwrap().request_body(&request).unwrap())
    };
    let named = |values: [Value; 3]| {
        let names = ["closed", "open", "bare"].map(str::to_owned);
        names.into_iter().zip(values).collect::<Vec<_>>()
    };
    let null = Value::Null;
    let none = named([null.clone(), null.clone(), null.clone()]);
    let (yes, no) = (Value::Bool(true), Value::Bool(false));
    // The same request both ways, so that what one client encoded is not what the other sends.
    assert_eq!(chat(Server::OpenAi, false), none);
    assert_eq!(
        chat(Server::OpenAi, true),
        named([yes.clone(), null.clone(), null])
    );
    assert_eq!(chat(Server::Groq, true), none);
    assert_eq!(
        responses(false),
        named([no.clone(), no.clone(), no.clone()])
    );
    assert_eq!(responses(true), named([yes, no.clone(), no]));
}

#[test]
fn reports_cost_is_derived_from_the_server() {
    let chat = |builder: ChatClientBuilder| builder.build().unwrap().model().reports_cost;
    let at = |url: &str| ChatClient::builder("m").base_url(url);
    assert_eq!(chat(ChatClient::builder("m")), Some(false));
    assert_eq!(chat(at("https://openrouter.ai/api/v1")), Some(true));
    assert_eq!(chat(at("http://localhost:8000/v1")), None);
    assert_eq!(
        chat(at("http://localhost:8000/v1").server(Server::Vllm)),
        Some(false)
    );
    assert_eq!(
        chat(at("http://localhost:4000/v1").server(Server::LiteLlm)),
        Some(true)
    );
    let own = [
        AnthropicClient::builder("m")
            .build()
            .unwrap()
            .model()
            .reports_cost,
        ResponsesClient::builder("m")
            .build()
            .unwrap()
            .model()
            .reports_cost,
    ];
    assert_eq!(own, [Some(false); 2]);
}
