//! Bounded capture of a command's output: the head and tail of each stream.

use std::collections::VecDeque;

use bytes::Bytes;

use super::Exit;

/// Keeps the first and last bytes of a stream and counts the rest, in bounded memory.
#[derive(Clone, Debug)]
pub struct HeadTail {
    head_limit: usize,
    tail_limit: usize,
    head: Vec<u8>,
    tail: VecDeque<u8>,
    total: u64,
}

impl HeadTail {
    /// Creates a buffer for the first `head_limit` and the last `tail_limit` bytes.
    pub fn new(head_limit: usize, tail_limit: usize) -> Self {
        Self {
            head_limit,
            tail_limit,
            head: Vec::new(),
            tail: VecDeque::new(),
            total: 0,
        }
    }

    /// Appends the next bytes of the stream.
    pub fn push(&mut self, bytes: &[u8]) {
        self.total += bytes.len() as u64;
        let room = self
            .head_limit
            .saturating_sub(self.head.len())
            .min(bytes.len());
        let (head, rest) = bytes.split_at(room);
        self.head.extend_from_slice(head);
        // Only the last `tail_limit` bytes of `rest` can survive.
        let rest = rest.split_at(rest.len().saturating_sub(self.tail_limit)).1;
        let excess = (self.tail.len() + rest.len()).saturating_sub(self.tail_limit);
        self.tail.drain(..excess);
        self.tail.extend(rest);
    }

    /// Returns the kept bytes.
    pub fn finish(self) -> Captured {
        let kept = (self.head.len() + self.tail.len()) as u64;
        Captured {
            head: self.head.into(),
            tail: Vec::from(self.tail).into(),
            omitted_bytes: self.total - kept,
        }
    }
}

/// The head and the tail of a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Captured {
    /// The first bytes.
    pub head: Bytes,
    /// The last bytes that are not in `head`.
    pub tail: Bytes,
    /// Number of discarded bytes between `head` and `tail`.
    pub omitted_bytes: u64,
}

impl Captured {
    /// Creates the capture of a stream without omitted bytes.
    pub fn complete(bytes: impl Into<Bytes>) -> Self {
        Self {
            head: bytes.into(),
            tail: Bytes::new(),
            omitted_bytes: 0,
        }
    }

    /// Returns the kept bytes as text, with U+FFFD for invalid UTF-8 and a line for the omitted bytes.
    pub fn text(&self) -> String {
        if self.omitted_bytes == 0 {
            let mut bytes = self.head.to_vec();
            bytes.extend_from_slice(&self.tail);
            return String::from_utf8_lossy(&bytes).into_owned();
        }
        format!(
            "{}\n… [{} bytes omitted] …\n{}",
            String::from_utf8_lossy(&self.head),
            self.omitted_bytes,
            String::from_utf8_lossy(&self.tail)
        )
    }

    /// Returns the length of the stream.
    pub fn total_bytes(&self) -> u64 {
        (self.head.len() + self.tail.len()) as u64 + self.omitted_bytes
    }
}

/// A command's result and its captured output.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CommandOutput {
    /// How it ended.
    pub exit: Exit,
    /// Its standard output.
    pub stdout: Captured,
    /// Its standard error.
    pub stderr: Captured,
}

impl CommandOutput {
    /// Creates the output of a command.
    pub fn new(exit: Exit, stdout: Captured, stderr: Captured) -> Self {
        Self {
            exit,
            stdout,
            stderr,
        }
    }
}

#[cfg(test)]
mod tests;
