//! Event streams that break or stall, and unreachable sandboxes.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use cantle_core::sandbox::{
    Backend as _, Background, ByteRange, Exit, ExitStatus, MAX_LIST_ENTRIES, OutputStream, Process,
    Sandbox, SandboxErrorKind, SandboxExt as _, SandboxPath, SpawnRequest, Stdin,
};
use futures_util::StreamExt as _;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::proxy::{Fault, ReceivedRequest, respond};
use crate::support::{DEADLINE, TestServer};
use crate::{context, open_through};

fn is_reconnect(request: &ReceivedRequest) -> bool {
    request.path.ends_with("/process.Process/Connect")
}

/// Returns whether the request starts a process.
fn is_start(request: &ReceivedRequest) -> bool {
    request.path.ends_with("/process.Process/Start")
}

/// Matches the first start of a process after it was armed.
struct ArmedTrigger {
    armed: CancellationToken,
    number: AtomicUsize,
}

impl ArmedTrigger {
    fn new() -> (CancellationToken, Self) {
        let armed = CancellationToken::new();
        let number = AtomicUsize::new(0);
        (armed.clone(), Self { armed, number })
    }

    fn matches(&self, request: &ReceivedRequest) -> bool {
        let counts = self.armed.is_cancelled() && is_start(request);
        counts && self.number.fetch_add(1, Ordering::Relaxed) == 0
    }
}

async fn read_until(output: &mut OutputStream, words: &str) -> String {
    let mut text = String::new();
    while !text.contains(words) {
        let next = timeout(DEADLINE, output.next())
            .await
            .expect("the output stalls");
        let chunk = next.expect("the output ended").unwrap();
        text.push_str(&String::from_utf8_lossy(&chunk.bytes));
    }
    text
}

/// Returns the remaining output and the exit.
async fn read_to_end(process: &mut Box<dyn Process>, mut output: OutputStream) -> (String, Exit) {
    let ending = async {
        let mut text = String::new();
        while let Some(chunk) = output.next().await {
            text.push_str(&String::from_utf8_lossy(&chunk.unwrap().bytes));
        }
        (text, process.wait().await.unwrap())
    };
    timeout(DEADLINE, ending).await.expect("the command hangs")
}

async fn wait_until(sandbox: &Arc<dyn Sandbox>, condition: &str) {
    let script = format!("for _ in {{1..600}}; do {condition} && exit 0; sleep 0.1; done; exit 1");
    let output = sandbox.run(SpawnRequest::shell(script)).await.unwrap();
    assert_eq!(output.exit.status, ExitStatus::Code(0), "{condition}");
}

#[tokio::test]
async fn command_survives_a_broken_connection() {
    let server = TestServer::start().await;
    let (armed, first) = ArmedTrigger::new();
    let breaks = CancellationToken::new();
    let signal = breaks.clone();
    let plan = move |request: &ReceivedRequest| match first.matches(request) {
        true => Fault::BreakAt(signal.clone()),
        false => Fault::None,
    };
    let (proxy, sandbox) = open_through(&server, plan).await;
    armed.cancel();
    let script = "echo before; read -r line; echo $line; echo more >&2; exit 3";
    let request = SpawnRequest::shell(script).with_stdin(Stdin::Piped);
    let mut process = sandbox.spawn(request).await.unwrap();
    let mut output = process.take_output().unwrap();
    read_until(&mut output, "before\n").await;
    breaks.cancel();
    proxy
        .wait_for(1, |it| is_reconnect(it) && it.is_answered)
        .await;
    let mut stdin = process.take_stdin().unwrap();
    stdin.write(Bytes::from("after\n")).await.unwrap();
    let (text, exit) = read_to_end(&mut process, output).await;
    assert_eq!(
        (text.contains("after\n"), text.contains("more\n")),
        (true, true),
        "{text}"
    );
    assert!(!text.contains('\u{1e}'), "{text:?}");
    assert_eq!(exit.status, ExitStatus::Code(3));
    assert_eq!(exit.notes.len(), 1, "{:?}", exit.notes);
    assert_eq!(proxy.requests(is_reconnect).len(), 1);
    sandbox.close().await.unwrap();
    server.stop().await;
}

#[tokio::test]
async fn exit_status_is_known_after_a_reconnect() {
    let cases = [
        ("exit 0", ExitStatus::Code(0)),
        ("exit 143", ExitStatus::Code(143)),
        ("kill -TERM $$", ExitStatus::Signal(15)),
        ("kill -KILL $$", ExitStatus::Signal(9)),
    ];
    for (how, expected) in cases {
        let server = TestServer::start().await;
        let (armed, first) = ArmedTrigger::new();
        let (breaks, resume) = (CancellationToken::new(), CancellationToken::new());
        let (signal, until) = (breaks.clone(), resume.clone());
        let plan = move |request: &ReceivedRequest| match is_reconnect(request) {
            true => Fault::DelayUntil(until.clone()),
            false if first.matches(request) => Fault::BreakAt(signal.clone()),
            false => Fault::None,
        };
        let (proxy, sandbox) = open_through(&server, plan).await;
        armed.cancel();
        let script =
            format!("sleep 1000 & echo $PPID/; until [[ -e go ]]; do sleep 0.1; done; {how}");
        let request = SpawnRequest::shell(script).with_background(Background::Keep);
        let mut process = sandbox.spawn(request).await.unwrap();
        let mut output = process.take_output().unwrap();
        let outer = read_until(&mut output, "/").await;
        breaks.cancel();
        proxy.wait_for(1, is_reconnect).await;
        let go: SandboxPath = "go".parse().unwrap();
        sandbox.write_bytes(&go, Bytes::new()).await.unwrap();
        let outer = outer.trim().trim_end_matches('/');
        wait_until(&sandbox, &format!("! kill -0 {outer} 2>/dev/null")).await;
        resume.cancel();
        let (_, exit) = read_to_end(&mut process, output).await;
        assert_eq!(exit.status, expected, "{how}");
        assert_eq!(exit.notes.len(), 1, "{:?}", exit.notes);
        // Kept background processes are listed.
        let left: Vec<&str> = exit
            .background
            .iter()
            .map(|it| it.command.as_str())
            .collect();
        assert_eq!(left, ["sleep 1000"], "{how}");
        sandbox.close().await.unwrap();
        server.stop().await;
    }
}

#[tokio::test]
async fn stalled_stream_is_replaced() {
    let server = TestServer::start().await;
    let (armed, first) = ArmedTrigger::new();
    let silence = CancellationToken::new();
    let signal = silence.clone();
    let plan = move |request: &ReceivedRequest| match first.matches(request) {
        true => Fault::StallAt(signal.clone()),
        false => Fault::None,
    };
    let (proxy, sandbox) = open_through(&server, plan).await;
    armed.cancel();
    let script = "echo before; read -r line; echo after";
    let request = SpawnRequest::shell(script).with_stdin(Stdin::Piped);
    let mut process = sandbox.spawn(request).await.unwrap();
    let mut output = process.take_output().unwrap();
    read_until(&mut output, "before\n").await;
    silence.cancel();
    proxy
        .wait_for(1, |it| is_reconnect(it) && it.is_answered)
        .await;
    let mut stdin = process.take_stdin().unwrap();
    stdin.write(Bytes::from("\n")).await.unwrap();
    let (text, exit) = read_to_end(&mut process, output).await;
    assert_eq!(text, "after\n");
    assert_eq!(exit.status, ExitStatus::Code(0));
    sandbox.close().await.unwrap();
    server.stop().await;
}

#[tokio::test]
async fn unresponsive_sandbox_is_gone() {
    let server = TestServer::start().await;
    let silence = CancellationToken::new();
    let signal = silence.clone();
    let never = CancellationToken::new();
    let plan = move |request: &ReceivedRequest| match signal.is_cancelled() {
        true => Fault::DelayUntil(never.clone()),
        false if is_start(request) => Fault::StallAt(signal.clone()),
        false => Fault::None,
    };
    let (_proxy, sandbox) = open_through(&server, plan).await;
    let mut process = sandbox
        .spawn(SpawnRequest::shell("sleep 1000"))
        .await
        .unwrap();
    silence.cancel();
    let ended = timeout(DEADLINE, process.wait())
        .await
        .expect("the loss was not detected");
    assert_eq!(ended.unwrap_err().kind(), SandboxErrorKind::Gone);
    let again = sandbox.run(SpawnRequest::shell("true")).await;
    assert_eq!(again.unwrap_err().kind(), SandboxErrorKind::Gone);
    drop((process, sandbox));
    server.stop().await;
}

#[tokio::test]
async fn command_is_killed_and_reported_as_lost_if_reconnecting_fails() {
    let server = TestServer::start().await;
    let (armed, first) = ArmedTrigger::new();
    let breaks = CancellationToken::new();
    let signal = breaks.clone();
    let plan = move |request: &ReceivedRequest| match is_reconnect(request) {
        true => respond(
            404,
            &[],
            r#"{"code":"not_found","message":"no such method"}"#,
        ),
        false if first.matches(request) => Fault::BreakAt(signal.clone()),
        false => Fault::None,
    };
    let (_proxy, sandbox) = open_through(&server, plan).await;
    armed.cancel();
    let script = "setsid sleep 1000 & echo $!/; wait";
    let mut process = sandbox.spawn(SpawnRequest::shell(script)).await.unwrap();
    let mut output = process.take_output().unwrap();
    let sleeper = read_until(&mut output, "/").await;
    breaks.cancel();
    let ended = timeout(DEADLINE, process.wait())
        .await
        .expect("the loss was not detected");
    let error = ended.unwrap_err();
    assert_eq!(error.kind(), SandboxErrorKind::Io);
    let expected = "the command was lost and has been ended: ";
    assert!(error.to_string().starts_with(expected), "{error}");
    let sleeper = sleeper.trim().trim_end_matches('/');
    wait_until(&sandbox, &format!("! kill -0 {sleeper} 2>/dev/null")).await;
    sandbox.close().await.unwrap();
    server.stop().await;
}

#[tokio::test]
async fn command_is_killed_if_the_start_response_is_lost() {
    let server = TestServer::start().await;
    let (armed, first) = ArmedTrigger::new();
    let plan = move |request: &ReceivedRequest| match first.matches(request) {
        true => Fault::DropResponse,
        false => Fault::None,
    };
    let (_proxy, sandbox) = open_through(&server, plan).await;
    armed.cancel();
    let script = "exec -a started-unheard sleep 1000";
    let error = sandbox.spawn(SpawnRequest::shell(script)).await.map(drop);
    let error = error.unwrap_err();
    assert_eq!(error.kind(), SandboxErrorKind::Io);
    let expected = "failed to start the command: ";
    assert!(error.to_string().starts_with(expected), "{error}");
    let none = "! grep -qs 'started-unhear[d]' /proc/[0-9]*/cmdline";
    let output = sandbox.run(SpawnRequest::shell(none)).await.unwrap();
    assert_eq!(output.exit.status, ExitStatus::Code(0));
    sandbox.close().await.unwrap();
    server.stop().await;
}

#[tokio::test]
async fn single_gateway_error_does_not_end_the_sandbox() {
    let server = TestServer::start().await;
    let number = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&number);
    let plan = move |request: &ReceivedRequest| {
        let fails =
            request.path.ends_with("/MakeDir") && counted.fetch_add(1, Ordering::Relaxed) == 0;
        match fails {
            true => respond(502, &[], "<html>502 Bad Gateway</html>"),
            false => Fault::None,
        }
    };
    let (_proxy, sandbox) = open_through(&server, plan).await;
    let directory: SandboxPath = "directory".parse().unwrap();
    let error = sandbox.mkdir(&directory).await.unwrap_err();
    assert_eq!(error.kind(), SandboxErrorKind::Io, "{error:?}");
    sandbox.mkdir(&directory).await.unwrap();
    // A killed sandbox is reported as gone.
    server.kill(&sandbox.info().id).await.unwrap();
    let error = sandbox.mkdir(&"other".parse().unwrap()).await.unwrap_err();
    assert_eq!(error.kind(), SandboxErrorKind::Gone, "{error:?}");
    server.stop().await;
}

#[tokio::test]
async fn restart_of_the_gateway_does_not_end_the_sandbox() {
    let server = TestServer::start().await;
    let number = AtomicUsize::new(0);
    let plan = move |request: &ReceivedRequest| {
        let fails = request.path.ends_with("/MakeDir") || request.path.ends_with("/health");
        match fails && number.fetch_add(1, Ordering::Relaxed) < 3 {
            true => respond(502, &[], "<html>502 Bad Gateway</html>"),
            false => Fault::None,
        }
    };
    let (proxy, sandbox) = open_through(&server, plan).await;
    let directory: SandboxPath = "directory".parse().unwrap();
    let error = sandbox.mkdir(&directory).await.unwrap_err();
    assert_eq!(error.kind(), SandboxErrorKind::Io, "{error:?}");
    let checks = proxy.requests(|request| request.path.ends_with("/health"));
    assert_eq!(checks.len(), 3);
    sandbox.mkdir(&directory).await.unwrap();
    sandbox.close().await.unwrap();
    server.stop().await;
}

#[tokio::test]
async fn command_whose_input_is_lost_fails() {
    let faults: [fn() -> Fault; 4] = [
        || respond(429, &[], ""),
        || respond(503, &[], ""),
        || respond(504, &[], ""),
        || Fault::DropResponse,
    ];
    for fault in faults {
        let server = TestServer::start().await;
        let plan = move |request: &ReceivedRequest| match request.path.ends_with("/SendInput") {
            true => fault(),
            false => Fault::None,
        };
        let (proxy, sandbox) = open_through(&server, plan).await;
        let request = SpawnRequest::shell("cat > copied")
            .with_stdin(Stdin::Bytes("text".into()))
            .with_timeout(DEADLINE);
        let error = sandbox.run(request).await.unwrap_err();
        assert_eq!(error.kind(), SandboxErrorKind::Io);
        let expected = "part of the command's input was lost, so it has been ended: ";
        assert!(error.to_string().starts_with(expected), "{error}");
        let closings = proxy.requests(|request| request.path.ends_with("/CloseStdin"));
        assert_eq!(closings.len(), 0);
        sandbox.close().await.unwrap();
        server.stop().await;
    }
}

#[tokio::test]
async fn input_is_closed_again_and_a_command_that_lacks_its_end_fails() {
    for succeeds in [true, false] {
        let fault = move |number: usize| match (succeeds, number) {
            (true, 0) => Fault::DropResponse,
            (true, _) => Fault::None,
            (false, _) => respond(503, &[], ""),
        };
        let server = TestServer::start().await;
        let number = AtomicUsize::new(0);
        let plan = move |request: &ReceivedRequest| match request.path.ends_with("/CloseStdin") {
            true => fault(number.fetch_add(1, Ordering::Relaxed)),
            false => Fault::None,
        };
        let (_proxy, sandbox) = open_through(&server, plan).await;
        let request = SpawnRequest::shell("cat")
            .with_stdin(Stdin::Bytes("text".into()))
            .with_timeout(DEADLINE);
        match sandbox.run(request).await {
            Ok(output) => {
                let ended = (output.exit.status, output.stdout.text());
                assert_eq!(ended, (ExitStatus::Code(0), "text".to_owned()));
                assert!(succeeds);
            }
            Err(error) => {
                assert_eq!(error.kind(), SandboxErrorKind::Io);
                let expected = "part of the command's input was lost, so it has been ended: ";
                assert!(error.to_string().starts_with(expected), "{error}");
                assert!(!succeeds);
            }
        }
        sandbox.close().await.unwrap();
        server.stop().await;
    }
}

#[tokio::test]
async fn stalled_download_fails_without_ending_the_sandbox() {
    let server = TestServer::start().await;
    let silence = CancellationToken::new();
    silence.cancel();
    let plan = move |request: &ReceivedRequest| match request.path == "/files"
        && request.method == "GET"
    {
        true => Fault::StallAt(silence.clone()),
        false => Fault::None,
    };
    let (_proxy, sandbox) = open_through(&server, plan).await;
    let path: SandboxPath = "file".parse().unwrap();
    sandbox.write_bytes(&path, "text".into()).await.unwrap();
    let reading = timeout(DEADLINE, sandbox.read_bytes(&path, 100));
    let error = reading.await.expect("the read hangs").unwrap_err();
    assert_eq!(error.kind(), SandboxErrorKind::Io, "{error:?}");
    assert!(
        error.to_string().starts_with("failed to read `file`: "),
        "{error}"
    );
    let output = sandbox.run(SpawnRequest::shell("cat file")).await.unwrap();
    assert_eq!(output.stdout.text(), "text");
    sandbox.close().await.unwrap();
    server.stop().await;
}

#[tokio::test]
async fn download_by_a_program_that_is_killed_does_not_look_complete() {
    let server = TestServer::start().await;
    let backend = server.builder().build().unwrap();
    let sandbox = backend.open(context()).await.unwrap();
    let run = async |script: &str| {
        let output = sandbox.run(SpawnRequest::shell(script)).await.unwrap();
        assert_eq!(output.exit.status, ExitStatus::Code(0), "{script}");
    };
    run("truncate -s 200M $'\\xff'").await;
    // The protocol needs UTF-8 paths.
    let path = SandboxPath::working_directory().join(b"\xff").unwrap();
    let mut data = sandbox.read(&path, ByteRange::all()).await.unwrap();
    data.next().await.unwrap().unwrap();
    run("for process in /proc/[0-9]*; do \
         [[ $(<$process/comm) = tail ]] && kill -KILL ${process#/proc/} && exit 0; done; exit 1")
    .await;
    let is_complete = async {
        let mut last = Ok(());
        while let Some(piece) = data.next().await {
            last = piece.map(drop);
        }
        last.is_ok()
    };
    let is_complete = timeout(DEADLINE, is_complete).await;
    assert!(!is_complete.expect("the read hangs"));
    sandbox.close().await.unwrap();
    server.stop().await;
}

#[tokio::test]
async fn download_by_a_program_may_take_as_long_as_its_reader_does() {
    let server = TestServer::start().await;
    let (proxy, sandbox) = open_through(&server, |_| Fault::None).await;
    // The protocol needs UTF-8 paths.
    let path = SandboxPath::working_directory().join(b"\xff").unwrap();
    sandbox.write_bytes(&path, "text".into()).await.unwrap();
    assert_eq!(sandbox.read_bytes(&path, 100).await.unwrap(), "text");
    let is_unlimited =
        |it: &ReceivedRequest| is_start(it) && it.header("connect-timeout-ms").is_empty();
    assert_eq!(proxy.requests(is_unlimited).len(), 1);
    sandbox.close().await.unwrap();
    server.stop().await;
}

/// Returns a listing with more entries than are allowed.
fn with_too_many_entries(_: String) -> String {
    let entries = vec![r#"{"name":"file"}"#; MAX_LIST_ENTRIES + 1].join(",");
    format!(r#"{{"entries":[{entries}]}}"#)
}

#[tokio::test]
async fn directory_with_too_many_entries_is_not_listed() {
    let server = TestServer::start().await;
    let plan = |request: &ReceivedRequest| match request.path.ends_with("/ListDir") {
        true => Fault::ChangeResponse(with_too_many_entries),
        false => Fault::None,
    };
    let (_proxy, sandbox) = open_through(&server, plan).await;
    let listed = sandbox.list(&SandboxPath::working_directory()).await;
    let error = listed.map(|it| it.len()).unwrap_err();
    assert_eq!(error.kind(), SandboxErrorKind::Unsupported);
    sandbox.close().await.unwrap();
    server.stop().await;
}
