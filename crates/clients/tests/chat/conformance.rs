//! The conformance suite for model clients.

use std::sync::Arc;
use std::time::Duration;

use cantle_clients::chat::ChatClient;
use cantle_clients::retry::RetryPolicy;
use cantle_core::llm::LlmClient;
use cantle_testkit::conformance::{self, Dialect, Endpoint};

fn connect(to: &Endpoint) -> Arc<dyn LlmClient> {
    let client = ChatClient::builder(&to.model)
        .base_url(&to.url)
        .api_key(to.api_key.as_str())
        .stream(to.stream)
        .retry(RetryPolicy::default().with_period(Duration::from_millis(100)))
        .build();
    Arc::new(client.unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_client_conforms() {
    conformance::llm_client(Dialect::Chat, &connect)
        .await
        .assert();
}
