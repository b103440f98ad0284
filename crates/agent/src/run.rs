//! A run: one task being worked on. A stream of events and a handle.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use cantle_core::content::Content;
use cantle_core::event::{Event, EventKind, Finish, RunStatus};
use cantle_core::ids::RunId;
use cantle_core::ledger::Ledger;
use cantle_core::message::{Message, SharedMessage};
use cantle_core::sandbox::{SandboxErrorKind, SandboxExt as _, SavedOutputs};
use futures_core::Stream;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::OwnedMutexGuard;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::driver::Driver;
use crate::error::{RunError, RunErrorKind};
use crate::hub::{Events, Hub};
use crate::machine::Machine;
use crate::prompt;
use crate::session::Shared;

/// One task being worked on. It goes on by itself; as a stream it tells what happens.
///
/// Dropping it cancels the run at once. [`outcome`](Self::outcome) waits for its end,
/// [`detach`](Self::detach) lets it go on without a handle.
#[derive(Debug)]
#[must_use = "dropping a run cancels it"]
pub struct Run {
    id: RunId,
    events: Events,
    cancellation: CancellationToken,
    task: Option<JoinHandle<Outcome>>,
}

impl Run {
    pub(crate) fn start(
        shared: Arc<Shared>,
        history: OwnedMutexGuard<Vec<SharedMessage>>,
        task: Content,
    ) -> Self {
        let id = RunId::new();
        let hub = Arc::new(Hub::new(id));
        let events = hub.subscribe();
        let cancellation = shared.cancellation.child_token();
        let work = Work {
            id,
            shared,
            hub,
            cancellation: cancellation.clone(),
        };
        let task = tokio::spawn(work.execute(history, task));
        Self {
            id,
            events,
            cancellation,
            task: Some(task),
        }
    }

    /// Its identifier.
    #[must_use]
    pub fn id(&self) -> RunId {
        self.id
    }

    /// Ends the run soon: running calls are told, and what was done so far is kept. The outcome
    /// then says that it was cancelled.
    pub fn cancel(&self) {
        self.cancellation.cancel();
    }

    /// A token that cancels the run, to be kept elsewhere.
    #[must_use]
    pub fn canceller(&self) -> CancellationToken {
        self.cancellation.clone()
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
            self.cancellation.cancel();
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

/// Ends the event streams, also where the run panics.
struct CloseHub(Arc<Hub>);

impl Drop for CloseHub {
    fn drop(&mut self) {
        self.0.close();
    }
}

struct Work {
    id: RunId,
    shared: Arc<Shared>,
    hub: Arc<Hub>,
    cancellation: CancellationToken,
}

impl Work {
    async fn execute(
        self,
        mut history: OwnedMutexGuard<Vec<SharedMessage>>,
        task: Content,
    ) -> Outcome {
        let started = Instant::now();
        let _close = CloseHub(Arc::clone(&self.hub));
        self.announce(&task);
        let prompt = prompt::system_prompt(&self.shared.agent, &self.shared.input_files);
        let mut messages = vec![SharedMessage::new(Message::system(prompt))];
        messages.extend(history.iter().cloned());
        messages.push(SharedMessage::new(Message::user(task)));

        let agent = &self.shared.agent;
        let traits = self.shared.traits.clone();
        let mut machine = Machine::new(agent.rules.clone(), traits, messages);
        let end = self.driver().drive(&mut machine).await;

        let (finish, mut error) = match end {
            Ok(finish) => (Some(finish), None),
            Err(error) => (None, Some(error)),
        };
        let mut outputs = SavedOutputs::default();
        if let Some(finish) = &finish {
            let saved = tokio::select! {
                saved = self.save(&finish.params) => saved,
                () = self.cancellation.cancelled() => Err(RunError::cancelled()),
            };
            match saved {
                Ok(saved) => outputs = saved,
                Err(failure) => error = Some(failure),
            }
        }
        let turns = machine.turns();
        let (messages, ledger) = machine.into_parts();
        *history = messages.get(1..).unwrap_or_default().to_vec();
        let outcome = Outcome {
            run: self.id,
            finish,
            error,
            history: messages,
            ledger,
            outputs,
            turns,
            duration: started.elapsed(),
        };
        self.hub.emit(EventKind::RunFinished {
            status: outcome.status(),
            finish: outcome.finish.clone(),
            error: outcome.error.as_ref().map(RunError::to_string),
            turns,
            duration: outcome.duration,
            ledger: outcome.ledger.clone(),
        });
        outcome
    }

    fn driver(&self) -> Driver {
        let Shared {
            agent,
            tools,
            specs,
            sandbox,
            ..
        } = &*self.shared;
        Driver {
            run: self.id,
            client: Arc::clone(&agent.client),
            tools: Arc::clone(tools),
            specs: specs.clone(),
            sandbox: sandbox.clone(),
            user: Arc::clone(&agent.user),
            hub: Arc::clone(&self.hub),
            cancellation: self.cancellation.clone(),
        }
    }

    fn announce(&self, task: &Content) {
        let shared = &self.shared;
        self.hub.emit(EventKind::RunStarted {
            agent: shared.agent.name.clone(),
            model: shared.agent.client.model().slug.clone(),
            task: task.text(),
            max_turns: shared.agent.rules.max_turns,
            tools: shared
                .specs
                .iter()
                .map(|spec| spec.name().to_owned())
                .collect(),
            sandbox: shared
                .sandbox
                .as_ref()
                .map(|sandbox| sandbox.info().clone()),
            input_files: shared.input_files.clone(),
        });
        for message in &shared.warnings {
            self.hub.emit(EventKind::Warning {
                message: message.clone(),
            });
        }
    }

    /// Saves the files that a finish call names in its `paths`.
    async fn save(&self, params: &Value) -> Result<SavedOutputs, RunError> {
        let paths = params
            .get("paths")
            .and_then(Value::as_array)
            .into_iter()
            .flatten();
        let paths: Vec<String> = paths.filter_map(Value::as_str).map(str::to_owned).collect();
        let (Some(directory), Some(sandbox)) = (&self.shared.output_dir, &self.shared.sandbox)
        else {
            return Ok(SavedOutputs::default());
        };
        let saved = sandbox
            .save_outputs(&paths, directory)
            .await
            .map_err(|error| {
                let kind = match error.kind() {
                    SandboxErrorKind::Gone => RunErrorKind::SandboxGone,
                    _ => RunErrorKind::Internal,
                };
                RunError::new(
                    kind,
                    format!("the task is finished, but its files could not be saved: {error}"),
                )
            })?;
        for file in &saved.saved {
            self.hub.emit(EventKind::OutputSaved {
                source: file.source.clone(),
                path: file.path.display().to_string(),
                size_bytes: file.size_bytes,
            });
        }
        for refusal in &saved.refused {
            self.hub.emit(EventKind::OutputRefused {
                source: refusal.source.clone(),
                reason: refusal.reason.clone(),
            });
        }
        Ok(saved)
    }
}
