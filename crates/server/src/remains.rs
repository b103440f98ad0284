//! What is left of a request's body when it is answered early.
//!
//! A client that is still sending when the connection closes often sees that alone, and never the answer.
//! So a body that is given up comes back here, and some more of it is read before the answer goes out.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tokio::sync::oneshot;
use tokio::time::timeout;

/// How much is read for nothing, and for how long.
const MOST_BYTES: usize = 8 << 20;
const LONGEST: Duration = Duration::from_secs(1);

/// A request's body; dropped before its end, it comes back.
pub(crate) struct Returning {
    body: Option<Incoming>,
    back: Option<oneshot::Sender<Incoming>>,
}

/// Where a body comes back.
pub(crate) struct Remains(oneshot::Receiver<Incoming>);

/// A body, and where it comes back.
pub(crate) fn of(body: Incoming) -> (Returning, Remains) {
    let (sender, receiver) = oneshot::channel();
    let returning = Returning {
        body: Some(body),
        back: Some(sender),
    };
    (returning, Remains(receiver))
}

impl Remains {
    /// Reads some of what came back, if anything did.
    pub(crate) async fn read(mut self) {
        let Ok(mut body) = self.0.try_recv() else {
            return;
        };
        let reading = async {
            let mut read = 0;
            while let Some(Ok(frame)) = body.frame().await {
                read += frame.data_ref().map_or(0, Bytes::len);
                if read > MOST_BYTES {
                    break;
                }
            }
        };
        // What comes later is not waited for.
        let _ = timeout(LONGEST, reading).await;
    }
}

impl Body for Returning {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        match &mut self.body {
            Some(body) => Pin::new(body).poll_frame(cx),
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body
            .as_ref()
            .map_or_else(SizeHint::default, Body::size_hint)
    }
}

impl Drop for Returning {
    fn drop(&mut self) {
        if let (Some(body), Some(back)) = (self.body.take(), self.back.take())
            && !body.is_end_stream()
        {
            // Where nobody waits for it, the connection is over.
            let _ = back.send(body);
        }
    }
}
