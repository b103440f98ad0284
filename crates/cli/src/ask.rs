//! Questions to the user at the terminal.
//!
//! A separate thread reads the answer. It stops as soon as the question is withdrawn, so that later
//! input belongs to the next question. Input from before the whole question is shown is no answer to it; after that, the
//! prompt's mark is shown, and what is typed counts. There is a user only if both standard input and standard error are
//! terminals.

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
use crate::typed_ahead::TypedAhead;

/// The mark after which an answer is typed.
const MARK: &str = "> ";

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
    /// Keys from before the question are added to `keys`, which are paused then; without them, they are discarded. At the
    /// end of input (Ctrl-D), the question is declined. Nothing else may be written to the terminal meanwhile. Dropping the
    /// future stops reading.
    pub(crate) async fn answer(&self, question: &Question, keys: Option<&mut TypedAhead>) {
        let asked = question.clone();
        let read = tokio::select! {
            read = self.prompt(keys, move |prompt| prompt.ask(&asked)) => read,
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

    /// Asks for one line; input from before is discarded. A mark follows the prompt. Dropping the future stops reading.
    ///
    /// # Errors
    /// If the input ends or can't be read.
    pub(crate) async fn read_line(&self, prompt: &str) -> io::Result<String> {
        let prompt = prompt.to_owned();
        self.prompt(None, move |mut it| it.read_line(&prompt)).await
    }

    async fn prompt(
        &self,
        keys: Option<&mut TypedAhead>,
        ask: impl FnOnce(Prompt) -> io::Result<String> + Send + 'static,
    ) -> io::Result<String> {
        // Dropping this future closes the write end, which stops the thread.
        let (withdrawn, _guard) = io::pipe()?;
        let (done, mut answer) = oneshot::channel();
        let (shown, is_shown) = oneshot::channel();
        let prompt = Prompt {
            keys: self.keys.try_clone()?,
            screen: self.screen.try_clone()?,
            withdrawn,
            shown: Some(shown),
        };
        std::thread::Builder::new()
            .name("cantle-ask".to_owned())
            .spawn(move || done.send(ask(prompt)))?;
        let answer = tokio::select! {
            answer = &mut answer => answer,
            Ok(may_read) = is_shown => {
                // Input up to now is no answer: it is added to `keys`, or discarded. If it can't be discarded, the user
                // sees it as the answer.
                match keys {
                    Some(keys) => keys.pause(),
                    None => drop(tcflush(&self.keys, QueueSelector::IFlush)),
                }
                // The thread waits for it.
                let _ = may_read.send(());
                answer.await
            }
        };
        answer.unwrap_or_else(|_| Err(io::Error::other("nothing was read")))
    }
}

/// One question at a terminal.
#[derive(Debug)]
struct Prompt {
    keys: File,
    screen: File,
    /// Reaches its end when the question is withdrawn.
    withdrawn: PipeReader,
    /// Takes the sender that allows to read, once the question is shown.
    shown: Option<oneshot::Sender<oneshot::Sender<()>>>,
}

impl Prompt {
    /// Shows the question, and returns the first valid answer.
    fn ask(mut self, question: &Question) -> io::Result<String> {
        if let QuestionKind::Approval { tool, arguments } = &question.kind {
            return self.decide(tool, arguments);
        }
        self.screen.write_all(question_text(question).as_bytes())?;
        loop {
            let line = self.read_line(&input_prompt(question))?;
            match question.parse_answer(&line) {
                Ok(_) => return Ok(line),
                Err(error) => writeln!(self.screen, "  {error}")?,
            }
        }
    }

    /// Shows a prompt, and reads a line.
    fn read_line(&mut self, prompt: &str) -> io::Result<String> {
        self.screen.write_all(prompt.as_bytes())?;
        if let Some(shown) = self.shown.take() {
            let (may_read, waits) = oneshot::channel();
            let allowed = shown.send(may_read).is_ok() && waits.blocking_recv().is_ok();
            if !allowed {
                return Err(io::ErrorKind::Interrupted.into());
            }
        }
        self.screen.write_all(MARK.as_bytes())?;
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

/// Formats the prompt before the answer, without its mark.
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
        return String::new();
    }
    format!("[{}] ", hints.join(", "))
}

#[cfg(test)]
mod tests;
