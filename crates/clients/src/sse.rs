//! Incremental parser of server-sent events.
//!
//! [`EventParser`] accepts the bytes of a stream in chunks of any size and returns complete events,
//! which borrow from its buffer. It follows the [standard]: lines end with CR, LF or both, comments and
//! unknown fields are ignored, and an event ends with an empty line. It performs no I/O and does not
//! limit the size of events; the caller does.
//!
//! ```
//! use cantle_clients::sse::EventParser;
//!
//! let mut parser = EventParser::default();
//! parser.push(b": hello\n\ndata: {\"a\":");
//! assert!(parser.next_event().is_none());
//! parser.push(b"1}\r\n\r\n");
//! let event = parser.next_event().expect("an event").expect("valid text");
//! assert_eq!((event.name, &*event.data), (None, "{\"a\":1}"));
//! ```
//!
//! [standard]: https://html.spec.whatwg.org/multipage/server-sent-events.html

use std::borrow::Cow;
use std::ops::Range;
use std::str::Utf8Error;

/// The byte order mark in UTF-8.
const BOM: &[u8] = b"\xef\xbb\xbf";

/// A server-sent event.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Event<'a> {
    /// Event name, if any.
    pub name: Option<&'a str>,
    /// Data, with its lines joined by LF.
    pub data: Cow<'a, str>,
}

/// Parser of a stream of server-sent events.
#[derive(Debug, Default)]
pub struct EventParser {
    /// Unconsumed bytes: the incomplete event and everything after it.
    buffer: Vec<u8>,
    /// Start of the next line.
    line: usize,
    /// Position up to which no line end was found.
    searched: usize,
    /// Whether the last line ended with CR, so that an LF directly after it belongs to it.
    after_cr: bool,
    /// Whether the byte order mark, which only the first line may have, was checked.
    bom_checked: bool,
    pending: PendingEvent,
}

/// Fields of an incomplete event, as ranges of the buffer.
#[derive(Debug, Default)]
struct PendingEvent {
    name: Option<Range<usize>>,
    data: Vec<Range<usize>>,
}

impl EventParser {
    /// Appends the next chunk of the stream.
    pub fn push(&mut self, chunk: &[u8]) {
        // Bytes before the pending event belong to events that were returned. Lines of data are in order.
        let ranges = self.pending.name.iter().chain(self.pending.data.first());
        let needed = ranges.map(|range| range.start).min().unwrap_or(self.line);
        let needed = needed.min(self.line);
        if needed > 0 {
            self.buffer.drain(..needed);
            self.line -= needed;
            self.searched -= needed;
            for range in self.pending.name.iter_mut().chain(&mut self.pending.data) {
                *range = range.start - needed..range.end - needed;
            }
        }
        self.buffer.extend_from_slice(chunk);
    }

    /// Returns the next complete event, or `None` if more bytes are needed.
    ///
    /// # Errors
    /// If an event is not UTF-8; the events after it can still be read.
    pub fn next_event(&mut self) -> Option<Result<Event<'_>, Utf8Error>> {
        loop {
            let line = self.next_line()?;
            if !line.is_empty() {
                self.field(line);
                continue;
            }
            let pending = std::mem::take(&mut self.pending);
            // The standard ignores events without data.
            if !pending.data.is_empty() {
                return Some(self.event(&pending));
            }
        }
    }

    /// Returns the range of the next complete line without its end.
    fn next_line(&mut self) -> Option<Range<usize>> {
        if !self.bom_checked {
            if self.buffer.len() < BOM.len() && BOM.starts_with(&self.buffer) {
                return None;
            }
            self.bom_checked = true;
            if self.buffer.starts_with(BOM) {
                (self.line, self.searched) = (BOM.len(), BOM.len());
            }
        }
        if self.after_cr && self.line < self.buffer.len() {
            self.after_cr = false;
            if self.buffer.get(self.line) == Some(&b'\n') {
                self.line += 1;
                self.searched = self.searched.max(self.line);
            }
        }
        let unsearched = self.buffer.get(self.searched..)?;
        let Some(found) = unsearched
            .iter()
            .position(|&byte| byte == b'\n' || byte == b'\r')
        else {
            self.searched = self.buffer.len();
            return None;
        };
        let end = self.searched + found;
        self.after_cr = self.buffer.get(end) == Some(&b'\r');
        let line = self.line..end;
        self.line = end + 1;
        self.searched = self.line;
        Some(line)
    }

    fn field(&mut self, line: Range<usize>) {
        let bytes = self.buffer.get(line.clone()).unwrap_or_default();
        let colon = bytes.iter().position(|&byte| byte == b':');
        let (name, after) = match colon {
            Some(colon) => (bytes.get(..colon).unwrap_or_default(), colon + 1),
            None => (bytes, bytes.len()),
        };
        let space = usize::from(bytes.get(after) == Some(&b' '));
        let value = line.start + after + space..line.end;
        match name {
            b"data" => self.pending.data.push(value),
            b"event" => self.pending.name = Some(value),
            _ => {}
        }
    }

    fn event(&self, pending: &PendingEvent) -> Result<Event<'_>, Utf8Error> {
        let text = |range: &Range<usize>| {
            str::from_utf8(self.buffer.get(range.clone()).unwrap_or_default())
        };
        let name = pending.name.as_ref().map(text).transpose()?;
        let data = match &pending.data[..] {
            [line] => Cow::Borrowed(text(line)?),
            lines => {
                let lines: Result<Vec<_>, _> = lines.iter().map(text).collect();
                Cow::Owned(lines?.join("\n"))
            }
        };
        Ok(Event {
            name: name.filter(|name| !name.is_empty()),
            data,
        })
    }
}

#[cfg(test)]
mod tests;
