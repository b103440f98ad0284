//! API keys and the principals they identify.
//!
//! Only digests of keys are stored; they are compared in constant time.

use std::collections::{HashMap, HashSet};

use cantle_core::principal::{Level, Principal, PrincipalId};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

/// Bytes of a key's digest that identify a principal, in hexadecimal digits.
const ID_BYTES: usize = 8;

/// The principal of all clients if the server has no keys.
fn keyless() -> PrincipalId {
    "anyone".to_owned().into()
}

/// The principal of all clients with the same key; derived from the key's digest.
fn of_digest(digest: &[u8; 32]) -> PrincipalId {
    let bytes = digest.iter().take(ID_BYTES);
    let text: String = bytes.map(|byte| format!("{byte:02x}")).collect();
    text.into()
}

/// An accepted key, as its digest, and its principal.
#[derive(Clone)]
struct Key {
    digest: [u8; 32],
    owner: PrincipalId,
}

/// The accepted keys.
#[derive(Clone, Default)]
pub(crate) struct Keys {
    keys: Vec<Key>,
    /// The principals that keys are bound to.
    levels: HashMap<PrincipalId, Level>,
}

impl Keys {
    pub(crate) fn add(&mut self, key: &str) {
        let digest: [u8; 32] = Sha256::digest(key.as_bytes()).into();
        if !self.keys.iter().any(|key| key.digest == digest) {
            let owner = of_digest(&digest);
            self.keys.push(Key { digest, owner });
        }
    }

    /// Adds a key that is bound to a principal, also if it has been added without one.
    pub(crate) fn bind(&mut self, key: &str, principal: &Principal) {
        let digest: [u8; 32] = Sha256::digest(key.as_bytes()).into();
        let owner = principal.id().clone();
        self.keys.retain(|key| key.digest != digest);
        self.levels.insert(owner.clone(), principal.level());
        self.keys.push(Key { digest, owner });
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Returns the level of a principal that a key is bound to.
    pub(crate) fn level_of(&self, owner: &PrincipalId) -> Option<Level> {
        self.levels.get(owner).copied()
    }

    /// Returns the principal of a key, or `None` for an unknown one. Without configured keys any non-empty
    /// key is accepted; it is still required because a cross-origin page can't send it.
    pub(crate) fn owner(&self, given: &str) -> Option<PrincipalId> {
        if given.is_empty() {
            return None;
        }
        if self.is_empty() {
            return Some(keyless());
        }
        let given: [u8; 32] = Sha256::digest(given.as_bytes()).into();
        // Compares all keys so that timing reveals nothing.
        let known = self.keys.iter().fold(None, |known, key| {
            bool::from(key.digest.ct_eq(&given))
                .then_some(key)
                .or(known)
        });
        known.map(|key| key.owner.clone())
    }

    /// Returns the principals of all keys.
    pub(crate) fn owners(&self) -> HashSet<PrincipalId> {
        self.keys.iter().map(|key| key.owner.clone()).collect()
    }
}

/// Compares two secrets in constant time.
pub(crate) fn constant_time_eq(one: &[u8], other: &[u8]) -> bool {
    one.ct_eq(other).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_key_identifies_a_distinct_principal() {
        let mut keys = Keys::default();
        keys.add("one");
        keys.add("two");
        let (one, two) = (keys.owner("one").unwrap(), keys.owner("two").unwrap());
        assert_ne!(one, two);
        assert_eq!(keys.owner("one"), Some(one));
        assert_eq!(keys.owner("three"), None);
        assert_eq!(keys.owner(""), None);
    }

    #[test]
    fn a_bound_key_identifies_its_principal() {
        let mut keys = Keys::default();
        keys.add("one");
        keys.bind("one", &Principal::new("alice", Level::Admin).unwrap());
        keys.add("one");
        keys.add("two");
        let alice = keys.owner("one").unwrap();
        assert_eq!(
            (alice.as_str(), keys.level_of(&alice)),
            ("alice", Some(Level::Admin))
        );
        assert_eq!(keys.level_of(&keys.owner("two").unwrap()), None);
        assert_eq!(keys.owners().len(), 2);
    }

    #[test]
    fn without_keys_any_non_empty_key_is_accepted() {
        let keys = Keys::default();
        assert_eq!(keys.owner("x"), Some(keyless()));
        assert_eq!(keys.owner(""), None);
    }
}
