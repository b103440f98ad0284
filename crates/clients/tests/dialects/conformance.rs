//! The conformance suite for model clients.

use std::sync::Arc;
use std::time::Duration;

use cantle_clients::anthropic::AnthropicClient;
use cantle_clients::chat::ChatClient;
use cantle_clients::fallback::Fallback;
use cantle_clients::price::Priced;
use cantle_clients::record::Recorder;
use cantle_clients::responses::ResponsesClient;
use cantle_clients::retry::{Retry, RetryPolicy};
use cantle_core::llm::{LlmClient, Prices};
use cantle_testkit::conformance::{self, Dialect, Endpoint};

fn quick() -> RetryPolicy {
    let short = Duration::from_millis(20);
    RetryPolicy::default()
        .with_period(5 * short)
        .with_backoff(short, short)
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_conform() {
    let connect = |to: &Endpoint| -> Arc<dyn LlmClient> {
        let client = AnthropicClient::builder(&to.model)
            .base_url(&to.url)
            .api_key(to.api_key.as_str())
            .stream(to.stream)
            .retry(quick())
            .build();
        Arc::new(client.unwrap())
    };
    conformance::llm_client(Dialect::Messages, &connect)
        .await
        .assert();
}

#[tokio::test(flavor = "multi_thread")]
async fn responses_conform() {
    for stateful in [false, true] {
        let connect = |to: &Endpoint| -> Arc<dyn LlmClient> {
            let client = ResponsesClient::builder(&to.model)
                .base_url(&to.url)
                .api_key(to.api_key.as_str())
                .stream(to.stream)
                .stateful(stateful)
                .retry(quick())
                .build();
            Arc::new(client.unwrap())
        };
        conformance::llm_client(Dialect::Responses, &connect)
            .await
            .assert();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_in_all_wrappers_conforms() {
    let connect = |to: &Endpoint| -> Arc<dyn LlmClient> {
        let client = ChatClient::builder(&to.model)
            .base_url(&to.url)
            .api_key(to.api_key.as_str())
            .stream(to.stream)
            .retry(RetryPolicy::never())
            .build();
        let recorder = Recorder::new(client.unwrap(), std::io::sink(), Vec::new());
        let priced = Priced::new(recorder.unwrap(), Prices::per_million(1.0, 2.0));
        let retrying = Retry::new(
            priced,
            RetryPolicy::default().with_period(Duration::from_millis(1100)),
        );
        Arc::new(Fallback::new(Arc::new(retrying), Vec::new()))
    };
    conformance::llm_client(Dialect::Chat, &connect)
        .await
        .assert();
}
