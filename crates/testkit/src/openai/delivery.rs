//! How an answer reaches the client: all of it, slowly, or not to the end.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::Frame;

use super::fault::Fault;
use super::record::Record;
use super::script::Usage;
use super::wire::{Answer, Part};

/// The body of every response.
pub(super) type Body = http_body_util::combinators::UnsyncBoxBody<Bytes, io::Error>;

/// What happens next to a body.
#[derive(Debug)]
enum Step {
    Send(Bytes),
    /// Everything up to a report of usage has been sent.
    Count(Usage),
    Wait(Duration),
    Cut,
    Stall,
}

pub(super) fn complete(body: Bytes) -> Body {
    Full::new(body)
        .map_err(|never| match never {})
        .boxed_unsync()
}

/// A body that performs `answer` as `fault` has it, and tells `record` about the usage that went
/// out.
pub(super) fn perform(answer: &Answer<'_>, fault: Option<&Fault>, record: Arc<Record>) -> Body {
    if fault.is_none() && !answer.envelope.streams() {
        // All at once, so that it carries its length.
        let whole = answer.whole();
        whole.usage.into_iter().for_each(|usage| record.sent(usage));
        return complete(whole.bytes);
    }
    let steps = plan(answer, fault).into_iter();
    let frames = stream::unfold((steps, record), |(mut steps, record)| async move {
        loop {
            match steps.next()? {
                Step::Send(bytes) => return Some((Ok(Frame::data(bytes)), (steps, record))),
                Step::Count(usage) => record.sent(usage),
                Step::Wait(time) => tokio::time::sleep(time).await,
                Step::Cut => {
                    // An error discards what hyper has buffered; once it has to wait, it flushes
                    // that first.
                    tokio::task::yield_now().await;
                    return Some((Err(io::Error::other("a scripted cut")), (steps, record)));
                }
                Step::Stall => std::future::pending().await,
            }
        }
    });
    BodyExt::boxed_unsync(StreamBody::new(frames))
}

fn plan(answer: &Answer<'_>, fault: Option<&Fault>) -> Vec<Step> {
    let parts = answer.parts();
    match fault {
        Some(&Fault::CutAfterEvents(count)) => first(parts, count, Some(Step::Cut)),
        Some(&Fault::EndAfterEvents(count)) => first(parts, count, None),
        Some(&Fault::StallAfterEvents(count)) => first(parts, count, Some(Step::Stall)),
        Some(Fault::ErrorEvent { after, error }) => {
            // A body that isn't streamed holds either an answer or an error.
            let after = if answer.envelope.streams() { *after } else { 0 };
            first(parts, after, Some(Step::Send(answer.error(error))))
        }
        Some(&Fault::CutAfterBytes(count)) => first_bytes(parts, count),
        Some(&Fault::Slow { bytes, every }) => slowly(parts, bytes.max(1), every),
        _ => first(parts, usize::MAX, None),
    }
}

fn first(parts: Vec<Part>, count: usize, last: Option<Step>) -> Vec<Step> {
    parts
        .into_iter()
        .take(count)
        .flat_map(send)
        .chain(last)
        .collect()
}

fn first_bytes(parts: Vec<Part>, count: usize) -> Vec<Step> {
    let mut left = count;
    let mut steps = Vec::new();
    for mut part in parts {
        if left < part.bytes.len() {
            steps.push(Step::Send(part.bytes.split_to(left)));
            break;
        }
        left -= part.bytes.len();
        steps.extend(send(part));
    }
    steps.push(Step::Cut);
    steps
}

fn slowly(parts: Vec<Part>, size: usize, every: Duration) -> Vec<Step> {
    let mut steps = Vec::new();
    for mut part in parts {
        while !part.bytes.is_empty() {
            let piece = part.bytes.split_to(size.min(part.bytes.len()));
            if !steps.is_empty() {
                steps.push(Step::Wait(every));
            }
            steps.push(Step::Send(piece));
        }
        steps.extend(part.usage.map(Step::Count));
    }
    steps
}

fn send(part: Part) -> impl Iterator<Item = Step> {
    [Some(Step::Send(part.bytes)), part.usage.map(Step::Count)]
        .into_iter()
        .flatten()
}
