//! The input of the parser of forms, which bounds the parser's memory.
//!
//! The parser (multer) appends all that its input offers to its buffer before it looks at it, and it looks
//! for the end of a preamble or of a part's head in everything that it has. So the input offers one piece
//! at a time, only after the parser has found its buffer insufficient, and little without a result.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll};

use axum::body::{Body, BodyDataStream};
use bytes::Bytes;
use futures_util::{Stream, StreamExt as _};

/// Maximum size of a piece.
const PIECE_BYTES: usize = 64 * 1024;
/// Maximum input for one result of the parser: a part's head with all that precedes it, or a chunk of data.
const STEP_BYTES: usize = 64 * 1024;

/// The body of a form, in pieces.
pub(super) struct FormInput {
    body: BodyDataStream,
    rest: Bytes,
    step: Arc<FormStep>,
}

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

impl FormInput {
    /// Wraps a body, and returns the state to be reset for each result.
    pub(super) fn new(body: Body) -> (Self, Arc<FormStep>) {
        let step = Arc::new(FormStep::default());
        let input = Self {
            body: body.into_data_stream(),
            rest: Bytes::new(),
            step: Arc::clone(&step),
        };
        (input, step)
    }
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

impl Stream for FormInput {
    type Item = Result<Bytes, Box<dyn std::error::Error + Send + Sync>>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if !self.step.is_needed.swap(true, Ordering::Relaxed) {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let left_bytes = self.step.left_bytes.load(Ordering::Relaxed);
        if left_bytes == 0 {
            return Poll::Ready(Some(Err(Box::new(StepTooLarge))));
        }
        while self.rest.is_empty() {
            match std::task::ready!(self.body.poll_next_unpin(cx)) {
                Some(Ok(data)) => self.rest = data,
                Some(Err(error)) => return Poll::Ready(Some(Err(Box::new(error)))),
                None => return Poll::Ready(None),
            }
        }
        let size = self.rest.len().min(PIECE_BYTES);
        let piece = self.rest.split_to(size);
        let left_bytes = left_bytes.saturating_sub(size);
        self.step.left_bytes.store(left_bytes, Ordering::Relaxed);
        self.step.is_needed.store(false, Ordering::Relaxed);
        Poll::Ready(Some(Ok(piece)))
    }
}
