//! A line editor at the terminal, with history and completion.

use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;

use anyhow::bail;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcsetattr};
use rustyline::completion::{Completer, Pair};
use rustyline::config::Configurer as _;
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::FileHistory;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{Cmd, Config, Context, Editor, EventHandler, Helper, KeyEvent};

/// Maximum number of entries of the history.
const MAX_HISTORY: usize = 1_000;

/// The end of an edited line.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Line {
    Entered(String),
    /// Ctrl-C.
    Interrupted,
    /// Ctrl-D.
    End,
}

/// Completes words that lines may begin with.
#[derive(Debug)]
struct Words(&'static [&'static str]);

impl Completer for Words {
    type Candidate = Pair;

    fn complete(
        &self,
        line: &str,
        end: usize,
        _: &Context<'_>,
    ) -> rustyline::Result<(usize, Vec<Pair>)> {
        let typed = line.get(..end).unwrap_or_default();
        let matching = self.0.iter().filter(|word| word.starts_with(typed));
        let candidates = matching.map(|word| Pair {
            display: (*word).to_owned(),
            replacement: (*word).to_owned(),
        });
        // An empty line has no word to complete.
        Ok((0, candidates.filter(|_| !typed.is_empty()).collect()))
    }
}

impl Validator for Words {
    /// A line that ends in a backslash continues on the next one.
    fn validate(&self, context: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        Ok(match context.input().ends_with('\\') {
            true => ValidationResult::Incomplete,
            false => ValidationResult::Valid(None),
        })
    }
}

impl Hinter for Words {
    type Hint = String;
}

impl Highlighter for Words {}

impl Helper for Words {}

/// A line editor. The terminal has its own mode again when it is dropped.
pub(crate) struct LineEditor {
    /// `None` while another thread reads a line.
    editor: Option<Editor<Words, FileHistory>>,
    history: Option<PathBuf>,
    mode: Option<Termios>,
}

impl LineEditor {
    /// Creates an editor that completes these words, with the history in this file.
    ///
    /// # Errors
    /// If the terminal can't be used.
    pub(crate) fn new(
        words: &'static [&'static str],
        history: Option<PathBuf>,
    ) -> anyhow::Result<Self> {
        let mut config = Config::builder();
        config.set_max_history_size(MAX_HISTORY)?;
        let mut editor = Editor::with_config(config.build())?;
        editor.set_helper(Some(Words(words)));
        editor.bind_sequence(KeyEvent::alt('\r'), EventHandler::Simple(Cmd::Newline));
        if let Some(history) = &history {
            // Without it, there is nothing to go back to.
            let _ = editor.load_history(history);
        }
        Ok(Self {
            editor: Some(editor),
            history,
            mode: tcgetattr(io::stdin()).ok(),
        })
    }

    /// Reads a line, which may have several lines of text; `initial` can be edited. If the future is dropped, the
    /// editor can't be used any more.
    ///
    /// # Errors
    /// If the terminal can't be read.
    pub(crate) async fn read(&mut self, prompt: &str, initial: String) -> anyhow::Result<Line> {
        let Some(mut editor) = self.editor.take() else {
            bail!("the editor is in use");
        };
        let prompt = prompt.to_owned();
        let reading = tokio::task::spawn_blocking(move || {
            let line = editor.readline_with_initial(&prompt, (&initial, ""));
            (editor, line)
        });
        let (editor, line) = reading.await?;
        self.editor = Some(editor);
        match line {
            // A backslash continues a line.
            Ok(line) => Ok(Line::Entered(line.replace("\\\n", "\n"))),
            Err(ReadlineError::Interrupted) => Ok(Line::Interrupted),
            Err(ReadlineError::Eof) => Ok(Line::End),
            Err(error) => Err(error.into()),
        }
    }

    /// Adds a line to the history, on disk too.
    pub(crate) fn remember(&mut self, line: &str) {
        let Some(editor) = &mut self.editor else {
            return;
        };
        // A history that can't be written is lost with the process.
        let _ = editor.add_history_entry(line);
        if let Some(path) = &self.history {
            let mut options = std::fs::OpenOptions::new();
            let created = options.append(true).create(true).mode(0o600).open(path);
            let _ = created.is_ok_and(|_| editor.append_history(path).is_ok());
        }
    }
}

impl Drop for LineEditor {
    fn drop(&mut self) {
        // The thread that still reads a line has changed it.
        if self.editor.is_none()
            && let Some(mode) = &self.mode
        {
            let _ = tcsetattr(io::stdin(), OptionalActions::Now, mode);
        }
    }
}
