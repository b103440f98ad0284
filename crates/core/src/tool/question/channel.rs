//! A user that is a program: it takes questions from a channel and answers them by their id.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use futures_util::future::{Either, select};
use tokio::sync::{Notify, mpsc, oneshot};

use super::{Answer, AskUser, InvalidAnswer, Question, QuestionId, nobody};
use crate::tool::ToolError;

/// A user for an agent, and the questions that come to it.
///
/// There is somebody to ask for as long as the [`Questions`] are held; dropping them fails what is
/// asked and not answered.
///
/// ```
/// use cantle_core::ids::RunId;
/// use cantle_core::tool::{AskUser as _, Question, QuestionId, user_channel};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let (user, mut questions) = user_channel();
/// let id = QuestionId::new(RunId::new(), "call-1");
/// let asking = user.ask(Question::confirm(id, "Shall I go on?"));
/// let answering = async {
///     let question = questions.next().await.expect("there is one");
///     questions.answers().answer(&question.id, "yes")
/// };
/// let (asked, answered) = tokio::join!(asking, answering);
/// assert_eq!(asked?, answered?);
/// # Ok(())
/// # }
/// ```
#[must_use]
pub fn user_channel() -> (ChannelUser, Questions) {
    let (sender, receiver) = mpsc::unbounded_channel();
    let answers = Answers(Arc::default());
    let user = ChannelUser {
        sender,
        answers: answers.clone(),
    };
    (user, Questions { receiver, answers })
}

/// The user of [`user_channel`], for the agent.
#[derive(Clone, Debug)]
pub struct ChannelUser {
    sender: mpsc::UnboundedSender<Question>,
    answers: Answers,
}

/// What is asked, for whoever answers.
#[derive(Debug)]
pub struct Questions {
    receiver: mpsc::UnboundedReceiver<Question>,
    answers: Answers,
}

/// A way to answer by id. Cheap to clone.
#[derive(Clone)]
pub struct Answers(Arc<Shared>);

#[derive(Default)]
struct Shared {
    open: Mutex<HashMap<QuestionId, Pending>>,
    /// Told whenever a question is no longer open.
    closed: Notify,
}

struct Pending {
    question: Question,
    reply: oneshot::Sender<Result<Answer, ToolError>>,
}

impl Questions {
    /// Waits for the next question; one that was taken back by then does not come. `None` once the
    /// agent is gone. Cancel-safe.
    pub async fn next(&mut self) -> Option<Question> {
        loop {
            let question = self.receiver.recv().await?;
            if self.answers.with(|open| open.contains_key(&question.id)) {
                return Some(question);
            }
        }
    }

    /// The way to answer, which may be used from elsewhere.
    #[must_use]
    pub fn answers(&self) -> Answers {
        self.answers.clone()
    }
}

impl Answers {
    /// Answers a question.
    ///
    /// # Errors
    /// Where no such question is open, or these words are no answer to it: then it stays open.
    pub fn answer(&self, id: &QuestionId, words: &str) -> Result<Answer, AnswerError> {
        self.with(|open| {
            let pending = open.get(id).ok_or_else(|| AnswerError::unknown(id))?;
            let answer = pending
                .question
                .read(words)
                .map_err(|invalid| AnswerError {
                    id: id.clone(),
                    invalid: Some(invalid),
                })?;
            if let Some(pending) = open.remove(id) {
                // Who asked may have gone in this very moment.
                let _ = pending.reply.send(Ok(answer.clone()));
            }
            Ok(answer)
        })
        .inspect(|_| self.0.closed.notify_waiters())
    }

    /// Says that a question will not be answered; the model reads `reason`.
    ///
    /// # Errors
    /// Where no such question is open.
    pub fn decline(&self, id: &QuestionId, reason: &str) -> Result<(), AnswerError> {
        let pending = self.with(|open| open.remove(id));
        let pending = pending.ok_or_else(|| AnswerError::unknown(id))?;
        let _ = pending.reply.send(Err(ToolError::failed(reason)));
        self.0.closed.notify_waiters();
        Ok(())
    }

    /// Waits until a question is not open: answered, declined, or taken back because its call has
    /// ended. Cancel-safe.
    pub async fn closed(&self, id: &QuestionId) {
        loop {
            let mut closed = std::pin::pin!(self.0.closed.notified());
            closed.as_mut().enable();
            if !self.with(|open| open.contains_key(id)) {
                return;
            }
            closed.await;
        }
    }

    fn with<T>(&self, work: impl FnOnce(&mut HashMap<QuestionId, Pending>) -> T) -> T {
        work(&mut self.0.open.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl fmt::Debug for Answers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let open = self.with(|open| open.keys().cloned().collect::<Vec<_>>());
        f.debug_tuple("Answers").field(&open).finish()
    }
}

#[async_trait]
impl AskUser for ChannelUser {
    fn is_available(&self) -> bool {
        !self.sender.is_closed()
    }

    async fn ask(&self, question: Question) -> Result<Answer, ToolError> {
        let (reply, answer) = oneshot::channel();
        let id = question.id.clone();
        let pending = Pending {
            question: question.clone(),
            reply,
        };
        let is_second = self.answers.with(|open| {
            let is_second = open.contains_key(&id);
            if !is_second {
                open.insert(id.clone(), pending);
            }
            is_second
        });
        if is_second {
            return Err(ToolError::failed(
                "This call has asked something that is not answered yet.",
            ));
        }
        let _taken_back_when_dropped = Open {
            answers: &self.answers,
            id: &id,
        };
        self.sender.send(question).map_err(|_| nobody())?;
        let closed = std::pin::pin!(self.sender.closed());
        match select(answer, closed).await {
            Either::Left((Ok(answer), _)) => answer,
            Either::Left((Err(_), _)) | Either::Right(_) => Err(nobody()),
        }
    }
}

/// A question on the list of those that are open.
struct Open<'a> {
    answers: &'a Answers,
    id: &'a QuestionId,
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.answers.with(|open| open.remove(self.id));
        self.answers.0.closed.notify_waiters();
    }
}

/// Why an answer was not taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnswerError {
    id: QuestionId,
    invalid: Option<InvalidAnswer>,
}

impl AnswerError {
    fn unknown(id: &QuestionId) -> Self {
        Self {
            id: id.clone(),
            invalid: None,
        }
    }

    /// What would be an answer, where the question is open and the words are none.
    #[must_use]
    pub fn invalid(&self) -> Option<&InvalidAnswer> {
        self.invalid.as_ref()
    }
}

impl fmt::Display for AnswerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.invalid {
            Some(invalid) => write!(f, "question {} is not answered: {invalid}", self.id),
            None => write!(f, "no question {} is open", self.id),
        }
    }
}

impl std::error::Error for AnswerError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.invalid.as_ref().map(|invalid| invalid as _)
    }
}

#[cfg(test)]
mod tests;
