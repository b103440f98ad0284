//! A task from an open session to its end: shown, cancelled, written down.

use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use cantle::agent::{Outcome, RunErrorKind, Session, SessionError};
use cantle::core::event::{Finish, RunStatus};
use cantle::core::llm::LlmErrorKind;
use cantle::core::tool::{Progress, Question};
use futures_util::StreamExt as _;
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use crate::agent::FINISH;
use crate::ask::Person;
use crate::display::{Closing, Display, clean, clean_json};
use crate::exit::{Code, Failure};
use crate::tape::Playing;
use crate::{kept, record};

/// Events that are shown together where several are there.
const BATCH: usize = 256;

/// What there is to do in a session, and around it.
#[derive(Debug)]
pub(crate) struct Work {
    pub(crate) task: String,
    pub(crate) output_dir: Option<PathBuf>,
    /// What to say where the key is refused: where it came from, or where it could have.
    pub(crate) about_key: Option<String>,
    /// Whether the run can be resumed where it does not finish.
    pub(crate) kept: bool,
    /// The result is the finish call's parameters as JSON, whatever they are.
    pub(crate) result_as_json: bool,
    /// The recording that is played, where one of calls is.
    pub(crate) played: Option<Playing>,
    pub(crate) verbose: bool,
}

/// Opens a session, unless it is cancelled before; what takes long is shown.
pub(crate) async fn open<O>(
    begin: impl FnOnce(Arc<dyn Progress>) -> O,
    display: &mut Display,
    cancellation: &CancellationToken,
) -> Result<Session, Failure>
where
    O: Future<Output = Result<Session, SessionError>>,
{
    let (lines, mut said) = mpsc::unbounded_channel();
    let mut opening = pin!(begin(Arc::new(Lines(lines))));
    loop {
        tokio::select! {
            Some(line) = said.recv() => display.remark(&line).await,
            session = &mut opening => return Ok(session?),
            () = cancellation.cancelled() => return Err(cancelled_early()),
        }
    }
}

/// Hands on what is said while a session opens.
#[derive(Debug)]
struct Lines(mpsc::UnboundedSender<String>);

impl Progress for Lines {
    fn output(&self, text: &str) {
        // Who showed it may be gone.
        let _ = self.0.send(text.to_owned());
    }
}

/// Cancelled while everything was still being prepared.
pub(crate) fn cancelled_early() -> Failure {
    Failure::new(
        Code::Cancelled,
        anyhow::anyhow!("cancelled before the run began"),
    )
}

impl Work {
    /// Does the task, closes the session, and returns the exit code.
    pub(crate) async fn perform(
        self,
        session: Session,
        display: &mut Display,
        person: Option<Person>,
        cancellation: &CancellationToken,
    ) -> Result<u8, Failure> {
        let outcome = self.watch(&session, display, person, cancellation).await?;
        let mut code = Code::from(outcome.status());
        let mut closing = Closing::of(&outcome);
        closing.problem.extend(self.hint(&outcome));

        let output_dir = self.output_dir.as_deref();
        if outcome.status() == RunStatus::Finished {
            if let Err(error) = output_dir.map_or(Ok(()), |dir| record::write(&outcome, dir)) {
                closing.problem.push(format!("{error:#}"));
                code = Code::Internal;
            }
        } else {
            let sandbox = session.sandbox().map(AsRef::as_ref);
            closing.remains = kept::keep(&outcome, sandbox, output_dir, self.kept).await;
        }
        let closed = session.close().await;
        for remark in self.played.iter().flat_map(|it| it.remarks(self.verbose)) {
            display.remark(&remark).await;
        }
        closing
            .problem
            .extend(closed.err().map(|error| error.to_string()));

        let result = outcome.finish.as_ref().filter(|_| outcome.error.is_none());
        let result = result.map(|finish| self.result(finish));
        if let Err(error) = display.close(&closing, result.as_deref()).await {
            let error = anyhow::Error::new(error).context("failed to write the result");
            return Err(Failure::new(Code::Internal, error));
        }
        Ok(code as u8)
    }

    /// What to do about a failure, in terms of the command line.
    fn hint(&self, outcome: &Outcome) -> Option<String> {
        let error = outcome.error.as_ref()?;
        match (error.kind(), error.llm_kind()) {
            (RunErrorKind::MaxTurns, _) => Some("Allow more of them with --max-turns.".to_owned()),
            (RunErrorKind::OutputLimit, _) => Some("The limit is --max-tokens.".to_owned()),
            (_, Some(LlmErrorKind::Authentication)) => self.about_key.clone(),
            _ => None,
        }
    }

    async fn watch(
        &self,
        session: &Session,
        display: &mut Display,
        mut person: Option<Person>,
        cancellation: &CancellationToken,
    ) -> Result<Outcome, Failure> {
        let mut run = if session.is_resumed() {
            session.resume()?
        } else {
            session.run(self.task.as_str())?
        };
        let control = run.control();
        let mut ticks = tokio::time::interval(Duration::from_secs(1));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut events = (&mut run).ready_chunks(BATCH);
        loop {
            tokio::select! {
                batch = events.next() => match batch {
                    Some(batch) => display.events(&batch).await,
                    None => break,
                },
                () = cancellation.cancelled(), if !control.is_cancelled() => {
                    control.cancel();
                    display.say("cancelling; once more ends it at once").await;
                }
                _ = ticks.tick(), if display.is_live() => display.tick().await,
                question = next_question(&mut person) => match (question, &person) {
                    (Some(question), Some(asked)) => {
                        display.make_way().await;
                        tokio::select! {
                            () = asked.answer(&question) => {}
                            () = cancellation.cancelled() => {}
                        }
                    }
                    _ => person = None,
                },
            }
        }
        drop(events);
        Ok(run.outcome().await)
    }

    /// What a finished run says: its reason, or all its parameters.
    fn result(&self, finish: &Finish) -> String {
        let reason = finish.params.get("reason").and_then(Value::as_str);
        match reason.filter(|_| !self.result_as_json && finish.tool == FINISH) {
            Some(reason) => clean(reason.trim()),
            None => clean_json(&finish.params),
        }
    }
}

/// Waits for a question to whoever can be asked; for ever, where nobody can.
async fn next_question(person: &mut Option<Person>) -> Option<Question> {
    match person {
        Some(person) => person.next().await,
        None => std::future::pending().await,
    }
}
