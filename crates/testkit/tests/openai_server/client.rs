//! Plain HTTP client with its requests and answers.

use std::time::Duration;

use bytes::Bytes;
use cantle_testkit::openai::ScriptedServer;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Limit of every wait.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

/// Returns a request after `turns` turns of the model.
pub(crate) fn conversation(turns: usize) -> Value {
    let mut messages = vec![
        json!({"role": "system", "content": "work"}),
        json!({"role": "user", "content": "task"}),
    ];
    for turn in 0..turns {
        let id = format!("call_{turn}_0");
        messages.push(json!({"role": "assistant", "content": null, "tool_calls": [{"id": id}]}));
        messages.push(json!({"role": "tool", "tool_call_id": id, "content": "ok"}));
    }
    json!({"model": "m", "messages": messages})
}

pub(crate) fn streaming(mut request: Value) -> Value {
    request["stream"] = json!(true);
    request["stream_options"] = json!({"include_usage": true});
    request
}

pub(crate) fn content(answer: &Value) -> String {
    answer["choices"][0]["message"]["content"]
        .as_str()
        .unwrap()
        .to_owned()
}

/// Assembles the message and the finish reason of a stream, in the form of a whole answer.
pub(crate) fn fold(events: &[Value]) -> (Value, Value) {
    let mut message = json!({"role": "assistant", "content": null, "refusal": null});
    let mut finish = Value::Null;
    for choice in events
        .iter()
        .filter_map(|event| event.pointer("/choices/0"))
    {
        for field in ["content", "reasoning_content"] {
            append(&mut message, field, &choice["delta"][field]);
        }
        for part in choice["delta"]["tool_calls"]
            .as_array()
            .into_iter()
            .flatten()
        {
            if !message["tool_calls"].is_array() {
                message["tool_calls"] = json!([]);
            }
            let calls = message["tool_calls"].as_array_mut().unwrap();
            let index = usize::try_from(part["index"].as_u64().unwrap()).unwrap();
            if index == calls.len() {
                let mut call = part.clone();
                call.as_object_mut().unwrap().remove("index");
                calls.push(call);
            } else {
                let arguments = &part["function"]["arguments"];
                append(&mut calls[index]["function"], "arguments", arguments);
            }
        }
        if choice["finish_reason"].is_string() {
            finish = choice["finish_reason"].clone();
        }
    }
    (message, finish)
}

fn append(object: &mut Value, field: &str, piece: &Value) {
    if let Some(piece) = piece.as_str() {
        let before = object[field].as_str().unwrap_or_default();
        object[field] = json!(format!("{before}{piece}"));
    }
}

/// Answer received by the client.
#[derive(Debug)]
pub(crate) struct Got {
    pub(crate) status: u16,
    pub(crate) headers: http::HeaderMap,
    pub(crate) text: String,
    /// Sizes of the body's frames.
    pub(crate) pieces: Vec<usize>,
    /// Whether the body ended correctly.
    pub(crate) complete: bool,
}

impl Got {
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers[name].to_str().unwrap()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap()
    }

    pub(crate) fn events(&self) -> Vec<Value> {
        let data = self
            .text
            .lines()
            .filter_map(|line| line.strip_prefix("data: "));
        data.map(|data| match data {
            "[DONE]" => json!(data),
            data => serde_json::from_str(data).unwrap(),
        })
        .collect()
    }
}

pub(crate) async fn ask(server: &ScriptedServer, request: &Value) -> Got {
    let body = request.to_string();
    send(&server.url(), "POST", "/v1/chat/completions", &[], &body)
        .await
        .unwrap()
}

/// Sends one request on a new connection.
pub(crate) async fn send(
    url: &str,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> hyper::Result<Got> {
    let mut request = http::Request::builder().method(method).uri(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.body(Full::from(body.to_owned())).unwrap();
    let exchanged = async { exchange(&mut connect(url).await, request).await };
    timeout(DEADLINE, exchanged).await.unwrap()
}

pub(crate) async fn exchange(
    connection: &mut SendRequest<Full<Bytes>>,
    request: http::Request<Full<Bytes>>,
) -> hyper::Result<Got> {
    connection.ready().await?;
    let (head, mut body) = connection.send_request(request).await?.into_parts();
    let (mut bytes, mut pieces, mut complete) = (Vec::new(), Vec::new(), true);
    while let Some(frame) = body.frame().await {
        match frame {
            Ok(frame) => {
                let data = frame.into_data().unwrap();
                pieces.push(data.len());
                bytes.extend(data);
            }
            Err(_) => {
                complete = false;
                break;
            }
        }
    }
    let text = String::from_utf8(bytes).unwrap();
    Ok(Got {
        status: head.status.as_u16(),
        headers: head.headers,
        text,
        pieces,
        complete,
    })
}

/// Connection that owns its task.
pub(crate) async fn connect(url: &str) -> SendRequest<Full<Bytes>> {
    let stream = TcpStream::connect(address(url)).await.unwrap();
    let (sender, connection) = handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    sender
}

pub(crate) fn address(url: &str) -> &str {
    url.strip_prefix("http://")
        .and_then(|rest| rest.strip_suffix("/v1"))
        .unwrap()
}
