//! Helpers of these tests.

use std::net::Ipv4Addr;
use std::time::Duration;

use cantle_clients::chat::{ChatClient, ChatClientBuilder};
use cantle_clients::retry::RetryPolicy;
use cantle_core::llm::{
    ChatEvent, ChatRequest, Completion, LlmClient as _, LlmClientExt as _, LlmError,
};
use cantle_core::message::Message;
use cantle_testkit::openai::{Script, ScriptedServer, ServerOptions, Turn};
use futures_util::StreamExt as _;
use tokio::net::TcpSocket;

/// The longest wait of a test.
pub(crate) const DEADLINE: Duration = Duration::from_secs(120);

pub(crate) const MODES: [bool; 2] = [true, false];

pub(crate) async fn serve(turn: Turn) -> ScriptedServer {
    serve_with(Script::new().turn(turn)).await
}

pub(crate) async fn serve_with(options: impl Into<ServerOptions>) -> ScriptedServer {
    ScriptedServer::start(options).await.unwrap()
}

pub(crate) fn builder(url: &str, streams: bool) -> ChatClientBuilder {
    ChatClient::builder("scripted")
        .base_url(url)
        .stream(streams)
}

pub(crate) fn request() -> ChatRequest {
    ChatRequest::new(vec![Message::user("Hi").into()], Default::default())
}

pub(crate) async fn complete(client: &ChatClient) -> Result<Completion, LlmError> {
    tokio::time::timeout(DEADLINE, client.complete(request()))
        .await
        .expect("no end within the deadline")
}

/// Reserves an address, at which nothing listens, until it is dropped.
pub(crate) fn taken() -> TcpSocket {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    socket
}

/// All that a call tells, up to its end or its failure.
pub(crate) async fn told(client: &ChatClient) -> (Vec<ChatEvent>, Option<LlmError>) {
    let mut stream = client.stream(request());
    let (mut events, mut failed) = (Vec::new(), None);
    let all = async {
        while let Some(event) = stream.next().await {
            match event {
                Ok(event) => events.push(event),
                Err(error) => failed = Some(error),
            }
        }
    };
    tokio::time::timeout(DEADLINE, all)
        .await
        .expect("no end within the deadline");
    (events, failed)
}

/// Retries that end soon.
pub(crate) fn quick() -> RetryPolicy {
    let short = Duration::from_millis(5);
    RetryPolicy::default()
        .with_period(10 * short)
        .with_backoff(short, short)
}

/// The failure of a client that doesn't retry, streaming or not.
pub(crate) async fn failure(server: &ScriptedServer, streams: bool) -> LlmError {
    let client = builder(&server.url(), streams).retry(RetryPolicy::never());
    complete(&client.build().unwrap()).await.unwrap_err()
}
