//! Notices of changes in a sandbox's directories.

use std::fmt;

use tokio_util::sync::CancellationToken;

/// A notice that something in the directories of [`Sandbox::watch`](super::Sandbox::watch) has changed, given once.
/// Dropping it ends the watch.
pub struct ChangeNotice {
    changed: CancellationToken,
    _watch: Box<dyn Send + Sync>,
}

impl ChangeNotice {
    /// Creates a notice, for implementations of [`Sandbox::watch`](super::Sandbox::watch): `changed` is cancelled
    /// with the first change, and `watch` is dropped to end the watch.
    pub fn new(changed: CancellationToken, watch: impl Send + Sync + 'static) -> Self {
        Self {
            changed,
            _watch: Box::new(watch),
        }
    }

    /// Returns the token that is cancelled with the first change, or when the notice is dropped.
    #[must_use]
    pub fn changed(&self) -> &CancellationToken {
        &self.changed
    }
}

impl fmt::Debug for ChangeNotice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChangeNotice")
            .field("is_changed", &self.changed.is_cancelled())
            .finish_non_exhaustive()
    }
}

impl Drop for ChangeNotice {
    fn drop(&mut self) {
        self.changed.cancel();
    }
}
