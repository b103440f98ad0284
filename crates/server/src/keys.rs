//! API keys and the principals they identify.
//!
//! Only digests of keys are stored; they are compared in constant time.

use std::collections::HashSet;

use cantle_core::principal::PrincipalId;
use sha2::{Digest as _, Sha256};
use subtle::{Choice, ConstantTimeEq as _};

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

    /// Returns the principal of a key, or `None` for an unknown one. Without configured keys any non-empty
    /// key is accepted; it is still required because a cross-origin page can't send it.
    pub(crate) fn owner(&self, given: &str) -> Option<PrincipalId> {
        if given.is_empty() {
            return None;
        }
        if self.0.is_empty() {
            return Some(keyless());
        }
        let given: [u8; 32] = Sha256::digest(given.as_bytes()).into();
        let mut known = Choice::from(0);
        // Compares all keys so that timing reveals nothing.
        for key in &self.0 {
            known |= key.ct_eq(&given);
        }
        bool::from(known).then(|| of_digest(&given))
    }

    /// Returns the principals of all keys.
    pub(crate) fn owners(&self) -> HashSet<PrincipalId> {
        self.0.iter().map(of_digest).collect()
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
    fn without_keys_any_non_empty_key_is_accepted() {
        let keys = Keys::default();
        assert_eq!(keys.owner("x"), Some(keyless()));
        assert_eq!(keys.owner(""), None);
    }
}
