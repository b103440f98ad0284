//! A source of bytes that is left when it stands still, and gone on with from a little before.

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use bytes::Bytes;
use cantle_core::sandbox::{ByteStream, SandboxError};
use futures_util::{StreamExt as _, stream};
use tokio::time::{Instant, timeout};

/// How long somebody may stand still while the engine brings a file: it keeps the container locked, so
/// that nobody can look at it, kill it or remove it.
pub(super) const STILL: Duration = Duration::from_millis(200);

/// How long the engine is kept busy with a file in any case.
pub(super) const LEASE: Duration = Duration::from_secs(10);

/// What may be on its way when the engine is left: buffers of sockets, pipes and programs.
const KEPT_BYTES: u64 = 8 * 1024 * 1024;

/// Pieces that are longer are given out in parts.
const MOST_BYTES: usize = 256 * 1024;

/// The source, and the latest that it gave.
pub(super) struct Feed {
    source: ByteStream,
    /// What is not given out yet.
    next: Bytes,
    recent: VecDeque<Bytes>,
    recent_bytes: u64,
    total_bytes: u64,
    until: Instant,
    is_left: bool,
}

impl Feed {
    pub(super) fn new(source: ByteStream) -> Self {
        Self {
            source,
            next: Bytes::new(),
            recent: VecDeque::new(),
            recent_bytes: 0,
            total_bytes: 0,
            until: Instant::now() + LEASE,
            is_left: false,
        }
    }

    /// Whether it is to be gone on with in another way.
    pub(super) fn is_left(&self) -> bool {
        self.is_left
    }

    /// Whether nothing of it is forgotten.
    pub(super) fn is_whole(&self) -> bool {
        self.recent_bytes == self.total_bytes
    }

    /// What comes next; an error where it stands still or has taken too long.
    pub(super) async fn next(&mut self) -> Option<Result<Bytes, SandboxError>> {
        if self.next.is_empty() {
            let still = STILL.min(self.until.saturating_duration_since(Instant::now()));
            match timeout(still, self.source.next()).await {
                Ok(Some(Ok(bytes))) => self.next = bytes,
                Ok(end) => return end,
                Err(_) => {
                    self.is_left = true;
                    let error = io::ErrorKind::TimedOut.into();
                    return Some(Err(SandboxError::io("the data stand still", error)));
                }
            }
        }
        let piece = self.next.split_to(self.next.len().min(MOST_BYTES));
        let length = piece.len() as u64;
        self.total_bytes += length;
        self.recent_bytes += length;
        self.recent.push_back(piece.clone());
        while let Some(first) = self.recent.front()
            && self.recent_bytes - first.len() as u64 >= KEPT_BYTES
        {
            self.recent_bytes -= first.len() as u64;
            self.recent.pop_front();
        }
        Some(Ok(piece))
    }

    /// The source from `offset` on; none where that is too far back, or has not come yet.
    pub(super) fn rest(self, offset: u64) -> Option<ByteStream> {
        let mut skipped = offset.checked_sub(self.total_bytes - self.recent_bytes)?;
        let mut recent = self.recent;
        recent.push_back(self.next);
        for piece in &mut recent {
            let length = usize::try_from(skipped).map_or(piece.len(), |it| it.min(piece.len()));
            skipped -= piece.split_to(length).len() as u64;
        }
        (skipped == 0).then(|| -> ByteStream {
            Box::pin(stream::iter(recent.into_iter().map(Ok)).chain(self.source))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(lengths: &[usize]) -> ByteStream {
        let mut at = 0_usize;
        let pieces: Vec<_> = lengths
            .iter()
            .map(|length| {
                let bytes: Vec<u8> = (at..at + length).map(|it| (it % 251) as u8).collect();
                at += length;
                Ok(bytes.into())
            })
            .collect();
        Box::pin(stream::iter(pieces).chain(stream::pending()))
    }

    async fn all(mut data: ByteStream, count: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        while bytes.len() < count {
            bytes.extend_from_slice(&data.next().await.unwrap().unwrap());
        }
        bytes
    }

    #[tokio::test(start_paused = true)]
    async fn what_stands_still_is_gone_on_with_from_where_it_was_taken() {
        const KEPT: usize = KEPT_BYTES as usize;
        let lengths = [KEPT, 3 * MOST_BYTES + 5, 0, 7, KEPT / 2];
        let total: usize = lengths.iter().sum();
        for (offset, is_there) in [
            (0, false),
            (total - KEPT - 2 * MOST_BYTES, false),
            (total - KEPT, true),
            (total - 100_001, true),
            (total, true),
            (total + 1, false),
        ] {
            let mut feed = Feed::new(pieces(&lengths));
            let mut given = 0;
            while let Some(Ok(piece)) = feed.next().await {
                given += piece.len();
            }
            assert!(feed.is_left() && given == total);
            let rest = feed.rest(offset as u64);
            assert_eq!(rest.is_some(), is_there, "{offset}");
            if let Some(rest) = rest {
                let bytes = all(rest, total - offset).await;
                let right = |(at, byte): (usize, &u8)| *byte == ((offset + at) % 251) as u8;
                assert!(bytes.iter().enumerate().all(right), "{offset}");
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_comes_slowly_is_left_in_the_end() {
        let slow = stream::unfold((), |()| async {
            tokio::time::sleep(STILL / 2).await;
            Some((Ok(Bytes::from_static(b"x")), ()))
        });
        let mut feed = Feed::new(Box::pin(slow));
        let mut given = 0;
        while let Some(Ok(piece)) = feed.next().await {
            given += piece.len();
        }
        assert!(feed.is_left());
        assert!((50..=100).contains(&given), "{given}");
        assert_eq!(all(feed.rest(0).unwrap(), given + 3).await.len(), given + 3);
    }
}
