//! Runs whose process is killed, and that go on in another one.
//!
//! The process is this test's own program, started again: it works on a run that is kept, and is
//! killed by the kernel while it writes its journal (a limit on the size of files ends it at exactly
//! the byte that is wanted) or at a random time. Then a second process goes on. What tells whether a
//! tool ran twice is a file that the tool writes to, which knows nothing of journals.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "tests stop at the first surprise"
)]

use std::fmt;
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

use cantle_agent::{Agent, KeptStatus, ResumeOptions, RunStore, SessionOptions};
use cantle_core::event::RunStatus;
use cantle_core::llm::{
    ChatEvent, ChatRequest, ChatStream, LlmClient, ModelInfo, StopReason, TurnEnd,
};
use cantle_core::message::{AssistantBlock, Message, ToolCall};
use cantle_core::tool::{DynTool, ToolOutput, ToolSpec};
use cantle_core::usage::TokenUsage;
use cantle_testkit::lane;
use futures_util::stream;
use rustix::process::{Resource, Rlimit, setrlimit};
use serde_json::{Value, json};

/// Where the other process finds what to do.
const DIRECTORY: &str = "CANTLE_KILLED_DIRECTORY";
const JOURNAL_BYTES: &str = "CANTLE_KILLED_JOURNAL_BYTES";

const TURNS: usize = 6;
/// Tokens of a model call.
const TOKENS: u64 = 110;
const INTERRUPTED: &str = "Interrupted:";

/// Two effects in each turn but the last.
#[derive(Debug)]
struct Model(ModelInfo);

impl LlmClient for Model {
    fn model(&self) -> &ModelInfo {
        &self.0
    }

    fn stream(&self, request: ChatRequest) -> ChatStream {
        let is_turn = |message: &&_| matches!(**message, Message::Assistant(_));
        let messages = request.messages.iter().map(|message| &**message);
        let turn = messages.filter(|message| is_turn(message)).count();
        let call = |name: &str, id: String, arguments: Value| {
            let call = ToolCall::new(Some(id), name, arguments.to_string());
            Ok(ChatEvent::Block(AssistantBlock::ToolCall(call)))
        };
        let mut events = if turn + 1 < TURNS {
            let effect = |n: usize| call("effect", format!("call-{n}"), json!({"n": n}));
            vec![effect(2 * turn), effect(2 * turn + 1)]
        } else {
            vec![call("finish", "end".to_owned(), json!({"reason": "done"}))]
        };
        let usage = TokenUsage {
            input: TOKENS - 10,
            answer: 10,
            ..TokenUsage::default()
        };
        events.push(Ok(ChatEvent::Finished(TurnEnd::new(
            StopReason::ToolCalls,
            Some(usage),
        ))));
        Box::pin(stream::iter(events))
    }
}

fn agent(directory: &Path) -> Agent {
    let effects = directory.join("effects");
    let schema = json!({"type": "object", "properties": {"n": {"type": "integer"}}});
    let effect = DynTool::from_schema(
        ToolSpec::new("effect", "Has an effect.", schema),
        move |arguments, _| {
            let effects = effects.clone();
            async move {
                let n = arguments["n"].as_u64().unwrap();
                let mut file = OpenOptions::new()
                    .append(true)
                    .create(true)
                    .open(effects)
                    .unwrap();
                // In one piece: the other call of the turn writes at the same time.
                file.write_all(format!("{n}\n").as_bytes()).unwrap();
                // Some of the time is spent here, so that some kills happen here.
                tokio::time::sleep(Duration::from_millis(2)).await;
                Ok(ToolOutput::text(format!("effect {n}")))
            }
        },
    )
    .with_concurrency_safe(true);
    let schema = json!({"type": "object", "properties": {"reason": {"type": "string"}}});
    let finish = DynTool::from_schema(
        ToolSpec::new("finish", "Ends the run.", schema),
        |_, _| async { Ok(ToolOutput::text("done")) },
    );
    Agent::builder("test", Model(ModelInfo::new("model")))
        .tool(effect)
        .finish(finish)
        .build()
        .unwrap()
}

/// A conversation without what differs from run to run.
#[derive(Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
struct Story(Vec<String>);

impl fmt::Debug for Story {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.0).finish()
    }
}

fn line(message: &Message) -> String {
    match message {
        Message::System(message) => format!("system {}", message.content.text()),
        Message::User(message) => format!("user {}", message.content.text()),
        Message::Assistant(message) => {
            let calls: Vec<_> = message.tool_calls().map(|call| &call.arguments).collect();
            format!("assistant {calls:?}")
        }
        Message::Tool(message) => {
            format!("{}: {}", message.tool_call_id, message.content.text())
        }
    }
}

/// The other process: begins a run, or resumes the existing one.
#[test]
fn other_process() {
    let Some(directory) = std::env::var_os(DIRECTORY) else {
        return;
    };
    let directory = Path::new(&directory);
    if let Ok(bytes) = std::env::var(JOURNAL_BYTES) {
        let limit = |bytes| Rlimit {
            current: Some(bytes),
            maximum: Some(bytes),
        };
        setrlimit(Resource::Core, limit(0)).unwrap();
        setrlimit(Resource::Fsize, limit(bytes.parse().unwrap())).unwrap();
    }
    let store = RunStore::new(directory.join("runs"));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let outcome = runtime.block_on(async {
        let agent = agent(directory);
        let (kept, _) = store.list().unwrap();
        let session = match kept.first() {
            Some(kept) => agent
                .resume(&store, kept.run, ResumeOptions::default())
                .await
                .unwrap(),
            None => {
                let options = SessionOptions::default().kept_in(store.clone(), Value::Null);
                agent.session(options).await.unwrap()
            }
        };
        let run = match kept.first() {
            Some(_) => session.resume(),
            None => session.run("the task"),
        };
        let outcome = run.unwrap().outcome().await;
        session.close().await.unwrap();
        outcome
    });
    assert!(outcome.error.is_none(), "{:?}", outcome.error);
    let story = Story(outcome.history.iter().map(|it| line(it)).collect());
    let tokens = outcome.ledger.reported_usage().total();
    fs::write(
        directory.join("story.json"),
        serde_json::to_vec(&(story, outcome.turns, tokens)).unwrap(),
    )
    .unwrap();
}

/// Works on the run in `directory` in another process.
fn command(directory: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "other_process", "--test-threads=1", "-q"])
        .env(DIRECTORY, directory)
        .env_remove(JOURNAL_BYTES)
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null());
    command
}

fn story(directory: &Path) -> (Story, u32, u64) {
    serde_json::from_slice(&fs::read(directory.join("story.json")).unwrap()).unwrap()
}

/// The bytes of the run's journal, if the run has appeared.
fn journal(directory: &Path) -> Option<Vec<u8>> {
    let runs = fs::read_dir(directory.join("runs")).ok()?;
    let mut paths = runs.map(|run| run.unwrap().path());
    let run = paths.find(|path| {
        !path
            .file_name()
            .unwrap()
            .as_encoded_bytes()
            .starts_with(b".")
    })?;
    fs::read(run.join("journal.jsonl")).ok()
}

/// Goes on with what was killed, and compares it with the run that was not. Returns how many calls
/// were interrupted.
fn check_resumed(directory: &Path, whole: &(Story, u32, u64)) -> usize {
    let begun = journal(directory).is_some_and(|bytes| bytes.contains(&b'\n'));
    if !begun {
        // Killed before the run had begun: there is nothing to go on with, and nothing was done.
        assert!(!directory.join("effects").exists());
        return 0;
    }
    let (kept, unreadable) = RunStore::new(directory.join("runs")).list().unwrap();
    assert!(unreadable.is_empty(), "{unreadable:?}");
    if kept[0].status == KeptStatus::Ended(RunStatus::Finished) {
        // Killed when all was done.
        return 0;
    }
    assert_eq!(kept[0].status, KeptStatus::Interrupted);
    let ended = command(directory).status().unwrap();
    assert!(ended.success(), "{ended}");
    let (mut resumed, turns, tokens) = story(directory);
    // A finish call that was interrupted is made again, in a turn of its own.
    let again = u32::from(resumed.0.iter().any(|line| line.starts_with("end-2: ")));
    if again == 1 {
        resumed.0.truncate(whole.0.0.len());
    }
    let mut interrupted = Vec::new();
    let lines = resumed.0.iter().zip(&whole.0.0).map(|(now, then)| {
        let (id, result) = now.split_once(": ").unwrap_or_default();
        if result.starts_with(INTERRUPTED) {
            interrupted.push(id.to_owned());
            return then.clone();
        }
        now.clone()
    });
    assert_eq!(Story(lines.collect()), whole.0);
    assert_eq!(resumed.0.len(), whole.0.0.len());
    let expected = (whole.1 + again, whole.2 + u64::from(again) * TOKENS);
    assert_eq!((turns, tokens), expected);
    assert_eq!(again == 1, interrupted.contains(&"end".to_owned()));

    let effects = fs::read_to_string(directory.join("effects")).unwrap();
    for n in 0..2 * (TURNS - 1) {
        let times = effects.lines().filter(|it| *it == n.to_string()).count();
        let was_interrupted = interrupted.contains(&format!("call-{n}"));
        let expected = if was_interrupted { times.min(1) } else { 1 };
        assert_eq!(times, expected, "effect {n}");
    }
    interrupted.len()
}

fn whole() -> (tempfile::TempDir, (Story, u32, u64)) {
    let directory = tempfile::tempdir().unwrap();
    assert!(command(directory.path()).status().unwrap().success());
    let whole = story(directory.path());
    (directory, whole)
}

/// Whether SIGXFSZ ended the process.
fn was_killed(status: ExitStatus) -> bool {
    status.signal() == Some(rustix::process::Signal::XFSZ.as_raw())
}

#[test]
fn a_run_killed_at_any_journal_write_resumes_without_repeating_effects() {
    if std::env::var_os(DIRECTORY).is_some() {
        return;
    }
    let (first, whole) = whole();
    let bytes = journal(first.path()).unwrap();
    let ends = bytes.iter().enumerate().filter(|(_, byte)| **byte == b'\n');
    let ends: Vec<usize> = ends.map(|(at, _)| at + 1).collect();
    // Behind each record, and within the next one.
    let cuts = ends.iter().flat_map(|end| [*end, end + 9]);
    let mut interrupted = 0;
    let mut killed = 0;
    for cut in cuts.filter(|cut| *cut < bytes.len()) {
        let directory = tempfile::tempdir().unwrap();
        let mut first = command(directory.path());
        let ended = first.env(JOURNAL_BYTES, cut.to_string()).status().unwrap();
        // Numbers in times have different lengths, so that the last cut may be no cut.
        if ended.success() {
            continue;
        }
        assert!(was_killed(ended), "{ended}");
        killed += 1;
        interrupted += check_resumed(directory.path(), &whole);
    }
    assert!(killed + 4 >= 2 * (ends.len() - 1), "{killed} kills");
    assert!(interrupted > 0, "no kill met a running call");
}

#[test]
fn a_run_killed_at_random_times_resumes_without_repeating_effects() {
    if std::env::var_os(DIRECTORY).is_some() {
        return;
    }
    let begun = Instant::now();
    let (_first, whole) = whole();
    // As long as one takes, as far as it was seen.
    let mut longest = begun.elapsed();
    let mut killed = 0;
    let mut interrupted = 0;
    let mut random = 0x2545_f491_4f6c_dd1d_u64;
    let rounds = lane::choose("160 of 200 kills", 40, 200);
    for _ in 0..rounds {
        // xorshift: the same parts in every run of the test.
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let directory = tempfile::tempdir().unwrap();
        let mut first = command(directory.path()).spawn().unwrap();
        let part = (random % 1000) as f64 / 1000.0;
        std::thread::sleep(longest.mul_f64(part));
        first.kill().unwrap();
        if first.wait().unwrap().success() {
            longest = longest.mul_f64(0.8);
            continue;
        }
        longest = longest.mul_f64(1.05);
        killed += 1;
        interrupted += check_resumed(directory.path(), &whole);
    }
    assert!(killed > rounds / 4, "{killed} of {rounds} runs were killed");
    println!("{killed} runs were killed, {interrupted} calls interrupted");
}
