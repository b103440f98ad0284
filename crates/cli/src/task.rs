//! A task in an open session, from its start to its result: displayed, cancelled and written to files.

use anyhow::Context as _;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;

use cantle::agent::{Outcome, Resource, RunErrorKind, Session, SessionError};
use cantle::core::content::Content;
use cantle::core::escape::join_up_to;
use cantle::core::event::{EventKind, Finish, RunStatus};
use cantle::core::ids::RunId;
use cantle::core::llm::LlmErrorKind;
use cantle::core::sandbox::{RefusedFile, SandboxPath, Survival};
use cantle::core::tool::Progress;
use futures_util::{FutureExt as _, StreamExt as _};
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use crate::agent::FINISH;
use crate::ask::TerminalUser;
use crate::delivery::OpenStore;
use crate::display::{Display, REDRAW_INTERVAL, Summary};
use crate::exit::{Code, Failure, FailureExt as _, cancelled_early};
use crate::in_place::InPlace;
use crate::kept_sandbox;
use crate::output_dir::OutputDir;
use crate::replay::ReplayHooks;
use crate::result_file;
use crate::settings::Retention;
use crate::state_dir::StateDir;
use crate::telemetry::RunTelemetry;
use crate::text::{clean, clean_json, one_line};
use crate::typed_ahead::TypedAhead;
use crate::undelivered;
use crate::unfinished::Unfinished;
use crate::working_copy::{Changes, Workdir};

/// Maximum number of events that are displayed together.
const EVENT_BATCH: usize = 256;

/// Maximum number of files that are named because they were not saved.
const MAX_NAMED: usize = 10;

/// Maximum number of batches that are displayed before a question.
const MAX_BATCHES: usize = 16;

/// A task and how its result is reported.
#[derive(Debug)]
pub(crate) struct Task {
    /// The task of a new run.
    pub(crate) content: Content,
    pub(crate) output_dir: Option<OutputDir>,
    /// The directory that the run works on.
    pub(crate) workdir: Option<Workdir>,
    /// The directory that it changes itself.
    pub(crate) in_place: Option<InPlace>,
    /// Advice for the case that the provider refuses the key.
    pub(crate) key_advice: Option<String>,
    /// Whether an unfinished run can be resumed.
    pub(crate) is_resumable: bool,
    /// Whether the sandbox is kept for another task once the run has finished, and for how long.
    pub(crate) retention: Option<Retention>,
    /// Whether the result is printed as JSON: all parameters of the finish call.
    pub(crate) result_as_json: bool,
    pub(crate) replay: Option<ReplayHooks>,
    pub(crate) telemetry: Option<RunTelemetry>,
    pub(crate) verbose: bool,
    /// The store to deliver to, once the session opens.
    pub(crate) store: Option<OpenStore>,
}

/// Opens a session and displays the progress of that.
///
/// # Errors
/// If it fails or is cancelled.
pub(crate) async fn open_session<O>(
    open: impl FnOnce(Arc<dyn Progress>) -> O,
    display: &mut Display,
    cancellation: &CancellationToken,
) -> Result<Session, Failure>
where
    O: Future<Output = Result<Session, SessionError>>,
{
    let (sender, mut progress) = mpsc::unbounded_channel();
    let mut opening = pin!(open(Arc::new(ProgressLines(sender))));
    loop {
        tokio::select! {
            Some(line) = progress.recv() => display.note(&line).await,
            session = &mut opening => return Ok(session?),
            () = cancellation.cancelled() => return Err(cancelled_early()),
        }
    }
}

/// Forwards the progress of opening a session.
#[derive(Debug)]
struct ProgressLines(mpsc::UnboundedSender<String>);

impl Progress for ProgressLines {
    fn output(&self, text: &str) {
        // The receiver is gone if opening was cancelled.
        let _ = self.0.send(text.to_owned());
    }
}

/// A run that has ended, before its result is displayed.
#[derive(Debug)]
pub(crate) struct EndedRun {
    pub(crate) summary: Summary,
    code: Code,
    is_resumed: bool,
    /// The changes to the directory that it worked on.
    changes: Option<Changes>,
    /// A step that failed at its end, and that resuming the run repeats.
    to_repeat: Option<&'static str>,
}

impl EndedRun {
    /// Returns the id of the run, if nothing remains to be done for it.
    pub(crate) fn finished(&self) -> Option<RunId> {
        let outcome = &self.summary.outcome;
        let has_finished = outcome.error.is_none() && outcome.undelivered.is_empty();
        has_finished.then_some(outcome.run)
    }

    fn fail(&mut self, problem: String) {
        self.summary.problems.push(problem);
        self.code = Code::Internal;
    }
}

impl Task {
    /// Runs the task, closes the session, and returns the exit code.
    pub(crate) async fn perform(
        self,
        session: Session,
        display: &mut Display,
        mut user: Option<TerminalUser>,
        cancellation: &CancellationToken,
    ) -> Result<u8, Failure> {
        let people = (&mut user, None);
        let mut ended = self.run(&session, display, people, cancellation).await?;
        let closed = if let Some(task) = ended.to_repeat {
            let run = ended.summary.outcome.run;
            let line = format!("To {task} again: cantle run --resume {run}");
            ended.summary.problems.push(line);
            session.suspend().await
        } else {
            self.close(session, ended.finished(), self.retention).await
        };
        for line in self.replay.iter().flat_map(|it| it.report(self.verbose)) {
            display.note(&line).await;
        }
        let problem = closed.err().map(|error| error.to_string());
        ended.summary.problems.extend(problem);
        self.close_telemetry(display).await;
        self.report(ended, display, user.as_ref(), cancellation)
            .await
    }

    /// Runs the task in a session, and saves its files.
    pub(crate) async fn run(
        &self,
        session: &Session,
        display: &mut Display,
        (user, keys): (&mut Option<TerminalUser>, Option<&mut TypedAhead>),
        cancellation: &CancellationToken,
    ) -> Result<EndedRun, Failure> {
        let is_resumed = session.is_resumed();
        let mut outcome = self
            .drive(session, display, (user, keys), cancellation)
            .await?;
        let undelivered = self.deliver(&mut outcome, cancellation).await.err();
        let is_given = self.output_dir.as_ref().is_some_and(OutputDir::is_given);
        let unsaved = self.unsaved_paths(&outcome);
        let is_unsaved = !unsaved.is_empty() || has_unsaved_files(&outcome, session);
        let code = match is_unsaved || (is_given && !outcome.undelivered.is_empty()) {
            true => Code::Limit,
            false => Code::from(outcome.status()),
        };
        let (run, hint) = (outcome.run, self.hint(&outcome));
        let mut ended = EndedRun {
            summary: Summary::new(outcome),
            code,
            is_resumed,
            changes: None,
            to_repeat: None,
        };
        ended.summary.problems.extend(hint);
        if let Some(error) = undelivered {
            ended.fail(format!("{error:#}"));
        }
        self.write_result(&mut ended, session);
        self.save_unfinished(&mut ended, session).await;
        if !unsaved.is_empty() {
            let names = join_up_to(MAX_NAMED, unsaved);
            let line = format!("Not saved, because there is no --output-dir: {names}");
            ended.summary.problems.push(line);
        }
        if is_unsaved && self.keeps_sandbox_of(run) {
            let line = format!("the files of its sandbox: cantle runs export {run} DIR");
            ended.summary.unfinished.kept.push(line);
        }
        self.collect_changes(&mut ended, session).await;
        let ignored = self.output_dir.as_ref().map_or(Ok(()), OutputDir::ignore);
        let ignored = ignored.err().map(|error| format!("{error:#}"));
        ended.summary.problems.extend(ignored);
        Ok(ended)
    }

    /// Writes the result file of a run that has finished, and removes the files that it saved before, when it had not.
    fn write_result(&self, ended: &mut EndedRun, session: &Session) {
        let outcome = &ended.summary.outcome;
        let (Some(output_dir), None, None) = (&self.output_dir, &self.store, &outcome.error) else {
            return;
        };
        let directory = output_dir.of(outcome.run);
        let has_result = output_dir.is_given() || !outcome.outputs.saved.is_empty();
        let written = match has_result {
            true => result_file::write(outcome, &directory),
            false => Ok(()),
        };
        // The changes of a run on a directory are compared once.
        if written.is_err() && self.finishes_again(outcome, session) && self.workdir.is_none() {
            ended.to_repeat = Some("write it");
        }
        let removed = || match ended.is_resumed {
            true => Unfinished::remove(&directory, outcome.run),
            false => Ok(()),
        };
        if let Err(error) = written.and_then(|()| removed()) {
            ended.fail(format!("{error:#}"));
        }
    }

    /// Saves the parts of a run that has not finished, or whose files are not all delivered.
    async fn save_unfinished(&self, ended: &mut EndedRun, session: &Session) {
        if ended.finished().is_some() {
            return;
        }
        let outcome = &ended.summary.outcome;
        let sandbox = session.sandbox().map(AsRef::as_ref);
        let is_directory = self.store.is_none();
        // What can be resumed is kept as it is.
        let to = self
            .output_dir
            .as_ref()
            .filter(|dir| (dir.is_given() && is_directory) || !self.is_resumable)
            .map(|dir| dir.of(outcome.run));
        let saved = Unfinished::save(outcome, sandbox, to.as_deref(), self.is_resumable);
        ended.summary.unfinished = saved.await;
    }

    /// Collects the changes in the working copy.
    async fn collect_changes(&self, ended: &mut EndedRun, session: &Session) {
        let outcome = &ended.summary.outcome;
        let is_complete = outcome.error.is_none();
        match (&self.workdir, session.sandbox()) {
            (Some(workdir), Some(sandbox)) if is_complete || !self.is_resumable => {
                let finishes_again = self.finishes_again(outcome, session);
                let collection = workdir
                    .copy
                    .collect(&**sandbox, is_complete, finishes_again);
                match collection.await {
                    Ok(changes) => ended.changes = Some(changes),
                    Err(error) => {
                        ended.fail(format!("the changes can't be compared: {error:#}"));
                        ended.to_repeat = finishes_again.then_some("compare them");
                    }
                }
            }
            (Some(_), _) if self.is_resumable => {
                let line = format!("its changes so far: cantle runs apply {}", outcome.run);
                ended.summary.unfinished.kept.push(line);
            }
            _ => {}
        }
    }

    /// Whether a run with this outcome finishes again when it is resumed.
    fn finishes_again(&self, outcome: &Outcome, session: &Session) -> bool {
        let sandbox = session.sandbox();
        let outlives = sandbox.is_some_and(|it| it.info().survival != Survival::Nothing);
        self.is_resumable && outlives && outcome.finish.is_some()
    }

    /// Copies the files of a run that has finished into the store, if there is one.
    async fn deliver(
        &self,
        outcome: &mut Outcome,
        cancellation: &CancellationToken,
    ) -> anyhow::Result<()> {
        let (Some(store), Some(staged), None) = (&self.store, &self.output_dir, &outcome.error)
        else {
            return Ok(());
        };
        let directory = staged.of(outcome.run);
        let delivered = async {
            result_file::write(outcome, &directory)?;
            undelivered::deliver(store, outcome.run, &directory).await
        };
        let delivered = cancellation.run_until_cancelled(delivered).await;
        let delivered = delivered.context("the run was interrupted").flatten();
        let addresses = delivered.with_context(|| {
            let next = match (&outcome.finish, self.is_resumable) {
                (Some(_), true) => {
                    format!("; deliver them with: cantle run --resume {}", outcome.run)
                }
                _ => String::new(),
            };
            let directory = directory.display();
            format!("the output files are not in the store, but in {directory}{next}")
        })?;
        for (file, address) in outcome.outputs.saved.iter_mut().zip(addresses) {
            file.path = address.into();
        }
        Ok(())
    }

    /// Returns the files that a run which changes a directory itself has named and left in its sandbox, if there is no output
    /// directory.
    fn unsaved_paths(&self, outcome: &Outcome) -> Vec<String> {
        let (Some(in_place), None, None) = (&self.in_place, &self.output_dir, &outcome.error)
        else {
            return Vec::new();
        };
        let finish = outcome.finish.as_ref();
        let paths = finish.and_then(|finish| finish.params.get("paths")?.as_array());
        let paths = paths.into_iter().flatten().filter_map(Value::as_str);
        let unsaved = paths.filter(|path| !Path::new(path).starts_with(&in_place.directory));
        unsaved.map(one_line).collect()
    }

    /// Whether the retention allows to keep the sandbox of a run that has finished. Blocks.
    fn keeps_sandbox_of(&self, run: RunId) -> bool {
        let kept = self.retention.and_then(|retention| {
            let state = StateDir::find().ok()?;
            kept_sandbox::to_keep(&state, run, retention)
        });
        kept.is_some()
    }

    /// Closes the session. The sandbox of a finished run is kept as far as the retention allows.
    pub(crate) async fn close(
        &self,
        session: Session,
        finished: Option<RunId>,
        retention: Option<Retention>,
    ) -> Result<(), SessionError> {
        let kept = finished.zip(retention).and_then(|(run, retention)| {
            let state = StateDir::find().ok()?;
            let kept = kept_sandbox::to_keep(&state, run, retention)?;
            Some((state, run, retention, kept))
        });
        let Some((state, run, retention, kept)) = kept else {
            return session.close().await;
        };
        session.suspend().await?;
        kept_sandbox::keep(&state, run, retention, &kept).await;
        Ok(())
    }

    /// Exports the spans that wait, and says how many were lost.
    pub(crate) async fn close_telemetry(&self, display: &mut Display) {
        if let Some(telemetry) = &self.telemetry
            && let Some(lost) = telemetry.close().await
        {
            display.message(&lost).await;
        }
    }

    /// Returns the answer of a run that has ended.
    pub(crate) fn answer(&self, outcome: &Outcome) -> Option<String> {
        match &outcome.finish {
            _ if outcome.error.is_some() => None,
            Some(finish) => Some(result_text(finish, self.result_as_json)),
            None => outcome.last_text().map(|text| clean(text.trim())),
        }
    }

    /// Displays the result, has the user decide on the changes, and returns the exit code.
    pub(crate) async fn report(
        &self,
        ended: EndedRun,
        display: &mut Display,
        user: Option<&TerminalUser>,
        cancellation: &CancellationToken,
    ) -> Result<u8, Failure> {
        let EndedRun {
            summary,
            mut code,
            changes,
            ..
        } = ended;
        let outcome = &summary.outcome;
        let is_complete = outcome.error.is_none();
        let result = self.answer(outcome);
        // Before anything that can fail.
        let set_aside = self.set_aside(Some(outcome.run)).internal()?;
        let is_markdown = !self.result_as_json;
        let written = display
            .close(&summary, result.as_deref(), is_markdown)
            .await;
        if let (Some(workdir), Some(changes)) = (&self.workdir, changes) {
            let user = user.filter(|_| is_complete);
            let decided = workdir
                .decide(
                    changes,
                    self.is_resumable.then_some(outcome.run),
                    (user, is_complete),
                    display.paint,
                    cancellation,
                )
                .await;
            let decision = decided.internal()?;
            display
                .closing_lines(&decision.text, !decision.is_complete)
                .await;
            if !decision.is_complete && code == Code::Finished {
                code = Code::Limit;
            }
        }
        display
            .closing_lines(&set_aside, !set_aside.is_empty())
            .await;
        // The other results are where they belong.
        written.context("failed to write the result").internal()?;
        Ok(code as u8)
    }

    /// Renames what commands have left in the directory that they changed itself and that other programs load or
    /// execute. Returns lines about it. Blocks.
    ///
    /// # Errors
    /// If the directory can't be read.
    pub(crate) fn set_aside(&self, run: Option<RunId>) -> anyhow::Result<String> {
        let Some(in_place) = &self.in_place else {
            return Ok(String::new());
        };
        let output_dir = self.output_dir.as_ref().zip(run);
        let output_dir = output_dir.map(|(directory, run)| directory.of(run));
        in_place.set_aside(output_dir.as_deref())
    }

    /// Returns what to do about a failure, in terms of the command line.
    fn hint(&self, outcome: &Outcome) -> Option<String> {
        if outcome.status() == RunStatus::AnsweredInText {
            let advice = "The model did not call the finish tool, so its last answer is the result. --strict-finish makes \
                          it go on until it finishes.";
            return Some(advice.to_owned());
        }
        let error = outcome.error.as_ref()?;
        let advice = match (error.kind(), error.llm_kind()) {
            (RunErrorKind::MaxTurns, _) => "Increase the limit with --max-turns.",
            (RunErrorKind::NoProgress, _) => "Allow more with --max-repeats; 0 is no limit.",
            (RunErrorKind::Budget, _) => match error.resource() {
                Some(Resource::Tokens) => "Increase the limit with --budget-tokens.",
                Some(Resource::CostUsd) => "Increase the limit with --budget-usd.",
                Some(Resource::TimeS) => "Increase the limit with --budget-time.",
                Some(_) => "Increase the limit with --budget-calls.",
                None => "Set --price-input and --price-output, or use --budget-tokens.",
            },
            (RunErrorKind::OutputLimit, _) => "Increase the output limit with --max-tokens.",
            (_, Some(LlmErrorKind::Authentication)) => self.key_advice.as_deref()?,
            (_, Some(LlmErrorKind::NotFound)) => {
                "Check --model and --base-url: most servers list their models at /models below the base URL."
            }
            _ => return None,
        };
        Some(advice.to_owned())
    }

    /// Runs the task, displays its events and answers its questions.
    async fn drive(
        &self,
        session: &Session,
        display: &mut Display,
        (user, mut keys): (&mut Option<TerminalUser>, Option<&mut TypedAhead>),
        cancellation: &CancellationToken,
    ) -> Result<Outcome, Failure> {
        let mut run = if session.is_resumed() {
            session.resume()?
        } else {
            session.run(self.content.clone())?
        };
        let control = run.control();
        let mut ticks = tokio::time::interval(REDRAW_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut spans = self.telemetry.as_ref().map(RunTelemetry::spans);
        let mut received = Vec::new();
        let events = (&mut run).inspect(|event| {
            if let Some(spans) = &mut spans {
                spans.record(event);
            }
            if let (0, EventKind::UserMessage { text }) = (event.depth, &event.kind) {
                received.push(text.clone());
            }
        });
        let mut events = events.ready_chunks(EVENT_BATCH);
        loop {
            tokio::select! {
                batch = events.next() => match batch {
                    Some(batch) => display.events(&batch).await,
                    None => break,
                },
                () = cancellation.cancelled(), if !control.is_cancelled() => {
                    control.cancel();
                    display.message("cancelling; interrupt again to exit immediately").await;
                }
                _ = ticks.tick(), if display.is_live() => display.redraw().await,
                message = async { keys.as_mut()?.typed().await }, if keys.is_some() => {
                    let text = keys.as_ref().map(|keys| keys.text().to_owned());
                    display.input(text.unwrap_or_default()).await;
                    if let (Some(message), Some(keys)) = (message, &mut keys) {
                        let shown = one_line(&message);
                        if shown.starts_with('/') {
                            let reason = "not sent, because commands are entered between messages";
                            display.message(&format!("{reason}: {shown}")).await;
                        } else {
                            display.note(&format!("for the model's next turn: {shown}")).await;
                            keys.note_sent(&message);
                            control.say(message);
                        }
                    }
                }
                question = async { user.as_mut()?.next_question().await },
                    if user.is_some() => match (question, &*user) {
                    (Some(question), Some(user)) => {
                        // The model's explanation precedes the call that the question is about.
                        for _ in 0..MAX_BATCHES {
                            match events.next().now_or_never() {
                                Some(Some(batch)) => display.events(&batch).await,
                                _ => break,
                            }
                        }
                        display.clear_live().await;
                        // The user types the answer in the terminal's own mode.
                        tokio::select! {
                            () = user.answer(&question, keys.as_deref_mut()) => {}
                            () = cancellation.cancelled() => {}
                        }
                        if let Some(keys) = keys.as_mut() {
                            keys.resume();
                        }
                    }
                    _ => *user = None,
                },
            }
        }
        drop(events);
        if let Some(keys) = keys {
            keys.put_back(&received);
        }
        Ok(run.outcome().await)
    }
}

/// Whether a run has finished, and a file that it named was not saved. One that was saved under another spelling of its path
/// was.
fn has_unsaved_files(outcome: &Outcome, session: &Session) -> bool {
    let base = session.sandbox().map(|it| &it.info().working_directory);
    let place = |source: &str| {
        let path = SandboxPath::new(source).ok()?;
        Some(
            base.and_then(|base| path.strip_prefix(base))
                .unwrap_or(path),
        )
    };
    let saved = outcome.outputs.saved.iter();
    let saved: Vec<_> = saved.filter_map(|file| place(&file.source)).collect();
    let mut refused = outcome.outputs.refused.iter();
    let is_unsaved = |file: &RefusedFile| place(&file.source).is_none_or(|it| !saved.contains(&it));
    outcome.error.is_none() && refused.any(is_unsaved)
}

/// Returns the printed result: the finish call's reason, or all its parameters.
pub(crate) fn result_text(finish: &Finish, as_json: bool) -> String {
    let reason = finish.params.get("reason").and_then(Value::as_str);
    match reason.filter(|_| !as_json && finish.tool == FINISH) {
        Some(reason) => clean(reason.trim()),
        None => clean_json(&finish.params),
    }
}
