//! Questions to the user at the terminal.
//!
//! A separate thread reads the answer. It stops as soon as the question is withdrawn, so that later
//! input belongs to the next question. There is a user only if both standard input and standard error
//! are terminals.

mod approval;

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, IsTerminal as _, PipeReader, Read as _, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd};

use cantle::core::escape::{for_decision, for_display};
use cantle::core::tool::{
    AnswerHandle, ChannelUser, Question, QuestionKind, QuestionReceiver, user_channel,
};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::termios::{QueueSelector, tcflush};
use tokio::sync::oneshot;

use crate::text::clean;

const MAX_ANSWER_BYTES: usize = 64 * 1024;

/// The user at a terminal, who answers an agent's questions.
#[derive(Debug)]
pub(crate) struct TerminalUser {
    questions: QuestionReceiver,
    answers: AnswerHandle,
    keys: File,
    screen: File,
}

impl TerminalUser {
    /// Returns the user at this process's terminal, if there is one, and the agent's channel to it.
    pub(crate) fn find() -> io::Result<Option<(ChannelUser, Self)>> {
        let (stdin, stderr) = (io::stdin(), io::stderr());
        if !stdin.is_terminal() || !stderr.is_terminal() {
            return Ok(None);
        }
        Self::at(stdin.as_fd(), stderr.as_fd()).map(Some)
    }

    fn at(keys: BorrowedFd<'_>, screen: BorrowedFd<'_>) -> io::Result<(ChannelUser, Self)> {
        let (user, questions) = user_channel();
        let terminal_user = Self {
            answers: questions.answers(),
            questions,
            keys: keys.try_clone_to_owned()?.into(),
            screen: screen.try_clone_to_owned()?.into(),
        };
        Ok((user, terminal_user))
    }

    /// Waits for a question; returns `None` once the agent is gone. Cancel-safe.
    pub(crate) async fn next_question(&mut self) -> Option<Question> {
        self.questions.next().await
    }

    /// Asks a question until there is a valid answer, or the agent withdraws the question.
    ///
    /// At the end of input (Ctrl-D), the question is declined. Nothing else may be written to the
    /// terminal meanwhile. Dropping the future stops reading.
    pub(crate) async fn answer(&self, question: &Question) {
        let read = tokio::select! {
            read = self.read(question) => read,
            () = self.answers.closed(&question.id) => {
                let _ = writeln!(&self.screen, "\n  (the question was withdrawn)");
                return;
            }
        };
        match read {
            // The question may have been withdrawn meanwhile.
            Ok(answer) => {
                let _ = self.answers.answer(&question.id, &answer);
            }
            Err(error) => {
                let reason = format!(
                    "The user gave no answer ({error}). Decide yourself and go on, or finish."
                );
                let _ = self.answers.decline(&question.id, &reason);
            }
        }
    }

    /// Shows text.
    pub(crate) fn show(&self, text: &str) -> io::Result<()> {
        (&self.screen).write_all(text.as_bytes())
    }

    /// Asks for one line; input from before is discarded. Dropping the future stops reading.
    ///
    /// # Errors
    /// If the input ends or can't be read.
    pub(crate) async fn read_line(&self, prompt: &str) -> io::Result<String> {
        let prompt = prompt.to_owned();
        self.prompt(move |mut it| {
            it.discard_input();
            it.screen.write_all(prompt.as_bytes())?;
            it.read_line()
        })
        .await
    }

    async fn read(&self, question: &Question) -> io::Result<String> {
        let question = question.clone();
        self.prompt(move |prompt| prompt.ask(&question)).await
    }

    async fn prompt(
        &self,
        ask: impl FnOnce(Prompt) -> io::Result<String> + Send + 'static,
    ) -> io::Result<String> {
        // Dropping this future closes the write end, which stops the thread.
        let (withdrawn, _guard) = io::pipe()?;
        let (done, answer) = oneshot::channel();
        let prompt = Prompt {
            keys: self.keys.try_clone()?,
            screen: self.screen.try_clone()?,
            withdrawn,
        };
        std::thread::Builder::new()
            .name("cantle-ask".to_owned())
            .spawn(move || done.send(ask(prompt)))?;
        answer
            .await
            .unwrap_or_else(|_| Err(io::Error::other("nothing was read")))
    }
}

/// One question at a terminal.
#[derive(Debug)]
struct Prompt {
    keys: File,
    screen: File,
    /// Reaches its end when the question is withdrawn.
    withdrawn: PipeReader,
}

impl Prompt {
    /// Shows the question, and returns the first valid answer.
    fn ask(mut self, question: &Question) -> io::Result<String> {
        self.discard_input();
        if let QuestionKind::Approval { tool, arguments } = &question.kind {
            return self.decide(tool, arguments);
        }
        self.screen.write_all(question_text(question).as_bytes())?;
        loop {
            self.screen.write_all(input_prompt(question).as_bytes())?;
            let line = self.read_line()?;
            match question.parse_answer(&line) {
                Ok(_) => return Ok(line),
                Err(error) => writeln!(self.screen, "  {error}")?,
            }
        }
    }

    /// Input from before the question is no answer to it. If it can't be discarded, the user sees it as the
    /// answer.
    fn discard_input(&self) {
        let _ = tcflush(&self.keys, QueueSelector::IFlush);
    }

    fn read_line(&mut self) -> io::Result<String> {
        let mut line = Vec::new();
        let mut chunk = [0; 4096];
        while line.last() != Some(&b'\n') {
            self.wait()?;
            // A terminal returns one line at a time, so this reads nothing of the next one.
            let count = self.keys.read(&mut chunk)?;
            if count == 0 {
                writeln!(self.screen)?;
                let message = "standard input has ended";
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, message));
            }
            line.extend(chunk.iter().take(count));
            if line.len() > MAX_ANSWER_BYTES {
                return Err(io::Error::other("the answer is too long"));
            }
        }
        Ok(clean(&String::from_utf8_lossy(&line)))
    }

    /// Waits until input is available or the question is withdrawn.
    fn wait(&self) -> io::Result<()> {
        loop {
            let mut sources = [
                PollFd::new(&self.keys, PollFlags::IN),
                PollFd::new(&self.withdrawn, PollFlags::IN),
            ];
            match poll(&mut sources, None) {
                Ok(_) => {}
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            }
            let [keys, withdrawn] = sources;
            if !withdrawn.revents().is_empty() {
                return Err(io::ErrorKind::Interrupted.into());
            }
            if !keys.revents().is_empty() {
                return Ok(());
            }
        }
    }
}

/// Formats the question and its choices.
fn question_text(question: &Question) -> String {
    let mut text = format!(
        "\n? {}\n",
        for_display(question.text.trim()).replace('\n', "\n  ")
    );
    if let QuestionKind::Choice { choices } = &question.kind {
        let width = choices.len().to_string().len();
        for (index, choice) in choices.iter().enumerate() {
            let _ = writeln!(text, "  {:>width$}  {}", index + 1, for_decision(choice));
        }
    }
    text
}

/// Formats the prompt before the answer.
fn input_prompt(question: &Question) -> String {
    let expected = match &question.kind {
        QuestionKind::Choice { choices } => Some(format!("1-{}", choices.len())),
        QuestionKind::Confirm => Some("yes or no".to_owned()),
        _ => None,
    };
    let default = question.default.as_deref();
    let default = default.map(|default| format!("Enter for {}", for_decision(default)));
    let hints: Vec<String> = expected.into_iter().chain(default).collect();
    if hints.is_empty() {
        return "> ".to_owned();
    }
    format!("[{}] > ", hints.join(", "))
}

#[cfg(test)]
mod tests;
