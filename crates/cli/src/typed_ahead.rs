//! The keys that a user presses while the model works: shown in a line of their own, and sent to the model with Enter.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::Duration;

use rustix::termios::{
    LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcsetattr,
};

const MAX_BYTES: usize = 64 * 1024;

/// Interval of looking for keys. Waiting for them would need a thread, which could not be stopped.
const INTERVAL: Duration = Duration::from_millis(50);

/// The text typed so far. The terminal has its own mode again when this is dropped, and while it is paused.
#[derive(Debug)]
pub(crate) struct TypedAhead {
    keys: File,
    before: Termios,
    line: TypedLine,
    /// The messages that were sent to the model.
    sent: Vec<String>,
}

impl TypedAhead {
    /// Begins to read keys.
    ///
    /// # Errors
    /// If standard input is no terminal.
    pub(crate) fn begin() -> io::Result<Self> {
        Self::at(io::stdin().as_fd())
    }

    /// Begins to read the keys of a terminal.
    pub(crate) fn at(terminal: BorrowedFd<'_>) -> io::Result<Self> {
        let before = tcgetattr(terminal)?;
        let keys = File::from(terminal.try_clone_to_owned()?);
        let typed = Self {
            keys,
            before,
            line: TypedLine::default(),
            sent: Vec::new(),
        };
        typed.resume();
        Ok(typed)
    }

    /// Reads what was typed, and restores the mode of the terminal, so that other code can ask a question there.
    pub(crate) fn pause(&mut self) {
        self.read();
        // The terminal may be gone.
        let _ = tcsetattr(&self.keys, OptionalActions::Now, &self.before);
    }

    /// Goes on after [`pause`](Self::pause).
    pub(crate) fn resume(&self) {
        let mut mode = self.before.clone();
        // Ctrl-C still is a signal.
        mode.local_modes
            .remove(LocalModes::ICANON | LocalModes::ECHO);
        // Reading never blocks.
        mode.special_codes[SpecialCodeIndex::VMIN] = 0;
        mode.special_codes[SpecialCodeIndex::VTIME] = 0;
        let _ = tcsetattr(&self.keys, OptionalActions::Now, &mode);
    }

    /// Waits for keys. Returns a message that Enter has completed. Cancel-safe.
    pub(crate) async fn typed(&mut self) -> Option<String> {
        loop {
            tokio::time::sleep(INTERVAL).await;
            if self.read() {
                return self.line.take_completed();
            }
        }
    }

    /// Notes a message that is sent to the model.
    pub(crate) fn note_sent(&mut self, message: &str) {
        self.sent.push(message.to_owned());
    }

    /// Returns the messages that Enter has completed since [`typed`](Self::typed) returned, if there are any.
    pub(crate) fn completed(&mut self) -> Option<String> {
        self.read();
        self.line.take_completed()
    }

    /// Puts back the messages that the model has not received, because the run ended before its next turn.
    pub(crate) fn put_back(&mut self, received: &[String]) {
        let mut messages = std::mem::take(&mut self.sent);
        for text in received {
            if let Some(index) = messages.iter().position(|message| message == text) {
                messages.remove(index);
            }
        }
        // Before those that Enter has completed since.
        self.line.completed.splice(0..0, messages);
    }

    /// The text that no Enter has completed.
    pub(crate) fn text(&self) -> &str {
        &self.line.text
    }

    /// Ends reading, and returns the text that was not sent.
    pub(crate) fn end(mut self) -> String {
        self.read();
        let mut messages = std::mem::take(&mut self.line.completed);
        messages.push(std::mem::take(&mut self.line.text));
        messages.join("\n")
    }

    /// Reads the keys that were pressed, and returns whether there were any.
    fn read(&mut self) -> bool {
        let mut chunk = [0; 4096];
        let mut has_read = false;
        while let Ok(count @ 1..) = (&self.keys).read(&mut chunk) {
            self.line.add(chunk.get(..count).unwrap_or_default());
            has_read = true;
        }
        has_read
    }
}

impl Drop for TypedAhead {
    fn drop(&mut self) {
        let _ = tcsetattr(&self.keys, OptionalActions::Now, &self.before);
    }
}

/// A line that is edited without moving in it.
#[derive(Debug, Default)]
struct TypedLine {
    text: String,
    /// Messages that were not sent yet.
    completed: Vec<String>,
    /// The bytes of a character that is not complete.
    partial: Vec<u8>,
    /// Whether the bytes of an escape sequence follow, such as that of an arrow key.
    in_escape: bool,
}

impl TypedLine {
    fn add(&mut self, bytes: &[u8]) {
        for byte in bytes {
            match byte {
                b'[' | b'O' | b'0'..=b'9' | b';' if self.in_escape => {}
                _ if self.in_escape => self.in_escape = false,
                0x1b => self.in_escape = true,
                b'\r' | b'\n' => {
                    let text = std::mem::take(&mut self.text);
                    self.completed
                        .extend(Some(text).filter(|text| !text.trim().is_empty()));
                }
                0x08 | 0x7f => drop(self.text.pop()),
                // Ctrl-U and Ctrl-W.
                0x15 => self.text.clear(),
                0x17 => {
                    let kept = self.text.trim_end().rfind(' ').map_or(0, |space| space + 1);
                    self.text.truncate(kept);
                }
                0x00..=0x1f => {}
                _ if self.text.len() >= MAX_BYTES => {}
                byte => self.character(*byte),
            }
        }
        // The bytes of other keys usually come together with it.
        if bytes.last() == Some(&0x1b) {
            self.in_escape = false;
        }
    }

    /// Returns the messages that were not sent yet as one.
    fn take_completed(&mut self) -> Option<String> {
        let completed = std::mem::take(&mut self.completed);
        (!completed.is_empty()).then(|| completed.join("\n"))
    }

    fn character(&mut self, byte: u8) {
        self.partial.push(byte);
        match std::str::from_utf8(&self.partial) {
            Ok(text) => self.text.push_str(text),
            // The other bytes follow.
            Err(error) if error.error_len().is_none() && self.partial.len() < 4 => return,
            Err(_) => {}
        }
        self.partial.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_edit_the_line_and_enter_completes_messages() {
        let mut line = TypedLine::default();
        line.add("hallo\u{7f}o wörld\x1b[D\x1b[1;5C \u{15}".as_bytes());
        assert_eq!(line.text, "");
        line.add("one two  \u{17}".as_bytes());
        assert_eq!(line.text, "one ");
        let (first, second) = "ä".as_bytes().split_at(1);
        line.add(first);
        line.add(second);
        line.add(b"\xff\xffx");
        assert_eq!(line.text, "one äx");
        line.add(b"\r\n  \nnext");
        assert_eq!(
            (line.text.as_str(), &*line.completed),
            ("next", &["one äx".to_owned()][..])
        );
        line.add(b" line\rthe rest");
        let completed = line.take_completed();
        assert_eq!(completed.as_deref(), Some("one äx\nnext line"));
        assert_eq!((line.take_completed(), &*line.text), (None, "the rest"));
    }

    #[test]
    fn the_key_esc_takes_no_other_key() {
        let mut line = TypedLine::default();
        line.add(b"\x1b");
        line.add(b"yes\x1b[D");
        line.add(b"\r");
        assert_eq!(line.take_completed().as_deref(), Some("yes"));
    }
}
