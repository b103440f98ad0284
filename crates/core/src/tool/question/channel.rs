//! A user interface for programs: questions arrive on a channel and are answered by id.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use futures_util::future::{Either, select};
use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc, oneshot};

use super::{Answer, AskUser, InvalidAnswer, Question, QuestionId, no_user};
use crate::tool::ToolError;

/// Creates a user interface for an agent and the receiver of its questions.
///
/// Dropping the [`QuestionReceiver`] makes the user unavailable and fails open questions.
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
pub fn user_channel() -> (ChannelUser, QuestionReceiver) {
    let (sender, receiver) = mpsc::unbounded_channel();
    let answers = AnswerHandle(Arc::default());
    let user = ChannelUser {
        sender,
        answers: answers.clone(),
    };
    (user, QuestionReceiver { receiver, answers })
}

/// The agent's side of [`user_channel`].
#[derive(Clone, Debug)]
pub struct ChannelUser {
    sender: mpsc::UnboundedSender<Question>,
    answers: AnswerHandle,
}

/// Receives the agent's questions.
#[derive(Debug)]
pub struct QuestionReceiver {
    receiver: mpsc::UnboundedReceiver<Question>,
    answers: AnswerHandle,
}

/// Answers questions by id. Cheap to clone.
#[derive(Clone)]
pub struct AnswerHandle(Arc<OpenQuestions>);

#[derive(Default)]
struct OpenQuestions {
    open: Mutex<HashMap<QuestionId, OpenQuestion>>,
    /// Notified when a question is closed.
    closed: Notify,
}

struct OpenQuestion {
    question: Question,
    reply: oneshot::Sender<Result<Answer, ToolError>>,
}

impl QuestionReceiver {
    /// Waits for the next question that was not withdrawn; `None` once the agent is gone. Cancel-safe.
    pub async fn next(&mut self) -> Option<Question> {
        loop {
            let question = self.receiver.recv().await?;
            if self.answers.with(|open| open.contains_key(&question.id)) {
                return Some(question);
            }
        }
    }

    /// Returns a handle for answering questions.
    pub fn answers(&self) -> AnswerHandle {
        self.answers.clone()
    }
}

impl AnswerHandle {
    /// Answers a question.
    ///
    /// # Errors
    /// If no such question is open, or the answer is invalid; the question then stays open.
    pub fn answer(&self, id: &QuestionId, text: &str) -> Result<Answer, AnswerError> {
        self.with(|open| {
            let Entry::Occupied(pending) = open.entry(id.clone()) else {
                return Err(AnswerError::NotOpen(id.clone()));
            };
            let answer = pending.get().question.parse_answer(text);
            let answer = answer.map_err(|invalid| AnswerError::Invalid(id.clone(), invalid))?;
            // The receiver is gone if the question was just withdrawn.
            let _ = pending.remove().reply.send(Ok(answer.clone()));
            Ok(answer)
        })
        .inspect(|_| self.0.closed.notify_waiters())
    }

    /// Declines to answer a question; the model reads `reason`.
    ///
    /// # Errors
    /// If no such question is open.
    pub fn decline(&self, id: &QuestionId, reason: &str) -> Result<(), AnswerError> {
        let pending = self.with(|open| open.remove(id));
        let pending = pending.ok_or_else(|| AnswerError::NotOpen(id.clone()))?;
        let _ = pending.reply.send(Err(ToolError::failed(reason)));
        self.0.closed.notify_waiters();
        Ok(())
    }

    /// Waits until a question is closed: answered, declined or withdrawn. Cancel-safe.
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

    fn with<T>(&self, access: impl FnOnce(&mut HashMap<QuestionId, OpenQuestion>) -> T) -> T {
        access(&mut self.0.open.lock())
    }
}

impl fmt::Debug for AnswerHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let open = self.with(|open| open.keys().cloned().collect::<Vec<_>>());
        f.debug_tuple("AnswerHandle").field(&open).finish()
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
        self.answers.with(|open| match open.entry(id.clone()) {
            Entry::Occupied(_) => Err(ToolError::failed("This call already has an open question.")),
            Entry::Vacant(entry) => {
                let question = question.clone();
                entry.insert(OpenQuestion { question, reply });
                Ok(())
            }
        })?;
        let _guard = WithdrawOnDrop {
            answers: &self.answers,
            id: &id,
        };
        self.sender.send(question).map_err(|_| no_user())?;
        let closed = std::pin::pin!(self.sender.closed());
        match select(answer, closed).await {
            Either::Left((Ok(answer), _)) => answer,
            Either::Left((Err(_), _)) | Either::Right(_) => Err(no_user()),
        }
    }
}

/// Closes a question when dropped.
struct WithdrawOnDrop<'a> {
    answers: &'a AnswerHandle,
    id: &'a QuestionId,
}

impl Drop for WithdrawOnDrop<'_> {
    fn drop(&mut self) {
        self.answers.with(|open| open.remove(self.id));
        self.answers.0.closed.notify_waiters();
    }
}

/// An error while answering a question.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AnswerError {
    /// No such question is open.
    #[error("no question {0} is open")]
    NotOpen(QuestionId),
    /// The answer is invalid, and the question stays open.
    #[error("question {0} is not answered: {1}")]
    Invalid(QuestionId, InvalidAnswer),
}

#[cfg(test)]
mod tests;
