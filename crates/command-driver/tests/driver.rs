//! The driver over a scripted transport, with a paused clock.

#![expect(
    clippy::unwrap_used,
    reason = "clippy exempts test functions only, not their helpers"
)]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use cantle_command_driver::{
    CommandDriver, DrivenProcess, InputChannel, Report, StartedCommand, Transport,
};
use cantle_core::policy::{Limits, PolicyField};
use cantle_core::sandbox::{
    Background, BackgroundProcess, ByteStream, Channel, Exit, ExitStatus, Process as _, PtySize,
    SandboxError, SandboxErrorKind, SandboxPath, Signal, SpawnRequest, Spill, SpillFile,
};
use futures_util::StreamExt as _;
use tokio::sync::mpsc;
use tokio::time::sleep;

const SECOND: Duration = Duration::from_secs(1);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Order {
    Terminate,
    Kill,
    Signal(Signal),
    List,
    Detach { outputs: usize },
}

struct ScriptedTransport {
    orders: Mutex<Vec<Order>>,
    is_closed: bool,
    spilled: Mutex<Vec<u8>>,
    /// Bytes that were written to a channel, as far as the transport claims.
    claimed_bytes: AtomicU64,
    /// How long the spill file takes to be opened.
    spill_delay: Mutex<Duration>,
    /// Whether the explanation of an exit never comes.
    is_silent: AtomicBool,
}

impl ScriptedTransport {
    fn record(&self, order: Order) {
        self.orders.lock().unwrap().push(order);
    }

    fn orders(&self) -> Vec<Order> {
        self.orders.lock().unwrap().clone()
    }
}

struct NoInput;

impl InputChannel for NoInput {
    async fn write(&mut self, _data: Bytes) -> Result<(), SandboxError> {
        Ok(())
    }
}

impl Transport for ScriptedTransport {
    type Reports = mpsc::UnboundedReceiver<Report>;
    type Output = mpsc::Receiver<Result<Bytes, SandboxError>>;
    type Input = NoInput;

    fn terminate(&self) {
        self.record(Order::Terminate);
    }

    fn kill(&self) {
        self.record(Order::Kill);
    }

    async fn signal(&self, signal: Signal) -> Result<(), SandboxError> {
        self.record(Order::Signal(signal));
        Ok(())
    }

    async fn resize(&self, _size: PtySize) -> Result<(), SandboxError> {
        Ok(())
    }

    async fn list(&self) -> Vec<BackgroundProcess> {
        self.record(Order::List);
        vec![BackgroundProcess::new(7, "sleep 60")]
    }

    fn check(&self) -> Result<(), SandboxError> {
        if self.is_closed {
            return Err(SandboxError::new(SandboxErrorKind::Closed, "closed"));
        }
        Ok(())
    }

    fn written_bytes(&self, _channel: Channel, read_bytes: u64) -> u64 {
        read_bytes.max(self.claimed_bytes.load(Ordering::Relaxed))
    }

    fn spill_path(&self, _channel: Channel) -> Option<SandboxPath> {
        SandboxPath::new("/tmp/output").ok()
    }

    async fn write_spill(
        &self,
        _channel: Channel,
        mut data: ByteStream,
        written_bytes: &AtomicU64,
    ) {
        let delay = *self.spill_delay.lock().unwrap();
        sleep(delay).await;
        while let Some(Ok(bytes)) = data.next().await {
            self.spilled.lock().unwrap().extend_from_slice(&bytes);
            written_bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        }
    }

    async fn complete(&self, _exit: &mut Exit) {
        if self.is_silent.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
    }

    fn detach(self: Arc<Self>, _reports: Self::Reports, outputs: Vec<Self::Output>) {
        let outputs = outputs.len();
        self.record(Order::Detach { outputs });
    }
}

/// The backend's ends of a driven command.
struct Script {
    transport: Arc<ScriptedTransport>,
    reports: Option<mpsc::UnboundedSender<Report>>,
    stdout: Option<mpsc::Sender<Result<Bytes, SandboxError>>>,
}

impl Script {
    fn start(request: SpawnRequest, limits: &Limits) -> (Self, DrivenProcess<ScriptedTransport>) {
        Self::start_in(request, limits, false)
    }

    fn start_in(
        request: SpawnRequest,
        limits: &Limits,
        is_closed: bool,
    ) -> (Self, DrivenProcess<ScriptedTransport>) {
        let (report_sender, reports) = mpsc::unbounded_channel();
        let (stdout_sender, stdout) = mpsc::channel(16);
        let (_, stderr) = mpsc::channel(1);
        let transport = Arc::new(ScriptedTransport {
            orders: Mutex::default(),
            is_closed,
            spilled: Mutex::default(),
            claimed_bytes: AtomicU64::new(0),
            spill_delay: Mutex::default(),
            is_silent: AtomicBool::new(false),
        });
        let process = CommandDriver::new(request, limits).drive(StartedCommand {
            transport: Arc::clone(&transport),
            pid: Some(1),
            reports,
            stdout,
            stderr,
            input: None,
        });
        let script = Self {
            transport,
            reports: Some(report_sender),
            stdout: Some(stdout_sender),
        };
        (script, process)
    }

    fn end(&self, code: i32, alone: bool) {
        let status = ExitStatus::Code(code);
        let report = Report::Ended { status, alone };
        self.reports.as_ref().unwrap().send(report).unwrap();
    }

    async fn write(&self, text: &'static str) {
        let bytes = Bytes::from_static(text.as_bytes());
        self.stdout.as_ref().unwrap().send(Ok(bytes)).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn exit_has_status_duration_and_output_size() {
    let (mut script, mut process) = Script::start(SpawnRequest::shell("x"), &Limits::default());
    script.write("output").await;
    sleep(3 * SECOND).await;
    script.stdout = None;
    script.end(4, true);
    let exit = process.wait().await.unwrap();
    assert_eq!(exit.status, ExitStatus::Code(4));
    assert_eq!(exit.duration.as_secs(), 3);
    assert_eq!(exit.stdout.total_bytes, 6);
    assert_eq!(process.wait().await.unwrap(), exit);
    drop(process);
    assert_eq!(script.transport.orders(), []);
}

#[tokio::test(start_paused = true)]
async fn timeout_terminates_then_kills() {
    let request = SpawnRequest::shell("x")
        .with_timeout(10 * SECOND)
        .with_grace(2 * SECOND);
    let (mut script, mut process) = Script::start(request, &Limits::default());
    sleep(9 * SECOND).await;
    assert_eq!(script.transport.orders(), []);
    sleep(2 * SECOND).await;
    assert_eq!(script.transport.orders(), [Order::Terminate]);
    sleep(2 * SECOND).await;
    script.reports = None;
    let exit = process.wait().await.unwrap();
    let limit = 10 * SECOND;
    assert_eq!(exit.status, ExitStatus::TimedOut { limit });
    let orders = script.transport.orders();
    assert_eq!(orders, [Order::Terminate, Order::Kill]);
}

#[tokio::test(start_paused = true)]
async fn dropped_process_is_killed() {
    let (script, process) = Script::start(SpawnRequest::shell("x"), &Limits::default());
    drop(process);
    assert_eq!(script.transport.orders(), [Order::Kill]);
}

#[tokio::test(start_paused = true)]
async fn command_ends_although_the_sandbox_does_not_explain_its_exit() {
    let (mut script, mut process) = Script::start(SpawnRequest::shell("x"), &Limits::default());
    script.transport.is_silent.store(true, Ordering::Relaxed);
    script.stdout = None;
    script.end(1, true);
    let exit = tokio::time::timeout(60 * SECOND, process.wait()).await;
    assert_eq!(exit.unwrap().unwrap().status, ExitStatus::Code(1));
}

#[tokio::test(start_paused = true)]
async fn kept_background_processes_are_listed_and_detached() {
    let request = SpawnRequest::shell("x").with_background(Background::Keep);
    let (script, mut process) = Script::start(request, &Limits::default());
    script.end(0, false);
    let exit = process.wait().await.unwrap();
    assert_eq!(exit.background, [BackgroundProcess::new(7, "sleep 60")]);
    // The handle of a command that has ended does not kill what may stay.
    drop(process);
    let detached = Order::Detach { outputs: 1 };
    assert_eq!(script.transport.orders(), [Order::List, detached]);
}

#[tokio::test(start_paused = true)]
async fn background_processes_of_a_command_that_is_dropped_early_are_killed() {
    let request = SpawnRequest::shell("x").with_background(Background::Keep);
    let (script, process) = Script::start(request, &Limits::default());
    script.end(0, false);
    // Its output is still read.
    sleep(SECOND / 10).await;
    drop(process);
    sleep(SECOND / 10).await;
    assert_eq!(script.transport.orders(), [Order::List, Order::Kill]);
}

#[tokio::test(start_paused = true)]
async fn excess_output_kills_and_is_dropped() {
    let mut limits = Limits::default();
    limits.output_bytes = Some(3);
    let (mut script, mut process) = Script::start(SpawnRequest::shell("x"), &limits);
    let output = process.take_output().unwrap();
    for text in ["on", "two", "three"] {
        script.write(text).await;
    }
    sleep(SECOND / 10).await;
    script.reports = None;
    let exit = process.wait().await.unwrap();
    let field = PolicyField::Output;
    assert_eq!(exit.status, ExitStatus::LimitReached { field, limit: 3 });
    assert_eq!(script.transport.orders(), [Order::Kill]);
    let chunks: Vec<_> = output.map(|chunk| chunk.unwrap().bytes).collect().await;
    assert_eq!(chunks, ["on", "t"]);
}

#[tokio::test(start_paused = true)]
async fn a_command_that_ends_with_excess_output_has_not_succeeded() {
    let mut limits = Limits::default();
    limits.output_bytes = Some(3);
    let request = SpawnRequest::shell("x").with_background(Background::Keep);
    let (script, mut process) = Script::start(request, &limits);
    script.write("four").await;
    script.end(0, false);
    let exit = process.wait().await.unwrap();
    let field = PolicyField::Output;
    assert_eq!(exit.status, ExitStatus::LimitReached { field, limit: 3 });
    assert!(exit.background.is_empty(), "{exit:?}");
    let detached = Order::Detach { outputs: 1 };
    let expected = [Order::List, Order::Kill, detached];
    assert_eq!(script.transport.orders(), expected);
}

#[tokio::test(start_paused = true)]
async fn closed_sandbox_is_reported_whatever_the_status() {
    let request = SpawnRequest::shell("x");
    let (script, mut process) = Script::start_in(request, &Limits::default(), true);
    script.end(0, true);
    let error = process.wait().await.unwrap_err();
    assert_eq!(error.kind(), SandboxErrorKind::Closed);
}

#[tokio::test(start_paused = true)]
async fn output_is_delivered_while_a_background_process_holds_the_channel() {
    let (script, mut process) = Script::start(SpawnRequest::shell("x"), &Limits::default());
    let output = process.take_output().unwrap();
    script.write("before").await;
    script.end(0, true);
    let chunks: Vec<_> = output.map(|chunk| chunk.unwrap().bytes).collect().await;
    assert_eq!(chunks, [Bytes::from_static(b"before")]);
    assert!(process.wait().await.unwrap().status.success());
}

#[tokio::test(start_paused = true)]
async fn output_ends_although_a_background_process_has_taken_the_rest() {
    let (script, mut process) = Script::start(SpawnRequest::shell("x"), &Limits::default());
    let output = process.take_output().unwrap();
    script.write("before").await;
    script.transport.claimed_bytes.store(10, Ordering::Relaxed);
    script.end(0, true);
    let ended = tokio::time::timeout(60 * SECOND, output.count()).await;
    assert_eq!(ended, Ok(1));
    assert!(process.wait().await.unwrap().status.success());
}

#[tokio::test(start_paused = true)]
async fn spill_file_gets_output_from_its_beginning_up_to_the_cap() {
    let request = SpawnRequest::shell("x").with_spill(Spill::after(5).with_cap(8));
    let (mut script, mut process) = Script::start(request, &Limits::default());
    for text in ["abcd", "efgh", "ijkl"] {
        script.write(text).await;
    }
    script.stdout = None;
    script.end(0, true);
    let exit = process.wait().await.unwrap();
    let path = SandboxPath::new("/tmp/output").unwrap();
    assert_eq!(exit.stdout.spilled, Some(SpillFile::new(path, 8)));
    assert_eq!(*script.transport.spilled.lock().unwrap(), b"abcdefgh");
}

/// Starts a command whose spill file is opened only after some seconds, and ends it after 80 bytes of output.
async fn slow_spill() -> (Script, DrivenProcess<ScriptedTransport>) {
    let request = SpawnRequest::shell("x").with_spill(Spill::after(5));
    let (mut script, process) = Script::start(request, &Limits::default());
    *script.transport.spill_delay.lock().unwrap() = 6 * SECOND;
    // More chunks than may be on their way to the file.
    for _ in 0..10 {
        script.write("12345678").await;
    }
    script.stdout = None;
    script.end(0, true);
    (script, process)
}

#[tokio::test(start_paused = true)]
async fn exit_waits_for_a_spill_file_that_makes_no_progress_for_seconds() {
    let (script, mut process) = slow_spill().await;
    let exit = process.wait().await.unwrap();
    let path = SandboxPath::new("/tmp/output").unwrap();
    assert_eq!(exit.stdout.spilled, Some(SpillFile::new(path, 80)));
    assert_eq!(script.transport.spilled.lock().unwrap().len(), 80);
}

#[tokio::test(start_paused = true)]
async fn exit_waits_for_a_spill_file_while_the_reader_pauses_for_seconds() {
    let (_script, mut process) = slow_spill().await;
    let mut output = process.take_output().unwrap();
    let read = async {
        sleep(3 * SECOND).await;
        while output.next().await.is_some() {}
    };
    let (exit, ()) = tokio::join!(process.wait(), read);
    assert_eq!(exit.unwrap().stdout.spilled.unwrap().size_bytes, 80);
}

#[tokio::test(start_paused = true)]
async fn exit_waits_ten_seconds_for_a_spill_file_whose_output_is_not_read() {
    let (_script, mut process) = slow_spill().await;
    let _unread = process.take_output().unwrap();
    let started = tokio::time::Instant::now();
    let exit = process.wait().await.unwrap();
    assert_eq!(started.elapsed().as_secs(), 10);
    assert!(exit.status.success());
}
