//! Connections to the servers of buckets: TLS as all of Cantle has it, and deadlines that follow the size of what is sent.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use cantle_tls::TlsOptions;
use http_body::{Body, Frame, SizeHint};
use object_store::Error as ObjectError;
use object_store::client::{
    ClientOptions, HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse,
    HttpResponseBody, HttpService,
};
use tokio::time::{Instant, Sleep, sleep, timeout};

/// How long connecting may take.
const CONNECT: Duration = Duration::from_secs(10);
/// How long a server may send nothing, and how far it may fall behind [`BYTES_PER_S`].
const SILENCE: Duration = Duration::from_secs(30);
/// The slowest rate of a transfer. It tells a slow line from a server that sends a byte now and then, forever.
const BYTES_PER_S: u64 = 64 << 10;
/// Size of the body of an error.
const MAX_ERROR_BYTES: u64 = 1 << 20;

/// Makes the client of a store.
#[derive(Debug)]
pub(crate) struct Connector;

impl HttpConnector for Connector {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        let failed = |source| ObjectError::Generic {
            store: "bucket",
            source,
        };
        let tls = TlsOptions::new()
            .build()
            .map_err(|error| failed(error.into()))?;
        // Its `read_timeout` would include the time of sending a request's body, whatever its size.
        let client = reqwest::Client::builder()
            .tls_backend_preconfigured(tls)
            .connect_timeout(CONNECT)
            .redirect(reqwest::redirect::Policy::none())
            .build()
            .map_err(|error| failed(error.into()))?;
        Ok(HttpClient::new(Bounded(HttpClient::new(client))))
    }
}

/// A client whose requests and answers end in time. `object_store` repeats those that did not.
#[derive(Debug)]
struct Bounded(HttpClient);

#[async_trait]
impl HttpService for Bounded {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let limit = SILENCE + transfer_time(request.body().content_length() as u64);
        let answered = timeout(limit, self.0.execute(request)).await;
        let (head, body) = answered.map_err(|_| too_slow(limit))??.into_parts();
        let body = BoundedBody {
            body,
            max_bytes: match head.status.is_success() {
                true => u64::MAX,
                false => MAX_ERROR_BYTES,
            },
            rest: SILENCE,
            wait: None,
        };
        Ok(HttpResponse::from_parts(head, HttpResponseBody::new(body)))
    }
}

fn transfer_time(bytes: u64) -> Duration {
    Duration::from_millis(bytes.saturating_mul(1000) / BYTES_PER_S)
}

fn too_slow(limit: Duration) -> HttpError {
    let message = format!("the server took longer than {} s", limit.as_secs());
    HttpError::new(HttpErrorKind::Timeout, std::io::Error::other(message))
}

/// The body of an answer. Only waiting for the server counts, not for the reader.
#[derive(Debug)]
struct BoundedBody {
    body: HttpResponseBody,
    max_bytes: u64,
    /// How much longer the reader waits for the server. What the server sends adds to it.
    rest: Duration,
    wait: Option<(Instant, Pin<Box<Sleep>>)>,
}

impl Body for BoundedBody {
    type Data = Bytes;
    type Error = HttpError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, HttpError>>> {
        let this = &mut *self;
        let Poll::Ready(frame) = Pin::new(&mut this.body).poll_frame(cx) else {
            let limit = this.rest.min(SILENCE);
            let start = || (Instant::now(), Box::pin(sleep(limit)));
            let (_, late) = this.wait.get_or_insert_with(start);
            return late.as_mut().poll(cx).map(|()| Some(Err(too_slow(limit))));
        };
        if let Some((since, _)) = this.wait.take() {
            this.rest = this.rest.saturating_sub(since.elapsed());
        }
        if let Some(Ok(frame)) = &frame {
            let bytes = frame.data_ref().map_or(0, |data| data.len() as u64);
            this.rest = this.rest.saturating_add(transfer_time(bytes));
            let Some(left) = this.max_bytes.checked_sub(bytes) else {
                let error = std::io::Error::other("the server's error is too long");
                return Poll::Ready(Some(Err(HttpError::new(HttpErrorKind::Decode, error))));
            };
            this.max_bytes = left;
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures_util::{Stream, StreamExt as _, stream};
    use http::{Response, StatusCode};
    use http_body_util::StreamBody;

    use super::*;

    /// A server that answers after a time, with chunks of one size after equal pauses.
    #[derive(Clone, Copy, Debug)]
    struct Slow {
        head: Duration,
        status: StatusCode,
        pause: Duration,
        chunk: usize,
        chunks: usize,
    }

    impl Slow {
        fn chunks(self) -> impl Stream<Item = Result<Frame<Bytes>, Infallible>> {
            stream::iter(0..self.chunks).then(move |_| async move {
                sleep(self.pause).await;
                Ok(Frame::data(Bytes::from(vec![0; self.chunk])))
            })
        }

        /// Returns the size of the answer to a request of so many bytes, or the error, and the time.
        async fn ask(self, bytes: usize) -> (Result<usize, HttpErrorKind>, Duration) {
            let started = Instant::now();
            let client = HttpClient::new(Bounded(HttpClient::new(self)));
            let request = HttpRequest::new(vec![0; bytes].into());
            let answered = async { client.execute(request).await?.into_body().bytes().await };
            let answered = answered.await.map(|content| content.len());
            (answered.map_err(|error| error.kind()), started.elapsed())
        }
    }

    #[async_trait]
    impl HttpService for Slow {
        async fn call(&self, _: HttpRequest) -> Result<HttpResponse, HttpError> {
            sleep(self.head).await;
            let body = StreamBody::new(Box::pin(self.chunks()) as SyncStream);
            let body = http_body_util::BodyExt::map_err(body, |never| match never {});
            let mut answer = Response::new(HttpResponseBody::new(body));
            *answer.status_mut() = self.status;
            Ok(answer)
        }
    }

    type SyncStream = Pin<Box<dyn Stream<Item = Result<Frame<Bytes>, Infallible>> + Send + Sync>>;

    const QUICK: Slow = Slow {
        head: Duration::ZERO,
        status: StatusCode::OK,
        pause: Duration::ZERO,
        chunk: 1,
        chunks: 1,
    };

    const fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_drips_ends_though_each_byte_is_in_time() {
        for pause in [seconds(29), seconds(1)] {
            let drip = Slow {
                pause,
                chunks: 1000,
                ..QUICK
            };
            let (answered, took) = drip.ask(0).await;
            assert_eq!(answered, Err(HttpErrorKind::Timeout));
            assert!(took >= SILENCE && took < seconds(32), "{took:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_transfer_has_time_for_its_size() {
        let slow = Slow {
            pause: seconds(15),
            chunk: 1 << 20,
            chunks: 40,
            ..QUICK
        };
        let (answered, took) = slow.ask(0).await;
        assert_eq!((answered, took), (Ok(40 << 20), seconds(600)));
        // What has come in time gives no credit for silence.
        let stalled = Slow {
            pause: seconds(31),
            ..slow
        };
        assert_eq!(stalled.ask(0).await, (Err(HttpErrorKind::Timeout), SILENCE));
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_has_time_for_its_size() {
        let slow = Slow {
            head: seconds(100),
            ..QUICK
        };
        assert_eq!(slow.ask(0).await, (Err(HttpErrorKind::Timeout), SILENCE));
        assert_eq!(slow.ask(8 << 20).await, (Ok(1), seconds(100)));
    }

    #[tokio::test(start_paused = true)]
    async fn an_error_without_end_is_cut() {
        let long = Slow {
            status: StatusCode::FORBIDDEN,
            chunk: 1 << 18,
            chunks: 5,
            ..QUICK
        };
        assert_eq!(long.ask(0).await.0, Err(HttpErrorKind::Decode));
        let whole = Slow { chunks: 4, ..long };
        assert_eq!(whole.ask(0).await.0, Ok(1 << 20));
    }

    /// A reader that takes its time takes none of the server's.
    #[tokio::test(start_paused = true)]
    async fn a_slow_reader_is_no_slow_server() {
        let client = HttpClient::new(Bounded(HttpClient::new(Slow { chunks: 3, ..QUICK })));
        let answer = client.execute(HttpRequest::new(Bytes::new().into())).await;
        let mut content = answer.unwrap().into_body().bytes_stream();
        let mut bytes = 0;
        while let Some(chunk) = content.next().await {
            bytes += chunk.unwrap().len();
            sleep(seconds(100)).await;
        }
        assert_eq!(bytes, 3);
    }
}
