//! The log of refused hosts, for the results of commands.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

/// Maximum number of entries; the oldest are dropped.
const MAX_ENTRIES: usize = 32;
const MAX_HOST_CHARS: usize = 80;

/// A refused host. Displays as a note for the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Denied {
    /// The requested host, shortened.
    pub host: String,
    /// The port; 0 if there was none.
    pub port: u16,
    /// The reason, and what is allowed instead.
    pub reason: String,
}

impl Denied {
    pub(super) fn new(host: &str, port: u16, reason: impl Into<String>) -> Self {
        Self {
            host: host.chars().take(MAX_HOST_CHARS).collect(),
            port,
            reason: reason.into(),
        }
    }
}

impl fmt::Display for Denied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port, reason } = self;
        write!(f, "network: `{host}:{port}` was refused: {reason}")
    }
}

/// The refusals of a proxy: the latest, each once.
#[derive(Clone, Debug, Default)]
pub struct Denials(Arc<Mutex<Log>>);

#[derive(Debug, Default)]
struct Log {
    next: u64,
    kept: VecDeque<(u64, Denied)>,
}

impl Denials {
    /// Returns the current position of the log, for [`take`](Self::take).
    #[must_use]
    pub fn mark(&self) -> u64 {
        self.0.lock().next
    }

    /// Returns the refusals since a position as notes, including those of concurrent commands, and moves the position to
    /// the end of the log.
    pub fn take(&self, position: &AtomicU64) -> Vec<String> {
        let log = self.0.lock();
        let mark = position.swap(log.next, Ordering::Relaxed);
        let new = log.kept.iter().filter(|(at, _)| *at >= mark);
        new.map(|(_, denied)| denied.to_string()).collect()
    }

    /// Returns the refusals in the log.
    #[cfg(test)]
    pub(super) fn all(&self) -> Vec<Denied> {
        let kept = self.0.lock().kept.clone();
        kept.into_iter().map(|(_, denied)| denied).collect()
    }

    pub(super) fn add(&self, denied: Denied) {
        let mut log = self.0.lock();
        let at = log.next;
        log.next += 1;
        log.kept.retain(|(_, kept)| *kept != denied);
        if log.kept.len() == MAX_ENTRIES {
            log.kept.pop_front();
        }
        log.kept.push_back((at, denied));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_since_a_mark_are_returned_once() {
        let denials = Denials::default();
        denials.add(Denied::new("a.example.org", 443, "no"));
        let position = AtomicU64::new(denials.mark());
        assert_eq!(denials.take(&position), [""; 0]);
        denials.add(Denied::new("b.example.org", 443, "no"));
        denials.add(Denied::new("a.example.org", 443, "no"));
        denials.add(Denied::new("b.example.org", 443, "no"));
        let expected = ["a.example.org", "b.example.org"].map(|host| Denied::new(host, 443, "no"));
        assert_eq!(denials.all(), expected);
        assert_eq!(denials.take(&position), expected.map(|it| it.to_string()));
        assert_eq!(denials.take(&position), [""; 0]);
    }

    #[test]
    fn the_log_is_bounded() {
        let denials = Denials::default();
        for port in 0..1000 {
            denials.add(Denied::new(&"x".repeat(10_000), port, "no"));
        }
        let kept = denials.all();
        let ports: Vec<u16> = kept.iter().map(|denied| denied.port).collect();
        assert_eq!(ports, (968..1000).collect::<Vec<_>>());
        assert!(kept.iter().all(|denied| denied.host.len() == 80));
    }
}
