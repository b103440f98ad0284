//! API keys and the owners they identify.
//!
//! Only digests of keys are stored; they are compared in constant time.

use std::collections::HashSet;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use subtle::{Choice, ConstantTimeEq as _};

/// Bytes of a key's digest that identify an owner, in hexadecimal digits.
const OWNER_BYTES: usize = 8;

/// Identity of all clients with the same key; derived from the key's digest. Everything that a client
/// uses is accounted to it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub(crate) struct Owner(Arc<str>);

impl From<String> for Owner {
    fn from(text: String) -> Self {
        Self(text.into())
    }
}

impl From<Owner> for String {
    fn from(owner: Owner) -> Self {
        owner.0.as_ref().to_owned()
    }
}

impl Owner {
    /// The owner of all sandboxes if the server has no keys.
    fn keyless() -> Self {
        Self("anyone".into())
    }

    fn of_digest(digest: &[u8; 32]) -> Self {
        let bytes = digest.iter().take(OWNER_BYTES);
        let text: String = bytes.map(|byte| format!("{byte:02x}")).collect();
        Self(text.into())
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

/// The accepted keys.
#[derive(Clone, Default)]
pub(crate) struct Keys(Vec<[u8; 32]>);

impl Keys {
    pub(crate) fn add(&mut self, key: &str) {
        self.0.push(Sha256::digest(key.as_bytes()).into());
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the owner for a key, or `None` for an unknown one. Without configured keys any non-empty
    /// key is accepted; it is still required because a cross-origin page can't send it.
    pub(crate) fn owner(&self, given: &str) -> Option<Owner> {
        if given.is_empty() {
            return None;
        }
        if self.0.is_empty() {
            return Some(Owner::keyless());
        }
        let given: [u8; 32] = Sha256::digest(given.as_bytes()).into();
        let mut known = Choice::from(0);
        // Compares all keys so that timing reveals nothing.
        for key in &self.0 {
            known |= key.ct_eq(&given);
        }
        bool::from(known).then(|| Owner::of_digest(&given))
    }

    /// Returns the owners of all keys.
    pub(crate) fn owners(&self) -> HashSet<Owner> {
        self.0.iter().map(Owner::of_digest).collect()
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
    fn each_key_identifies_a_distinct_owner() {
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
    fn without_keys_any_non_empty_key_is_accepted() {
        let keys = Keys::default();
        assert_eq!(keys.owner("x"), Some(Owner::keyless()));
        assert_eq!(keys.owner(""), None);
    }
}
