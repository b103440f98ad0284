//! The latest uploads of new files. In E2B's sandboxes they change the owner of the file, which watchers report.

use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, OnceLock};

use cantle_core::sandbox::SandboxPath;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::accounts::{MemoryCharge, ResourceExhausted};

/// Uploads that are remembered. Watchers that list later miss one event.
const MAX_UPLOADS: usize = 256;
/// Memory of an upload besides its path.
const UPLOAD_BYTES: usize = 128;

/// The latest uploads of new files to one sandbox.
#[derive(Default)]
pub(crate) struct Uploads(Mutex<VecDeque<Arc<Upload>>>);

struct Upload {
    path: SandboxPath,
    ended: OnceLock<Instant>,
    _charge: MemoryCharge,
}

/// Ends the upload when it is dropped.
pub(crate) struct UploadGuard(Arc<Upload>);

impl Drop for UploadGuard {
    fn drop(&mut self) {
        self.0.ended.get_or_init(Instant::now);
    }
}

impl Uploads {
    /// Records the beginning of an upload.
    pub(crate) fn begin(
        &self,
        path: &SandboxPath,
        mut charge: MemoryCharge,
    ) -> Result<UploadGuard, ResourceExhausted> {
        charge.grow(UPLOAD_BYTES + path.relative_bytes().len())?;
        let upload = Arc::new(Upload {
            path: path.clone(),
            ended: OnceLock::new(),
            _charge: charge,
        });
        let mut uploads = self.0.lock();
        uploads.truncate(MAX_UPLOADS - 1);
        uploads.push_front(Arc::clone(&upload));
        Ok(UploadGuard(upload))
    }

    /// Returns the paths of the uploads that had not ended at a time.
    pub(crate) fn since(&self, time: Instant) -> HashSet<SandboxPath> {
        let uploads = self.0.lock();
        let is_recent =
            |upload: &&Arc<Upload>| upload.ended.get().is_none_or(|ended| *ended >= time);
        let recent = uploads.iter().filter(is_recent);
        recent.map(|upload| upload.path.clone()).collect()
    }
}
