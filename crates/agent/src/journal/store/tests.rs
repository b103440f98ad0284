use std::time::Duration;

use cantle_core::content::{Content, Media, Part};
use cantle_core::ledger::{CallPurpose, ModelCall};
use cantle_core::message::{AssistantBlock, AssistantMessage};
use cantle_core::usage::TokenUsage;
use futures_util::FutureExt as _;

use super::*;
use crate::journal::format::VERSION;
use crate::rules::CallOutcome;

fn call(seconds: u64) -> ModelCall {
    let duration = Duration::from_secs(seconds);
    ModelCall::new("model", CallPurpose::Turn, TokenUsage::default(), duration)
}

fn finished(time: f64) -> Fact {
    Fact::CallFinished {
        index: 0,
        outcome: Box::new(CallOutcome::failure("no", Duration::ZERO, time)),
    }
}

#[test]
fn time_counts_while_a_process_works_and_not_between() {
    let mut answer = AssistantMessage::new(vec![AssistantBlock::text("so")]);
    answer.request_end_time = Some(110.0);
    let answered = Fact::ModelAnswered {
        message: Box::new(answer),
        stop: cantle_core::llm::StopReason::EndTurn,
        call: call(10),
    };
    let resumed: Fact = serde_json::from_value(serde_json::json!({
        "kind": "resumed", "time": 1000.0, "lost": null, "rules": {
            "max_turns": 1, "turn_warning_threshold": 0, "text_only_tool_responses": true,
            "block_successive_assistant_messages": true, "recover_from_context_overflow": true,
            "summarize_at": null, "context_window": null, "max_output_tokens": null,
            "images": {"count": 1, "bytes": 1},
        },
    }))
    .unwrap();
    let mut clock = WorkClock::new(100.0);
    let mut used = Vec::new();
    for fact in [
        answered,
        Fact::CallStarted {
            index: 0,
            time: 112.0,
        },
        finished(120.0),
        Fact::Cancelled {
            call: Some(call(5)),
        },
        resumed,
        // A clock that was set back takes nothing away.
        finished(990.0),
        finished(993.0),
    ] {
        clock.add(&fact);
        used.push(clock.used.as_secs());
    }
    assert_eq!(used, [10, 12, 20, 25, 25, 25, 28]);
}

#[test]
fn every_directory_that_gets_an_entry_is_synced() {
    let directory = tempfile::tempdir().unwrap();
    let store = RunStore::new(directory.path().join("runs"));
    let run = RunId::new();
    let [agents, of_call] = [
        store.run_directory(run).join("agents"),
        store.of_call(run, "c").directory,
    ];
    assert_eq!(
        changed_by_creating(store.directory()).unwrap(),
        [store.directory(), directory.path()]
    );
    drop(store.begin_blocking(header(run)).unwrap());
    assert_eq!(
        changed_by_creating(store.directory()).unwrap(),
        [store.directory()]
    );
    assert_eq!(
        changed_by_creating(&of_call).unwrap(),
        [of_call, agents, store.run_directory(run)]
    );
}

#[test]
fn an_existing_run_is_not_overwritten() {
    let directory = tempfile::tempdir().unwrap();
    let store = RunStore::new(directory.path().join("runs"));
    let run = RunId::new();
    let header = header(run);
    drop(store.begin_blocking(header.clone()).unwrap());
    let again = store.begin_blocking(header).unwrap_err();
    assert_eq!(again.kind(), StoreErrorKind::Io);
    assert_eq!(
        store.get(run).unwrap().task,
        "the task",
        "what was there stays"
    );
}

#[test]
fn the_lock_is_released_while_a_starting_child_process_holds_its_file() {
    let directory = tempfile::tempdir().unwrap();
    let store = RunStore::new(directory.path());
    let run = RunId::new();
    drop(store.begin_blocking(header(run)).unwrap());
    let lock = Lock::try_lock(&store.run_directory(run)).unwrap().unwrap();
    let _of_the_child = lock.file().try_clone().unwrap();
    assert!(Lock::try_lock(&store.run_directory(run)).unwrap().is_none());
    drop(lock);
    assert!(Lock::try_lock(&store.run_directory(run)).unwrap().is_some());
}

#[test]
fn a_look_at_a_run_does_not_count_as_work_on_it() {
    let directory = tempfile::tempdir().unwrap();
    let store = RunStore::new(directory.path());
    let run = RunId::new();
    drop(store.begin_blocking(header(run)).unwrap());
    let look = File::open(store.run_directory(run).join("lock")).unwrap();
    look.lock_shared().unwrap();
    assert_eq!(store.get(run).unwrap().status, KeptStatus::Interrupted);
    std::thread::scope(|scope| {
        scope.spawn(|| look.unlock().unwrap());
        store.reopen(run).unwrap();
    });
}

/// A header of a run that can begin.
fn header(run: RunId) -> Header {
    serde_json::from_value(serde_json::json!({
        "version": VERSION, "run": run, "time": 0.0, "identity": {}, "note": null, "rules": {
            "max_turns": 1, "turn_warning_threshold": 0, "text_only_tool_responses": true,
            "block_successive_assistant_messages": true, "recover_from_context_overflow": true,
            "summarize_at": null, "context_window": null, "max_output_tokens": null,
            "images": {"count": 1, "bytes": 1},
        },
        "task": "the task", "input_files": [], "sandbox": null, "messages": [],
    }))
    .unwrap()
}

fn said(text: &str) -> Fact {
    Fact::UserMessage {
        content: text.into(),
    }
}

/// Returns the texts of the user messages in a journal.
fn told(store: &RunStore, run: RunId) -> Result<Vec<String>, StoreError> {
    let facts = store.reopen(run)?.0.facts.into_iter();
    Ok(facts
        .map(|fact| match fact {
            Fact::UserMessage { content } => content.text(),
            other => panic!("{other:?}"),
        })
        .collect())
}

/// A run whose journal has three batches: `a`; `b`, `c`, `d`; and, after it was resumed,
/// `e`, `f`.
async fn batches(store: &RunStore) -> (RunId, PathBuf) {
    let run = RunId::new();
    let journal = store.begin_blocking(header(run)).unwrap();
    journal.record(&said("a")).unwrap();
    journal.commit().await.unwrap();
    for text in ["b", "c", "d"] {
        journal.record(&said(text)).unwrap();
    }
    journal.commit().await.unwrap();
    drop(journal);
    let journal = store.reopen(run).unwrap().1;
    for text in ["e", "f"] {
        journal.record(&said(text)).unwrap();
    }
    journal.commit().await.unwrap();
    (run, store.run_directory(run).join(FILE_NAME))
}

#[tokio::test]
async fn of_a_damaged_last_batch_the_lines_before_the_damage_stay() {
    // Lines: the header, a, b, c, d, e, f.
    for (torn, left) in [(vec![6], "abcde"), (vec![5], "abcd"), (vec![5, 6], "abcd")] {
        for tear in ["a letter", "zeros"] {
            let directory = tempfile::tempdir().unwrap();
            let store = RunStore::new(directory.path());
            let (run, path) = batches(&store).await;
            let text = fs::read_to_string(&path).unwrap();
            let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
            for line in &torn {
                lines[*line] = match tear {
                    // It parses as a line all the same.
                    "a letter" => lines[*line].replace("user_said", "user_sais"),
                    _ => "\0".repeat(lines[*line].len()),
                };
            }
            fs::write(&path, lines.join("\n") + "\n").unwrap();
            let kept: String = told(&store, run).unwrap().concat();
            assert_eq!(kept, left, "{torn:?} {tear}");
            // It was cut off: what comes now follows what is whole.
            let journal = store.reopen(run).unwrap().1;
            journal.record(&said("g")).unwrap();
            journal.commit().await.unwrap();
            drop(journal);
            assert_eq!(told(&store, run).unwrap().concat(), format!("{left}g"));
        }
    }
}

#[tokio::test]
async fn lines_before_the_last_batch_are_never_cut_off() {
    for torn in [1, 2, 3, 4] {
        let directory = tempfile::tempdir().unwrap();
        let store = RunStore::new(directory.path());
        let (run, path) = batches(&store).await;
        let text = fs::read_to_string(&path).unwrap();
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines[torn] = lines[torn].replace("user_said", "user_sais");
        fs::write(&path, lines.join("\n") + "\n").unwrap();
        let error = told(&store, run).unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Unreadable);
        let place = format!("line {}: its checksum does not match", torn + 1);
        assert!(error.to_string().ends_with(&place), "{error}");
    }
}

#[tokio::test]
async fn a_journal_without_checksums_is_read_and_continued() {
    let directory = tempfile::tempdir().unwrap();
    let store = RunStore::new(directory.path());
    let (run, path) = batches(&store).await;
    let text = fs::read_to_string(&path).unwrap();
    let bare = text.lines().map(|line| {
        let end = line.rfind(",\"seal\":").unwrap();
        format!("{}}}\n", line.split_at(end).0)
    });
    fs::write(&path, bare.collect::<String>()).unwrap();
    assert_eq!(told(&store, run).unwrap().concat(), "abcdef");
    let journal = store.reopen(run).unwrap().1;
    journal.record(&said("g")).unwrap();
    journal.commit().await.unwrap();
    drop(journal);
    assert_eq!(told(&store, run).unwrap().concat(), "abcdefg");
}

#[tokio::test]
async fn short_commits_are_written_inline_while_the_disk_is_fast() {
    let directory = tempfile::tempdir().unwrap();
    let queue = RunStore::new(directory.path()).queue;
    let quick = Duration::from_micros(1);
    for (spent, commits, bytes, in_place) in [
        (quick, 4, 1, false),
        (quick, 100, 1, true),
        (quick, 100, 100_000, false),
        (Duration::from_millis(1), 1, 1, false),
    ] {
        queue.record(Duration::MAX, 1);
        queue.record(spent, commits);
        let writer = queue.commit(bytes, || std::thread::current().id()).await;
        let is_own = writer.unwrap() == std::thread::current().id();
        assert_eq!(
            is_own, in_place,
            "{bytes} bytes after {commits} commits in {spent:?}"
        );
    }
}

#[test]
fn commits_are_written_after_a_runtime_that_shares_their_queue_has_shut_down() {
    let queue = RunStore::new("runs").queue;
    let runtime = || {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_time().build().unwrap()
    };
    let ended = runtime();
    let handle = ended.handle().clone();
    ended.shutdown_background();
    let first = {
        let _entered = handle.enter();
        queue.run(|| 1).now_or_never()
    };
    assert_eq!(first, Some(Ok(1)));
    let second = async {
        let limit = Duration::from_secs(30);
        tokio::time::timeout(limit, queue.run(|| 2)).await.unwrap()
    };
    assert_eq!(runtime().block_on(second), Ok(2));
}

#[tokio::test]
async fn media_are_written_with_their_line_and_no_list_of_runs_reads_them() {
    let directory = tempfile::tempdir().unwrap();
    let store = RunStore::new(directory.path());
    let run = RunId::new();
    let journal = store.begin_blocking(header(run)).unwrap();
    let image = Media::image(b"\x89PNG\r\n\x1a\n0000".to_vec()).unwrap();
    let content = Content::Parts(vec![Part::Media(image)]);
    journal.record(&Fact::UserMessage { content }).unwrap();
    let media = store.run_directory(run).join("media");
    assert!(!media.exists(), "recording writes nothing");
    journal.commit().await.unwrap();
    let file = fs::read_dir(&media)
        .unwrap()
        .next()
        .unwrap()
        .unwrap()
        .path();
    // A directory cannot be read as a file.
    fs::remove_file(&file).unwrap();
    fs::create_dir(&file).unwrap();
    drop(journal);
    assert_eq!(store.list().unwrap().0.len(), 1);
    assert!(store.reopen(run).is_err());
}

#[test]
fn a_run_without_a_first_record_is_no_run() {
    let directory = tempfile::tempdir().unwrap();
    let store = RunStore::new(directory.path());
    let [empty, torn, new] = [RunId::new(), RunId::new(), RunId::new()];
    for run in [empty, torn] {
        fs::create_dir(store.run_directory(run)).unwrap();
    }
    fs::write(store.run_directory(torn).join(FILE_NAME), "{\"header\": ").unwrap();
    fs::create_dir(directory.path().join(format!("{NEW}{new}"))).unwrap();
    let (runs, unreadable) = store.list().unwrap();
    assert!(runs.is_empty() && unreadable.is_empty());

    assert_eq!(
        store
            .remove_incomplete(Duration::from_secs(60))
            .unwrap()
            .len(),
        0
    );
    // A process works on it.
    let lock = Lock::try_lock(&store.run_directory(torn)).unwrap().unwrap();
    assert_eq!(store.remove_incomplete(Duration::ZERO).unwrap().len(), 2);
    drop(lock);
    assert_eq!(
        store.remove_incomplete(Duration::ZERO).unwrap(),
        [store.run_directory(torn)]
    );
}
