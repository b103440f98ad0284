//! Server-sent events, as their bytes arrive.
//!
//! [`Events`] takes the bytes of a stream in pieces of any size and hands out whole events, which
//! borrow from what has been taken. It follows the [standard]: lines end with CR, LF or both,
//! comments and unknown fields are passed over, and an event that has not been ended by an empty
//! line is none. It does no I/O, and nothing limits how long an event may be: who feeds it does.
//!
//! ```
//! use cantle_clients::sse::Events;
//!
//! let mut events = Events::default();
//! events.push(b": hello\n\ndata: {\"a\":");
//! assert!(events.next_event().is_none());
//! events.push(b"1}\r\n\r\n");
//! let event = events.next_event().expect("an event").expect("valid text");
//! assert_eq!((event.name, &*event.data), (None, "{\"a\":1}"));
//! ```
//!
//! [standard]: https://html.spec.whatwg.org/multipage/server-sent-events.html

use std::borrow::Cow;
use std::ops::Range;
use std::str::Utf8Error;

/// One event.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Event<'a> {
    /// Its name, where it has one.
    pub name: Option<&'a str>,
    /// Its data, lines joined by LF.
    pub data: Cow<'a, str>,
}

/// The events in a stream of bytes.
#[derive(Debug, Default)]
pub struct Events {
    /// What was taken and is still needed: an event that is not complete, and what comes after.
    buffer: Vec<u8>,
    /// Where the line to be read next begins.
    line: usize,
    /// Up to where the line's end has been looked for.
    searched: usize,
    /// The last line ended with CR, so that an LF right behind it belongs to it.
    after_cr: bool,
    /// Whether something was read before: only the first line may begin with a mark.
    begun: bool,
    draft: Draft,
}

/// The fields of an event, as places in the buffer.
#[derive(Debug, Default)]
struct Draft {
    name: Option<Range<usize>>,
    data: Vec<Range<usize>>,
}

impl Events {
    /// Takes the next piece of the stream.
    pub fn push(&mut self, piece: &[u8]) {
        // What lies before the fields of the draft has been handed out.
        let places = self.draft.name.iter().chain(&self.draft.data);
        let needed = places.map(|range| range.start).min().unwrap_or(self.line);
        let needed = needed.min(self.line);
        if needed > 0 {
            self.buffer.drain(..needed);
            self.line -= needed;
            self.searched -= needed;
            for range in self.draft.name.iter_mut().chain(&mut self.draft.data) {
                *range = range.start - needed..range.end - needed;
            }
        }
        self.buffer.extend_from_slice(piece);
    }

    /// The next event that is complete. `None` asks for more bytes.
    ///
    /// # Errors
    /// Where an event is not UTF-8; those after it can still be read.
    pub fn next_event(&mut self) -> Option<Result<Event<'_>, Utf8Error>> {
        loop {
            let line = self.next_line()?;
            if !line.is_empty() {
                self.field(line);
                continue;
            }
            let draft = std::mem::take(&mut self.draft);
            // The standard passes over events without data.
            if !draft.data.is_empty() {
                return Some(self.whole(&draft));
            }
        }
    }

    /// Where the next complete line is, without its end.
    fn next_line(&mut self) -> Option<Range<usize>> {
        if !self.begun && self.buffer.len() >= 3 {
            self.begun = true;
            if self.buffer.starts_with(b"\xef\xbb\xbf") {
                (self.line, self.searched) = (3, 3);
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
            b"data" => self.draft.data.push(value),
            b"event" => self.draft.name = Some(value),
            _ => {}
        }
    }

    fn whole(&self, draft: &Draft) -> Result<Event<'_>, Utf8Error> {
        let text = |range: &Range<usize>| {
            str::from_utf8(self.buffer.get(range.clone()).unwrap_or_default())
        };
        let name = draft.name.as_ref().map(text).transpose()?;
        let data = match &draft.data[..] {
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
