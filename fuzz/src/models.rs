//! Answers of model providers.

use std::time::Duration;

use cantle_clients::anthropic::AnthropicClient;
use cantle_clients::chat::ChatClient;
use cantle_clients::responses::ResponsesClient;
use cantle_clients::retry::RetryPolicy;
use cantle_clients::sse::EventParser;
use cantle_core::llm::{ChatRequest, LlmClient};
use cantle_core::message::Message;
use futures_util::StreamExt as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::time::timeout;

use crate::{block_on, variant};

const DEADLINE: Duration = Duration::from_secs(5);

/// A stream of server-sent events gives the same events in one piece and in many.
pub(crate) fn events(data: &[u8]) {
    let Some((size, data)) = variant(data) else {
        return;
    };
    let parse = |size: usize| {
        let (mut parser, mut events) = (EventParser::default(), Vec::new());
        for chunk in data.chunks(size) {
            parser.push(chunk);
            while let Some(event) = parser.next_event() {
                let event = event.map(|it| (it.name.map(str::to_owned), it.data.into_owned()));
                events.push(event.ok());
            }
        }
        events
    };
    assert_eq!(parse(size.max(1)), parse(data.len().max(1)));
}

/// The body of an answer, streaming or not, in each dialect.
pub(crate) fn answers(data: &[u8]) {
    let Some((kind, body)) = variant(data) else {
        return;
    };
    block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let streams = kind / 3 % 2 == 0;
        let client: Box<dyn LlmClient> = match kind % 3 {
            0 => Box::new(
                ChatClient::builder("m")
                    .base_url(url)
                    .stream(streams)
                    .retry(RetryPolicy::never())
                    .build()
                    .unwrap(),
            ),
            1 => Box::new(
                ResponsesClient::builder("m")
                    .base_url(url)
                    .stream(streams)
                    .retry(RetryPolicy::never())
                    .build()
                    .unwrap(),
            ),
            _ => Box::new(
                AnthropicClient::builder("m")
                    .base_url(url)
                    .api_key("k")
                    .stream(streams)
                    .retry(RetryPolicy::never())
                    .build()
                    .unwrap(),
            ),
        };
        let answer = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = [0; 8192];
            let _ = stream.read(&mut request).await;
            let kind = ["application/json", "text/event-stream"][usize::from(streams)];
            let head = format!(
                "HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
                body.len()
            );
            let _ = stream.write_all(head.as_bytes()).await;
            let _ = stream.write_all(body).await;
            let _ = stream.shutdown().await;
        };
        let ask = async {
            let request = ChatRequest::new(vec![Message::user("Hi").into()], Default::default());
            let mut events = client.stream(request);
            while let Some(event) = events.next().await {
                if event.is_err() {
                    break;
                }
            }
        };
        let both = timeout(DEADLINE, async { tokio::join!(answer, ask) });
        both.await.expect("the client ends with the answer");
    });
}
