//! The model information of a LiteLLM proxy, and its use.

use std::net::Ipv4Addr;

use cantle_clients::chat::ChatClient;
use cantle_core::content::MediaKind;
use cantle_core::llm::{LlmClient as _, LlmErrorKind, ModelInfo, Prices};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

async fn read_head(connection: &mut TcpStream) -> Vec<u8> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(connection.read_u8().await.unwrap());
    }
    head
}

/// Answers one request with this, and returns its head.
async fn proxy(status: u16, body: String) -> (String, tokio::task::JoinHandle<String>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let url = format!("http://{}/v1", listener.local_addr().unwrap());
    let served = tokio::spawn(async move {
        let (mut connection, _) = listener.accept().await.unwrap();
        let head = read_head(&mut connection).await;
        let length = body.len();
        let answer = format!(
            "HTTP/1.1 {status} x\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
        );
        connection.write_all(answer.as_bytes()).await.unwrap();
        String::from_utf8(head).unwrap()
    });
    (url, served)
}

fn models() -> Value {
    json!({"data": [
        {"model_name": "other", "model_info": {"max_input_tokens": 1}},
        {"model_name": "m", "litellm_params": {}, "model_info": {
            "max_input_tokens": 9000, "input_cost_per_token": 3e-6, "output_cost_per_token": 15e-6,
            "cache_read_input_token_cost": 3e-7, "cache_creation_input_token_cost": null,
            "supports_vision": true, "supports_audio_input": false}},
        {"model_name": "m", "model_info": {"max_input_tokens": 8000}},
        {"model_name": "bare", "model_info": {"max_input_tokens": null, "input_cost_per_token": 0.0,
            "output_cost_per_token": 0.0}},
    ]})
}

async fn described(model: &str, window: Option<u64>, limit: Option<u64>) -> ModelInfo {
    let (url, served) = proxy(200, models().to_string()).await;
    let mut builder = ChatClient::builder(model).base_url(url).api_key("sk-1");
    if let Some(window) = window {
        builder = builder.context_window(window);
    }
    if let Some(limit) = limit {
        builder = builder.max_output_tokens(limit);
    }
    let client = builder
        .described_by_litellm()
        .await
        .unwrap()
        .build()
        .unwrap();
    let head = served.await.unwrap();
    assert!(
        head.starts_with("GET /v1/model/info HTTP/1.1\r\n"),
        "{head}"
    );
    assert!(head.contains("authorization: Bearer sk-1\r\n"), "{head}");
    client.model().clone()
}

#[tokio::test]
async fn missing_settings_are_filled_in() {
    let model = described("m", None, None).await;
    assert_eq!(model.context_window, Some(8000));
    let prices = Prices::per_million(3.0, 15.0).with_cache_per_million(0.3, 3.0);
    let found = model.prices.unwrap();
    for (found, expected) in [
        (found.input, prices.input),
        (found.output, prices.output),
        (found.cache_read, prices.cache_read),
        (found.cache_write, prices.cache_write),
    ] {
        assert!((found - expected).abs() < 1e-12);
    }
    let input_modalities = model.input_modalities.unwrap();
    assert_eq!(input_modalities.media, [MediaKind::Image]);
    assert_eq!(input_modalities.tool_results, [MediaKind::Image]);
}

#[tokio::test]
async fn explicit_settings_take_precedence() {
    let given = described("m", Some(5000), None).await;
    assert_eq!(given.context_window, Some(5000));
    let limited = described("m", None, Some(8001)).await;
    assert_eq!(
        (limited.context_window, limited.max_output_tokens),
        (None, Some(8001))
    );
    for model in ["bare", "not listed"] {
        assert_eq!(described(model, None, None).await, ModelInfo::new(model));
    }
}

#[tokio::test]
async fn an_error_of_the_proxy_does_not_contain_the_key() {
    let body = json!({"error": {"message": "Invalid key sk-1-secret", "type": "auth_error", "code": "401"}});
    let (url, _served) = proxy(401, body.to_string()).await;
    let builder = ChatClient::builder("m")
        .base_url(url)
        .api_key("sk-1-secret");
    let error = builder.described_by_litellm().await.unwrap_err();
    assert_eq!(error.kind(), LlmErrorKind::Authentication);
    assert!(
        error.to_string().contains("Invalid key [hidden]"),
        "{error}"
    );
}

#[tokio::test]
async fn an_endless_answer_of_the_proxy_is_cut_off() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let url = format!("http://{}/v1", listener.local_addr().unwrap());
    let served = tokio::spawn(async move {
        let (mut connection, _) = listener.accept().await.unwrap();
        read_head(&mut connection).await;
        let head = b"HTTP/1.1 200 x\r\ncontent-type: application/json\r\n\r\n";
        connection.write_all(head).await.unwrap();
        let piece = vec![b' '; 1 << 20];
        let mut sent_mebibytes = 0;
        while connection.write_all(&piece).await.is_ok() {
            sent_mebibytes += 1;
        }
        sent_mebibytes
    });
    let builder = ChatClient::builder("m").base_url(url);
    let error = builder.described_by_litellm().await.unwrap_err();
    assert!(error.to_string().contains("longer than 16 MiB"), "{error}");
    let sent_mebibytes: u64 = served.await.unwrap();
    assert!(sent_mebibytes < 64, "{sent_mebibytes} MiB were sent");
}
