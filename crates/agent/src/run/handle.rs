//! The handle of a run: a stream of events, and its control.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::task::{Context, Poll};
use std::time::Instant;

use cantle_core::content::Content;
use cantle_core::event::Event;
use cantle_core::ids::RunId;
use cantle_core::message::SharedMessage;
use cantle_core::tool::Decision;
use futures_core::Stream;
use futures_util::StreamExt as _;
use tokio::sync::{Mutex, OwnedMutexGuard, mpsc};
use tokio_util::sync::DropGuard;
use tokio_util::task::AbortOnDropHandle;

use super::execute::{RunLifecycle, RunStart};
use super::outcome::Outcome;
use super::resources::SessionResources;
use crate::approval::{ApprovalRequests, DecisionError};
use crate::budget::Account;
use crate::error::{RunError, RunErrorKind};
use crate::hub::{Events, Hub};
use crate::rules::Fact;
use crate::scope::{Background, RunScope};

/// One task being worked on. The run proceeds by itself; as a stream it yields its events.
///
/// Dropping it cancels the run at once. [`outcome`](Self::outcome) waits for the end,
/// [`detach`](Self::detach) lets the run continue without a handle.
#[derive(Debug)]
#[must_use = "dropping a run cancels it"]
pub struct Run {
    events: Events,
    control: RunControl,
    /// Declared before `task`: the run is cancelled before its task is aborted.
    cancel: DropGuard,
    task: AbortOnDropHandle<Outcome>,
}

/// The control of a run. Cheap to clone.
#[derive(Clone, Debug)]
pub struct RunControl(Arc<RunScope>);

impl RunControl {
    /// Cancels the run: running calls are asked to stop, and all work so far is kept. A kept run can
    /// be resumed like one that was killed: a sub-agent continues where it was, and an open approval
    /// is requested again.
    pub fn cancel(&self) {
        self.0.cancellation.cancel();
    }

    /// Cancels a run that will not be resumed.
    pub(crate) fn cancel_for_good(&self) {
        self.0.cancel_for_good();
    }

    /// Whether the run was cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.0.cancellation.is_cancelled()
    }

    /// Sends a message to the model, with its next turn. Has no effect after the end of the run.
    pub fn say(&self, content: impl Into<Content>) {
        let content = content.into();
        let _ = self.0.facts.send(Box::new(Fact::UserMessage { content }));
    }

    /// Decides on a call that needs approval. `digest` is that of
    /// [`ApprovalRequested`](cantle_core::event::EventKind::ApprovalRequested): the decision holds for
    /// these arguments only.
    ///
    /// # Errors
    /// If no such call waits, or it has other arguments.
    pub fn decide(
        &self,
        call_id: &str,
        digest: &str,
        decision: Decision,
    ) -> Result<(), DecisionError> {
        self.decide_in(self.0.run, call_id, digest, decision)
    }

    /// Decides on a call of a sub-agent's run, which the event
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
        let requests = self.0.requests.as_ref().ok_or(DecisionError::NotAsked)?;
        requests.decide(run, call_id, digest, decision)
    }
}

impl Run {
    /// Returns the next event; `None` after the last.
    pub async fn next(&mut self) -> Option<Event> {
        self.events.next().await
    }

    /// Starts a run. It holds the lock of the session's history until it ends.
    pub(crate) fn start(
        resources: Arc<SessionResources>,
        history: OwnedMutexGuard<Vec<SharedMessage>>,
        start: RunStart,
    ) -> Self {
        let options = &resources.run_options;
        let parent = options.parent.as_ref().map(|parent| &parent.scope);
        let run = start.run_id();
        let depth = parent.map_or(0, |parent| parent.depth + 1);
        let cancellation = resources.cancellation.child_token();
        let (facts, received) = mpsc::unbounded_channel();
        // The requests of a tree of runs are in one place, where its holder answers them.
        let requests = parent.and_then(|parent| parent.requests.clone());
        let own_requests = || {
            let answers = options.answers_approvals;
            answers.then(|| Arc::new(ApprovalRequests::default()))
        };
        let own_outputs = options.output_dir_of(run);
        // Files of a sub-agent go to its caller's sandbox, and without one to where the caller's go.
        let inherited = || {
            let parent = options.parent.as_ref()?;
            let has_sandbox = parent.sandbox.is_some();
            parent.scope.outputs.clone().filter(|_| !has_sandbox)
        };
        let parent_budget = parent.map(|parent| Arc::clone(&parent.budget));
        let (hub, events) = Hub::new(run, parent.map(|parent| parent.run), depth);
        let scope = Arc::new(RunScope {
            run,
            depth,
            hub,
            budget: Arc::new(Account::new(options.budget, parent_budget)),
            store: resources.kept.as_ref().map(|kept| kept.store.clone()),
            requests: requests.or_else(own_requests),
            standing_approvals: Mutex::default(),
            skills: resources.skills.clone(),
            outputs: own_outputs.or_else(inherited),
            background: Background::new(facts.clone(), &cancellation),
            facts,
            cancellation,
            is_cancelled_for_good: AtomicBool::new(false),
        });
        let control = RunControl(Arc::clone(&scope));
        let task = RunLifecycle { scope, resources };
        let task = tokio::spawn(task.execute(history, start, received));
        Self {
            events,
            cancel: control.0.cancellation.clone().drop_guard(),
            control,
            task: AbortOnDropHandle::new(task),
        }
    }

    /// Returns the run's identifier.
    pub fn id(&self) -> RunId {
        self.control.0.run
    }

    /// Returns a handle that controls the run.
    pub fn control(&self) -> RunControl {
        self.control.clone()
    }

    /// Cancels the run, as [`RunControl::cancel`].
    pub fn cancel(&self) {
        self.control.cancel();
    }

    /// Waits for the end. Unread events are dropped.
    pub async fn outcome(mut self) -> Outcome {
        let started = Instant::now();
        drop(self.events);
        let ended = (&mut self.task).await;
        self.cancel.disarm();
        ended.unwrap_or_else(|error| {
            let message = format!("the run ended unexpectedly: {error}");
            let error = RunError::new(RunErrorKind::Internal, message);
            Outcome::new(self.control.0.run, started, Err(error))
        })
    }

    /// Lets the run continue without this handle, until it ends or its session is closed.
    pub fn detach(self) {
        self.cancel.disarm();
        self.task.detach();
    }
}

impl Stream for Run {
    type Item = Event;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Event>> {
        self.events.poll_next_unpin(cx)
    }
}
