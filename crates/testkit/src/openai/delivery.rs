//! Delivery of answers: complete, throttled or cut.

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
use super::wire::{Answer, Api, Part};
use super::{chat, messages, responses};

/// Body of a response.
pub(super) type Body = http_body_util::combinators::UnsyncBoxBody<Bytes, io::Error>;

/// Step of a body's delivery.
#[derive(Debug)]
enum DeliveryStep {
    Send(Bytes),
    /// Records usage that has been sent.
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

/// Returns a body that delivers `answer` with `fault` and records the sent usage.
pub(super) fn body(answer: &Answer<'_>, fault: Option<&Fault>, record: Arc<Record>) -> Body {
    if fault.is_none() && !answer.envelope.streams() {
        // A full body gets a content length.
        let whole = whole(answer);
        whole.usage.into_iter().for_each(|usage| record.sent(usage));
        return complete(whole.bytes);
    }
    let steps = plan(answer, fault).into_iter();
    let frames = stream::unfold((steps, record), |(mut steps, record)| async move {
        loop {
            match steps.next()? {
                DeliveryStep::Send(bytes) => {
                    return Some((Ok(Frame::data(bytes)), (steps, record)));
                }
                DeliveryStep::Count(usage) => record.sent(usage),
                DeliveryStep::Wait(time) => tokio::time::sleep(time).await,
                DeliveryStep::Cut => {
                    // An error discards hyper's buffer, which a pending poll flushes first.
                    tokio::task::yield_now().await;
                    return Some((Err(io::Error::other("a scripted cut")), (steps, record)));
                }
                DeliveryStep::Stall => std::future::pending().await,
            }
        }
    });
    BodyExt::boxed_unsync(StreamBody::new(frames))
}

fn plan(answer: &Answer<'_>, fault: Option<&Fault>) -> Vec<DeliveryStep> {
    let parts = parts(answer);
    match fault {
        Some(&Fault::CutAfterEvents(count)) => take_parts(parts, count, Some(DeliveryStep::Cut)),
        Some(&Fault::EndAfterEvents(count)) => take_parts(parts, count, None),
        Some(&Fault::StallAfterEvents(count)) => {
            take_parts(parts, count, Some(DeliveryStep::Stall))
        }
        Some(Fault::ErrorEvent { after, error }) => {
            // Without streaming, the body is either the answer or the error.
            let after = if answer.envelope.streams() { *after } else { 0 };
            take_parts(parts, after, Some(DeliveryStep::Send(answer.error(error))))
        }
        Some(&Fault::CutAfterBytes(count)) => cut_at_byte(parts, count),
        Some(&Fault::Slow { bytes, every }) => paced(parts, bytes.max(1), every),
        _ => take_parts(parts, usize::MAX, None),
    }
}

fn take_parts(parts: Vec<Part>, count: usize, last: Option<DeliveryStep>) -> Vec<DeliveryStep> {
    parts
        .into_iter()
        .take(count)
        .flat_map(send)
        .chain(last)
        .collect()
}

fn cut_at_byte(parts: Vec<Part>, count: usize) -> Vec<DeliveryStep> {
    let mut remaining = count;
    let mut steps = Vec::new();
    for mut part in parts {
        if remaining < part.bytes.len() {
            steps.push(DeliveryStep::Send(part.bytes.split_to(remaining)));
            break;
        }
        remaining -= part.bytes.len();
        steps.extend(send(part));
    }
    steps.push(DeliveryStep::Cut);
    steps
}

fn paced(parts: Vec<Part>, size: usize, every: Duration) -> Vec<DeliveryStep> {
    let mut steps = Vec::new();
    for mut part in parts {
        while !part.bytes.is_empty() {
            let piece = part.bytes.split_to(size.min(part.bytes.len()));
            if !steps.is_empty() {
                steps.push(DeliveryStep::Wait(every));
            }
            steps.push(DeliveryStep::Send(piece));
        }
        steps.extend(part.usage.map(DeliveryStep::Count));
    }
    steps
}

fn send(part: Part) -> impl Iterator<Item = DeliveryStep> {
    [
        Some(DeliveryStep::Send(part.bytes)),
        part.usage.map(DeliveryStep::Count),
    ]
    .into_iter()
    .flatten()
}

/// Returns the answer in the requested form.
fn parts(answer: &Answer<'_>) -> Vec<Part> {
    if !answer.envelope.streams() {
        return vec![whole(answer)];
    }
    match answer.api {
        Api::Chat => chat::events(answer),
        Api::Messages => messages::events(answer),
        Api::Responses => responses::events(answer),
    }
}

/// Returns the answer as one JSON object.
fn whole(answer: &Answer<'_>) -> Part {
    let body = match answer.api {
        Api::Chat => chat::whole(answer).to_string(),
        Api::Messages => messages::whole(answer),
        Api::Responses => responses::whole(answer).to_string(),
    };
    Part {
        bytes: Bytes::from(body),
        usage: answer.turn.usage,
    }
}
