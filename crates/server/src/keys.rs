//! Who may use the server: keys, and the owners they stand for.
//!
//! Keys themselves are not kept, only their digests, which are compared in constant time.

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use subtle::{Choice, ConstantTimeEq as _};

/// Characters of a digest that name an owner.
const NAME: usize = 16;

/// Whose sandboxes they are: everybody with the same key. Not the key.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct Owner(String);

impl Owner {
    /// Everybody, where the server has no keys.
    fn anyone() -> Self {
        Self("anyone".to_owned())
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

/// The keys of a server.
#[derive(Clone, Default)]
pub(crate) struct Keys(Vec<[u8; 32]>);

impl Keys {
    pub(crate) fn add(&mut self, key: &str) {
        self.0.push(Sha256::digest(key.as_bytes()).into());
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whom a key stands for; `None` where it is wrong. Without keys every one is right, but there must
    /// be one: a page in somebody's browser can't send it.
    pub(crate) fn owner(&self, given: &str) -> Option<Owner> {
        if given.is_empty() {
            return None;
        }
        if self.0.is_empty() {
            return Some(Owner::anyone());
        }
        let given: [u8; 32] = Sha256::digest(given.as_bytes()).into();
        let mut known = Choice::from(0);
        // All of them, so that time says nothing.
        for key in &self.0 {
            known |= key.ct_eq(&given);
        }
        bool::from(known).then(|| {
            let name = given.iter().map(|byte| format!("{byte:02x}"));
            Owner(name.collect::<String>().chars().take(NAME).collect())
        })
    }
}

/// Whether two texts are the same, in a time that says nothing of where they differ.
pub(crate) fn same(one: &str, other: &str) -> bool {
    one.as_bytes().ct_eq(other.as_bytes()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_key_is_an_owner_of_its_own() {
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
    fn without_keys_any_key_will_do_but_none() {
        let keys = Keys::default();
        assert_eq!(keys.owner("x"), Some(Owner::anyone()));
        assert_eq!(keys.owner(""), None);
    }
}
