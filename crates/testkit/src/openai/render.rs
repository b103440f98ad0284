//! Rendering an answer in the dialect of its request.

use bytes::Bytes;

use super::wire::{Answer, Api, Part};
use super::{chat, messages, responses};

/// Returns the answer in the requested form.
pub(super) fn parts(answer: &Answer<'_>) -> Vec<Part> {
    if answer.envelope.streams() {
        events(answer)
    } else {
        vec![whole(answer)]
    }
}

/// Returns the answer as one JSON object.
pub(super) fn whole(answer: &Answer<'_>) -> Part {
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

fn events(answer: &Answer<'_>) -> Vec<Part> {
    match answer.api {
        Api::Chat => chat::events(answer),
        Api::Messages => messages::events(answer),
        Api::Responses => responses::events(answer),
    }
}
