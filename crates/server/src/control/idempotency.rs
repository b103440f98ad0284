//! Requests that are made again because their answer was lost.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use http::StatusCode;
use sha2::{Digest as _, Sha256};

use crate::keys::Owner;
use crate::refusal::Refusal;

/// How long an answer is remembered.
const REMEMBERED: Duration = Duration::from_secs(600);
/// How many answers are.
const MOST: usize = 10_000;

/// What was answered to which key.
#[derive(Default)]
pub(super) struct Answered(Mutex<HashMap<(Owner, String), Entry>>);

struct Entry {
    digest: [u8; 32],
    since: Instant,
    /// The sandbox that was made; none as long as it is being made.
    id: Option<String>,
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
    key: (Owner, String),
    is_finished: bool,
}

impl Answered {
    fn lock(&self) -> MutexGuard<'_, HashMap<(Owner, String), Entry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins to answer a request, or finds that it was answered.
    pub(super) fn begin(
        self: &Arc<Self>,
        owner: &Owner,
        key: &str,
        request: &[u8],
    ) -> Result<Turn, Refusal> {
        let digest: [u8; 32] = Sha256::digest(request).into();
        let key = (owner.clone(), key.to_owned());
        let mut entries = self.lock();
        entries.retain(|_, entry| entry.id.is_none() || entry.since.elapsed() < REMEMBERED);
        let conflict =
            |message: &str, code| Err(Refusal::new(StatusCode::CONFLICT, message).with_code(code));
        match entries.get(&key) {
            Some(entry) if entry.digest != digest => conflict(
                "this Idempotency-Key was used for another request",
                "idempotency_request_mismatch",
            ),
            Some(Entry { id: Some(id), .. }) => Ok(Turn::Answered(id.clone())),
            Some(Entry { id: None, .. }) => conflict(
                "a request with this Idempotency-Key is being answered",
                "idempotency_in_progress",
            ),
            None if entries.len() >= MOST => {
                Err(Refusal::full("too many Idempotency-Keys are remembered"))
            }
            None => {
                let entry = Entry {
                    digest,
                    since: Instant::now(),
                    id: None,
                };
                entries.insert(key.clone(), entry);
                Ok(Turn::Begun(Begun {
                    answered: Arc::clone(self),
                    key,
                    is_finished: false,
                }))
            }
        }
    }
}

impl Begun {
    /// This one was made.
    pub(super) fn finish(mut self, id: &str) {
        self.is_finished = true;
        if let Some(entry) = self.answered.lock().get_mut(&self.key) {
            entry.id = Some(id.to_owned());
        }
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        if !self.is_finished {
            self.answered.lock().remove(&self.key);
        }
    }
}
