//! A run: one task being worked on. A stream of events and a handle.

mod work;

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use cantle_core::content::Content;
use cantle_core::event::{Event, Finish, RunStatus};
use cantle_core::ids::RunId;
use cantle_core::ledger::Ledger;
use cantle_core::message::SharedMessage;
use cantle_core::sandbox::SavedOutputs;
use futures_core::Stream;
use serde::de::DeserializeOwned;
use tokio::sync::OwnedMutexGuard;
use tokio::sync::mpsc::{self, UnboundedSender};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use self::work::Work;
use crate::approval::{Decision, DecisionError, Questions};
use crate::error::{RunError, RunErrorKind};
use crate::hub::{Events, Hub};
use crate::machine::Fact;
use crate::session::{Resumable, Shared};

/// One task being worked on. It goes on by itself; as a stream it tells what happens.
///
/// Dropping it cancels the run at once. [`outcome`](Self::outcome) waits for its end,
/// [`detach`](Self::detach) lets it go on without a handle.
#[derive(Debug)]
#[must_use = "dropping a run cancels it"]
pub struct Run {
    id: RunId,
    events: Events,
    control: RunControl,
    task: Option<JoinHandle<Outcome>>,
}

/// What can be done to a run while it goes on. Cheap to clone, to be kept elsewhere.
#[derive(Clone, Debug)]
pub struct RunControl {
    run: RunId,
    ending: Ending,
    say: UnboundedSender<Fact>,
    questions: Arc<Questions>,
}

/// Whether and how a run was told to end.
#[derive(Clone, Debug)]
pub(crate) struct Ending {
    pub(crate) cancellation: CancellationToken,
    /// It is not to go on another time.
    for_good: Arc<AtomicBool>,
}

impl Ending {
    fn new(cancellation: CancellationToken) -> Self {
        Self {
            cancellation,
            for_good: Arc::default(),
        }
    }

    /// Whether it was told to end, and may go on another time.
    pub(crate) fn leaves_open(&self) -> bool {
        self.cancellation.is_cancelled() && !self.is_for_good()
    }

    /// Whether it is not to go on another time.
    pub(crate) fn is_for_good(&self) -> bool {
        self.for_good.load(Ordering::Acquire)
    }
}

impl RunControl {
    /// Ends the run soon: running calls are told, and what was done so far is kept. The outcome
    /// then says that it was cancelled. Where runs are kept, it can be resumed as one can that was
    /// killed: a sub-agent goes on where it was, and an open question is asked again.
    pub fn cancel(&self) {
        self.ending.cancellation.cancel();
    }

    /// The same for one that is not to go on another time.
    pub(crate) fn cancel_for_good(&self) {
        self.ending.for_good.store(true, Ordering::Release);
        self.cancel();
    }

    /// Whether it was cancelled.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.ending.cancellation.is_cancelled()
    }

    /// Says something to the model, in the user's role, at its next turn. A run that is over hears
    /// nothing.
    pub fn say(&self, content: impl Into<Content>) {
        // Where nobody listens any more, the run is over.
        let content = content.into();
        let _ = self.say.send(Fact::UserSaid { content });
    }

    /// Decides on a call that needs consent. `digest` is the one that
    /// [`ApprovalRequested`](cantle_core::event::EventKind::ApprovalRequested) had: consent is for these arguments and
    /// no others.
    ///
    /// # Errors
    /// Where no such call waits, or its arguments are others.
    pub fn decide(
        &self,
        call_id: &str,
        digest: &str,
        decision: Decision,
    ) -> Result<(), DecisionError> {
        self.decide_in(self.run, call_id, digest, decision)
    }

    /// The same for a call of a run below this one, a sub-agent's, that the event
    /// [names](cantle_core::event::Event::run).
    ///
    /// # Errors
    /// As [`decide`](Self::decide).
    pub fn decide_in(
        &self,
        run: RunId,
        call_id: &str,
        digest: &str,
        decision: Decision,
    ) -> Result<(), DecisionError> {
        self.questions.decide(run, call_id, digest, decision)
    }
}

/// What a run begins with.
pub(crate) enum Begin {
    /// A task.
    Task(Content),
    /// What another process left.
    Resume(Box<Resumable>),
}

impl Run {
    pub(crate) fn start(
        shared: Arc<Shared>,
        history: OwnedMutexGuard<Vec<SharedMessage>>,
        begin: Begin,
    ) -> Self {
        let id = match &begin {
            Begin::Task(_) => RunId::new(),
            Begin::Resume(resumable) => resumable.reopened.header.run,
        };
        let lineage = shared.lineage.as_ref();
        let parent = lineage.map(|lineage| lineage.run);
        let depth = lineage.map_or(0, |lineage| lineage.depth);
        let hub = Arc::new(Hub::new(id, parent, depth));
        let events = hub.subscribe();
        let ending = Ending::new(shared.cancellation.child_token());
        let (say, said) = mpsc::unbounded_channel();
        // Questions of a whole tree of runs are put in one place, where somebody answers them.
        let asked = lineage.and_then(|lineage| lineage.questions.clone());
        let questions = asked.unwrap_or_default();
        let work = Work {
            id,
            shared,
            hub,
            ending: ending.clone(),
            questions: Arc::clone(&questions),
            heard: say.clone(),
        };
        let task = tokio::spawn(work.execute(history, begin, said));
        Self {
            id,
            events,
            control: RunControl {
                run: id,
                ending,
                say,
                questions,
            },
            task: Some(task),
        }
    }

    /// Its identifier.
    #[must_use]
    pub fn id(&self) -> RunId {
        self.id
    }

    /// What can be done to it while it goes on.
    #[must_use]
    pub fn control(&self) -> RunControl {
        self.control.clone()
    }

    /// Ends the run soon, as [`RunControl::cancel`].
    pub fn cancel(&self) {
        self.control.cancel();
    }

    /// Waits for the end. Events that nobody has read by now are dropped.
    pub async fn outcome(mut self) -> Outcome {
        let started = Instant::now();
        self.events = Events::ended();
        let Some(task) = self.task.as_mut() else {
            return Outcome::lost(self.id, started, "the run was taken twice");
        };
        let result = task.await;
        self.task = None;
        result.unwrap_or_else(|error| Outcome::lost(self.id, started, &error.to_string()))
    }

    /// Lets the run go on without this handle, until it ends or its session is closed.
    pub fn detach(mut self) {
        self.task = None;
    }
}

impl Stream for Run {
    type Item = Event;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Event>> {
        Pin::new(&mut self.events).poll_next(cx)
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        if let Some(task) = self.task.take() {
            self.control.cancel();
            task.abort();
        }
    }
}

/// How a run ended, and what came of it.
#[derive(Debug)]
#[non_exhaustive]
pub struct Outcome {
    /// The run.
    pub run: RunId,
    /// The finish call that ended it; kept also where saving its files failed afterwards.
    pub finish: Option<Finish>,
    /// Why it did not finish.
    pub error: Option<RunError>,
    /// The conversation, with the system message.
    pub history: Vec<SharedMessage>,
    /// Parts of it that summaries took the place of, oldest first.
    pub summarized: Vec<Vec<SharedMessage>>,
    /// What was paid and used.
    pub ledger: Ledger,
    /// Files saved in the output directory, and those refused.
    pub outputs: SavedOutputs,
    /// Turns taken.
    pub turns: u32,
    /// How long it took.
    pub duration: Duration,
}

impl Outcome {
    fn lost(run: RunId, started: Instant, why: &str) -> Self {
        Self {
            run,
            finish: None,
            error: Some(RunError::new(
                RunErrorKind::Internal,
                format!("the run ended unexpectedly: {why}"),
            )),
            history: Vec::new(),
            summarized: Vec::new(),
            ledger: Ledger::default(),
            outputs: SavedOutputs::default(),
            turns: 0,
            duration: started.elapsed(),
        }
    }

    /// How it ended.
    #[must_use]
    pub fn status(&self) -> RunStatus {
        self.error
            .as_ref()
            .map_or(RunStatus::Finished, RunError::status)
    }

    /// The parameters of the finish call as the type its tool was made from; `None` where the run
    /// did not finish.
    ///
    /// # Errors
    /// Where they are not of that type: another finish tool was called.
    pub fn finish_as<T: DeserializeOwned>(&self) -> Option<Result<T, serde_json::Error>> {
        self.finish
            .as_ref()
            .map(|finish| T::deserialize(&finish.params))
    }
}
