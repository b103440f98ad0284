//! Hooks: every decision of each of them.

use std::future::pending;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use cantle_agent::{
    AfterTool, Agent, Approvals, AtFinish, BeforeModel, BeforeTool, Budget, Hooks, Outcome,
    Permission, ResumeOptions, RunErrorKind, RunStore, SessionOptions, SubAgent, TextAnswers,
};
use cantle_core::content::Content;
use cantle_core::event::{EventKind, Finish, RunStatus};
use cantle_core::message::{SharedMessage, ToolCall};
use cantle_core::tool::ToolOutput;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::support::{
    Scripted, agent, bare, calls, echo, finish, finish_tool, outcome, results, session, text,
    user_messages,
};

/// Returns configured decisions, and records its calls.
#[derive(Clone, Debug)]
struct Looking {
    before_model: BeforeModel,
    before_tool: BeforeTool,
    after_tool: AfterTool,
    /// Its answer to the first finish call.
    at_finish: AtFinish,
    hangs: bool,
    seen: Arc<Mutex<Vec<String>>>,
}

fn looking() -> Looking {
    Looking {
        before_model: BeforeModel::Ask,
        before_tool: BeforeTool::Call,
        after_tool: AfterTool::Keep,
        at_finish: AtFinish::Accept,
        hangs: false,
        seen: Arc::default(),
    }
}

impl Looking {
    fn saw(&self, what: String) {
        self.seen.lock().unwrap().push(what);
    }
}

#[async_trait]
impl Hooks for Looking {
    async fn before_model(&self, turn: u32, messages: &[SharedMessage]) -> BeforeModel {
        self.saw(format!("model {turn} with {}", messages.len()));
        if self.hangs {
            pending::<()>().await;
        }
        self.before_model.clone()
    }

    async fn before_tool(&self, call: &ToolCall) -> BeforeTool {
        self.saw(format!("call {} {}", call.name, call.arguments));
        match call.name.as_str() {
            "finish" => BeforeTool::Call,
            _ => self.before_tool.clone(),
        }
    }

    async fn after_tool(&self, call: &ToolCall, result: &Content, success: bool) -> AfterTool {
        self.saw(format!("{} gave {} {success}", call.name, result.text()));
        match call.name.as_str() {
            "finish" => AfterTool::Keep,
            _ => self.after_tool.clone(),
        }
    }

    async fn at_finish(&self, finish: &Finish) -> AtFinish {
        self.saw(format!("finish {}", finish.params));
        match finish.params["reason"] == "too early" {
            true => self.at_finish.clone(),
            false => AtFinish::Accept,
        }
    }
}

fn client() -> Scripted {
    Scripted::new(|turn, _| match turn {
        0 => calls(&[("work", "w", json!({"n": 1}))]),
        1 => finish("too early"),
        _ => finish("done"),
    })
}

async fn run(hooks: &Looking) -> Outcome {
    let agent = agent(&client()).tool(echo("work")).hooks(hooks.clone());
    let session = session(agent).await;
    outcome(session.run("the task").unwrap()).await
}

fn params(outcome: &Outcome) -> &Value {
    &outcome.finish.as_ref().unwrap().params["reason"]
}

#[tokio::test]
async fn hooks_see_everything_and_change_nothing_unless_they_say_so() {
    let hooks = looking();
    let outcome = run(&hooks).await;
    assert_eq!(params(&outcome), "too early");
    let expected = [
        "model 1 with 2",
        r#"call work {"n":1}"#,
        r#"work gave {"n":1} true"#,
        "model 2 with 4",
        r#"call finish {"reason":"too early"}"#,
        r#"finish {"reason":"too early"}"#,
        "finish gave too early true",
    ];
    assert_eq!(*hooks.seen.lock().unwrap(), expected);
}

#[tokio::test]
async fn before_the_model_a_hook_can_say_something_or_end_the_run() {
    let hooks = Looking {
        before_model: BeforeModel::Tell("mind the gap".into()),
        ..looking()
    };
    let outcome = run(&hooks).await;
    assert_eq!(
        user_messages(&outcome.history),
        ["the task", "mind the gap", "mind the gap"]
    );

    let hooks = Looking {
        before_model: BeforeModel::Stop {
            reason: "it is late".to_owned(),
        },
        ..looking()
    };
    let outcome = run(&hooks).await;
    let error = outcome.error.as_ref().unwrap();
    assert_eq!(
        (error.kind(), error.to_string().as_str(), outcome.status()),
        (RunErrorKind::Stopped, "it is late", RunStatus::Cancelled)
    );
    assert_eq!(outcome.turns, 0);
}

#[tokio::test]
async fn a_hook_before_a_tool_can_edit_refuse_or_request_approval() {
    let cases = [
        (
            BeforeTool::Edit {
                arguments: r#"{"n": 2}"#.to_owned(),
            },
            (
                "(The program changed this call before it ran. Its arguments were: {\"n\": 2})\n{\"n\":2}",
                true,
            ),
        ),
        (
            BeforeTool::Refuse {
                reason: "not today.".to_owned(),
            },
            ("Not run: not today.", false),
        ),
        (
            BeforeTool::Ask,
            (
                "Not run: this call needs approval, and no one is available to give it. Use an approach that \
                 doesn't need it, or finish and explain.",
                false,
            ),
        ),
    ];
    for (before_tool, (text, success)) in cases {
        let hooks = Looking {
            before_tool,
            ..looking()
        };
        let outcome = run(&hooks).await;
        assert_eq!(results(&outcome)[0], (text.to_owned(), success));
    }
}

#[tokio::test]
async fn rules_look_at_the_arguments_that_a_hook_put_in() {
    let hooks = Looking {
        before_tool: BeforeTool::Edit {
            arguments: r#"{"n": 2}"#.to_owned(),
        },
        ..looking()
    };
    let rules = Approvals::allowing().rule("work", [("n", "2")], Permission::Deny);
    let agent = agent(&client())
        .tool(echo("work"))
        .hooks(hooks)
        .approvals(rules.unwrap());
    let session = session(agent).await;
    let outcome = outcome(session.run("the task").unwrap()).await;
    let denied = "Not run: the user's rules deny this call. Use an approach that doesn't need it, or finish and \
                  explain.";
    assert_eq!(results(&outcome)[0], (denied.to_owned(), false));
}

#[tokio::test]
async fn after_a_tool_a_hook_can_put_another_result_in_its_place() {
    let hooks = Looking {
        after_tool: AfterTool::Replace("[redacted]".into()),
        ..looking()
    };
    let outcome = run(&hooks).await;
    assert_eq!(results(&outcome)[0], ("[redacted]".to_owned(), true));
    assert_eq!(params(&outcome), "too early");
}

#[tokio::test]
async fn after_a_tool_a_hook_can_say_that_it_failed() {
    let hooks = Looking {
        after_tool: AfterTool::Answer {
            content: "no luck".into(),
            success: false,
        },
        ..looking()
    };
    let outcome = run(&hooks).await;
    assert_eq!(results(&outcome)[0], ("no luck".to_owned(), false));
    assert_eq!(params(&outcome), "too early");
}

#[tokio::test]
async fn a_finish_call_refused_by_a_hook_is_repeated() {
    let hooks = Looking {
        at_finish: AtFinish::Refuse {
            feedback: "The report is missing.".to_owned(),
        },
        ..looking()
    };
    let outcome = run(&hooks).await;
    assert_eq!(outcome.status(), RunStatus::Finished);
    assert_eq!(params(&outcome), "done");
    assert_eq!(
        results(&outcome)[1..],
        [
            ("The report is missing.".to_owned(), false),
            ("done".to_owned(), true)
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn a_hook_that_hangs_holds_up_neither_cancelling_nor_a_budget_of_time() {
    let hooks = Looking {
        hangs: true,
        ..looking()
    };
    let working = agent(&client()).tool(echo("work")).hooks(hooks);
    check_that_it_ends(&working.build().unwrap()).await;
    let answering = agent(&Scripted::new(|_, _| text("done")))
        .text_answers(TextAnswers::EndTurn)
        .hooks(Waiting::default());
    check_that_it_ends(&answering.build().unwrap()).await;
}

async fn check_that_it_ends(agent: &Agent) {
    let session = agent.session(SessionOptions::default()).await.unwrap();
    let run = session.run("the task").unwrap();
    let control = run.control();
    let cancel = async {
        tokio::time::sleep(Duration::from_secs(5)).await;
        control.cancel();
    };
    let (cancelled, ()) = tokio::join!(outcome(run), cancel);
    assert_eq!(cancelled.status(), RunStatus::Cancelled);

    let budget = Budget::default().time(Duration::from_secs(100));
    let options = SessionOptions::default().budget(budget);
    let session = agent.session(options).await.unwrap();
    let spent = session.run("the task").unwrap().outcome().await;
    assert_eq!(spent.error.unwrap().kind(), RunErrorKind::Budget);
}

/// Hangs before the second turn and at the finish, and says that it does.
#[derive(Debug, Default)]
struct Waiting(CancellationToken);

#[async_trait]
impl Hooks for Waiting {
    async fn before_model(&self, turn: u32, _: &[SharedMessage]) -> BeforeModel {
        if turn == 2 {
            self.0.cancel();
            pending::<()>().await;
        }
        BeforeModel::Ask
    }

    async fn at_finish(&self, _: &Finish) -> AtFinish {
        pending().await
    }
}

#[tokio::test]
async fn results_are_on_disk_while_a_hook_waits() {
    let directory = tempfile::tempdir().unwrap();
    let store = RunStore::new(directory.path());
    let hooks = Waiting::default();
    let reached = hooks.0.clone();
    let agent = agent(&client()).tool(echo("work")).hooks(hooks);
    let options = SessionOptions::default().kept_in(store.clone(), Value::Null);
    let session = agent.build().unwrap().session(options).await.unwrap();
    let run = session.run("the task").unwrap();
    tokio::time::timeout(Duration::from_secs(120), reached.cancelled())
        .await
        .unwrap();
    let events = store.events(run.id()).unwrap();
    let mut kinds = events.iter().map(|event| &event.kind);
    let is_result = |kind: &EventKind| matches!(kind, EventKind::ToolFinished { .. });
    assert!(kinds.any(is_result), "{events:?}");
    run.cancel();
    outcome(run).await;
    session.close().await.unwrap();
}

/// Panics in one place.
#[derive(Debug)]
struct Panicking(&'static str);

impl Panicking {
    fn asked(&self, hook: &str) {
        assert!(self.0 != hook, "it has a bug");
    }
}

#[async_trait]
impl Hooks for Panicking {
    async fn before_model(&self, _: u32, _: &[SharedMessage]) -> BeforeModel {
        self.asked("before_model");
        BeforeModel::Ask
    }

    async fn before_tool(&self, _: &ToolCall) -> BeforeTool {
        self.asked("before_tool");
        BeforeTool::Call
    }

    async fn after_tool(&self, _: &ToolCall, _: &Content, _: bool) -> AfterTool {
        self.asked("after_tool");
        AfterTool::Keep
    }

    async fn at_finish(&self, _: &Finish) -> AtFinish {
        self.asked("at_finish");
        AtFinish::Accept
    }
}

#[tokio::test]
async fn a_hook_that_panics_ends_the_run_and_is_named() {
    for hook in ["before_model", "before_tool", "after_tool", "at_finish"] {
        let client = Scripted::new(|_, _| finish("done"));
        let session = session(agent(&client).hooks(Panicking(hook))).await;
        let outcome = outcome(session.run("the task").unwrap()).await;
        let error = outcome.error.as_ref().unwrap();
        assert_eq!(
            (error.kind(), outcome.status(), error.to_string()),
            (
                RunErrorKind::Hook,
                RunStatus::InternalError,
                format!("the hook `{hook}` panicked: it has a bug")
            )
        );
        assert_eq!(outcome.finish, None);
        session.close().await.unwrap();
    }
}

#[tokio::test]
async fn a_hook_that_panics_loses_nothing_that_sub_agents_used() {
    for is_kept in [false, true] {
        let reached = CancellationToken::new();
        let begun = reached.clone();
        let hang = bare("hang", move |cx| {
            begun.cancel();
            async move {
                cx.cancellation.cancelled().await;
                Ok(ToolOutput::failure("stopped"))
            }
        });
        let work = bare("work", move |_| {
            let reached = reached.clone();
            async move {
                reached.cancelled().await;
                Ok("worked".into())
            }
        });
        let work = work.with_concurrency_safe(true);
        let helper = Scripted::new(|turn, _| match turn {
            0 => calls(&[("hang", "h", json!({}))]),
            _ => finish("helped"),
        });
        let helper = Agent::builder("helper", helper)
            .tool(hang)
            .finish(finish_tool())
            .build()
            .unwrap();
        let client = Scripted::new(|turn, _| match turn {
            0 => calls(&[
                ("helper", "a", json!({"task": "Help."})),
                ("work", "b", json!({})),
            ]),
            _ => finish("done"),
        });
        let agent = |hook| {
            let agent = agent(&client).tool(work.clone()).hooks(Panicking(hook));
            let helper = SubAgent::new(&helper, "Helps.");
            agent.sub_agent(helper).build().unwrap()
        };
        let directory = tempfile::tempdir().unwrap();
        let store = RunStore::new(directory.path());
        let mut options = SessionOptions::default();
        if is_kept {
            options = options.kept_in(store.clone(), Value::Null);
        }
        let session = agent("after_tool").session(options).await.unwrap();
        let failed = outcome(session.run("the task").unwrap()).await;
        session.close().await.unwrap();
        assert_eq!(failed.error.unwrap().kind(), RunErrorKind::Hook);
        // One turn above, and one below.
        assert_eq!(failed.ledger.reported_usage().total(), 2 * 15);
        assert_eq!(failed.ledger.sub_agents["helper"].len(), 1);
        if !is_kept {
            continue;
        }
        let agent = agent("none");
        let session = agent.resume(&store, failed.run, ResumeOptions::default());
        let session = session.await.unwrap();
        let resumed = outcome(session.resume().unwrap()).await;
        session.close().await.unwrap();
        assert_eq!(resumed.status(), RunStatus::Finished, "{:?}", resumed.error);
        assert_eq!(resumed.ledger.reported_usage().total(), 4 * 15);
        assert_eq!(resumed.ledger.sub_agents["helper"].len(), 1);
    }
}
