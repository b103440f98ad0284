//! Requests that are made again because their answer was lost.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use http::StatusCode;
use sha2::{Digest as _, Sha256};

use crate::keys::Owner;
use crate::refusal::Refusal;

/// How long an answer is remembered.
const REMEMBERED: Duration = Duration::from_secs(600);
/// How many answers are; then the oldest is forgotten.
const MOST: usize = 10_000;

/// What was answered to which key. Only digests are kept: a busy server remembers thousands.
#[derive(Default)]
pub(super) struct Answered(Mutex<Entries>);

/// Half of SHA-256, which nobody finds a second text for either.
type Digest = [u8; 16];

#[derive(Default)]
struct Entries {
    by_key: BTreeMap<Digest, Entry>,
    /// The keys of what was answered, the oldest first.
    answered: VecDeque<(Instant, Digest)>,
}

struct Entry {
    request: Digest,
    /// The sandbox that was made; none as long as it is being made.
    id: Option<Box<str>>,
}

impl Entries {
    /// Forgets answers that nobody asks for any more.
    fn forget(&mut self) {
        while let Some((at, key)) = self.answered.front()
            && (at.elapsed() >= REMEMBERED || self.answered.len() > MOST)
        {
            self.by_key.remove(key);
            self.answered.pop_front();
        }
    }
}

/// Whose turn it is.
pub(super) enum Turn {
    /// It was made already: this one.
    Answered(String),
    /// It is to be made now.
    Begun(Begun),
}

/// A sandbox that is being made. Dropped without one, the key is free again.
pub(super) struct Begun {
    answered: Arc<Answered>,
    key: Digest,
    is_finished: bool,
}

impl Answered {
    fn lock(&self) -> MutexGuard<'_, Entries> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins to answer a request, or finds that it was answered.
    pub(super) fn begin(
        self: &Arc<Self>,
        owner: &Owner,
        key: &str,
        request: &[u8],
    ) -> Result<Turn, Refusal> {
        let request = digest(&[request]);
        let key = digest(&[owner.as_str().as_bytes(), key.as_bytes()]);
        let mut entries = self.lock();
        entries.forget();
        let conflict =
            |message: &str, code| Err(Refusal::new(StatusCode::CONFLICT, message).with_code(code));
        match entries.by_key.get(&key) {
            Some(entry) if entry.request != request => conflict(
                "this Idempotency-Key was used for another request",
                "idempotency_request_mismatch",
            ),
            Some(Entry { id: Some(id), .. }) => Ok(Turn::Answered(id.to_string())),
            Some(Entry { id: None, .. }) => conflict(
                "a request with this Idempotency-Key is being answered",
                "idempotency_in_progress",
            ),
            None => {
                entries.by_key.insert(key, Entry { request, id: None });
                Ok(Turn::Begun(Begun {
                    answered: Arc::clone(self),
                    key,
                    is_finished: false,
                }))
            }
        }
    }
}

/// A digest of texts, each with its length, so that none can be part of its neighbour.
fn digest(texts: &[&[u8]]) -> Digest {
    let mut whole = Sha256::new();
    for text in texts {
        whole.update((text.len() as u64).to_be_bytes());
        whole.update(text);
    }
    let mut half = Digest::default();
    for (place, byte) in half.iter_mut().zip(whole.finalize()) {
        *place = byte;
    }
    half
}

impl Begun {
    /// This one was made.
    pub(super) fn finish(mut self, id: &str) {
        self.is_finished = true;
        let mut entries = self.answered.lock();
        if let Some(entry) = entries.by_key.get_mut(&self.key) {
            entry.id = Some(id.into());
        }
        entries.answered.push_back((Instant::now(), self.key));
        entries.forget();
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        if !self.is_finished {
            self.answered.lock().by_key.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use axum::response::IntoResponse as _;

    use super::*;
    use crate::keys::Keys;

    fn begun(answered: &Arc<Answered>, key: &str, request: &[u8]) -> Result<String, StatusCode> {
        let owner = Keys::default().owner("any").unwrap();
        match answered.begin(&owner, key, request) {
            Ok(Turn::Begun(begun)) => {
                begun.finish(&format!("made for {key}"));
                Ok("begun".to_owned())
            }
            Ok(Turn::Answered(id)) => Ok(id),
            Err(refusal) => Err(refusal.into_response().status()),
        }
    }

    #[test]
    fn the_same_request_has_the_same_answer_and_another_none() {
        let answered = Arc::default();
        assert_eq!(begun(&answered, "a", b"1"), Ok("begun".to_owned()));
        assert_eq!(begun(&answered, "a", b"1"), Ok("made for a".to_owned()));
        assert_eq!(begun(&answered, "a", b"2"), Err(StatusCode::CONFLICT));
        assert_eq!(begun(&answered, "b", b"2"), Ok("begun".to_owned()));
    }

    #[test]
    fn the_oldest_answer_makes_room() {
        let answered = Arc::default();
        for number in 0..=MOST {
            let key = number.to_string();
            assert_eq!(begun(&answered, &key, b"1"), Ok("begun".to_owned()));
        }
        assert_eq!(answered.lock().by_key.len(), MOST);
        assert_eq!(begun(&answered, "1", b"1"), Ok("made for 1".to_owned()));
        assert_eq!(begun(&answered, "0", b"1"), Ok("begun".to_owned()));
    }
}
