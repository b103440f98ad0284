//! Journals written by version 0.1.0 (`tests/fixtures/journals`), resumed by the current code.
//!
//! The fixtures are never edited. `write_fixtures` generated them: it runs each scenario up to the
//! point at which the process is supposed to be killed, and drops the run there.

use std::fs;
use std::future::pending;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use cantle_agent::{
    AfterTool, Agent, Budget, Hooks, Outcome, ResumeOptions, RunErrorKind, RunStore,
    SessionOptions, SubAgent,
};
use cantle_core::content::{Content, Media, Part};
use cantle_core::event::{Event, EventKind, RunStatus};
use cantle_core::ledger::{CallPurpose, Ledger};
use cantle_core::llm::{LlmError, LlmErrorKind, Prices};
use cantle_core::message::{Message, SharedMessage, ToolCall, UserKind};
use cantle_core::tool::{DynTool, ToolOutput, ToolSpec};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::support::{
    Scripted, agent, calls, finish, finish_tool, of_tokens, outcome, results, user_messages, watch,
};

/// The point of a scenario at which the process is killed, and the effects of the tools until then.
#[derive(Clone, Debug, Default)]
struct Scene {
    stop_at: Option<&'static str>,
    reached: CancellationToken,
    effects: Arc<Mutex<Vec<u64>>>,
    /// The prices of its models.
    prices: Option<Prices>,
}

impl Scene {
    fn killed_at(point: &'static str) -> Self {
        Self {
            stop_at: Some(point),
            ..Self::default()
        }
    }

    async fn pass(&self, point: &str) {
        if self.stop_at == Some(point) {
            self.reached.cancel();
            pending::<()>().await;
        }
    }

    /// A tool that notes the number it is called with.
    fn work(&self) -> DynTool {
        let scene = self.clone();
        let schema = json!({"type": "object", "properties": {"n": {"type": "integer"}}});
        let spec = ToolSpec::new("work", "Has an effect.", schema);
        DynTool::from_schema(spec, move |arguments, _| {
            let scene = scene.clone();
            async move {
                let n = arguments["n"].as_u64().unwrap();
                scene.effects.lock().unwrap().push(n);
                scene.pass(&format!("work {n}")).await;
                Ok(ToolOutput::text(format!("effect {n}")))
            }
        })
    }

    /// A model that reaches a point named after it and the number of its request.
    fn model<F>(&self, name: &'static str, answer: F) -> Scripted
    where
        F: Fn(usize, &cantle_core::llm::ChatRequest) -> crate::support::Events
            + Send
            + Sync
            + 'static,
    {
        let scene = self.clone();
        let mut model = Scripted::new(answer).waiting(move |number| {
            let scene = scene.clone();
            async move { scene.pass(&format!("{name} {number}")).await }
        });
        model.model.prices = self.prices;
        model
    }

    fn effects(&self) -> Vec<u64> {
        self.effects.lock().unwrap().clone()
    }
}

#[async_trait]
impl Hooks for Scene {
    async fn after_tool(&self, call: &ToolCall, _: &Content, _: bool) -> AfterTool {
        self.pass(&format!("after {}", call.name)).await;
        AfterTool::Keep
    }
}

fn work(n: u64) -> crate::support::Events {
    calls(&[("work", &format!("work-{n}"), json!({ "n": n }))])
}

/// Works for two turns, and finishes.
fn plain(scene: &Scene) -> Agent {
    let model = scene.model("parent", |turn, _| match turn {
        0 => work(0),
        1 => work(1),
        _ => finish("done"),
    });
    agent(&model).tool(scene.work()).build().unwrap()
}

/// Fills a window of 1000 tokens in its second turn, and works for another turn after the summary.
fn summarizing(scene: &Scene) -> Agent {
    let is_summary = |message: &SharedMessage| matches!(&**message, Message::User(it) if matches!(it.kind, UserKind::Summary { .. }));
    let model = scene.model("parent", move |turn, request| {
        let prompt = user_messages(&request.messages);
        if prompt
            .last()
            .is_some_and(|text| text.contains("Write a summary"))
        {
            return crate::support::text("Two effects so far.");
        }
        match (turn, request.messages.iter().any(is_summary)) {
            (0, false) => of_tokens(work(0), 100),
            (_, false) => of_tokens(work(1), 900),
            (0, true) => of_tokens(work(2), 100),
            (_, true) => finish("done"),
        }
    });
    agent(&model.with_window(1000))
        .tool(scene.work())
        .build()
        .unwrap()
}

/// Works three times, one after the other.
fn spending(scene: &Scene) -> Agent {
    let model = scene.model("parent", |turn, _| match turn {
        0..=3 => work(turn as u64),
        _ => finish("done"),
    });
    agent(&model).tool(scene.work()).build().unwrap()
}

/// Calls a sub-agent that works for two turns.
fn calling(scene: &Scene, background: bool) -> Agent {
    let helper = scene.model("helper", |turn, _| match turn {
        0 => work(0),
        1 => work(1),
        _ => finish("helped"),
    });
    delegating(scene, &helper, background)
}

/// Calls a sub-agent with a refused call, an overflow and a dropped turn.
fn calling_with_losses(scene: &Scene) -> Agent {
    let requests = AtomicUsize::new(0);
    let helper = scene.model("helper", move |_, _| {
        match requests.fetch_add(1, Ordering::SeqCst) {
            0 => work(0),
            1 => calls(&[
                ("work", "work-1", json!({"n": 1})),
                ("missing", "missing-1", json!({})),
            ]),
            2 => vec![Err(LlmError::new(
                LlmErrorKind::ContextOverflow,
                "the conversation is too long",
            ))],
            3 => work(2),
            _ => finish("helped"),
        }
    });
    delegating(scene, &helper, false)
}

fn delegating(scene: &Scene, helper: &Scripted, background: bool) -> Agent {
    let helper = Agent::builder("helper", helper.clone())
        .tool(scene.work())
        .finish(finish_tool())
        .turn_warning_threshold(0)
        .summarize_at(None)
        .build()
        .unwrap();
    let mut tool = SubAgent::new(&helper, "Helps.");
    let (start, wait) = match background {
        true => (
            json!({"action": "start", "task": "Help."}),
            json!({"action": "wait"}),
        ),
        false => (json!({"task": "Help."}), Value::Null),
    };
    if background {
        tool = tool.background();
    }
    let model = scene.model("parent", move |turn, _| match turn {
        0 => calls(&[("helper", "call", start.clone())]),
        1 if background => calls(&[("helper", "wait", wait.clone())]),
        _ => finish("done"),
    });
    agent(&model)
        .sub_agent(tool)
        .hooks(scene.clone())
        .build()
        .unwrap()
}

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/journals")
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &target);
        } else if entry.file_name() != "lock" {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// A store with a copy of a fixture.
fn store(name: &str) -> (tempfile::TempDir, RunStore) {
    let directory = tempfile::tempdir().unwrap();
    copy(&fixtures().join(name), directory.path());
    let store = RunStore::new(directory.path());
    (directory, store)
}

/// Resumes the run of a fixture to its end.
async fn resumed(name: &str, agent: &Agent, budget: Budget) -> Outcome {
    let (_directory, store) = store(name);
    let run = store.list().unwrap().0[0].run;
    let options = ResumeOptions::default().budget(budget);
    let session = agent.resume(&store, run, options).await.unwrap();
    let outcome = outcome(session.resume().unwrap()).await;
    session.close().await.unwrap();
    assert_eq!(outcome.status(), RunStatus::Finished, "{:?}", outcome.error);
    let kept = store.get(run).unwrap();
    let usage = outcome.ledger.reported_usage() + outcome.ledger.estimated_usage();
    assert_eq!(kept.tokens, usage.total(), "the list of runs agrees");
    outcome
}

/// Calls of a tool in a ledger: all, failures, refused.
fn calls_of(ledger: &Ledger, tool: &str) -> (u64, u64, u64) {
    let account = &ledger.tools[tool];
    (account.calls, account.failures, account.refused)
}

fn purposes(ledger: &Ledger) -> Vec<CallPurpose> {
    ledger.model_calls.iter().map(|call| call.purpose).collect()
}

fn texts(outcome: &Outcome) -> Vec<String> {
    results(outcome).into_iter().map(|(text, _)| text).collect()
}

/// Generates the fixtures. Run it with the version whose journals are to be kept:
/// `cargo test -p cantle-agent --test agent write_fixtures -- --ignored`.
#[tokio::test]
#[ignore = "writes the fixtures"]
async fn write_fixtures() {
    type Define = fn(&Scene) -> Agent;
    let png = picture();
    let media = Content::Parts(vec![
        Part::Text("the task".to_owned()),
        Part::Media(Media::image(png).unwrap()),
    ]);
    let scenarios: [(&str, &'static str, Define, Content); 6] = [
        ("plain", "parent 2", plain, media),
        ("in-a-call", "work 1", plain, "the task".into()),
        ("summary", "parent 4", summarizing, "the task".into()),
        (
            "sub-agent-working",
            "helper 1",
            |scene| calling(scene, false),
            "the task".into(),
        ),
        (
            "sub-agent-finished",
            "after helper",
            calling_with_losses,
            "the task".into(),
        ),
        (
            "background-sub-agent",
            "helper 1",
            |scene| calling(scene, true),
            "the task".into(),
        ),
    ];
    for (name, point, define, task) in scenarios {
        let directory = tempfile::tempdir().unwrap();
        let scene = Scene::killed_at(point);
        let kept = SessionOptions::default().kept_in(RunStore::new(directory.path()), json!({}));
        let session = define(&scene).session(kept).await.unwrap();
        let run = session.run(task).unwrap();
        tokio::time::timeout(Duration::from_secs(120), scene.reached.cancelled())
            .await
            .unwrap();
        drop((run, session));
        copy(directory.path(), &fixtures().join(name));
    }

    let directory = tempfile::tempdir().unwrap();
    let kept = SessionOptions::default()
        .kept_in(RunStore::new(directory.path()), json!({}))
        .budget(Budget::default().tool_calls(2));
    let session = spending(&Scene::default()).session(kept).await.unwrap();
    let outcome = outcome(session.run("the task").unwrap()).await;
    assert_eq!(outcome.error.unwrap().kind(), RunErrorKind::Budget);
    session.close().await.unwrap();
    copy(directory.path(), &fixtures().join("spent-budget"));
}

/// A bitmap of two by two pixels.
fn picture() -> Vec<u8> {
    let mut bytes = b"BM".to_vec();
    for number in [70_u32, 0, 54, 40, 2, 2, 1 | 24 << 16, 0, 16, 0, 0, 0, 0] {
        bytes.extend(number.to_le_bytes());
    }
    bytes.extend([100; 16]);
    bytes
}

#[tokio::test]
async fn a_run_killed_between_two_turns_finishes() {
    let scene = Scene::default();
    let outcome = resumed("plain", &plain(&scene), Budget::default()).await;
    assert_eq!(scene.effects(), [0; 0], "no finished call runs again");
    assert_eq!(texts(&outcome), ["effect 0", "effect 1", "done"]);
    assert_eq!((outcome.turns, outcome.ledger.model_calls.len()), (3, 3));
    assert_eq!(outcome.ledger.reported_usage().total(), 3 * 15);
    assert_eq!(calls_of(&outcome.ledger, "work"), (2, 0, 0));
    let Message::User(task) = &*outcome.history[1] else {
        panic!("{:?}", outcome.history[1]);
    };
    assert_eq!(task.content.media().count(), 1, "the image is back");
}

#[tokio::test]
async fn a_run_killed_in_a_call_does_not_repeat_it() {
    let scene = Scene::default();
    let outcome = resumed("in-a-call", &plain(&scene), Budget::default()).await;
    assert_eq!(scene.effects(), [0; 0]);
    let texts = texts(&outcome);
    assert_eq!((texts[0].as_str(), texts[2].as_str()), ("effect 0", "done"));
    assert!(texts[1].starts_with("Interrupted:"), "{texts:?}");
    assert_eq!(outcome.ledger.reported_usage().total(), 3 * 15);
    assert_eq!(calls_of(&outcome.ledger, "work"), (2, 1, 0));
}

#[tokio::test]
async fn an_interrupted_call_counts_against_the_budget() {
    let agent = plain(&Scene::default());
    let budget = Budget::default().tool_calls(2);
    let outcome = resumed("in-a-call", &agent, budget).await;
    let messages = user_messages(&outcome.history);
    let is_last_turn = |text: &String| text.contains("2 of 2 tool calls");
    assert!(messages.iter().any(is_last_turn), "{messages:?}");
}

#[tokio::test]
async fn a_run_killed_after_a_summary_continues_from_it() {
    let scene = Scene::default();
    let outcome = resumed("summary", &summarizing(&scene), Budget::default()).await;
    assert_eq!(scene.effects(), [0; 0]);
    assert_eq!(texts(&outcome), ["effect 2", "done"]);
    assert_eq!(outcome.summarized.len(), 1);
    use CallPurpose::{Summary, Turn};
    let ledger = &outcome.ledger;
    assert_eq!(purposes(ledger), [Turn, Turn, Summary, Turn, Turn]);
    assert_eq!(ledger.reported_usage().total(), 100 + 900 + 15 + 100 + 15);
    assert_eq!(calls_of(ledger, "work"), (3, 0, 0));
}

#[tokio::test]
async fn a_sub_agent_killed_while_it_works_resumes_with_its_parent() {
    let scene = Scene::default();
    let agent = calling(&scene, false);
    let outcome = resumed("sub-agent-working", &agent, Budget::default()).await;
    assert_eq!(scene.effects(), [1], "its first call had finished");
    assert!(texts(&outcome)[0].contains("<response>helped</response>"));
    let helper = &outcome.ledger.sub_agents["helper"];
    assert_eq!(helper.len(), 1);
    assert_eq!(calls_of(&helper[0], "work"), (2, 0, 0));
    assert_eq!(outcome.ledger.reported_usage().total(), (2 + 3) * 15);
}

#[tokio::test]
async fn a_background_sub_agent_resumes_with_its_parent() {
    let scene = Scene::default();
    let agent = calling(&scene, true);
    let outcome = resumed("background-sub-agent", &agent, Budget::default()).await;
    assert_eq!(scene.effects(), [1]);
    let helper = &outcome.ledger.sub_agents["helper"];
    assert_eq!(helper.len(), 1);
    assert_eq!(calls_of(&helper[0], "work"), (2, 0, 0));
    assert_eq!(outcome.ledger.reported_usage().total(), (3 + 3) * 15);
}

#[tokio::test]
async fn a_background_sub_agent_whose_journal_is_damaged_is_reported() {
    let (_directory, store) = store("background-sub-agent");
    let run = store.list().unwrap().0[0].run;
    let below = |path: &Path| fs::read_dir(path).unwrap().next().unwrap().unwrap().path();
    let helper = below(&below(&store.run_directory(run).join("agents")));
    fs::write(helper.join("journal.jsonl"), "{}\n").unwrap();
    let agent = calling(&Scene::default(), true);
    let resuming = agent.resume(&store, run, ResumeOptions::default());
    let session = resuming.await.unwrap();
    let (events, outcome) = watch(session.resume().unwrap()).await;
    assert_eq!(outcome.status(), RunStatus::Finished, "{:?}", outcome.error);
    let text = "The journal of a sub-agent can't be read: ";
    let is_warning = |event: &Event| matches!(&event.kind, EventKind::Warning { message } if message.starts_with(text));
    assert!(events.iter().any(is_warning));
}

#[tokio::test]
async fn a_sub_agent_that_finished_before_its_parent_was_killed_is_not_run_again() {
    let scene = Scene::default();
    let agent = calling_with_losses(&scene);
    let outcome = resumed("sub-agent-finished", &agent, Budget::default()).await;
    assert_eq!(scene.effects(), [0; 0]);
    assert!(texts(&outcome)[0].contains("<response>helped</response>"));
    let helper = &outcome.ledger.sub_agents["helper"][0];
    // The refused call and the dropped turn are in the ledger as if the parent had not been killed.
    assert_eq!(calls_of(helper, "work"), (3, 0, 0));
    assert_eq!(calls_of(helper, "missing"), (1, 1, 1));
    use CallPurpose::{DroppedTurn, Failed, Turn};
    assert_eq!(purposes(helper), [Turn, DroppedTurn, Failed, Turn, Turn]);
    assert_eq!(outcome.ledger.reported_usage().total(), (2 + 4) * 15);
}

#[tokio::test]
async fn a_sub_agent_that_finished_before_its_parent_was_killed_counts_against_its_budget() {
    let agent = calling_with_losses(&Scene::default());
    // Four turns of the sub-agent and one of its parent, of 15 tokens each, are in the journals.
    let budget = Budget::default().tokens(5 * 15);
    let outcome = resumed("sub-agent-finished", &agent, budget).await;
    let messages = user_messages(&outcome.history);
    let is_last_turn = |text: &String| text.contains("75 of 75 tokens");
    assert!(messages.iter().any(is_last_turn), "{messages:?}");
}

#[tokio::test]
async fn a_sub_agent_that_finished_before_its_parent_was_killed_has_the_prices_known_now() {
    let scene = Scene {
        prices: Some(Prices::per_million(10_000.0, 10_000.0)),
        ..Scene::default()
    };
    // The same five turns; a token costs a cent.
    let budget = Budget::default().cost_usd(0.7);
    let outcome = resumed("sub-agent-finished", &calling_with_losses(&scene), budget).await;
    let messages = user_messages(&outcome.history);
    let is_last_turn = |text: &String| text.contains("$0.7500 of $0.7)");
    assert!(messages.iter().any(is_last_turn), "{messages:?}");
}

#[tokio::test]
async fn a_run_with_an_exhausted_budget_continues_with_a_larger_one() {
    let scene = Scene::default();
    let agent = spending(&scene);
    let larger = Budget::default().tool_calls(10);
    let outcome = resumed("spent-budget", &agent, larger).await;
    assert_eq!(scene.effects(), [3], "the calls before had finished");
    assert_eq!(outcome.ledger.reported_usage().total(), 5 * 15);
    assert_eq!(calls_of(&outcome.ledger, "work"), (4, 1, 1));
}

#[tokio::test]
async fn a_budget_that_stays_exhausted_ends_the_run_again() {
    let (_directory, store) = store("spent-budget");
    let run = store.list().unwrap().0[0].run;
    let options = ResumeOptions::default().budget(Budget::default().tool_calls(2));
    let scene = Scene::default();
    let session = spending(&scene).resume(&store, run, options).await.unwrap();
    let outcome = outcome(session.resume().unwrap()).await;
    assert_eq!(outcome.error.unwrap().kind(), RunErrorKind::Budget);
    assert_eq!(scene.effects(), [0; 0]);
}
