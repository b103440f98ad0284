//! Output that is kept in a file inside the sandbox, because there is more than a reader wants.

use std::sync::Weak;

use bytes::Bytes;
use cantle_core::sandbox::{SandboxError, SandboxPath, Spill, SpillFile, WriteOptions};
use futures_util::stream;
use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;

use super::super::Inner;

/// Pieces between the command and the file.
const PIECES_IN_FLIGHT: usize = 4;

/// Writes one channel to its file once there is enough of it. Holds at most [`Spill::after_bytes`] and
/// a few pieces in memory. Where writing fails (the disk is full, the directory gone) there is no
/// file: that is no reason to stop the command.
#[derive(Debug)]
pub(super) struct Spiller {
    limits: Spill,
    sandbox: Weak<Inner>,
    path: SandboxPath,
    held: Vec<Bytes>,
    /// Bytes of the channel so far.
    seen_bytes: u64,
    /// Of these, how many are held or in the file.
    kept_bytes: u64,
    file: File,
}

#[derive(Debug)]
enum File {
    NotMade,
    Open(Writing),
    Failed,
}

#[derive(Debug)]
struct Writing {
    pieces: mpsc::Sender<Bytes>,
    task: AbortOnDropHandle<Result<(), SandboxError>>,
}

impl Spiller {
    pub(super) fn new(limits: Spill, sandbox: Weak<Inner>, path: SandboxPath) -> Self {
        Self {
            limits,
            sandbox,
            path,
            held: Vec::new(),
            seen_bytes: 0,
            kept_bytes: 0,
            file: File::NotMade,
        }
    }

    /// Takes the next bytes of the channel.
    pub(super) async fn push(&mut self, mut bytes: Bytes) {
        self.seen_bytes += bytes.len() as u64;
        let room = self.limits.cap_bytes.saturating_sub(self.kept_bytes);
        bytes.truncate(usize::try_from(room).unwrap_or(usize::MAX));
        if !bytes.is_empty() && !matches!(self.file, File::Failed) {
            self.kept_bytes += bytes.len() as u64;
            self.held.push(bytes);
        }
        if self.seen_bytes > self.limits.after_bytes {
            self.flush().await;
        }
    }

    /// The file, where there was enough for one and it is whole.
    pub(super) async fn finish(&mut self) -> Option<SpillFile> {
        let File::Open(Writing { pieces, task }) = std::mem::replace(&mut self.file, File::Failed)
        else {
            return None;
        };
        // That is its end.
        drop(pieces);
        let written = task.await;
        let file = SpillFile::new(self.path.clone(), self.kept_bytes);
        matches!(written, Ok(Ok(()))).then_some(file)
    }

    async fn flush(&mut self) {
        if let File::NotMade = self.file {
            self.file = self.begin();
        }
        for piece in std::mem::take(&mut self.held) {
            let File::Open(writing) = &self.file else {
                return;
            };
            if writing.pieces.send(piece).await.is_err() {
                self.file = File::Failed;
            }
        }
    }

    fn begin(&self) -> File {
        let Some(sandbox) = self.sandbox.upgrade() else {
            return File::Failed;
        };
        let (pieces, next) = mpsc::channel(PIECES_IN_FLIGHT);
        let data = stream::unfold(next, async |mut next: mpsc::Receiver<Bytes>| {
            let piece = next.recv().await?;
            Some((Ok(piece), next))
        });
        let path = self.path.clone();
        let task = tokio::spawn(async move {
            let options = WriteOptions::default();
            sandbox.write(&path, options, Box::pin(data)).await
        });
        File::Open(Writing {
            pieces,
            task: AbortOnDropHandle::new(task),
        })
    }
}
