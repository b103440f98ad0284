//! Accepting, serving and shutting down connections.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::settings::ServerLimits;
use crate::unread_body;

/// Time limit for a request's head.
const REQUEST_HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// Delay after `accept` failed, usually for lack of file descriptors.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);
/// Time limit for the responses in progress at shutdown.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(3);

/// Serves requests until `shutdown`, then runs `end`, then completes the responses in progress.
pub(crate) async fn serve<A, F, E, T>(
    listener: TcpListener,
    limits: &ServerLimits,
    shutdown: CancellationToken,
    answer: A,
    end: E,
) -> T
where
    A: Fn(Request<Body>) -> F + Clone + Send + 'static,
    F: Future<Output = Response> + Send,
    E: Future<Output = T>,
{
    let slots = Arc::new(Semaphore::new(limits.connections));
    // Asks connections to close after the current response.
    let closing = CancellationToken::new();
    let mut connections = JoinSet::new();
    loop {
        let accepted = async {
            // The semaphore is never closed.
            let slot = Arc::clone(&slots).acquire_owned().await.ok();
            (slot, listener.accept().await)
        };
        let (slot, stream) = tokio::select! {
            (slot, accepted) = accepted => match accepted {
                Ok((stream, _)) => (slot, stream),
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    sleep(ACCEPT_RETRY_DELAY).await;
                    continue;
                }
            },
            Some(_) = connections.join_next() => continue,
            () = shutdown.cancelled() => break,
        };
        // Envelopes are small; Nagle's algorithm would delay them.
        let _ = stream.set_nodelay(true);
        let (answer, closing) = (answer.clone(), closing.clone());
        connections.spawn(async move {
            let service = service_fn(move |request: Request<Incoming>| {
                let (head, body) = request.into_parts();
                let (body, unread) = unread_body::track(body);
                let answering = answer(Request::from_parts(head, Body::new(body)));
                async move {
                    let response = answering.await;
                    unread.discard().await;
                    Ok::<_, Infallible>(response)
                }
            });
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(REQUEST_HEAD_TIMEOUT)
                .serve_connection(TokioIo::new(stream), service);
            let mut connection = std::pin::pin!(connection);
            let ended = tokio::select! {
                ended = connection.as_mut() => ended,
                () = closing.cancelled() => {
                    connection.as_mut().graceful_shutdown();
                    connection.await
                }
            };
            if let Err(error) = ended {
                tracing::trace!(%error, "a connection was aborted");
            }
            drop(slot);
        });
    }
    drop(listener);
    let result = end.await;
    closing.cancel();
    let all_closed = async { while connections.join_next().await.is_some() {} };
    if timeout(SHUTDOWN_TIMEOUT, all_closed).await.is_err() {
        connections.shutdown().await;
    }
    result
}
