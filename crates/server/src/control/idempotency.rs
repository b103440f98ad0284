//! Idempotency keys: repeated requests whose response was lost.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use sha2::{Digest as _, Sha256};

use crate::api_error::{ApiError, ApiResult};
use cantle_core::principal::PrincipalId;

/// How long a completed request is remembered.
const RETENTION: Duration = Duration::from_secs(600);
/// Maximum number of remembered requests of an owner; the oldest are evicted.
const MAX_COMPLETED: usize = 10_000;

/// Results by owner and idempotency key. Stores digests only, since a busy server remembers thousands.
#[derive(Default)]
pub(super) struct IdempotencyCache(Mutex<HashMap<PrincipalId, CacheEntries>>);

/// The first half of a SHA-256 digest; still collision-resistant.
type HalfDigest = [u8; 16];

#[derive(Default)]
struct CacheEntries {
    by_key: BTreeMap<HalfDigest, CacheEntry>,
    /// Keys of completed requests, oldest first.
    completed: VecDeque<(Instant, HalfDigest)>,
}

struct CacheEntry {
    request: HalfDigest,
    /// The created sandbox; `None` while the request is in progress.
    id: Option<Box<str>>,
}

impl CacheEntries {
    /// Removes expired and excess entries.
    fn evict(&mut self) {
        while let Some((at, key)) = self.completed.front()
            && (at.elapsed() >= RETENTION || self.completed.len() > MAX_COMPLETED)
        {
            self.by_key.remove(key);
            self.completed.pop_front();
        }
    }
}

/// State of an idempotency key when a request arrives.
pub(super) enum IdempotencyState {
    /// The sandbox was created by an earlier request.
    Completed(String),
    /// This request creates the sandbox.
    Started(PendingRequest),
}

/// A create request in progress. Dropping it unfinished frees the key.
pub(super) struct PendingRequest {
    cache: Arc<IdempotencyCache>,
    owner: PrincipalId,
    key: HalfDigest,
    is_complete: bool,
}

impl IdempotencyCache {
    /// Begins a request, or returns the result of an earlier one.
    pub(super) fn begin(
        self: &Arc<Self>,
        owner: &PrincipalId,
        key: &str,
        request: &[u8],
    ) -> ApiResult<IdempotencyState> {
        let request = digest(request);
        let key = digest(key.as_bytes());
        let mut owners = self.0.lock();
        owners.retain(|_, entries| {
            entries.evict();
            !entries.by_key.is_empty()
        });
        let entries = owners.entry(owner.clone()).or_default();
        let conflict = |message: &str, code| Err(ApiError::conflict(message).with_code(code));
        match entries.by_key.get(&key) {
            Some(entry) if entry.request != request => conflict(
                "this Idempotency-Key was used for another request",
                "idempotency_request_mismatch",
            ),
            Some(CacheEntry { id: Some(id), .. }) => {
                Ok(IdempotencyState::Completed(id.to_string()))
            }
            Some(CacheEntry { id: None, .. }) => conflict(
                "a request with this Idempotency-Key is in progress",
                "idempotency_in_progress",
            ),
            None => {
                entries.by_key.insert(key, CacheEntry { request, id: None });
                Ok(IdempotencyState::Started(PendingRequest {
                    cache: Arc::clone(self),
                    owner: owner.clone(),
                    key,
                    is_complete: false,
                }))
            }
        }
    }
}

fn digest(text: &[u8]) -> HalfDigest {
    let whole = Sha256::digest(text);
    std::array::from_fn(|index| whole.get(index).copied().unwrap_or_default())
}

impl PendingRequest {
    /// Records the created sandbox.
    pub(super) fn complete(mut self, id: &str) {
        self.is_complete = true;
        let mut owners = self.cache.0.lock();
        let entries = owners.entry(self.owner.clone()).or_default();
        if let Some(entry) = entries.by_key.get_mut(&self.key) {
            entry.id = Some(id.into());
        }
        entries.completed.push_back((Instant::now(), self.key));
        entries.evict();
    }
}

impl Drop for PendingRequest {
    fn drop(&mut self) {
        if !self.is_complete
            && let Some(entries) = self.cache.0.lock().get_mut(&self.owner)
        {
            entries.by_key.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use axum::response::IntoResponse as _;
    use http::StatusCode;

    use super::*;
    use crate::keys::Keys;

    fn begin(
        cache: &Arc<IdempotencyCache>,
        key: &str,
        request: &[u8],
    ) -> Result<String, StatusCode> {
        begin_as(cache, &owner(), key, request)
    }

    fn owner() -> PrincipalId {
        Keys::default().owner("any").unwrap()
    }

    fn begin_as(
        cache: &Arc<IdempotencyCache>,
        owner: &PrincipalId,
        key: &str,
        request: &[u8],
    ) -> Result<String, StatusCode> {
        match cache.begin(owner, key, request) {
            Ok(IdempotencyState::Started(pending)) => {
                pending.complete(&format!("made for {key}"));
                Ok("begun".to_owned())
            }
            Ok(IdempotencyState::Completed(id)) => Ok(id),
            Err(refusal) => Err(refusal.into_response().status()),
        }
    }

    #[test]
    fn a_repeated_request_has_the_same_result_and_a_different_one_conflicts() {
        let cache = Arc::default();
        assert_eq!(begin(&cache, "a", b"1"), Ok("begun".to_owned()));
        assert_eq!(begin(&cache, "a", b"1"), Ok("made for a".to_owned()));
        assert_eq!(begin(&cache, "a", b"2"), Err(StatusCode::CONFLICT));
        assert_eq!(begin(&cache, "b", b"2"), Ok("begun".to_owned()));
    }

    #[test]
    fn the_oldest_result_of_an_owner_is_evicted() {
        let cache = Arc::default();
        let other = PrincipalId::from("other".to_owned());
        assert_eq!(begin_as(&cache, &other, "1", b"2"), Ok("begun".to_owned()));
        for number in 0..=MAX_COMPLETED {
            let key = number.to_string();
            assert_eq!(begin(&cache, &key, b"1"), Ok("begun".to_owned()));
        }
        assert_eq!(cache.0.lock()[&owner()].by_key.len(), MAX_COMPLETED);
        assert_eq!(begin(&cache, "1", b"1"), Ok("made for 1".to_owned()));
        assert_eq!(begin(&cache, "0", b"1"), Ok("begun".to_owned()));
        let kept = begin_as(&cache, &other, "1", b"2");
        assert_eq!(kept, Ok("made for 1".to_owned()));
    }
}
