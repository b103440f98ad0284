//! The input of the parser of forms, which bounds the parser's memory.
//!
//! The parser (multer) appends all that its input offers to its buffer before it looks at it, and it looks
//! for the end of a preamble or of a part's head in everything that it has. So the input offers one piece
//! at a time, only after the parser has found its buffer insufficient, and little without a result.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::Poll;

use axum::BoxError;
use axum::body::Body;
use bytes::Bytes;
use futures_util::{StreamExt as _, stream};

/// Maximum size of a piece.
const PIECE_BYTES: usize = 64 * 1024;
/// Maximum input for one result of the parser: a part's head with all that precedes it, or a chunk of data.
const STEP_BYTES: usize = 64 * 1024;

/// The input that the parser may still take for its next result.
#[derive(Default)]
pub(super) struct FormStep {
    left_bytes: AtomicUsize,
    /// Whether the parser has polled since the last piece, and so has parsed its buffer.
    is_needed: AtomicBool,
}

/// The parser takes too much for one result.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the head of a part has more than {STEP_BYTES} bytes")]
pub(super) struct StepTooLarge;

/// Returns the body of a form in pieces, and the state to be reset for each result.
pub(super) fn in_pieces(body: Body) -> (Body, Arc<FormStep>) {
    let step = Arc::new(FormStep::default());
    let limit = Arc::clone(&step);
    let (mut body, mut rest) = (body.into_data_stream(), Bytes::new());
    let pieces = stream::poll_fn(move |cx| -> Poll<Option<Result<Bytes, BoxError>>> {
        if !limit.is_needed.swap(true, Ordering::Relaxed) {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let left_bytes = limit.left_bytes.load(Ordering::Relaxed);
        if left_bytes == 0 {
            return Poll::Ready(Some(Err(StepTooLarge.into())));
        }
        while rest.is_empty() {
            match std::task::ready!(body.poll_next_unpin(cx)) {
                Some(Ok(data)) => rest = data,
                Some(Err(error)) => return Poll::Ready(Some(Err(error.into()))),
                None => return Poll::Ready(None),
            }
        }
        let size = rest.len().min(PIECE_BYTES);
        let left_bytes = left_bytes.saturating_sub(size);
        limit.left_bytes.store(left_bytes, Ordering::Relaxed);
        limit.is_needed.store(false, Ordering::Relaxed);
        Poll::Ready(Some(Ok(rest.split_to(size))))
    });
    (Body::from_stream(pieces), step)
}

impl FormStep {
    /// Begins the next result.
    pub(super) fn begin(&self) {
        self.left_bytes.store(STEP_BYTES, Ordering::Relaxed);
        self.is_needed.store(false, Ordering::Relaxed);
    }

    /// Returns the reason for a failure of the parser, if the parser took too much.
    pub(super) fn too_large(&self) -> Option<StepTooLarge> {
        (self.left_bytes.load(Ordering::Relaxed) == 0).then_some(StepTooLarge)
    }
}
