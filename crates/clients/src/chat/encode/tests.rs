use cantle_core::content::{Content, Media, MediaKind, Part};
use cantle_core::llm::{ChatRequest, LlmError, LlmErrorKind, ToolSpecs};
use cantle_core::message::{AssistantBlock, AssistantMessage, Message, ToolCall, ToolMessage};
use cantle_core::tool::ToolSpec;
use proptest::prelude::{Just, Strategy, prop_oneof, proptest};
use serde_json::{Value, json};

use super::ChatEncoder;
use crate::chat::Server;
use crate::http::testing::{opaque, png, reasoning, redacted_reasoning, signed_reasoning};

const HEAD: &[u8] = br#"{"model":"m""#;

fn body(params: &[u8], request: &ChatRequest) -> Result<Vec<u8>, LlmError> {
    ChatEncoder::new(Server::Unknown, "m", false).body(params, request, None)
}

fn encoded(messages: Vec<Message>, tools: Vec<ToolSpec>) -> Vec<u8> {
    let messages = messages.into_iter().map(Into::into).collect();
    body(HEAD, &ChatRequest::new(messages, ToolSpecs::new(tools))).unwrap()
}

fn json_of(messages: Vec<Message>) -> Value {
    let body: Value = serde_json::from_slice(&encoded(messages, Vec::new())).unwrap();
    body["messages"].clone()
}

fn assistant(blocks: Vec<AssistantBlock>) -> Message {
    AssistantMessage::new(blocks).into()
}

fn call(id: &str) -> ToolCall {
    ToolCall::new(Some(id.to_owned()), "look", r#"{"at": "."}"#)
}

#[test]
fn messages_of_every_role() {
    let mut answered = ToolMessage::new(&call("call_1"), "a.txt\nb \"quoted\" é.txt");
    answered.success = true;
    let mut nameless = ToolMessage::new(&call("call_2"), "");
    nameless.name = None;
    insta::assert_json_snapshot!(json_of(vec![
        Message::system("Be brief."),
        Message::user("What is here?"),
        Message::user(""),
        assistant(vec![
            reasoning("I should "),
            reasoning("look."),
            AssistantBlock::text("Let me "),
            AssistantBlock::text("look."),
            AssistantBlock::ToolCall(call("call_1")),
            AssistantBlock::ToolCall(call("call_2")),
        ]),
        answered.into(),
        nameless.into(),
        assistant(vec![]),
    ]));
}

#[test]
fn signed_reasoning_is_sent_back_by_block() {
    let mut signed_call = call("call_1");
    signed_call.signature = Some("sig-c".to_owned());
    insta::assert_json_snapshot!(json_of(vec![assistant(vec![
        signed_reasoning("sig-a", "First."),
        redacted_reasoning("opaque"),
        AssistantBlock::SignedReasoning {
            signature: "sig-b".to_owned(),
            content: String::new()
        },
        AssistantBlock::ToolCall(signed_call),
    ])]));
}

#[test]
fn media_parts() {
    let sound = |bytes: &'static [u8]| Part::Media(Media::new(MediaKind::Audio, bytes).unwrap());
    let video = Media::new(MediaKind::Video, &b"\0\0\0\x18ftypmp42"[..]).unwrap();
    let parts = vec![
        Part::Text("Look: ".to_owned()),
        Part::Media(png()),
        Part::Text(String::new()),
        sound(b"ID3\x03"),
        sound(b"RIFF\x04\0\0\0WAVEfmt "),
        Part::Media(video),
    ];
    insta::assert_json_snapshot!(json_of(vec![
        Message::user(Content::Parts(parts)),
        Message::user(Content::Parts(vec![])),
        assistant(vec![
            AssistantBlock::text("Here: "),
            AssistantBlock::Media(png()),
            AssistantBlock::text("Done."),
        ]),
    ]));
}

#[test]
fn tool_fields_are_omitted_without_tools() {
    let spec = ToolSpec::new(
        "look",
        "Lists files.",
        json!({"type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"]}),
    );
    let bare = ToolSpec::new(
        "finish",
        "Ends.",
        json!({"type": "object", "properties": {}}),
    );
    let with = encoded(vec![Message::user("Hi")], vec![spec, bare]);
    insta::assert_snapshot!(String::from_utf8(with).unwrap());
    let without = encoded(vec![Message::user("Hi")], vec![]);
    insta::assert_snapshot!(
        String::from_utf8(without).unwrap(),
        @r#"{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"Hi"}]}]}"#
    );
}

#[test]
fn bodies_have_no_spare_capacity() {
    let body = encoded(
        vec![Message::system("x"), Message::user("y")],
        vec![ToolSpec::new("t", "d", json!({}))],
    );
    assert!(
        body.capacity() - body.len() <= 2,
        "{} {}",
        body.capacity(),
        body.len()
    );
}

#[test]
fn generated_call_ids_are_sent() {
    let call = ToolCall::new(None, "look", "{}");
    let result = ToolMessage::new(&call, "fine");
    let id = call.id.clone();
    let messages = json_of(vec![
        assistant(vec![AssistantBlock::ToolCall(call)]),
        result.into(),
    ]);
    assert_eq!(messages[0]["tool_calls"][0]["id"], json!(id));
    assert_eq!(messages[1]["tool_call_id"], json!(id));
}

#[test]
fn mistral_gets_ids_of_nine_letters_and_digits() {
    let sent = |id: &str| {
        let result = ToolMessage::new(&call(id), "fine").into();
        let messages = vec![assistant(vec![AssistantBlock::ToolCall(call(id))]), result];
        let messages = messages.into_iter().map(Into::into).collect();
        let request = ChatRequest::new(messages, ToolSpecs::default());
        let encoder = ChatEncoder::new(Server::Mistral, "m", false);
        let body = encoder.body(HEAD, &request, None).unwrap();
        let body: Value = serde_json::from_slice(&body).unwrap();
        let id = body["messages"][0]["tool_calls"][0]["id"].clone();
        assert_eq!(body["messages"][1]["tool_call_id"], id);
        id.as_str().unwrap().to_owned()
    };
    assert_eq!(sent("Ab3dEf9h1"), "Ab3dEf9h1");
    let others = ["call_1", "call_2", "toolu_0123456789abcdef"].map(sent);
    for id in &others {
        assert!(id.len() == 9 && id.bytes().all(|it| it.is_ascii_alphanumeric()));
    }
    assert!(others[0] != others[1] && others[1] != others[2]);
}

/// Many servers parse them, and refuse the whole conversation if one call is invalid.
#[test]
fn invalid_arguments_are_wrapped() {
    let sent = |arguments: &str| {
        let call = ToolCall::new(Some("a".to_owned()), "look", arguments);
        let messages = json_of(vec![assistant(vec![AssistantBlock::ToolCall(call)])]);
        messages[0]["tool_calls"][0]["function"]["arguments"].clone()
    };
    assert_eq!(sent(r#"{"n":  1.50}"#), r#"{"n":  1.50}"#);
    assert_eq!(sent(" "), "{}");
    assert_eq!(sent("{\"at\": "), r#"{"INVALID_JSON":"{\"at\": "}"#);
    assert_eq!(sent("[1]"), r#"{"INVALID_JSON":"[1]"}"#);
}

#[test]
fn names_that_providers_refuse_are_replaced() {
    let long = "é".repeat(70);
    for (name, expected) in [
        ("look-2_B", "look-2_B"),
        ("", "_"),
        ("functions.look<|channel|>", "functions_look__channel__"),
        (&*long, &*"_".repeat(64)),
    ] {
        let call = ToolCall::new(Some("a".to_owned()), name, "{}");
        let result = ToolMessage::new(&call, "no such tool");
        let messages = json_of(vec![
            assistant(vec![AssistantBlock::ToolCall(call)]),
            result.into(),
        ]);
        let sent = &messages[0]["tool_calls"][0]["function"]["name"];
        assert_eq!((sent, &messages[1]["name"]), (&json!(expected), sent));
    }
}

#[test]
fn metadata_and_times_are_not_sent() {
    let mut message = AssistantMessage::new(vec![AssistantBlock::text("Hi")]);
    message.metadata.insert("secret".to_owned(), json!("mine"));
    message.request_start_time = Some(1.0);
    message.provider_response_id = Some("resp".to_owned());
    assert_eq!(
        json_of(vec![message.into()]),
        json!([{"role": "assistant", "content": [{"type": "text", "text": "Hi"}]}])
    );
}

#[test]
fn unsupported_content_is_rejected() {
    let text = || Some("x".to_owned());
    let blocks = [
        AssistantBlock::Text {
            text: "Hi".to_owned(),
            signature: text(),
        },
        AssistantBlock::ReasoningRef {
            id: "r".to_owned(),
            content: None,
            summary: vec![],
        },
        AssistantBlock::EncryptedReasoning {
            id: "r".to_owned(),
            encrypted_content: "e".to_owned(),
            content: None,
            summary: vec![],
        },
        opaque("{}"),
    ];
    let messages: Vec<_> = blocks
        .into_iter()
        .map(|block| {
            let mut turn = AssistantMessage::new(vec![block]);
            turn.id = "turn-7".to_owned();
            let request = ChatRequest::new(vec![Message::from(turn).into()], ToolSpecs::default());
            let error = body(HEAD, &request).unwrap_err();
            assert_eq!(error.kind(), LlmErrorKind::Unsupported);
            assert!(error.advice().is_some());
            error.to_string()
        })
        .collect();
    insta::assert_json_snapshot!(messages, @r#"
    [
      "message turn-7 contains a signed `text` block, which Chat Completions cannot represent",
      "message turn-7 contains a `reasoning_ref` block, which Chat Completions cannot represent",
      "message turn-7 contains a `encrypted_reasoning` block, which Chat Completions cannot represent",
      "message turn-7 contains a `opaque` block, which Chat Completions cannot represent"
    ]
    "#);
}

/// A turn with all content that server types encode differently, between other messages.
fn server_specific_messages(signature: Option<&str>) -> Vec<Message> {
    let mut signed = call("call_1");
    signed.signature = signature.map(str::to_owned);
    let result = ToolMessage::new(&signed, "two files").into();
    vec![
        Message::system("Be brief."),
        Message::user("What is here?"),
        assistant(vec![reasoning("Hm."), AssistantBlock::ToolCall(signed)]),
        result,
        assistant(vec![AssistantBlock::ToolCall(call("call_2"))]),
        Message::user("Go on."),
    ]
}

#[test]
fn requests_match_the_server_type() {
    use Server::{
        Azure, Cerebras, DeepSeek, Fireworks, Gemini, Groq, LiteLlm, Mistral, Moonshot, Ollama,
        OpenAi, OpenRouter, Together, Unknown, Vllm,
    };
    let sent = [
        Unknown, OpenAi, Azure, OpenRouter, LiteLlm, DeepSeek, Vllm, Ollama, Groq, Together,
        Fireworks, Gemini, Mistral, Moonshot, Cerebras,
    ]
    .map(|server| {
        let sent = |signature: Option<&str>| {
            let messages = server_specific_messages(signature)
                .into_iter()
                .map(Into::into);
            let request = ChatRequest::new(messages.collect(), ToolSpecs::default());
            ChatEncoder::new(server, "anthropic/claude", false).body(HEAD, &request, Some(7))
        };
        let (signed, body) = match sent(Some("sig")) {
            Ok(body) => ("", body),
            Err(error) => {
                assert_eq!(error.kind(), LlmErrorKind::Unsupported);
                (", which refuses a signed call", sent(None).unwrap())
            }
        };
        let body: Value = serde_json::from_slice(&body).unwrap();
        format!("{server:?}{signed}\n{body}")
    });
    insta::assert_snapshot!(sent.join("\n\n"));
}

#[test]
fn unsigned_calls_get_a_signature_where_it_is_required() {
    let signed = |id: &str, signature: Option<&str>| {
        let mut call = call(id);
        call.signature = signature.map(str::to_owned);
        AssistantBlock::ToolCall(call)
    };
    let turns = [
        assistant(vec![signed("call_1", None), signed("call_2", None)]),
        assistant(vec![signed("call_3", Some("sig")), signed("call_4", None)]),
    ];
    // The same messages for every model, so that one encoding is not taken for another.
    let messages = turns.into_iter().map(Into::into).collect();
    let request = ChatRequest::new(messages, ToolSpecs::default());
    let sent = |model: &str| {
        let body = ChatEncoder::new(Server::Gemini, model, false).body(HEAD, &request, None);
        let body: Value = serde_json::from_slice(&body.unwrap()).unwrap();
        [(0, 0), (0, 1), (1, 0), (1, 1)].map(|(turn, call): (usize, usize)| {
            let call = &body["messages"][turn]["tool_calls"][call];
            let signature = call.pointer("/extra_content/google/thought_signature");
            signature.cloned().unwrap_or_default()
        })
    };
    let skip = json!("skip_thought_signature_validator");
    let (own, none) = (json!("sig"), Value::Null);
    for (model, first) in [
        ("google/gemini-2.5-pro", &none),
        ("gemini-3-pro-preview", &skip),
        ("gemini-flash-latest", &skip),
        ("meta/llama-4", &none),
    ] {
        let expected = [first, &none, &own, &none].map(Value::clone);
        assert_eq!(sent(model), expected, "{model}");
    }
}

#[test]
fn turns_without_reasoning_say_so_where_it_is_required() {
    let turn = || assistant(vec![AssistantBlock::text("Done.")]);
    let sent = |server| {
        let request = ChatRequest::new(vec![turn().into()], ToolSpecs::default());
        let body = ChatEncoder::new(server, "m", false).body(HEAD, &request, None);
        let body: Value = serde_json::from_slice(&body.unwrap()).unwrap();
        body["messages"][0].get("reasoning_content").cloned()
    };
    assert_eq!(sent(Server::DeepSeek), Some(json!(" ")));
    assert_eq!(sent(Server::Moonshot), Some(json!(" ")));
    assert_eq!(sent(Server::Fireworks), None);
}

#[test]
fn reasoning_details_are_sent_back_to_openrouter() {
    let data = r#"{"reasoning_details":[{"type":"reasoning.encrypted","data":"x"}]}"#;
    let turn = || {
        assistant(vec![
            reasoning("Hm."),
            AssistantBlock::Opaque {
                data: data.to_owned(),
            },
        ])
    };
    let request = || ChatRequest::new(vec![turn().into()], ToolSpecs::default());
    let sent = ChatEncoder::new(Server::OpenRouter, "m", false).body(HEAD, &request(), None);
    assert_eq!(
        String::from_utf8(sent.unwrap()).unwrap(),
        format!(
            r#"{{"model":"m","messages":[{{"role":"assistant","content":"",{}]}}"#,
            data.trim_start_matches('{')
        )
    );
    let elsewhere = ChatEncoder::new(Server::OpenAi, "m", false).body(HEAD, &request(), None);
    assert_eq!(elsewhere.unwrap_err().kind(), LlmErrorKind::Unsupported);
}

#[test]
fn unsupported_media_errors_name_the_supported_types() {
    let video = Media::new(MediaKind::Video, &b"\0\0\0\x18ftypmp42"[..]).unwrap();
    let message = Message::user(Content::Parts(vec![Part::Media(video)]));
    let request = ChatRequest::new(vec![message.into()], ToolSpecs::default());
    let error = ChatEncoder::new(Server::Groq, "m", false)
        .body(HEAD, &request, None)
        .unwrap_err();
    assert_eq!(
        (error.kind(), error.to_string()),
        (
            LlmErrorKind::Unsupported,
            "the conversation contains video of type video/mp4, but this server accepts only text and \
             images"
                .to_owned()
        )
    );
}

fn any_message() -> impl Strategy<Value = Message> {
    let text = "(?s).{0,40}";
    prop_oneof![
        text.prop_map(Message::system),
        text.prop_map(Message::user),
        text.prop_map(|text| {
            Message::user(Content::Parts(vec![Part::Text(text), Part::Media(png())]))
        }),
        (text, text, text).prop_map(|(reasoning, text, arguments)| {
            assistant(vec![
                AssistantBlock::Reasoning { content: reasoning },
                AssistantBlock::text(text),
                AssistantBlock::ToolCall(ToolCall::new(None, "f", arguments)),
            ])
        }),
        text.prop_map(|text| ToolMessage::new(&call("c"), text).into()),
    ]
}

proptest! {
    /// Provider caches hit on equal beginnings, so nothing that was sent may ever change.
    #[test]
    fn requests_extend_the_previous_request(
        messages in proptest::collection::vec(any_message(), 1..8),
        tools in prop_oneof![Just(vec![]), Just(vec![ToolSpec::new("t", "d", json!({}))])],
    ) {
        let tools = ToolSpecs::new(tools);
        let shared: Vec<_> = messages.into_iter().map(Into::into).collect();
        let mut before: Option<Vec<u8>> = None;
        for end in 1..=shared.len() {
            let request = ChatRequest::new(shared[..end].to_vec(), tools.clone());
            let body = body(HEAD, &request).unwrap();
            serde_json::from_slice::<Value>(&body).unwrap();
            if let Some(before) = before {
                assert!(body.starts_with(&before[..before.len() - 2]));
            }
            before = Some(body);
        }
    }
}
