//! Connections: accepted within a limit, served, and ended in order.

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

use crate::remains;
use crate::settings::ServerLimits;

/// How long a request's head may take to come.
const HEAD_DEADLINE: Duration = Duration::from_secs(30);
/// How long to wait after the system had no descriptor for us.
const SHORT_OF_DESCRIPTORS: Duration = Duration::from_millis(100);
/// How long the last answers may take.
const LAST_ANSWERS: Duration = Duration::from_secs(3);

/// Answers requests until `shutdown`, then does what is to be done at the end, and lets the last answers
/// go out.
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
    let room = Arc::new(Semaphore::new(limits.connections));
    // Connections close when their answer is out.
    let last = CancellationToken::new();
    let mut connections = JoinSet::new();
    loop {
        let accepted = async {
            // A closed semaphore is none of ours.
            let place = Arc::clone(&room).acquire_owned().await.ok();
            (place, listener.accept().await)
        };
        let (place, stream) = tokio::select! {
            (place, accepted) = accepted => match accepted {
                Ok((stream, _)) => (place, stream),
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    sleep(SHORT_OF_DESCRIPTORS).await;
                    continue;
                }
            },
            Some(_) = connections.join_next() => continue,
            () = shutdown.cancelled() => break,
        };
        // Envelopes are small and must not wait for each other.
        let _ = stream.set_nodelay(true);
        let (answer, last) = (answer.clone(), last.clone());
        connections.spawn(async move {
            let service = service_fn(move |request: Request<Incoming>| {
                let (head, body) = request.into_parts();
                let (body, remains) = remains::of(body);
                let answering = answer(Request::from_parts(head, Body::new(body)));
                async move {
                    let response = answering.await;
                    remains.read().await;
                    Ok::<_, Infallible>(response)
                }
            });
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEAD_DEADLINE)
                .serve_connection(TokioIo::new(stream), service);
            let mut connection = std::pin::pin!(connection);
            let ended = tokio::select! {
                ended = connection.as_mut() => ended,
                () = last.cancelled() => {
                    connection.as_mut().graceful_shutdown();
                    connection.await
                }
            };
            if let Err(error) = ended {
                tracing::trace!(%error, "a connection broke off");
            }
            drop(place);
        });
    }
    drop(listener);
    let ended = end.await;
    last.cancel();
    let all_out = async { while connections.join_next().await.is_some() {} };
    if timeout(LAST_ANSWERS, all_out).await.is_err() {
        connections.shutdown().await;
    }
    ended
}
