//! The HTTP client of the exporter's thread.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{Request, Response};
use opentelemetry_http::{HttpClient, HttpError};
use reqwest::redirect;
use tokio::runtime::Runtime;

/// Time limit of a request, unless a variable sets another one.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Variables with the time limit in milliseconds. The SDK applies them to its retries only, because it did not make the
/// client.
const TIMEOUT_VARIABLES: [&str; 2] = [
    "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT",
    "OTEL_EXPORTER_OTLP_TIMEOUT",
];

/// Maximum size of an answer, which is a few numbers or a message.
const MAX_ANSWER_BYTES: usize = 64 << 10;

/// A client with a runtime of its own: the exporter's thread has none, and blocks for each request.
#[derive(Debug)]
pub(crate) struct BlockingClient {
    client: reqwest::Client,
    /// `None` only while it is dropped.
    runtime: Option<Runtime>,
}

impl Drop for BlockingClient {
    fn drop(&mut self) {
        // If no exporter could be made of it, it is dropped in the caller's runtime, where dropping another one panics.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl BlockingClient {
    pub(crate) fn new() -> Result<Self, Box<dyn std::error::Error + Send + Sync>> {
        let client = reqwest::Client::builder()
            .tls_backend_preconfigured(cantle_tls::TlsOptions::new().build()?)
            // The headers of the collector may be keys.
            .redirect(redirect::Policy::none())
            .timeout(request_timeout(|name| std::env::var(name).ok()))
            .user_agent(concat!("cantle/", env!("CARGO_PKG_VERSION")))
            .build()?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        Ok(Self {
            client,
            runtime: Some(runtime),
        })
    }

    async fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let mut answer = self.client.execute(request.try_into()?).await?;
        let (status, headers) = (answer.status(), std::mem::take(answer.headers_mut()));
        let mut body = BytesMut::new();
        while let Some(chunk) = answer.chunk().await? {
            if body.len() + chunk.len() > MAX_ANSWER_BYTES {
                return Err("the collector's answer is too long".into());
            }
            body.extend_from_slice(&chunk);
        }
        let mut response = Response::new(body.freeze());
        (*response.status_mut(), *response.headers_mut()) = (status, headers);
        Ok(response)
    }
}

#[async_trait::async_trait]
impl HttpClient for BlockingClient {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        match &self.runtime {
            Some(runtime) => runtime.block_on(self.send(request)),
            None => Err("the client is closed".into()),
        }
    }
}

fn request_timeout(variable: impl Fn(&str) -> Option<String>) -> Duration {
    let mut names = TIMEOUT_VARIABLES.into_iter();
    let limit = names.find_map(|name| variable(name)?.parse().ok());
    limit.map_or(REQUEST_TIMEOUT, Duration::from_millis)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_limit_is_that_of_the_variables() {
        for (traces, all, expected) in [
            (None, None, 10_000),
            (None, Some("500"), 500),
            (Some("20000"), Some("500"), 20_000),
            (Some("soon"), Some("500"), 500),
        ] {
            let variable = |name: &str| match name {
                "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT" => traces.map(str::to_owned),
                _ => all.map(str::to_owned),
            };
            assert_eq!(request_timeout(variable).as_millis(), expected);
        }
    }
}
