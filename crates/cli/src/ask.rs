//! The person at the terminal: shown a question, they type the answer.
//!
//! A line is read on a thread of its own, which stops as soon as nobody waits for the answer: what
//! is typed later belongs to whoever asks next. Somebody is there only where both standard input
//! and standard error are terminals.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, IsTerminal as _, PipeReader, Read as _, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd};

use cantle::core::tool::{Answers, ChannelUser, Question, QuestionKind, Questions, user_channel};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::termios::{QueueSelector, tcflush};
use tokio::sync::oneshot;

use crate::display::{clean, one_line};

/// What one answer may have at most.
const MAX_ANSWER_BYTES: usize = 64 * 1024;

/// Somebody at a terminal, and what they are asked.
#[derive(Debug)]
pub(crate) struct Person {
    questions: Questions,
    answers: Answers,
    keys: File,
    screen: File,
}

impl Person {
    /// Whoever sits at our terminal, and the user that an agent asks to ask them. `None` where there
    /// is no terminal to ask at.
    pub(crate) fn at_terminal() -> io::Result<Option<(ChannelUser, Self)>> {
        let (stdin, stderr) = (io::stdin(), io::stderr());
        if !stdin.is_terminal() || !stderr.is_terminal() {
            return Ok(None);
        }
        Self::at(stdin.as_fd(), stderr.as_fd()).map(Some)
    }

    fn at(keys: BorrowedFd<'_>, screen: BorrowedFd<'_>) -> io::Result<(ChannelUser, Self)> {
        let (user, questions) = user_channel();
        let person = Self {
            answers: questions.answers(),
            questions,
            keys: keys.try_clone_to_owned()?.into(),
            screen: screen.try_clone_to_owned()?.into(),
        };
        Ok((user, person))
    }

    /// Waits for a question; `None` once nobody can ask any more. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Option<Question> {
        self.questions.next().await
    }

    /// Shows a question until it is answered. An answer that is none is asked for again; where the
    /// terminal has no more to say (Ctrl-D), the question is declined.
    ///
    /// It ends too when the question is taken back. Nothing else may be written to the terminal
    /// meanwhile. Dropped, this stops reading.
    pub(crate) async fn answer(&self, question: &Question) {
        let read = tokio::select! {
            read = self.read(question) => read,
            () = self.answers.closed(&question.id) => {
                // A terminal that is gone shows nothing.
                let _ = writeln!(&self.screen, "\n  (nobody waits for the answer any more)");
                return;
            }
        };
        match read {
            // It may have been taken back meanwhile; then nobody wants the answer.
            Ok(words) => {
                let _ = self.answers.answer(&question.id, &words);
            }
            Err(error) => {
                let reason = format!(
                    "The user gave no answer ({error}). Decide yourself and go on, or finish."
                );
                let _ = self.answers.decline(&question.id, &reason);
            }
        }
    }

    async fn read(&self, question: &Question) -> io::Result<String> {
        // Our end closes when this is dropped, and that is how the thread learns of it.
        let (given_up, _waiting) = io::pipe()?;
        let (done, answer) = oneshot::channel();
        let conversation = Conversation {
            keys: self.keys.try_clone()?,
            screen: self.screen.try_clone()?,
            given_up,
        };
        let question = question.clone();
        std::thread::Builder::new()
            .name("cantle-ask".to_owned())
            .spawn(move || done.send(conversation.ask(&question)))?;
        answer
            .await
            .unwrap_or_else(|_| Err(io::Error::other("nothing was read")))
    }
}

/// One question at one terminal.
#[derive(Debug)]
struct Conversation {
    keys: File,
    screen: File,
    /// Ends when nobody waits for the answer any more.
    given_up: PipeReader,
}

impl Conversation {
    /// Shows the question, and returns the first words that are an answer.
    fn ask(mut self, question: &Question) -> io::Result<String> {
        // What was typed before the question is no answer to it. Where that can't be thrown away,
        // the person still sees what is taken as the answer.
        let _ = tcflush(&self.keys, QueueSelector::IFlush);
        self.screen.write_all(shown(question).as_bytes())?;
        loop {
            self.screen.write_all(prompt(question).as_bytes())?;
            let line = self.line()?;
            match question.read(&line) {
                Ok(_) => return Ok(line),
                Err(error) => writeln!(self.screen, "  {error}")?,
            }
        }
    }

    /// Waits for a line and reads it.
    fn line(&mut self) -> io::Result<String> {
        let mut line = Vec::new();
        let mut piece = [0; 4096];
        while line.last() != Some(&b'\n') {
            self.wait()?;
            // A terminal hands out one line at a time, so nothing of the next one is taken here.
            let count = self.keys.read(&mut piece)?;
            if count == 0 {
                writeln!(self.screen)?;
                let message = "standard input has ended";
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, message));
            }
            line.extend(piece.iter().take(count));
            if line.len() > MAX_ANSWER_BYTES {
                return Err(io::Error::other("the answer is too long"));
            }
        }
        Ok(clean(&String::from_utf8_lossy(&line)))
    }

    /// Waits until there is something to read.
    fn wait(&self) -> io::Result<()> {
        loop {
            let mut sources = [
                PollFd::new(&self.keys, PollFlags::IN),
                PollFd::new(&self.given_up, PollFlags::IN),
            ];
            match poll(&mut sources, None) {
                Ok(_) => {}
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            }
            let [keys, given_up] = sources;
            if !given_up.revents().is_empty() {
                return Err(io::ErrorKind::Interrupted.into());
            }
            if !keys.revents().is_empty() {
                return Ok(());
            }
        }
    }
}

/// The question, and what there is to choose from.
fn shown(question: &Question) -> String {
    let mut text = format!(
        "\n? {}\n",
        clean(question.text.trim()).replace('\n', "\n  ")
    );
    if let QuestionKind::Choice { choices } = &question.kind {
        let width = choices.len().to_string().len();
        for (index, choice) in choices.iter().enumerate() {
            let _ = writeln!(text, "  {:>width$}  {}", index + 1, one_line(choice));
        }
    }
    text
}

/// What stands before the answer.
fn prompt(question: &Question) -> String {
    let wanted = match &question.kind {
        QuestionKind::Choice { choices } => Some(format!("1-{}", choices.len())),
        QuestionKind::Confirm => Some("yes or no".to_owned()),
        _ => None,
    };
    let default = question.default.as_deref();
    let default = default.map(|default| format!("Enter for {}", one_line(default)));
    let hints: Vec<String> = wanted.into_iter().chain(default).collect();
    if hints.is_empty() {
        return "> ".to_owned();
    }
    format!("[{}] > ", hints.join(", "))
}

#[cfg(test)]
mod tests;
