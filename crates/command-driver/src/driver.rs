//! The task of a command: feeds its state machine, performs the actions, and publishes the end.

use std::future::{Future, pending};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::{Duration, Instant};

use cantle_core::policy::{Limits, PolicyField};
use cantle_core::sandbox::{
    BackgroundProcess, Channel, Exit, ExitStatus, SandboxError, SandboxErrorKind, SpawnRequest,
    Stdin,
};
use futures_util::future::join;
use tokio::select;
use tokio::sync::{mpsc, watch};
use tokio::time::{sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::counters::ChannelCounters;
use crate::lifecycle::{CommandAction, CommandEvent, CommandLifecycle, time_limit};
use crate::off_runtime::OnDrop;
use crate::output::{CHUNKS_IN_FLIGHT, ChannelPump, ChunkSender, DrivenOutput};
use crate::phase::Phase;
use crate::process::{DrivenProcess, DrivenStdin};
use crate::transport::{InputChannel as _, Report, Reports as _, StartedCommand, Transport};

/// How long the exit waits for a slow reader of the output.
const READER_DEADLINE: Duration = Duration::from_millis(550);
/// How long the exit waits for output that is spilled.
const SPILL_DEADLINE: Duration = Duration::from_secs(10);
/// How long to wait for the list of a command's processes.
const LIST_DEADLINE: Duration = Duration::from_secs(5);
/// How long to wait for what the backend knows about a command that has ended.
const COMPLETE_DEADLINE: Duration = Duration::from_secs(5);
/// A process that was just forked still has its parent's command line.
const EXEC_DELAY: Duration = Duration::from_millis(5);
const SIGKILL: i32 = 9;

/// A command that is being started: its request, and the clock that runs since [`new`](Self::new).
#[derive(Debug)]
pub struct CommandDriver {
    request: SpawnRequest,
    wall_time: Option<Duration>,
    output_bytes: Option<u64>,
    started_at: Instant,
}

impl CommandDriver {
    /// Starts the clock of a command. Of the limits, the driver enforces `wall_time` and `output_bytes`: a command that
    /// writes more to a channel is killed, and the rest is dropped.
    pub fn new(request: SpawnRequest, limits: &Limits) -> Self {
        Self {
            request,
            wall_time: limits.wall_time,
            output_bytes: limits.output_bytes,
            started_at: now(),
        }
    }

    /// The request.
    pub fn request(&self) -> &SpawnRequest {
        &self.request
    }

    /// Duration after which the command is killed.
    pub fn time_limit(&self) -> Option<Duration> {
        time_limit(&self.request, self.wall_time)
    }

    /// Spawns the command's task and returns its handle.
    pub fn drive<T: Transport>(self, started: StartedCommand<T>) -> DrivenProcess<T> {
        let StartedCommand {
            transport,
            pid,
            reports,
            stdout,
            stderr,
            input,
        } = started;
        let Self {
            request,
            wall_time,
            output_bytes,
            started_at,
        } = self;
        let lifecycle = CommandLifecycle::new(&request, wall_time, T::KILL_DEADLINE, started_at);
        let output_limit = output_bytes.unwrap_or(u64::MAX);
        let (chunk_sender, chunks) = mpsc::channel(CHUNKS_IN_FLIGHT);
        let (phase_sender, phase) = watch::channel(Phase::Running);
        let (feed, stdin): (Option<Feed>, _) = match (input, request.stdin) {
            (Some(mut input), Stdin::Bytes(data)) => {
                // A command does not have to read its input.
                let feed = async move { drop(input.write(data).await) };
                (Some(Box::pin(feed)), None)
            }
            (Some(input), _) => {
                let phase = phase.clone();
                (None, Some(DrivenStdin { input, phase }))
            }
            (None, _) => (None, None),
        };
        let output_exceeded = CancellationToken::new();
        let pump = |channel, output| {
            ChannelPump::new(
                Arc::clone(&transport),
                channel,
                output,
                request.spill,
                (output_limit, output_exceeded.clone()),
            )
        };
        let pumps = [pump(Channel::Stdout, stdout), pump(Channel::Stderr, stderr)];
        let life = Life {
            transport: Arc::clone(&transport),
            reports,
            lifecycle,
            cancellation: request.cancellation,
            output_limit: (output_limit, output_exceeded.clone()),
        };
        let task = tokio::spawn(run(life, pumps, chunk_sender, feed, phase_sender));
        let task = Arc::new(AbortOnDropHandle::new(task));
        DrivenProcess {
            transport,
            pid,
            has_terminal: request.pty.is_some(),
            output: Some(DrivenOutput {
                chunks,
                _task: Arc::clone(&task),
            }),
            stdin,
            phase,
            _task: task,
        }
    }
}

/// Writes the input that came with the request.
type Feed = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Runs a command to its end, and delivers its output.
async fn run<T: Transport>(
    mut life: Life<T>,
    [stdout, stderr]: [ChannelPump<T>; 2],
    chunks: ChunkSender,
    mut feed: Option<Feed>,
    phase: watch::Sender<Phase>,
) {
    let counters = [stdout.counters(), stderr.counters()];
    let mut pumps = pin!(join(
        stdout.run(chunks.clone(), phase.subscribe()),
        stderr.run(chunks, phase.subscribe()),
    ));
    let mut open_outputs = None;
    let end = {
        let mut life = pin!(life.run());
        loop {
            select! {
                end = &mut life => break end,
                outputs = &mut pumps, if open_outputs.is_none() => open_outputs = Some(outputs),
                () = run_feed(&mut feed), if feed.is_some() => feed = None,
            }
        }
    };
    drop(feed);
    let has_background = !end.background.is_empty();
    let transport = Arc::clone(&life.transport);
    // If the caller drops the command from here on, nothing would enforce limits on its background processes.
    let abandoned = has_background.then(|| OnDrop::new(move || transport.kill()));
    phase.send_replace(Phase::Ended);
    let spill_deadline = now() + SPILL_DEADLINE;
    while open_outputs.is_none() {
        open_outputs = timeout(READER_DEADLINE, &mut pumps).await.ok();
        // Neither a pause in the writing of a spill file nor one of the reader, which may be busy, means that the file
        // won't be complete. After the deadline, the exit reports what the backend knows to be in it, if anything.
        let is_spilling = |it: &Arc<ChannelCounters>| it.is_spilling(&*life.transport);
        if !counters.iter().any(is_spilling) || now() >= spill_deadline {
            break;
        }
    }
    let exit = end.exit(&*life.transport).await.map(|mut exit| {
        let [stdout, stderr] = &counters;
        exit.stdout = stdout.report(&*life.transport);
        exit.stderr = stderr.report(&*life.transport);
        let limit = life.output_limit.0;
        let has_ended = matches!(exit.status, ExitStatus::Code(_) | ExitStatus::Signal(_));
        // It ended before the excess was read, of which its reader gets nothing.
        if has_ended && exit.stdout.total_bytes.max(exit.stderr.total_bytes) > limit {
            let field = PolicyField::Output;
            exit.status = ExitStatus::LimitReached { field, limit };
            if !exit.background.is_empty() {
                life.transport.kill();
                exit.background.clear();
            }
        }
        exit
    });
    phase.send_replace(Phase::Finished(exit.map_err(Arc::new)));
    let (stdout, stderr) = match open_outputs {
        Some(outputs) => outputs,
        None => pumps.await,
    };
    if let Some(abandoned) = abandoned {
        abandoned.disarm();
        let outputs = stdout.into_iter().chain(stderr).collect();
        life.transport.detach(life.reports, outputs);
    }
}

async fn run_feed(feed: &mut Option<Feed>) {
    if let Some(feed) = feed {
        feed.await;
    }
}

/// The part of the task that runs from the start of the command to its end.
struct Life<T: Transport> {
    transport: Arc<T>,
    reports: T::Reports,
    lifecycle: CommandLifecycle,
    cancellation: CancellationToken,
    /// Bytes per channel, and the token that is cancelled when a channel has carried more.
    output_limit: (u64, CancellationToken),
}

impl<T: Transport> Life<T> {
    async fn run(&mut self) -> CommandEnd {
        let transport = Arc::clone(&self.transport);
        let mut limit_reached = pin!(transport.limit_reached());
        let (output_limit, output_exceeded) = self.output_limit.clone();
        let mut background = Vec::new();
        while !self.lifecycle.is_over() {
            let lifecycle = &self.lifecycle;
            let event = select! {
                biased;
                report = self.reports.next() => match report {
                    Some(Report::Ended { status, alone }) => CommandEvent::Ended { status, alone },
                    Some(Report::Lost(error)) => return CommandEnd {
                        status: Err(error),
                        duration: Duration::ZERO,
                        background,
                    },
                    None => CommandEvent::Gone,
                },
                () = self.cancellation.cancelled(), if lifecycle.accepts_cancellation() => {
                    CommandEvent::Cancelled
                }
                () = wait_until(lifecycle.deadline()) => CommandEvent::Deadline,
                () = output_exceeded.cancelled(), if lifecycle.is_running() => {
                    CommandEvent::limit_reached(PolicyField::Output, output_limit)
                }
                (field, limit) = &mut limit_reached, if lifecycle.is_running() => {
                    CommandEvent::limit_reached(field, limit)
                }
            };
            match self.lifecycle.on(event, now()) {
                Some(CommandAction::Terminate) => transport.terminate(),
                Some(CommandAction::Kill) => transport.kill(),
                Some(CommandAction::List) => {
                    sleep(EXEC_DELAY).await;
                    let listing = timeout(LIST_DEADLINE, transport.list());
                    background = listing.await.unwrap_or_default();
                }
                None => {}
            }
        }
        CommandEnd {
            status: Ok(self.lifecycle.status()),
            duration: self.lifecycle.duration(now()),
            background,
        }
    }
}

/// How a command ended.
struct CommandEnd {
    /// `None` if the reports ended without the status of the first process.
    status: Result<Option<ExitStatus>, SandboxError>,
    duration: Duration,
    background: Vec<BackgroundProcess>,
}

impl CommandEnd {
    async fn exit(self, transport: &impl Transport) -> Result<Exit, SandboxError> {
        let status = match (self.status?, transport.check()) {
            (_, Err(error)) if error.kind() == SandboxErrorKind::Closed => {
                let message = "the sandbox was closed while the command ran";
                return Err(SandboxError::new(SandboxErrorKind::Closed, message));
            }
            (Some(status), _) => status,
            (None, Err(error)) => {
                let message = format!("the sandbox ended while the command ran: {error}");
                return Err(SandboxError::gone(message));
            }
            // The command killed every process in its sandbox that could have reported its end.
            (None, Ok(())) => ExitStatus::Signal(SIGKILL),
        };
        let mut exit = Exit::new(status, self.duration);
        exit.background = self.background;
        // Without an answer the exit merely has no explanation.
        let _ = timeout(COMPLETE_DEADLINE, transport.complete(&mut exit)).await;
        Ok(exit)
    }
}

/// The time of the runtime's clock, which tests can pause.
fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

async fn wait_until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline.into()).await,
        None => pending().await,
    }
}
