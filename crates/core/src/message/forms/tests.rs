use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Barrier, mpsc};

use super::*;

const CHAT: EncodingKey = EncodingKey::new("chat", 0);
const CHAT_PLAIN: EncodingKey = EncodingKey::new("chat", 1);
const RESPONSES: EncodingKey = EncodingKey::new("responses", 0);

fn encoded(forms: &EncodedForms, key: EncodingKey, text: &'static str) -> Bytes {
    let encode = || Ok::<_, Infallible>(Bytes::from_static(text.as_bytes()));
    match forms.get_or_try_encode(key, encode) {
        Ok(bytes) => bytes.clone(),
        Err(never) => match never {},
    }
}

#[test]
fn each_form_is_encoded_once() {
    let forms = EncodedForms::default();
    assert_eq!(encoded(&forms, CHAT, "one"), "one");
    assert_eq!(encoded(&forms, CHAT_PLAIN, "two"), "two");
    assert_eq!(encoded(&forms, RESPONSES, "three"), "three");
    for (key, text) in [(CHAT, "one"), (CHAT_PLAIN, "two"), (RESPONSES, "three")] {
        assert_eq!(encoded(&forms, key, "again"), text);
    }
    assert_eq!(
        format!("{forms:?}"),
        "[chat: 3 bytes, chat: 3 bytes, responses: 5 bytes]"
    );
}

#[test]
fn failed_encodings_are_not_cached() {
    let forms = EncodedForms::default();
    let failed = forms.get_or_try_encode(CHAT, || Err::<Bytes, _>("no"));
    assert_eq!(failed, Err("no"));
    assert_eq!(encoded(&forms, CHAT, "yes"), "yes");
}

#[test]
fn clones_of_a_shared_message_share_its_forms() {
    let message = SharedMessage::new(Message::user("x"));
    let clone = message.clone();
    assert_eq!(encoded(message.forms(), CHAT, "one"), "one");
    assert_eq!(encoded(clone.forms(), CHAT, "again"), "one");
    // An equal message is not the same one.
    let other = SharedMessage::new(Message::user("x"));
    assert_eq!(other, message);
    assert_eq!(encoded(other.forms(), CHAT, "other"), "other");
}

/// Threads that encode at the same time may each do the work, but get the same bytes, and the form
/// of another key is not lost over it.
#[test]
fn threads_agree_on_every_form() {
    const THREADS: usize = 8;
    for _ in 0..50 {
        let forms = EncodedForms::default();
        let start = Barrier::new(THREADS);
        let encodings = AtomicUsize::new(0);
        let (results, received) = mpsc::channel();
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (forms, start, encodings, results) =
                    (&forms, &start, &encodings, results.clone());
                scope.spawn(move || {
                    let keys = [CHAT, CHAT_PLAIN, RESPONSES];
                    let key = keys[thread % keys.len()];
                    start.wait();
                    let bytes = forms.get_or_try_encode(key, || {
                        encodings.fetch_add(1, Ordering::Relaxed);
                        Ok::<_, Infallible>(Bytes::from(format!("{key:?} by {thread}")))
                    });
                    let _ = results.send((key, bytes.cloned().ok()));
                });
            }
        });
        drop(results);

        let mut kept: Vec<(EncodingKey, Option<Bytes>)> = Vec::new();
        for (key, bytes) in received {
            match kept.iter().find(|(seen, _)| *seen == key) {
                Some((_, first)) => assert_eq!(*first, bytes, "two forms for {key:?}"),
                None => kept.push((key, bytes)),
            }
        }
        assert_eq!(kept.len(), 3);
        assert!((3..=THREADS).contains(&encodings.into_inner()));
        assert_eq!(format!("{forms:?}").matches("bytes").count(), 3);
    }
}
