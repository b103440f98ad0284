//! Reading the unread rest of a request body after an early response.
//!
//! A client that is still sending when the connection closes often sees only the reset and never the
//! response. So an abandoned body is returned here, and the rest is read and discarded.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tokio::sync::oneshot;
use tokio::time::timeout;

/// Limits on what is read and discarded.
#[derive(Clone, Copy)]
pub(crate) struct DiscardLimits {
    bytes: u64,
    time: Duration,
}

/// For a client without credentials.
pub(crate) const UNAUTHENTICATED: DiscardLimits = DiscardLimits {
    bytes: 8 << 20,
    time: Duration::from_secs(1),
};

/// For an authenticated client. Many read a response only after they have sent the whole body.
pub(crate) const AUTHENTICATED: DiscardLimits = DiscardLimits {
    bytes: u64::MAX,
    time: Duration::from_secs(60),
};

/// A request body that is sent back when it is dropped before its end.
pub(crate) struct TrackedBody(Option<(Incoming, oneshot::Sender<Incoming>)>);

/// Wraps a body and returns the receiver of its unread rest.
pub(crate) fn track(body: Incoming) -> (TrackedBody, oneshot::Receiver<Incoming>) {
    let (sender, receiver) = oneshot::channel();
    (TrackedBody(Some((body, sender))), receiver)
}

/// Reads and discards the rest of an abandoned body, within the limits.
pub(crate) async fn discard(mut unread: oneshot::Receiver<Incoming>, limits: DiscardLimits) {
    let Ok(mut body) = unread.try_recv() else {
        return;
    };
    let reading = async {
        let mut left = limits.bytes;
        while let Some(Ok(frame)) = body.frame().await {
            let read = frame.data_ref().map_or(0, Bytes::len) as u64;
            let Some(rest) = left.checked_sub(read) else {
                break;
            };
            left = rest;
        }
    };
    let _ = timeout(limits.time, reading).await;
}

impl Body for TrackedBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        match &mut self.0 {
            Some((body, _)) => Pin::new(body).poll_frame(cx),
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.0.as_ref().is_none_or(|(body, _)| body.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        let body = self.0.as_ref().map(|(body, _)| body.size_hint());
        body.unwrap_or_default()
    }
}

impl Drop for TrackedBody {
    fn drop(&mut self) {
        if let Some((body, returned)) = self.0.take()
            && !body.is_end_stream()
        {
            // Fails if the connection has ended.
            let _ = returned.send(body);
        }
    }
}
