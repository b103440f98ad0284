//! One HTTP call: sends the request and reads the response as a whole body or as a stream of events.

use std::sync::Arc;

use cantle_core::escape::replace_lone_surrogates;
use cantle_core::llm::{ChatEvent, ChatRequest, ChatStream, LlmError};
use futures_util::future::Either;
use futures_util::{Stream, TryFutureExt as _, stream};
use reqwest::header::{CONTENT_TYPE, HeaderMap};

use super::body::{MAX_TURN_BYTES, body_chunks, read_body};
use super::dialect::{Dialect, TurnAssembler as _};
use super::endpoint::Endpoint;
use super::stream::event_stream;

/// Calls the model once.
pub(super) fn stream<D: Dialect>(endpoint: Arc<Endpoint<D>>, request: ChatRequest) -> ChatStream {
    Box::pin(open(endpoint, request).try_flatten_stream())
}

async fn open<D: Dialect>(
    endpoint: Arc<Endpoint<D>>,
    request: ChatRequest,
) -> Result<impl Stream<Item = Result<ChatEvent, LlmError>>, LlmError> {
    let mut response = endpoint.respond(&request).await?;
    // Frees the messages while the model answers.
    drop(request);
    let headers = std::mem::take(response.headers_mut());
    let body = body_chunks(response, MAX_TURN_BYTES, endpoint.timeouts.idle);
    if endpoint.stream && !is_single_body(&headers) {
        return Ok(Either::Left(event_stream(body, headers, endpoint)));
    }
    let mut bytes = read_body(body).await?;
    replace_lone_surrogates(&mut bytes);
    let mut assembler = endpoint.dialect.assembler();
    let read = assembler.read_body(&endpoint.errors, &headers, &bytes);
    read.map_err(|error| error.with_usage(assembler.usage()))?;
    let events = assembler.finish(&headers)?;
    Ok(Either::Right(stream::iter(events.into_iter().map(Ok))))
}

/// Returns whether a single JSON body or a proxy's web page came instead of an event stream.
fn is_single_body(headers: &HeaderMap) -> bool {
    let content_type = headers
        .get(CONTENT_TYPE)
        .and_then(|value| value.to_str().ok());
    let content_type = content_type.unwrap_or_default().to_ascii_lowercase();
    let media_type = content_type.split(';').next().unwrap_or_default().trim();
    media_type.starts_with("application/json")
        || media_type.ends_with("+json")
        || media_type.starts_with("text/html")
}

#[cfg(test)]
mod tests {
    use reqwest::header::HeaderMap;

    use super::is_single_body;
    use crate::http::retry_after::tests::header_map;

    #[test]
    fn content_types_tell_bodies_from_event_streams() {
        for (content_type, expected) in [
            ("application/json", true),
            ("Application/JSON; charset=utf-8", true),
            ("application/problem+json", true),
            ("application/vnd.api+json ; charset=utf-8", true),
            ("Text/HTML;charset=utf-8", true),
            ("text/event-stream", false),
            ("text/event-stream; note=a+json", false),
            ("text/plain", false),
            ("", false),
        ] {
            let headers = header_map(&[("content-type", content_type)]);
            assert_eq!(is_single_body(&headers), expected, "{content_type}");
        }
        assert!(!is_single_body(&HeaderMap::new()));
    }
}
