//! Output that is kept in a file inside the sandbox, because there is more than a reader wants.
//!
//! It has come here already when that is known, and goes back as an upload while the command runs on.

use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use cantle_core::sandbox::{Channel, SandboxPath, SpawnRequest, Spill, SpillFile};
use futures_util::stream;
use tokio::sync::{Mutex, mpsc};
use tokio_util::task::AbortOnDropHandle;

use crate::envd::Envd;
use crate::files;
use crate::sandbox::SCRATCH;

/// Pieces of output on their way to the file.
const PIECES_IN_FLIGHT: usize = 8;

/// The file for one channel of one command: made once there is something to put in it.
#[derive(Debug)]
pub(crate) struct Spiller {
    limits: Spill,
    envd: Envd,
    path: String,
    /// What is in the file for certain.
    written_bytes: AtomicU64,
    way: Mutex<Way>,
}

#[derive(Debug, Default)]
struct Way {
    /// Bytes of the channel so far.
    seen_bytes: u64,
    /// Of these, how many are held or on their way to the file.
    kept_bytes: u64,
    held: Vec<Bytes>,
    upload: Option<Upload>,
    failed: bool,
}

#[derive(Debug)]
struct Upload {
    pieces: mpsc::Sender<Bytes>,
    /// Whether all of it has arrived.
    done: AbortOnDropHandle<bool>,
}

/// One for each channel, where the request asks for them.
pub(super) fn spillers(envd: &Envd, request: &SpawnRequest, token: &str) -> [Option<Spiller>; 2] {
    let short = token.get(..12).unwrap_or(token);
    [Channel::Stdout, Channel::Stderr].map(|channel| {
        let name = match channel {
            Channel::Stdout => "stdout",
            Channel::Stderr => "stderr",
        };
        request.spill.map(|limits| Spiller {
            limits,
            envd: envd.clone(),
            path: format!("{SCRATCH}/cantle-{short}.{name}"),
            written_bytes: AtomicU64::new(0),
            way: Mutex::default(),
        })
    })
}

impl Spiller {
    /// The file, where there is one.
    pub(super) fn spilled(&self) -> Option<SpillFile> {
        let written = self.written_bytes.load(Ordering::Relaxed);
        let path = SandboxPath::new(&self.path).ok()?;
        (written > 0).then(|| SpillFile::new(path, written))
    }

    /// Takes the next bytes of the channel.
    pub(super) async fn push(&self, mut bytes: Bytes) {
        let mut way = self.way.lock().await;
        way.seen_bytes += bytes.len() as u64;
        let room = self.limits.cap_bytes.saturating_sub(way.kept_bytes);
        bytes.truncate(usize::try_from(room).unwrap_or(usize::MAX));
        if bytes.is_empty() || way.failed {
            return;
        }
        way.kept_bytes += bytes.len() as u64;
        way.held.push(bytes);
        if way.seen_bytes <= self.limits.after_bytes {
            return;
        }
        let held = std::mem::take(&mut way.held);
        let upload = way.upload.get_or_insert_with(|| self.begin());
        for piece in held {
            if upload.pieces.send(piece).await.is_err() {
                // The disk is full: no reason to stop the command.
                way.failed = true;
                return;
            }
        }
    }

    fn begin(&self) -> Upload {
        let (pieces, receiver) = mpsc::channel(PIECES_IN_FLIGHT);
        let (envd, path) = (self.envd.clone(), self.path.clone());
        let task = async move {
            let data = stream::unfold(receiver, |mut receiver: mpsc::Receiver<Bytes>| async {
                let piece = receiver.recv().await?;
                Some((Ok(piece), receiver))
            });
            files::upload(&envd, &path, Box::pin(data)).await.is_ok()
        };
        Upload {
            pieces,
            done: AbortOnDropHandle::new(tokio::spawn(task)),
        }
    }

    /// Waits until all that was taken is in the file.
    pub(super) async fn finish(&self) {
        let mut way = self.way.lock().await;
        let Some(Upload { pieces, done }) = way.upload.take() else {
            return;
        };
        drop(pieces);
        if done.await.unwrap_or(false) && !way.failed {
            self.written_bytes.store(way.kept_bytes, Ordering::Relaxed);
        }
        way.failed = true;
    }
}
