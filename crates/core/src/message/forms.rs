//! Cache of encoded messages.
//!
//! Each request repeats the conversation so far. So a message caches the bytes that clients encode it
//! into, and shared clients need no cache of their own.

use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use serde::{Deserialize, Serialize, Serializer};

use super::Message;

/// Identifies an encoding: the dialect, and the client options that affect the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EncodingKey {
    dialect: &'static str,
    variant: u64,
}

impl EncodingKey {
    /// Creates a key from a dialect's name (unique by convention, e.g. `"chat"`) and a number that
    /// differs between clients of this dialect that encode differently.
    pub const fn new(dialect: &'static str, variant: u64) -> Self {
        Self { dialect, variant }
    }
}

/// The encoded forms of one value, by [`EncodingKey`]. A linked list, because there is rarely more than
/// one.
#[derive(Default)]
pub struct EncodedForms {
    first: OnceLock<Box<Form>>,
}

struct Form {
    key: EncodingKey,
    bytes: Bytes,
    next: OnceLock<Box<Form>>,
}

impl EncodedForms {
    /// Returns the form for `key`, created by `encode` if there is none.
    ///
    /// # Errors
    /// The error of `encode`.
    pub fn get_or_try_encode<E>(
        &self,
        key: EncodingKey,
        encode: impl FnOnce() -> Result<Bytes, E>,
    ) -> Result<&Bytes, E> {
        let mut cell = &self.first;
        while let Some(form) = cell.get() {
            if form.key == key {
                return Ok(&form.bytes);
            }
            cell = &form.next;
        }
        // Another thread may append concurrently; this form then goes behind it, or is dropped if it is
        // the same.
        let mut made = Some(encode()?);
        loop {
            let form = cell.get_or_init(|| {
                let bytes = made.take().unwrap_or_default();
                Box::new(Form {
                    key,
                    bytes,
                    next: OnceLock::new(),
                })
            });
            if form.key == key {
                return Ok(&form.bytes);
            }
            cell = &form.next;
        }
    }
}

impl fmt::Debug for EncodedForms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut list = f.debug_list();
        let mut cell = &self.first;
        while let Some(form) = cell.get() {
            list.entry(&format_args!(
                "{}: {} bytes",
                form.key.dialect,
                form.bytes.len()
            ));
            cell = &form.next;
        }
        list.finish()
    }
}

/// A shared, immutable message with its encoded forms.
///
/// ```
/// use cantle_core::message::{Message, SharedMessage};
///
/// let message = SharedMessage::new(Message::user("What is in data.csv?"));
/// let again = message.clone(); // the same message, the same forms
/// assert_eq!(message, again);
/// ```
#[derive(Clone, Deserialize)]
#[serde(from = "Message")]
pub struct SharedMessage(Arc<Inner>);

struct Inner {
    message: Message,
    forms: EncodedForms,
}

impl SharedMessage {
    /// Wraps a message for sharing.
    pub fn new(message: Message) -> Self {
        Self(Arc::new(Inner {
            message,
            forms: EncodedForms::default(),
        }))
    }

    /// Returns the cache of encoded forms.
    pub fn forms(&self) -> &EncodedForms {
        &self.0.forms
    }
}

impl Deref for SharedMessage {
    type Target = Message;

    fn deref(&self) -> &Message {
        &self.0.message
    }
}

impl From<Message> for SharedMessage {
    fn from(message: Message) -> Self {
        Self::new(message)
    }
}

impl fmt::Debug for SharedMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.message.fmt(f)
    }
}

impl PartialEq for SharedMessage {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.0.message == other.0.message
    }
}

impl Serialize for SharedMessage {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.message.serialize(serializer)
    }
}

#[cfg(test)]
mod tests;
