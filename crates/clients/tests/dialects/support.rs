//! Helpers of these tests.

use std::sync::Arc;
use std::time::Duration;

use cantle_clients::anthropic::AnthropicClient;
use cantle_clients::chat::{ChatClient, Timeouts};
use cantle_clients::responses::ResponsesClient;
use cantle_clients::retry::RetryPolicy;
use cantle_core::llm::{
    ChatRequest, Completion, LlmClient, LlmClientExt as _, LlmError, ToolSpecs,
};
use cantle_core::message::{Message, SharedMessage};
use cantle_core::secret::SecretText;

pub(crate) const DIALECTS: [&str; 3] = ["chat", "messages", "responses"];

pub(crate) const KEY: &str = "sk-do-not-show-this-0123456789";

/// A client of this dialect that does not retry.
pub(crate) fn client(
    dialect: &str,
    base_url: &str,
    stream: bool,
) -> Result<Arc<dyn LlmClient>, LlmError> {
    // Where no DNS server answers, it takes long until a host has no address.
    let mut timeouts = Timeouts::default();
    timeouts.connect = Duration::from_secs(60);
    macro_rules! built {
        ($client:ident) => {
            Arc::new(
                $client::builder("scripted")
                    .base_url(base_url)
                    .api_key(SecretText::new(KEY))
                    .stream(stream)
                    .timeouts(timeouts)
                    .retry(RetryPolicy::never())
                    .build()?,
            )
        };
    }
    Ok(match dialect {
        "chat" => built!(ChatClient),
        "messages" => built!(AnthropicClient),
        _ => built!(ResponsesClient),
    })
}

pub(crate) fn request(messages: impl IntoIterator<Item = Message>) -> ChatRequest {
    let messages = messages.into_iter().map(SharedMessage::new).collect();
    ChatRequest::new(messages, ToolSpecs::default())
}

pub(crate) async fn ask(client: &dyn LlmClient) -> Result<Completion, LlmError> {
    client.complete(request([Message::user("Hi")])).await
}
