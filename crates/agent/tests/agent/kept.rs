//! Runs that are kept: what is in their directory, who may touch it, and going on.

use std::collections::BTreeSet;
use std::fs;
use std::future::pending;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use cantle_agent::{
    Agent, AgentBuilder, Budget, KeptStatus, Outcome, ResumeOptions, RunErrorKind, RunStore,
    SessionErrorKind, SessionOptions, StoreErrorKind,
};
use cantle_backends_local::LocalBackend;
use cantle_core::content::{Content, Media, Part};
use cantle_core::event::RunStatus;
use cantle_core::ids::RunId;
use cantle_core::message::Message;
use cantle_core::policy::Policy;
use cantle_core::secret::SecretText;
use cantle_core::tool::{DynTool, ToolOutput, ToolSpec};
use cantle_tools::CodeExec;
use futures_util::future::join_all;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::{Value, json};

use crate::support::{Scripted, agent, bare, calls, echo, finish, outcome, results, user_messages};

fn kept(store: &RunStore) -> SessionOptions {
    SessionOptions::default().kept_in(store.clone(), json!({"from": "a test"}))
}

/// Works for some turns, and finishes.
fn client(turns: usize) -> Scripted {
    Scripted::new(move |turn, _| match turn < turns {
        true => calls(&[("work", "w", json!({"n": turn}))]),
        false => finish("done"),
    })
}

/// An agent that reaches the last of its turns without having finished.
fn unfinished() -> AgentBuilder {
    agent(&client(3)).tool(echo("work")).max_turns(2)
}

async fn run(agent: &Agent, options: SessionOptions) -> Outcome {
    let session = agent.session(options).await.unwrap();
    let outcome = outcome(session.run("the task").unwrap()).await;
    session.close().await.unwrap();
    outcome
}

async fn resume(agent: &Agent, store: &RunStore, run: RunId) -> Outcome {
    let options = ResumeOptions::default();
    let session = agent.resume(store, run, options).await.unwrap();
    let outcome = outcome(session.resume().unwrap()).await;
    session.close().await.unwrap();
    outcome
}

/// A store with one run that can go on.
async fn store_with_one() -> (tempfile::TempDir, RunStore, RunId) {
    let directory = tempfile::tempdir().unwrap();
    let store = RunStore::new(directory.path().join("runs"));
    let outcome = run(&unfinished().build().unwrap(), kept(&store)).await;
    assert_eq!(outcome.error.unwrap().kind(), RunErrorKind::MaxTurns);
    (directory, store, outcome.run)
}

fn journal(store: &RunStore, run: RunId) -> PathBuf {
    store.run_directory(run).join("journal.jsonl")
}

/// The lines of a journal, with their ends.
fn lines(path: &Path) -> Vec<String> {
    let text = fs::read_to_string(path).unwrap();
    text.split_inclusive('\n').map(str::to_owned).collect()
}

/// Everything in a directory, with what is below it.
fn all_below(directory: &Path) -> Vec<PathBuf> {
    let mut all = vec![directory.to_owned()];
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => all.extend(all_below(&path)),
            false => all.push(path),
        }
    }
    all
}

#[tokio::test]
async fn runs_are_listed_read_and_removed() {
    let (directory, store, first) = store_with_one().await;
    let agent = agent(&client(1)).tool(echo("work")).build().unwrap();
    let second = run(&agent, kept(&store)).await.run;
    let (runs, unreadable) = store.list().unwrap();
    assert!(unreadable.is_empty(), "{unreadable:?}");
    let listed: Vec<_> = runs.iter().map(|it| (it.run, it.status)).collect();
    assert_eq!(
        listed,
        [
            (second, KeptStatus::Ended(RunStatus::Finished)),
            (first, KeptStatus::Ended(RunStatus::LimitReached))
        ]
    );
    let one = store.get(first).unwrap();
    assert_eq!(
        (one.agent.as_str(), one.model.as_str(), one.task.as_str()),
        ("test", "scripted", "the task")
    );
    assert_eq!((one.turns, one.tokens, one.cost_usd), (2, 30, None));
    assert_eq!(
        one.error.as_deref(),
        Some("the task was not finished within 2 turns")
    );
    assert_eq!(one.note, json!({"from": "a test"}));
    assert!(one.status.is_resumable() && !runs[0].status.is_resumable());

    let finished = agent.resume(&store, second, ResumeOptions::default()).await;
    assert_eq!(finished.unwrap_err().kind(), SessionErrorKind::Journal);
    let locked = store.lock(first).unwrap();
    let refused = agent.resume(&store, first, ResumeOptions::default()).await;
    assert_eq!(refused.unwrap_err().kind(), SessionErrorKind::Journal);
    locked.remove().unwrap();
    assert!(!store.run_directory(first).exists());
    for error in [
        store.get(first).unwrap_err(),
        store.remove(first).unwrap_err(),
    ] {
        assert_eq!(error.kind(), StoreErrorKind::NotFound);
    }
    let nothing = RunStore::new(directory.path().join("nowhere"))
        .list()
        .unwrap();
    assert!(nothing.0.is_empty() && nothing.1.is_empty());
}

#[tokio::test]
async fn other_files_in_a_store_are_ignored_and_hide_nothing() {
    let (directory, store, run) = store_with_one().await;
    let runs = directory.path().join("runs");
    fs::create_dir(runs.join("notes")).unwrap();
    fs::write(runs.join("file"), "").unwrap();
    // A process was killed before the run began.
    fs::create_dir(runs.join(RunId::new().to_string())).unwrap();
    let damaged = RunId::new();
    fs::create_dir(runs.join(damaged.to_string())).unwrap();
    fs::write(journal(&store, damaged), "{}\n").unwrap();
    let (listed, unreadable) = store.list().unwrap();
    assert_eq!(listed.iter().map(|it| it.run).collect::<Vec<_>>(), [run]);
    let [error] = &unreadable[..] else {
        panic!("{unreadable:?}");
    };
    assert!(error.to_string().contains(&damaged.to_string()), "{error}");
}

#[tokio::test]
async fn a_last_line_that_is_cut_off_is_none() {
    let (_directory, store, run) = store_with_one().await;
    let path = journal(&store, run);
    // Without how it ended, and with half of the record before that.
    let mut lines = lines(&path);
    lines.pop();
    let last = lines.pop().unwrap();
    let half: String = last.chars().take(20).collect();
    fs::write(&path, lines.concat() + &half).unwrap();
    assert_eq!(store.get(run).unwrap().status, KeptStatus::Interrupted);
    let agent = unfinished().max_turns(9).build().unwrap();
    let resumed = resume(&agent, &store, run).await;
    assert_eq!(resumed.status(), RunStatus::Finished, "{:?}", resumed.error);
    assert_eq!(
        store.get(run).unwrap().status,
        KeptStatus::Ended(RunStatus::Finished)
    );
}

#[tokio::test]
async fn garbage_and_a_later_version_are_reported_with_their_line_and_not_changed() {
    let (_directory, store, run) = store_with_one().await;
    let path = journal(&store, run);
    let whole = fs::read_to_string(&path).unwrap();
    let mut lines: Vec<_> = whole.lines().collect();
    lines[2] = "\u{0}\u{0}garbage";
    let garbage = lines.join("\n") + "\n";
    let later = whole.replacen("\"version\":1", "\"version\":2", 1);
    let cases = [
        (garbage, "is not a valid journal: line 3: "),
        (later, "its version is 2, and this program reads 1"),
        (String::new(), "it is empty"),
    ];
    for (text, why) in cases {
        fs::write(&path, &text).unwrap();
        let error = store.get(run).unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Unreadable);
        assert!(error.to_string().contains(why), "{error}");
        let agent = unfinished().build().unwrap();
        let refused = agent.resume(&store, run, ResumeOptions::default()).await;
        let refused = refused.unwrap_err();
        assert_eq!(refused.kind(), SessionErrorKind::Journal);
        assert!(refused.to_string().contains(why), "{refused}");
        assert_eq!(fs::read_to_string(&path).unwrap(), text);
    }
}

#[tokio::test]
async fn a_run_in_use_is_neither_resumed_nor_removed() {
    let directory = tempfile::tempdir().unwrap();
    let store = RunStore::new(directory.path());
    let client = Scripted::new(|_, _| finish("never")).waiting(|_| pending());
    let agent = agent(&client).build().unwrap();
    let session = agent.session(kept(&store)).await.unwrap();
    let mut run = session.run("the task").unwrap();
    // The first turn begins once the journal is there.
    while let Some(event) = run.next().await {
        if matches!(
            event.kind,
            cantle_core::event::EventKind::TurnStarted { .. }
        ) {
            break;
        }
    }
    let id = run.id();
    assert_eq!(store.get(id).unwrap().status, KeptStatus::Running);
    assert_eq!(store.remove(id).unwrap_err().kind(), StoreErrorKind::InUse);
    let refused = agent.resume(&store, id, ResumeOptions::default()).await;
    let refused = refused.unwrap_err();
    assert_eq!(refused.kind(), SessionErrorKind::Journal);
    assert_eq!(
        refused.to_string(),
        format!("another process works on run {id}")
    );
    run.cancel();
    outcome(run).await;
    session.close().await.unwrap();
    assert_eq!(
        store.get(id).unwrap().status,
        KeptStatus::Ended(RunStatus::Cancelled)
    );
}

#[tokio::test]
async fn media_are_kept_once_and_come_back_and_only_the_owner_may_read() {
    let directory = tempfile::tempdir().unwrap();
    let store = RunStore::new(directory.path().join("state/runs"));
    // One pixel.
    let png = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";
    let image = Media::image(STANDARD.decode(png).unwrap()).unwrap();
    let shown = image.clone();
    let see = bare("work", move |_| {
        let image = Part::Media(shown.clone());
        async { Ok(ToolOutput::new(Content::Parts(vec![image]))) }
    });
    let agent = |turns| agent(&client(3)).tool(see.clone()).max_turns(turns);
    let first = run(&agent(2).build().unwrap(), kept(&store)).await;
    let media = store.run_directory(first.run).join("media");
    assert_eq!(fs::read_dir(media).unwrap().count(), 1);
    for path in all_below(&directory.path().join("state")) {
        let mode = path.metadata().unwrap().permissions().mode() & 0o777;
        let expected = if path.is_dir() { 0o700 } else { 0o600 };
        assert_eq!(mode, expected, "{}", path.display());
    }
    let resumed = resume(&agent(9).build().unwrap(), &store, first.run).await;
    let media = resumed
        .history
        .iter()
        .filter_map(|message| match &**message {
            Message::User(message) => message.content.media().next().cloned(),
            _ => None,
        });
    assert_eq!(
        media.collect::<Vec<_>>(),
        [image.clone(), image.clone(), image]
    );
}

#[tokio::test]
async fn arguments_that_look_like_media_are_unchanged() {
    let directory = tempfile::tempdir().unwrap();
    let store = RunStore::new(directory.path());
    let like = json!({
        "kind": "image_content_block",
        "data": "not base64!",
        "more": {"kind": "x_content_block", "sha256": "../../etc/passwd"},
        "again": {"kind": "x_content_block", "sha256": "0".repeat(64)},
        "really": {"kind": "image_content_block", "data": "iVBORw0KGgo="},
    });
    let params = like.clone();
    let client = Scripted::new(move |_, _| calls(&[("end", "e", params.clone())]));
    let end = ToolSpec::new("end", "Ends the run.", json!({}));
    let end = DynTool::from_schema(end, |_, _| async { Ok(ToolOutput::text("ok")) });
    let agent = Agent::builder("test", client).finish(end).build().unwrap();
    let first = run(&agent, kept(&store)).await;
    assert_eq!(first.finish.unwrap().params, like);
    // As if the process had ended before it could note that the run had.
    let path = journal(&store, first.run);
    let mut lines = lines(&path);
    lines.pop();
    fs::write(&path, lines.concat()).unwrap();
    let resumed = resume(&agent, &store, first.run).await;
    assert_eq!(resumed.finish.unwrap().params, like);
}

#[tokio::test]
async fn a_different_agent_is_refused_with_the_difference_and_the_run_stays_resumable() {
    let directory = tempfile::tempdir().unwrap();
    let store = RunStore::new(directory.path());
    let backend = || Arc::new(LocalBackend::new());
    let whole = |client: Scripted, prompt: &str, tool: DynTool, policy: Policy| {
        agent(&client)
            .system_prompt(prompt)
            .tool(tool)
            .provider(CodeExec::new(backend()).policy(policy))
    };
    let same = || whole(client(3), "be brief", echo("work"), Policy::workspace());
    let first = run(&same().max_turns(2).build().unwrap(), kept(&store)).await;
    let id = first.run;

    let mut other_policy = Policy::workspace();
    other_policy.limits.set("memory=2G").unwrap();
    let workspace = Policy::workspace;
    let cases = [
        (
            whole(
                client(3).named("other"),
                "be brief",
                echo("work"),
                workspace(),
            ),
            r#"model: "scripted" then, "other" now"#,
        ),
        (
            whole(client(3), "be verbose", echo("work"), workspace()),
            r#"instructions: "be brief" then, "be verbose" now"#,
        ),
        (
            whole(
                client(3),
                "be brief",
                bare("work", |_| async { Ok("".into()) }),
                workspace(),
            ),
            "tools.work.parameters: ",
        ),
        (
            whole(client(3), "be brief", echo("work"), workspace()).tool(echo("more")),
            "tools.more: nothing then, ",
        ),
        (
            whole(client(3), "be brief", echo("work"), other_policy),
            ".set.limits: nothing then, {\"memory_bytes\"",
        ),
    ];
    for (agent, difference) in cases {
        let agent = agent.max_turns(9).build().unwrap();
        let refused = agent.resume(&store, id, ResumeOptions::default()).await;
        let refused = refused.unwrap_err();
        assert_eq!(refused.kind(), SessionErrorKind::Identity, "{refused}");
        let text = refused.to_string();
        assert!(text.contains(difference), "{text}");
        assert_eq!(text.lines().count(), 2, "one difference: {text}");
    }
    let agent = same().max_turns(9).build().unwrap();
    let options = ResumeOptions::default().budget(Budget::default().tokens(1_000_000));
    let session = agent.resume(&store, id, options).await.unwrap();
    let resumed = outcome(session.resume().unwrap()).await;
    session.close().await.unwrap();
    assert_eq!(resumed.status(), RunStatus::Finished, "{:?}", resumed.error);
    assert_eq!(resumed.turns, 4);
}

#[tokio::test]
async fn secrets_of_the_sandbox_are_in_no_file_of_the_run() {
    const SECRET: &str = "s3cr3t-0123456789";
    let directory = tempfile::tempdir().unwrap();
    let store = RunStore::new(directory.path());
    let client = Scripted::new(|turn, _| match turn {
        0 => calls(&[("code_exec", "c", json!({"cmd": "echo ${#TOKEN}"}))]),
        _ => finish("done"),
    });
    let mut policy = Policy::workspace();
    let token = SecretText::new(SECRET);
    policy.environment.insert("TOKEN".to_owned(), token);
    let agent = agent(&client)
        .provider(CodeExec::new(LocalBackend::new()).policy(policy))
        .build()
        .unwrap();
    let outcome = run(&agent, kept(&store)).await;
    let (result, _) = &results(&outcome)[0];
    assert!(
        result.contains(&format!("<stdout>{}", SECRET.len())),
        "{result}"
    );
    let files: Vec<_> = all_below(directory.path());
    for path in files.iter().filter(|path| path.is_file()) {
        let bytes = fs::read(path).unwrap();
        let found = bytes
            .windows(SECRET.len())
            .any(|it| it == SECRET.as_bytes());
        assert!(!found, "{}", path.display());
    }
    assert!(files.len() > 2, "{files:?}");
}

#[tokio::test]
async fn the_model_is_informed_that_background_processes_are_gone() {
    let directory = tempfile::tempdir().unwrap();
    let store = RunStore::new(directory.path());
    let leaves = bare("work", |_| async {
        let mut output = ToolOutput::text("started");
        output.left_running = true;
        Ok(output)
    });
    let agent = |turns| {
        agent(&client(3))
            .tool(leaves.clone())
            .provider(CodeExec::new(LocalBackend::new()))
            .max_turns(turns)
            .build()
            .unwrap()
    };
    let first = run(&agent(1), kept(&store)).await;
    let resumed = resume(&agent(9), &store, first.run).await;
    let gone = "The run was interrupted and continues now. Files are unchanged; background \
                processes that you had started are gone.";
    assert_eq!(user_messages(&resumed.history)[1], gone);
}

/// Reads a file until it has this in it.
async fn until_it_has(path: &Path, text: &str) {
    let begun = Instant::now();
    while !fs::read_to_string(path).unwrap_or_default().contains(text) {
        assert!(
            begun.elapsed() < Duration::from_secs(120),
            "{text} is not written"
        );
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn user_messages_survive_a_kill_during_a_model_call_and_during_a_tool_call() {
    for hanging in ["model", "tool"] {
        let directory = tempfile::tempdir().unwrap();
        let store = RunStore::new(directory.path());
        let work = bare("work", move |cx| async move {
            if hanging == "tool" {
                cx.cancellation.cancelled().await;
            }
            Ok(ToolOutput::text("worked"))
        });
        let make = |client: &Scripted| agent(client).tool(work.clone()).build().unwrap();
        let hangs = client(1).waiting(move |number| async move {
            if hanging == "model" && number == 1 {
                pending::<()>().await;
            }
        });
        let agent = make(&hangs);
        let session = agent.session(kept(&store)).await.unwrap();
        let run = session.run("the task").unwrap();
        let path = journal(&store, run.id());
        until_it_has(&path, "call_started").await;
        if hanging == "model" {
            until_it_has(&path, "call_finished").await;
        }
        run.control().say("in blue");
        until_it_has(&path, "in blue").await;
        let id = run.id();
        drop(run);
        drop(session);
        let begun = Instant::now();
        while store.get(id).unwrap().status == KeptStatus::Running {
            assert!(begun.elapsed() < Duration::from_secs(120));
            tokio::task::yield_now().await;
        }
        let client = client(1);
        let resumed = resume(&make(&client), &store, id).await;
        assert_eq!(resumed.status(), RunStatus::Finished);
        assert_eq!(
            user_messages(&resumed.history),
            ["the task", "in blue"],
            "{hanging}"
        );
        assert_eq!(user_messages(&client.asked()[0].messages)[1], "in blue");
    }
}

/// Where the other process finds its store, and how large its files may be.
const DIRECTORY: &str = "CANTLE_KEPT_DIRECTORY";
const FILE_BYTES: &str = "CANTLE_KEPT_FILE_BYTES";

fn large() -> AgentBuilder {
    let client = Scripted::new(|turn, _| match turn < 5 {
        true => calls(&[("talk", "t", json!({"n": turn}))]),
        false => finish("done"),
    });
    let talk = bare("talk", |cx| async move {
        Ok(ToolOutput::text(cx.call_id.repeat(10_000)))
    });
    agent(&client).tool(talk)
}

/// The other process: its disk is full after a while.
#[tokio::test]
async fn other_process_whose_disk_is_full() {
    let Some(directory) = std::env::var_os(DIRECTORY) else {
        return;
    };
    let bytes = std::env::var(FILE_BYTES).unwrap().parse().unwrap();
    let limit = Rlimit {
        current: Some(bytes),
        maximum: Some(bytes),
    };
    setrlimit(Resource::Fsize, limit).unwrap();
    let store = RunStore::new(directory);
    let session = large()
        .build()
        .unwrap()
        .session(kept(&store))
        .await
        .unwrap();
    let outcome = outcome(session.run("the task").unwrap()).await;
    let error = outcome.error.as_ref().unwrap();
    assert_eq!(
        (error.kind(), outcome.status()),
        (RunErrorKind::Journal, RunStatus::InternalError)
    );
    if outcome.turns > 0 {
        assert!(error.advice().unwrap().contains("Free space on the disk"));
    }
    session.close().await.unwrap();
}

#[tokio::test]
async fn a_full_disk_ends_the_run_which_resumes_when_there_is_space() {
    let mut begun = 0;
    for bytes in [100, 4_000, 25_000, 60_000] {
        let directory = tempfile::tempdir().unwrap();
        let store = RunStore::new(directory.path().join("runs"));
        // A signal that the shell ignores stays ignored by the program it becomes: writing then fails.
        let ended = Command::new("sh")
            .args(["-c", "trap '' XFSZ; exec \"$0\" \"$@\""])
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", "kept::other_process_whose_disk_is_full"])
            .args(["--test-threads=1", "-q"])
            .env(DIRECTORY, directory.path().join("runs"))
            .env(FILE_BYTES, bytes.to_string())
            .output()
            .unwrap();
        let words = String::from_utf8_lossy(&ended.stdout).into_owned();
        assert!(ended.status.success(), "{bytes}: {words}");
        let (runs, unreadable) = store.list().unwrap();
        assert!(unreadable.is_empty(), "{unreadable:?}");
        // A run that could not even begin leaves nothing.
        let Some(kept) = runs.first() else {
            let left = fs::read_dir(directory.path().join("runs")).unwrap();
            assert_eq!(left.count(), 0);
            continue;
        };
        begun += 1;
        assert_eq!(kept.status, KeptStatus::Interrupted);
        let resumed = resume(&large().build().unwrap(), &store, kept.run).await;
        assert_eq!(resumed.status(), RunStatus::Finished, "{:?}", resumed.error);
        assert_eq!(resumed.turns, 6);
    }
    assert!(begun >= 3, "{begun}");
}

/// Runs one of many sessions; returns its number, its final text and its messages.
async fn one_of_many(agent: Agent, store: RunStore, number: usize) -> (usize, String, Vec<String>) {
    let session = agent.session(kept(&store)).await.unwrap();
    let run = session.run(format!("task {number}")).unwrap();
    let outcome = run.outcome().await;
    session.close().await.unwrap();
    let reason = outcome.finish.unwrap().params["reason"].to_string();
    let kept = store.get(outcome.run).unwrap();
    assert_eq!(kept.task, format!("task {number}"));
    let results = outcome
        .history
        .iter()
        .filter_map(|message| match &**message {
            Message::Tool(message) => Some(message.content.text()),
            _ => None,
        });
    (number, reason, results.collect())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_kept_sessions_side_by_side_do_not_meet() {
    // Each has two files open: more than most systems let a program have that does not ask for it.
    let files = getrlimit(Resource::Nofile);
    let wanted = files.maximum.unwrap_or(u64::MAX).min(4096);
    if files.current.is_some_and(|now| now < wanted) {
        let current = Some(wanted);
        setrlimit(Resource::Nofile, Rlimit { current, ..files }).unwrap();
    }
    let directory = tempfile::tempdir().unwrap();
    let store = RunStore::new(directory.path());
    // The number of its task is all that a session of this agent goes by.
    let client = Scripted::new(|turn, request| {
        let task = user_messages(&request.messages).remove(0);
        match turn {
            0 | 1 => calls(&[("work", "w", json!({"text": format!("{task} turn {turn}")}))]),
            _ => finish(&task),
        }
    });
    let agent = agent(&client).tool(echo("work")).build().unwrap();
    let sessions = (0..1000).map(|it| tokio::spawn(one_of_many(agent.clone(), store.clone(), it)));
    let mut seen = BTreeSet::new();
    for ended in join_all(sessions).await {
        let (number, reason, results) = ended.unwrap();
        assert_eq!(reason, format!("\"task {number}\""));
        let expected = [
            format!(r#"{{"text":"task {number} turn 0"}}"#),
            format!(r#"{{"text":"task {number} turn 1"}}"#),
            format!("task {number}"),
        ];
        assert_eq!(results, expected);
        seen.insert(number);
    }
    assert_eq!(seen.len(), 1000);
    assert_eq!(store.list().unwrap().0.len(), 1000);
}

#[tokio::test]
async fn a_journal_that_cannot_begin_ends_the_run_before_the_model_is_asked() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a file");
    fs::write(&path, "").unwrap();
    let client = client(1);
    let agent = agent(&client).tool(echo("work")).build().unwrap();
    let options = SessionOptions::default().kept_in(RunStore::new(path), Value::Null);
    let outcome = run(&agent, options).await;
    let error = outcome.error.unwrap();
    assert_eq!(error.kind(), RunErrorKind::Journal);
    assert!(error.advice().unwrap().contains("the directory writable"));
    assert_eq!(client.requests(), 0);
}

#[tokio::test]
async fn a_run_that_cannot_be_resumed_still_has_its_ledger() {
    let (_directory, store, id) = store_with_one().await;
    fs::write(store.run_directory(id).join("agents"), "no directory").unwrap();
    let agent = unfinished().max_turns(9).build().unwrap();
    let outcome = resume(&agent, &store, id).await;
    assert_eq!(outcome.error.unwrap().kind(), RunErrorKind::Journal);
    assert_eq!(outcome.turns, 2);
    assert_eq!(outcome.ledger.reported_usage().total(), 2 * 15);
}
