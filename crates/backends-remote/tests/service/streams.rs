//! Streams of commands that break or fall silent, and sandboxes that seem not to be there.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use cantle_core::sandbox::{
    Backend as _, Background, Exit, ExitStatus, OutputStream, Process, Sandbox, SandboxErrorKind,
    SandboxExt as _, SandboxPath, SpawnRequest, Stdin,
};
use futures_util::StreamExt as _;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::proxy::{Fate, Proxy, Seen, refusal};
use crate::support::{DEADLINE, Served};
use crate::{context, through};

fn listens_again(seen: &Seen) -> bool {
    seen.path.ends_with("/process.Process/Connect")
}

/// Whether this starts a command of the test's own, by the only one that runs when it matters.
fn starts(seen: &Seen) -> bool {
    seen.path.ends_with("/process.Process/Start")
}

/// Counts what starts from `armed` on, and gives the first of it to `fate`.
struct Armed {
    now: CancellationToken,
    number: AtomicUsize,
}

impl Armed {
    fn new() -> (CancellationToken, Self) {
        let now = CancellationToken::new();
        let number = AtomicUsize::new(0);
        (now.clone(), Self { now, number })
    }

    fn is_it(&self, seen: &Seen) -> bool {
        let counts = self.now.is_cancelled() && starts(seen);
        counts && self.number.fetch_add(1, Ordering::Relaxed) == 0
    }
}

async fn read_until(output: &mut OutputStream, words: &str) -> String {
    let mut text = String::new();
    while !text.contains(words) {
        let next = timeout(DEADLINE, output.next()).await.expect("it comes");
        let chunk = next.expect("there is more").unwrap();
        text.push_str(&String::from_utf8_lossy(&chunk.bytes));
    }
    text
}

/// What still comes, and how it ended.
async fn the_rest(process: &mut Box<dyn Process>, mut output: OutputStream) -> (String, Exit) {
    let ending = async {
        let mut text = String::new();
        while let Some(chunk) = output.next().await {
            text.push_str(&String::from_utf8_lossy(&chunk.unwrap().bytes));
        }
        (text, process.wait().await.unwrap())
    };
    timeout(DEADLINE, ending).await.expect("it ends")
}

async fn waits_for(sandbox: &Arc<dyn Sandbox>, condition: &str) {
    let script = format!("for _ in {{1..600}}; do {condition} && exit 0; sleep 0.1; done; exit 1");
    let output = sandbox.run(SpawnRequest::shell(script)).await.unwrap();
    assert_eq!(output.exit.status, ExitStatus::Code(0), "{condition}");
}

#[tokio::test]
async fn a_command_whose_connection_breaks_runs_on_and_is_heard_again() {
    let served = Served::start().await;
    let (armed, first) = Armed::new();
    let breaks = CancellationToken::new();
    let then = breaks.clone();
    let plan = move |seen: &Seen| match first.is_it(seen) {
        true => Fate::BrokenAt(then.clone()),
        false => Fate::Passed,
    };
    let proxy = Proxy::start(&served.url, plan).await;
    let sandbox = through(&proxy)
        .build()
        .unwrap()
        .open(context())
        .await
        .unwrap();
    armed.cancel();
    let script = "echo before; read -r line; echo $line; echo more >&2; exit 3";
    let request = SpawnRequest::shell(script).with_stdin(Stdin::Piped);
    let mut process = sandbox.spawn(request).await.unwrap();
    let mut output = process.take_output().unwrap();
    read_until(&mut output, "before\n").await;
    breaks.cancel();
    proxy
        .wait_for(1, |it| listens_again(it) && it.is_answered)
        .await;
    let mut stdin = process.take_stdin().unwrap();
    stdin.write(Bytes::from("after\n")).await.unwrap();
    let (text, exit) = the_rest(&mut process, output).await;
    assert_eq!(
        (text.contains("after\n"), text.contains("more\n")),
        (true, true),
        "{text}"
    );
    assert!(!text.contains('\u{1e}'), "{text:?}");
    assert_eq!(exit.status, ExitStatus::Code(3));
    assert_eq!(exit.notes.len(), 1, "{:?}", exit.notes);
    assert_eq!(proxy.seen(listens_again).len(), 1);
    sandbox.close().await.unwrap();
    served.stop().await;
}

#[tokio::test]
async fn how_a_command_ended_is_known_though_nobody_listened_then() {
    let cases = [
        ("exit 0", ExitStatus::Code(0)),
        ("exit 143", ExitStatus::Code(143)),
        ("kill -TERM $$", ExitStatus::Signal(15)),
        ("kill -KILL $$", ExitStatus::Signal(9)),
    ];
    for (how, expected) in cases {
        let served = Served::start().await;
        let (armed, first) = Armed::new();
        let (breaks, goes_on) = (CancellationToken::new(), CancellationToken::new());
        let (then, until) = (breaks.clone(), goes_on.clone());
        let plan = move |seen: &Seen| match listens_again(seen) {
            true => Fate::Held(until.clone()),
            false if first.is_it(seen) => Fate::BrokenAt(then.clone()),
            false => Fate::Passed,
        };
        let proxy = Proxy::start(&served.url, plan).await;
        let sandbox = through(&proxy)
            .build()
            .unwrap()
            .open(context())
            .await
            .unwrap();
        armed.cancel();
        let script =
            format!("sleep 1000 & echo $PPID/; until [[ -e go ]]; do sleep 0.1; done; {how}");
        let request = SpawnRequest::shell(script).with_background(Background::Keep);
        let mut process = sandbox.spawn(request).await.unwrap();
        let mut output = process.take_output().unwrap();
        let outer = read_until(&mut output, "/").await;
        breaks.cancel();
        proxy.wait_for(1, listens_again).await;
        let go: SandboxPath = "go".parse().unwrap();
        sandbox.write_bytes(&go, Bytes::new()).await.unwrap();
        let outer = outer.trim().trim_end_matches('/');
        waits_for(&sandbox, &format!("! kill -0 {outer} 2>/dev/null")).await;
        goes_on.cancel();
        let (_, exit) = the_rest(&mut process, output).await;
        assert_eq!(exit.status, expected, "{how}");
        assert_eq!(exit.notes.len(), 1, "{:?}", exit.notes);
        // What it keeps is kept, and listed.
        let left: Vec<&str> = exit
            .background
            .iter()
            .map(|it| it.command.as_str())
            .collect();
        assert_eq!(left, ["sleep 1000"], "{how}");
        sandbox.close().await.unwrap();
        served.stop().await;
    }
}

#[tokio::test]
async fn a_stream_that_falls_silent_is_given_up_for_another() {
    let served = Served::start().await;
    let (armed, first) = Armed::new();
    let silence = CancellationToken::new();
    let then = silence.clone();
    let plan = move |seen: &Seen| match first.is_it(seen) {
        true => Fate::SilentAt(then.clone()),
        false => Fate::Passed,
    };
    let proxy = Proxy::start(&served.url, plan).await;
    let sandbox = through(&proxy)
        .build()
        .unwrap()
        .open(context())
        .await
        .unwrap();
    armed.cancel();
    let script = "echo before; read -r line; echo after";
    let request = SpawnRequest::shell(script).with_stdin(Stdin::Piped);
    let mut process = sandbox.spawn(request).await.unwrap();
    let mut output = process.take_output().unwrap();
    read_until(&mut output, "before\n").await;
    silence.cancel();
    proxy
        .wait_for(1, |it| listens_again(it) && it.is_answered)
        .await;
    let mut stdin = process.take_stdin().unwrap();
    stdin.write(Bytes::from("\n")).await.unwrap();
    let (text, exit) = the_rest(&mut process, output).await;
    assert_eq!(text, "after\n");
    assert_eq!(exit.status, ExitStatus::Code(0));
    sandbox.close().await.unwrap();
    served.stop().await;
}

#[tokio::test]
async fn a_sandbox_that_answers_nothing_any_more_is_gone() {
    let served = Served::start().await;
    let silence = CancellationToken::new();
    let then = silence.clone();
    let never = CancellationToken::new();
    let plan = move |seen: &Seen| match then.is_cancelled() {
        true => Fate::Held(never.clone()),
        false if starts(seen) => Fate::SilentAt(then.clone()),
        false => Fate::Passed,
    };
    let proxy = Proxy::start(&served.url, plan).await;
    let sandbox = through(&proxy)
        .build()
        .unwrap()
        .open(context())
        .await
        .unwrap();
    let mut process = sandbox
        .spawn(SpawnRequest::shell("sleep 1000"))
        .await
        .unwrap();
    silence.cancel();
    let ended = timeout(DEADLINE, process.wait())
        .await
        .expect("it is noticed");
    assert_eq!(ended.unwrap_err().kind(), SandboxErrorKind::Gone);
    let again = sandbox.run(SpawnRequest::shell("true")).await;
    assert_eq!(again.unwrap_err().kind(), SandboxErrorKind::Gone);
    drop((process, sandbox));
    served.stop().await;
}

#[tokio::test]
async fn a_command_that_nobody_can_listen_to_again_is_ended_and_said_to_be_lost() {
    let served = Served::start().await;
    let (armed, first) = Armed::new();
    let breaks = CancellationToken::new();
    let then = breaks.clone();
    let plan = move |seen: &Seen| match listens_again(seen) {
        true => refusal(
            404,
            &[],
            r#"{"code":"not_found","message":"no such method"}"#,
        ),
        false if first.is_it(seen) => Fate::BrokenAt(then.clone()),
        false => Fate::Passed,
    };
    let proxy = Proxy::start(&served.url, plan).await;
    let sandbox = through(&proxy)
        .build()
        .unwrap()
        .open(context())
        .await
        .unwrap();
    armed.cancel();
    let script = "setsid sleep 1000 & echo $!/; wait";
    let mut process = sandbox.spawn(SpawnRequest::shell(script)).await.unwrap();
    let mut output = process.take_output().unwrap();
    let sleeper = read_until(&mut output, "/").await;
    breaks.cancel();
    let ended = timeout(DEADLINE, process.wait())
        .await
        .expect("it is noticed");
    let error = ended.unwrap_err();
    assert_eq!(error.kind(), SandboxErrorKind::Io);
    let expected = "the command was lost and has been ended: ";
    assert!(error.to_string().starts_with(expected), "{error}");
    let sleeper = sleeper.trim().trim_end_matches('/');
    waits_for(&sandbox, &format!("! kill -0 {sleeper} 2>/dev/null")).await;
    sandbox.close().await.unwrap();
    served.stop().await;
}

#[tokio::test]
async fn a_command_that_was_started_unheard_does_not_run_on() {
    let served = Served::start().await;
    let (armed, first) = Armed::new();
    let plan = move |seen: &Seen| match first.is_it(seen) {
        true => Fate::Lost,
        false => Fate::Passed,
    };
    let proxy = Proxy::start(&served.url, plan).await;
    let sandbox = through(&proxy)
        .build()
        .unwrap()
        .open(context())
        .await
        .unwrap();
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
    served.stop().await;
}

#[tokio::test]
async fn one_answer_of_a_gateway_does_not_end_a_sandbox() {
    let served = Served::start().await;
    let number = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&number);
    let plan = move |seen: &Seen| {
        let fails = seen.path.ends_with("/MakeDir") && counted.fetch_add(1, Ordering::Relaxed) == 0;
        match fails {
            true => refusal(502, &[], "<html>502 Bad Gateway</html>"),
            false => Fate::Passed,
        }
    };
    let proxy = Proxy::start(&served.url, plan).await;
    let sandbox = through(&proxy)
        .build()
        .unwrap()
        .open(context())
        .await
        .unwrap();
    let directory: SandboxPath = "directory".parse().unwrap();
    let error = sandbox.mkdir(&directory).await.unwrap_err();
    assert_eq!(error.kind(), SandboxErrorKind::Io, "{error:?}");
    sandbox.mkdir(&directory).await.unwrap();
    // One that was ended says so, and is believed.
    served.kill(&sandbox.info().id).await.unwrap();
    let error = sandbox.mkdir(&"other".parse().unwrap()).await.unwrap_err();
    assert_eq!(error.kind(), SandboxErrorKind::Gone, "{error:?}");
    served.stop().await;
}

#[tokio::test]
async fn a_file_that_stops_coming_is_an_error_and_not_the_end_of_the_sandbox() {
    let served = Served::start().await;
    let silence = CancellationToken::new();
    silence.cancel();
    let plan = move |seen: &Seen| match seen.path == "/files" && seen.method == "GET" {
        true => Fate::SilentAt(silence.clone()),
        false => Fate::Passed,
    };
    let proxy = Proxy::start(&served.url, plan).await;
    let sandbox = through(&proxy)
        .build()
        .unwrap()
        .open(context())
        .await
        .unwrap();
    let path: SandboxPath = "file".parse().unwrap();
    sandbox.write_bytes(&path, "text".into()).await.unwrap();
    let reading = timeout(DEADLINE, sandbox.read_bytes(&path, 100));
    let error = reading.await.expect("it is given up").unwrap_err();
    assert_eq!(error.kind(), SandboxErrorKind::Io, "{error:?}");
    assert!(
        error.to_string().starts_with("failed to read `file`: "),
        "{error}"
    );
    let output = sandbox.run(SpawnRequest::shell("cat file")).await.unwrap();
    assert_eq!(output.stdout.text(), "text");
    sandbox.close().await.unwrap();
    served.stop().await;
}
