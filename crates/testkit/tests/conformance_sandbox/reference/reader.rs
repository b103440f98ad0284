//! Output of a command: counted, spilled and forwarded with backpressure.

use std::fs::File;
use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use cantle_core::sandbox::{Channel, OutputChunk, SandboxError, SandboxPath, Spill, SpillFile};
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::sync::{Semaphore, mpsc, watch};

use super::{Counter, Fault};

/// After the command's end, a pipe idle for this long is held by another process.
const IDLE_LIMIT: Duration = Duration::from_millis(100);

pub(super) type Sender = mpsc::Sender<Result<OutputChunk, SandboxError>>;

pub(super) struct Reader<P> {
    pub(super) fault: Option<Fault>,
    pub(super) pipe: P,
    /// Single permit for all output with `Fault::SharesOneStream`.
    pub(super) stream: Arc<Semaphore>,
    pub(super) channel: Channel,
    pub(super) total: Counter,
    pub(super) spill: Option<SpillWriter>,
    pub(super) sender: Option<Sender>,
    /// Turns true when the command has ended.
    pub(super) ended: watch::Receiver<bool>,
}

impl<P: AsyncRead + Unpin> Reader<P> {
    /// Reads to the end and returns the spill file, if any.
    pub(super) async fn run(mut self) -> Option<SpillFile> {
        let mut held = Vec::new();
        let mut buffer = vec![0; 65_536];
        loop {
            let quiet = quiet(self.ended.clone(), self.fault);
            let count = tokio::select! {
                // Available output takes precedence over the idle limit.
                biased;
                read = self.pipe.read(&mut buffer) => read.unwrap_or(0),
                () = quiet => 0,
            };
            if count == 0 {
                break;
            }
            let piece = &buffer[..count];
            if self.sender.is_some() || self.fault != Some(Fault::CountsOnlyReadBytes) {
                self.total.fetch_add(count as u64, Ordering::SeqCst);
            }
            if let Some(spill) = &mut self.spill {
                spill.push(piece);
            }
            match self.fault {
                Some(Fault::BuffersEverything) => held.extend_from_slice(piece),
                Some(Fault::LosesTheLastPiece) => {
                    let before = std::mem::replace(&mut held, piece.to_vec());
                    self.send(before).await;
                }
                Some(Fault::DecodesOutputAsText) => {
                    self.send(String::from_utf8_lossy(piece).into_owned().into_bytes())
                        .await;
                }
                _ => self.send(piece.to_vec()).await,
            }
        }
        if self.fault == Some(Fault::BuffersEverything) {
            self.send(held).await;
        }
        self.spill.and_then(SpillWriter::finish)
    }

    async fn send(&mut self, piece: Vec<u8>) {
        let channel = match self.fault {
            Some(Fault::MergesTheChannels) => Channel::Stdout,
            _ => self.channel,
        };
        let bytes = Bytes::from(piece);
        let _turn = match self.fault {
            Some(Fault::SharesOneStream) => self.stream.acquire().await.ok(),
            _ => None,
        };
        if let Some(sender) = &self.sender
            && !bytes.is_empty()
            && sender
                .send(Ok(OutputChunk { channel, bytes }))
                .await
                .is_err()
        {
            self.sender = None;
        }
    }
}

async fn quiet(mut ended: watch::Receiver<bool>, fault: Option<Fault>) {
    let ended = ended.wait_for(|ended| *ended).await.is_ok();
    if !ended || fault == Some(Fault::WaitsForPipeEof) {
        std::future::pending::<()>().await;
    }
    tokio::time::sleep(IDLE_LIMIT).await;
}

/// Writes output to a spill file up to its cap.
pub(super) struct SpillWriter {
    pub(super) options: Spill,
    pub(super) file: File,
    pub(super) path: SandboxPath,
    pub(super) size: u64,
    pub(super) everything: bool,
}

impl SpillWriter {
    fn push(&mut self, piece: &[u8]) {
        let room = self.options.cap_bytes.saturating_sub(self.size);
        let room = usize::try_from(room).unwrap_or(usize::MAX);
        let piece = &piece[..piece.len().min(room)];
        self.file.write_all(piece).unwrap();
        self.size += piece.len() as u64;
    }

    fn finish(self) -> Option<SpillFile> {
        let enough = self.size > self.options.after_bytes || self.everything;
        enough.then(|| SpillFile::new(self.path, self.size))
    }
}
