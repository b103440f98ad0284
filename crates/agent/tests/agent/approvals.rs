//! Approvals: which calls run, and who decides.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use cantle_agent::{
    Agent, AgentBuilder, Approvals, Decision, DecisionError, Permission, ResumeOptions, Run,
    RunStore, Session, SessionOptions, SubAgent,
};
use cantle_core::event::{EventKind, RunStatus};
use cantle_core::ids::RunId;
use cantle_core::principal::{Level, Principal};
use cantle_core::tool::{
    Answer, ApprovalScope, AskUser, DynTool, Question, QuestionKind, ToolError, ToolOutput,
    ToolSpec,
};
use futures_util::StreamExt as _;
use serde_json::{Value, json};

use crate::support::{Scripted, agent, bare, calls, echo, finish, outcome, results, session};

const DENIED: &str = "Not run: the user's rules deny this call. Use an approach that doesn't need it, or \
                      finish and explain.";
const NOBODY: &str = "Not run: this call needs approval, and no one is available to give it. Use an \
                      approach that doesn't need it, or finish and explain.";

/// A question that a run asks.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Asked {
    call_id: String,
    arguments: String,
    digest: String,
}

/// The next question of a run.
async fn asked(run: &mut Run) -> Asked {
    let mut questions = run.filter_map(|event| {
        let question = match event.kind {
            EventKind::ApprovalRequested {
                call_id,
                arguments,
                digest,
                ..
            } => Some(Asked {
                call_id,
                arguments,
                digest,
            }),
            _ => None,
        };
        std::future::ready(question)
    });
    let next = tokio::time::timeout(Duration::from_secs(120), questions.next());
    next.await.unwrap().expect("nothing was asked")
}

async fn answered_by_holder(agent: AgentBuilder) -> Session {
    let options = SessionOptions::default().answers_approvals();
    agent.build().unwrap().session(options).await.unwrap()
}

/// Asks about `work`, lets the rest run.
fn asking() -> Approvals {
    Approvals::allowing()
        .rule("work", [], Permission::Ask)
        .unwrap()
}

/// Makes these calls in one turn, and finishes.
fn once(made: Vec<(&'static str, &'static str, Value)>) -> Scripted {
    Scripted::new(move |turn, _| match turn {
        0 => calls(&made),
        _ => finish("done"),
    })
}

#[tokio::test]
async fn rules_look_at_the_tool_and_at_the_arguments_as_the_tool_gets_them() {
    let client = once(vec![
        ("write", "a", json!({"text": "notes.txt"})),
        ("write", "b", json!({"text": "secret/\nkey"})),
        // The same as a JSON object in text, and a list that is none.
        ("write", "c", json!(r#""{\"text\": \"secret/key\"}""#)),
        ("write", "d", json!({"list": "secret"})),
        ("write", "e", json!({"n": "13"})),
        ("fetch_page", "f", json!({})),
        ("look", "g", json!({})),
    ]);
    let approvals = Approvals::allowing()
        .rule("write", [("text", "secret/*")], Permission::Deny)
        .unwrap()
        .rule("write", [("list", "*\"secret\"*")], Permission::Deny)
        .unwrap()
        .rule("write", [("n", "13")], Permission::Deny)
        .unwrap()
        .rule("fetch_*", [], Permission::Ask)
        .unwrap();
    let agent = agent(&client)
        .tool(echo("write"))
        .tool(echo("fetch_page"))
        .tool(echo("look"))
        .approvals(approvals);
    let session = session(agent).await;
    let outcome = outcome(session.run("the task").unwrap()).await;
    let expected = [
        (r#"{"text":"notes.txt"}"#, true),
        (DENIED, false),
        (DENIED, false),
        (DENIED, false),
        (DENIED, false),
        (NOBODY, false),
        ("{}", true),
    ];
    let expected: Vec<_> = expected.map(|(text, ok)| (text.to_owned(), ok)).into();
    assert_eq!(results(&outcome)[..7], expected);
}

#[tokio::test]
async fn the_first_rule_that_matches_decides() {
    let rules = Approvals::asking()
        .rule("work", [("n", "1")], Permission::Allow)
        .unwrap()
        .rule("work", [], Permission::Deny)
        .unwrap();
    let permissions =
        [json!({"n": 1}), json!({"n": 2}), json!({})].map(|it| rules.permission("work", &it));
    assert_eq!(
        permissions,
        [Permission::Allow, Permission::Deny, Permission::Deny]
    );
    assert_eq!(rules.permission("other", &json!({})), Permission::Ask);
    let error = Approvals::allowing()
        .rule("wo[rk", [], Permission::Deny)
        .unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("`wo[rk` is not a valid pattern: "),
        "{error}"
    );
}

#[tokio::test]
async fn consent_is_for_the_arguments_that_were_shown() {
    let client = once(vec![("work", "a", json!({"n": 1}))]);
    let session = answered_by_holder(agent(&client).tool(echo("work")).approvals(asking())).await;
    let mut run = session.run("the task").unwrap();
    let question = asked(&mut run).await;
    assert_eq!(
        (question.call_id.as_str(), question.arguments.as_str()),
        ("a", r#"{"n":1}"#)
    );
    let control = run.control();
    let decide = |id: &str, digest: &str| control.decide(id, digest, Decision::Approve);
    assert_eq!(
        decide("a", "0123456789abcdef"),
        Err(DecisionError::OtherArguments)
    );
    assert_eq!(decide("b", &question.digest), Err(DecisionError::NotAsked));
    assert_eq!(decide("a", &question.digest), Ok(()));
    assert_eq!(decide("a", &question.digest), Err(DecisionError::NotAsked));
    let outcome = outcome(run).await;
    assert_eq!(results(&outcome)[0], (r#"{"n":1}"#.to_owned(), true));
}

#[tokio::test]
async fn a_call_can_be_edited_or_rejected_with_a_reason_and_several_wait_at_once() {
    let client = once(vec![
        ("work", "a", json!({"n": 1})),
        ("work", "b", json!({"n": 2})),
        ("work", "c", json!({"n": 3})),
    ]);
    let work = echo("work").with_concurrency_safe(true);
    let session = answered_by_holder(agent(&client).tool(work).approvals(asking())).await;
    let mut run = session.run("the task").unwrap();
    let mut questions = Vec::new();
    for _ in 0..3 {
        questions.push(asked(&mut run).await);
    }
    questions.sort_by(|a, b| a.call_id.cmp(&b.call_id));
    let decisions = [
        Decision::Approve,
        Decision::edit(r#"{"n": 20}"#),
        Decision::Reject {
            reason: "three is too many.".to_owned(),
        },
    ];
    // The last one is answered first.
    for (question, decision) in questions.iter().zip(decisions).rev() {
        let control = run.control();
        control
            .decide(&question.call_id, &question.digest, decision)
            .unwrap();
    }
    let outcome = outcome(run).await;
    let changed = "(The user changed this call before it ran. Its arguments were: {\"n\": 20})\n";
    assert_eq!(
        results(&outcome)[..3],
        [
            (r#"{"n":1}"#.to_owned(), true),
            (format!(r#"{changed}{{"n":20}}"#), true),
            ("Not run: three is too many.".to_owned(), false)
        ]
    );
    assert_eq!(outcome.ledger.tools["work"].calls, 3);
}

#[tokio::test(start_paused = true)]
async fn cancelling_while_a_question_is_open_ends_at_once_and_runs_nothing() {
    let client = once(vec![("work", "a", json!({"n": 1}))]);
    let work = bare("work", |_| async { panic!("it must not run") });
    let session = answered_by_holder(agent(&client).tool(work).approvals(asking())).await;
    let mut run = session.run("the task").unwrap();
    let question = asked(&mut run).await;
    let control = run.control();
    control.cancel();
    let outcome = tokio::time::timeout(Duration::from_secs(2), outcome(run))
        .await
        .unwrap();
    assert_eq!(outcome.status(), RunStatus::Cancelled);
    assert_eq!(results(&outcome).len(), 1);
    let late = control.decide(&question.call_id, &question.digest, Decision::Approve);
    assert_eq!(late, Err(DecisionError::NotAsked));
}

/// A user who allows what has a two in it.
struct Choosy;

#[async_trait]
impl AskUser for Choosy {
    fn is_available(&self) -> bool {
        true
    }

    async fn ask(&self, question: Question) -> Result<Answer, ToolError> {
        let yes = question.text.contains(r#"{"n":2}"#);
        match question.text.contains("3") {
            true => Err(ToolError::failed("the user went away")),
            false => Ok(Answer::Confirm { yes }),
        }
    }
}

#[tokio::test]
async fn the_user_decides_if_the_holder_of_a_run_does_not() {
    let client = once(vec![
        ("work", "a", json!({"n": 1})),
        ("work", "b", json!({"n": 2})),
        ("work", "c", json!({"n": 3})),
    ]);
    let agent = agent(&client)
        .tool(echo("work"))
        .approvals(asking())
        .user(Choosy);
    let session = session(agent).await;
    let outcome = outcome(session.run("the task").unwrap()).await;
    let no = "Not run: the user rejected this call. Use another approach, or finish and explain.";
    assert_eq!(
        results(&outcome)[..3],
        [
            (no.to_owned(), false),
            (r#"{"n":2}"#.to_owned(), true),
            ("Not run: the user went away".to_owned(), false)
        ]
    );
}

/// A user who refuses everything and keeps the last question.
#[derive(Clone, Default)]
struct Reader(Arc<Mutex<String>>);

#[async_trait]
impl AskUser for Reader {
    fn is_available(&self) -> bool {
        true
    }

    async fn ask(&self, question: Question) -> Result<Answer, ToolError> {
        *self.0.lock().unwrap() = question.text;
        Ok(Answer::Confirm { yes: false })
    }
}

#[tokio::test]
async fn the_user_sees_characters_that_a_terminal_hides() {
    let hidden = "ls -la \u{9d}; rm -r .\u{9c}\u{1b}[2K\u{202e}";
    let client = once(vec![("work", "a", json!({"text": hidden}))]);
    let reader = Reader::default();
    let agent = agent(&client)
        .tool(echo("work"))
        .approvals(asking())
        .user(reader.clone());
    let session = session(agent).await;
    outcome(session.run("the task").unwrap()).await;
    let question = reader.0.lock().unwrap().clone();
    let shown = r#"{"text":"ls -la \u{9d}; rm -r .\u{9c}\u001b[2K\u{202e}"}"#;
    assert!(question.contains(shown), "{question:?}");
}

/// A tool that counts its calls.
fn counted(count: &Arc<Mutex<u32>>) -> DynTool {
    let count = Arc::clone(count);
    bare("work", move |_| {
        *count.lock().unwrap() += 1;
        async { Ok(ToolOutput::text("worked")) }
    })
}

/// A user who gives these answers in turn, and keeps the arguments that were asked about.
#[derive(Clone, Default)]
struct Answers {
    given: Arc<Mutex<Vec<&'static str>>>,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Answers {
    fn new(given: &[&'static str]) -> Self {
        let given = given.iter().rev().copied().collect();
        Self {
            given: Arc::new(Mutex::new(given)),
            ..Self::default()
        }
    }

    fn asked(&self) -> Vec<String> {
        std::mem::take(&mut *self.asked.lock().unwrap())
    }
}

#[async_trait]
impl AskUser for Answers {
    fn is_available(&self) -> bool {
        true
    }

    async fn ask(&self, question: Question) -> Result<Answer, ToolError> {
        if let QuestionKind::Approval { arguments, .. } = &question.kind {
            self.asked.lock().unwrap().push(arguments.clone());
        }
        // Other calls of the turn ask meanwhile.
        tokio::task::yield_now().await;
        let given = self.given.lock().unwrap().pop().expect("an answer");
        Ok(question.parse_answer(given).unwrap())
    }
}

#[tokio::test]
async fn a_standing_approval_covers_exactly_its_calls() {
    let made = vec![
        ("work", "a", json!({"n": 1})),
        ("work", "b", json!({"n": 1})),
        ("work", "c", json!({"n": 2})),
        ("other", "d", json!({"n": 1})),
        ("work", "e", json!({"n": 3})),
        ("work", "f", json!({"n": 4})),
        ("work", "g", json!({"n": 13})),
    ];
    let answers = ["always", "no too many", "no", "always tool"];
    let asked = [r#"{"n":1}"#, r#"{"n":2}"#, r#"{"n":1}"#, r#"{"n":3}"#].map(str::to_owned);
    for side_by_side in [false, true] {
        let client = once(made.clone());
        let user = Answers::new(&answers);
        let rules = Approvals::asking()
            .rule("work", [("n", "13")], Permission::Deny)
            .unwrap()
            .rule("finish", [], Permission::Allow)
            .unwrap();
        let agent = agent(&client)
            .tool(echo("work").with_concurrency_safe(side_by_side))
            .tool(echo("other").with_concurrency_safe(side_by_side))
            .approvals(rules)
            .user(user.clone());
        let outcome = outcome(session(agent).await.run("the task").unwrap()).await;
        assert_eq!(user.asked(), asked, "{side_by_side}");
        let succeeded: Vec<_> = results(&outcome)[..7].iter().map(|it| it.1).collect();
        assert_eq!(
            succeeded,
            [true, true, false, false, true, true, false],
            "{side_by_side}"
        );
        assert_eq!(
            results(&outcome)[2].0,
            "Not run: the user rejected this call: too many"
        );
        assert_eq!(results(&outcome)[6].0, DENIED);
    }
}

#[tokio::test]
async fn rules_and_standing_approvals_are_about_the_call_that_a_tool_forwards() {
    let client = once(vec![
        ("relay", "a", json!({"text": "delete", "n": 1})),
        ("relay", "b", json!({"text": "delete", "n": 2})),
        ("relay", "c", json!({"text": "delete", "n": 3})),
        ("relay", "d", json!({"text": "drop", "n": 4})),
        ("relay", "e", json!({"text": "read", "n": 5})),
        ("relay", "f", json!({"text": "read", "n": 6})),
    ]);
    let relay = echo("relay").with_forwarding(|arguments| {
        let tool = arguments["text"].as_str()?.to_owned();
        Some((tool, json!({"n": arguments["n"]})))
    });
    // No tool has these names.
    let rules = Approvals::allowing()
        .rule("delete", [("n", "1")], Permission::Deny)
        .unwrap()
        .rule("d*", [], Permission::Ask)
        .unwrap()
        .rule("relay", [("n", "6")], Permission::Deny)
        .unwrap();
    let user = Answers::new(&["always tool", "no"]);
    let agent = agent(&client)
        .tool(relay)
        .approvals(rules)
        .user(user.clone());
    let outcome = outcome(session(agent).await.run("the task").unwrap()).await;
    let succeeded: Vec<_> = results(&outcome)[..6].iter().map(|it| it.1).collect();
    assert_eq!(succeeded, [false, true, true, false, true, false]);
    // The user sees the call as it is made, and what is approved is about the other tool alone.
    let asked = [r#"{"n":2,"text":"delete"}"#, r#"{"n":4,"text":"drop"}"#];
    assert_eq!(user.asked(), asked);
}

#[tokio::test]
async fn a_standing_approval_survives_the_process() {
    let directory = tempfile::tempdir().unwrap();
    let store = RunStore::new(directory.path());
    let client = Scripted::new(|turn, _| match turn {
        0 => calls(&[("work", "a", json!({"n": 1}))]),
        1 => calls(&[("stop", "b", json!({}))]),
        2 => calls(&[
            ("work", "c", json!({"n": 1})),
            ("work", "d", json!({"n": 2})),
        ]),
        _ => finish("done"),
    });
    let stop = bare("stop", |cx| async move {
        cx.cancellation.cancelled().await;
        Ok(ToolOutput::text("stopped"))
    });
    let user = Answers::new(&["always", "yes"]);
    let agent = agent(&client)
        .tool(echo("work"))
        .tool(stop)
        .approvals(asking())
        .user(user.clone());
    let agent = agent.build().unwrap();
    let options = SessionOptions::default().kept_in(store.clone(), Value::Null);
    let session = agent.session(options).await.unwrap();
    let mut run = session.run("the task").unwrap();
    let id = run.id();
    while let Some(event) = run.next().await {
        if matches!(&event.kind, EventKind::ToolStarted { tool, .. } if tool == "stop") {
            run.cancel();
        }
    }
    assert_eq!(outcome(run).await.status(), RunStatus::Cancelled);
    session.close().await.unwrap();
    assert_eq!(user.asked(), [r#"{"n":1}"#]);

    let session = agent.resume(&store, id, ResumeOptions::default()).await;
    let session = session.unwrap();
    let outcome = outcome(session.resume().unwrap()).await;
    assert_eq!(outcome.status(), RunStatus::Finished, "{:?}", outcome.error);
    assert_eq!(user.asked(), [r#"{"n":2}"#]);
    session.close().await.unwrap();
}

#[tokio::test]
async fn the_holder_of_a_run_can_approve_every_call_of_a_tool() {
    let client = Scripted::new(|turn, _| match turn {
        0 => calls(&[("work", "a", json!({"n": 1}))]),
        1 => calls(&[("work", "b", json!({"n": 2}))]),
        _ => finish("done"),
    });
    let session = answered_by_holder(agent(&client).tool(echo("work")).approvals(asking())).await;
    let mut run = session.run("the task").unwrap();
    let question = asked(&mut run).await;
    let scope = ApprovalScope::Tool;
    let always = Decision::ApproveAlways { scope };
    let control = run.control();
    control.decide("a", &question.digest, always).unwrap();
    let outcome = outcome(run).await;
    assert_eq!(outcome.status(), RunStatus::Finished);
    assert_eq!(results(&outcome)[1], (r#"{"n":2}"#.to_owned(), true));
}

#[tokio::test]
async fn a_rule_about_something_that_does_not_exist_is_an_error() {
    let client = once(Vec::new());
    let open = async |tool: &str, argument: Option<&str>| {
        let arguments = argument.map(|name| (name, "x"));
        let rules = Approvals::allowing().rule(tool, arguments, Permission::Deny);
        let agent = agent(&client).tool(echo("work")).approvals(rules.unwrap());
        let agent = agent.build().unwrap();
        let opened = agent.session(SessionOptions::default()).await;
        opened.err().map(|error| error.to_string())
    };
    assert_eq!(open("work", Some("n")).await, None);
    assert_eq!(open("w*", Some("text")).await, None);
    assert_eq!(open("server__*", Some("path")).await, None);
    let error = open("wrok", None).await.unwrap();
    assert!(
        error.contains("the tool `wrok`, which does not exist. The tools are: work, finish"),
        "{error}"
    );
    for tool in ["work", "w*"] {
        let error = open(tool, Some("cmd")).await.unwrap();
        assert!(
            error.contains("the argument `cmd`, which does not exist"),
            "{error}"
        );
    }
}

fn journal(store: &RunStore, run: &RunId) -> std::path::PathBuf {
    store.run_directory(*run).join("journal.jsonl")
}

#[tokio::test]
async fn a_question_that_is_open_when_the_process_ends_is_asked_again_and_an_answer_is_not() {
    let directory = tempfile::tempdir().unwrap();
    let store = RunStore::new(directory.path());
    let count = Arc::default();
    let client = once(vec![("work", "a", json!({"n": 1}))]);
    let agent = agent(&client).tool(counted(&count)).approvals(asking());
    let agent = agent.build().unwrap();
    let options = SessionOptions::default()
        .answers_approvals()
        .kept_in(store.clone(), Value::Null);
    let session = agent.session(options).await.unwrap();
    let mut run = session.run("the task").unwrap();
    let id = run.id();
    let first = asked(&mut run).await;
    // As if the process had ended: nothing is reported or written any more.
    drop(run);
    drop(session);

    let options = ResumeOptions::default().answers_approvals();
    let resume = async || {
        let deadline = tokio::time::Instant::now() + Duration::from_secs(120);
        loop {
            // The dropped run lets go of its journal when its task is gone.
            match agent.resume(&store, id, options.clone()).await {
                Ok(session) => return session,
                Err(error) if tokio::time::Instant::now() > deadline => panic!("{error}"),
                Err(_) => tokio::task::yield_now().await,
            }
        }
    };
    let session = resume().await;
    let mut run = session.resume().unwrap();
    let again = asked(&mut run).await;
    assert_eq!(again, first);
    assert_eq!(*count.lock().unwrap(), 0);
    run.control()
        .decide(&again.call_id, &again.digest, Decision::Approve)
        .unwrap();
    let done = outcome(run).await;
    assert_eq!(done.status(), RunStatus::Finished);
    assert_eq!(*count.lock().unwrap(), 1);
    session.close().await.unwrap();

    // The same journal, cut off behind the decision, as a crash would leave it.
    let path = journal(&store, &id);
    let text = std::fs::read_to_string(&path).unwrap();
    let (before, behind) = text.split_once("call_decided").unwrap();
    let (decision, _) = behind.split_once('\n').unwrap();
    std::fs::write(&path, format!("{before}call_decided{decision}\n")).unwrap();
    let session = resume().await;
    let mut run = session.resume().unwrap();
    let mut questions = 0;
    while let Some(event) = run.next().await {
        questions += u32::from(matches!(event.kind, EventKind::ApprovalRequested { .. }));
    }
    assert_eq!(questions, 0);
    assert_eq!(outcome(run).await.status(), RunStatus::Finished);
    assert_eq!(*count.lock().unwrap(), 2);
    session.close().await.unwrap();
}

/// An agent whose sub-agent makes a call that needs approval.
fn asks_below(count: &Arc<Mutex<u32>>) -> Agent {
    let counted = Arc::clone(count);
    let work = bare("work", move |_| {
        *counted.lock().unwrap() += 1;
        async { Ok(ToolOutput::text("worked")) }
    });
    let helper = once(vec![("work", "same", json!({"n": 1}))]);
    let helper = Agent::builder("helper", helper)
        .tool(work)
        .finish(crate::support::finish_tool())
        .approvals(asking())
        .turn_warning_threshold(0)
        .build()
        .unwrap();
    // Both calls have sub-agents whose calls have one id.
    let client = once(vec![
        ("helper", "a", json!({"task": "Work."})),
        ("helper", "b", json!({"task": "Work."})),
    ]);
    let builder = agent(&client).sub_agent(SubAgent::new(&helper, "Works."));
    builder.build().unwrap()
}

/// The next questions of a run and those below it, with the runs that ask.
async fn asked_below(run: &mut Run, count: usize) -> Vec<(RunId, String, String)> {
    let mut asked = Vec::new();
    let all = async {
        while asked.len() < count {
            let event = run.next().await.expect("it ended");
            if let EventKind::ApprovalRequested {
                call_id, digest, ..
            } = event.kind
            {
                assert_eq!((event.depth, event.parent), (1, Some(run.id())));
                asked.push((event.run, call_id, digest));
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(120), all)
        .await
        .unwrap();
    asked
}

#[tokio::test]
async fn the_holder_of_a_run_decides_for_its_sub_agents_even_after_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let store = RunStore::new(directory.path());
    let count = Arc::new(Mutex::new(0));
    let agent = asks_below(&count);
    let options = SessionOptions::default()
        .answers_approvals()
        .kept_in(store.clone(), Value::Null);
    let session = agent.session(options).await.unwrap();
    let mut run = session.run("the task").unwrap();
    let id = run.id();
    let mut first = asked_below(&mut run, 2).await;
    let control = run.control();
    let own = control.decide("same", &first[0].2, Decision::Approve);
    assert_eq!(
        own.unwrap_err(),
        DecisionError::NotAsked,
        "it is not this run's"
    );
    let other = control.decide_in(first[0].0, "same", "other", Decision::Approve);
    assert_eq!(other.unwrap_err(), DecisionError::OtherArguments);
    drop(run);
    drop(session);

    let deadline = tokio::time::Instant::now() + Duration::from_secs(120);
    let session = loop {
        let options = ResumeOptions::default().answers_approvals();
        match agent.resume(&store, id, options).await {
            Ok(session) => break session,
            Err(error) => assert!(tokio::time::Instant::now() < deadline, "{error}"),
        }
        tokio::task::yield_now().await;
    };
    let mut run = session.resume().unwrap();
    let mut again = asked_below(&mut run, 2).await;
    first.sort();
    again.sort();
    assert_eq!(again, first);
    assert_eq!(*count.lock().unwrap(), 0);
    let control = run.control();
    let (run_id, call_id, digest) = &again[0];
    control
        .decide_in(*run_id, call_id, digest, Decision::Approve)
        .unwrap();
    let (run_id, call_id, digest) = &again[1];
    let reason = "not this one".to_owned();
    control
        .decide_in(*run_id, call_id, digest, Decision::Reject { reason })
        .unwrap();
    let outcome = outcome(run).await;
    assert_eq!(outcome.status(), RunStatus::Finished, "{:?}", outcome.error);
    assert_eq!(*count.lock().unwrap(), 1);
    session.close().await.unwrap();
}

#[tokio::test]
async fn a_question_that_was_open_when_the_run_was_cancelled_is_asked_again() {
    let directory = tempfile::tempdir().unwrap();
    let store = RunStore::new(directory.path());
    let client = once(vec![("work", "a", json!({"n": 1}))]);
    let agent = agent(&client).tool(echo("work")).approvals(asking());
    let agent = agent.build().unwrap();
    let options = SessionOptions::default()
        .answers_approvals()
        .kept_in(store.clone(), Value::Null);
    let session = agent.session(options).await.unwrap();
    let mut run = session.run("the task").unwrap();
    let id = run.id();
    let first = asked(&mut run).await;
    run.cancel();
    assert_eq!(outcome(run).await.status(), RunStatus::Cancelled);
    session.close().await.unwrap();

    let options = ResumeOptions::default().answers_approvals();
    let session = agent.resume(&store, id, options).await.unwrap();
    let mut run = session.resume().unwrap();
    let again = asked(&mut run).await;
    assert_eq!(again, first);
    let control = run.control();
    control
        .decide(&again.call_id, &again.digest, Decision::Approve)
        .unwrap();
    let outcome = outcome(run).await;
    assert_eq!(results(&outcome)[0], (r#"{"n":1}"#.to_owned(), true));
    session.close().await.unwrap();
}

#[tokio::test]
async fn a_tool_above_the_level_of_the_principal_is_refused_before_hooks_and_rules() {
    let admin_only = || {
        let spec = ToolSpec::new("drop_table", "Drops a table.", json!({"type": "object"}));
        let tool = DynTool::from_schema(spec, |_, cx| async move {
            let principal = cx.require_principal()?.id().to_string();
            Ok(ToolOutput::text(format!("dropped by {principal}")))
        });
        tool.with_level(Level::Admin)
    };
    let refused = |has: &str| {
        format!("Not run: Permission denied: drop_table requires 'admin' but user has '{has}'")
    };
    for (level, expected) in [
        (None, refused("none")),
        (Some(Level::User), refused("user")),
        (Some(Level::Owner), "dropped by alice".to_owned()),
    ] {
        let client = once(vec![("drop_table", "a", json!({}))]);
        let mut options = SessionOptions::default();
        if let Some(level) = level {
            options = options.principal(Principal::new("alice", level).unwrap());
        }
        let agent = agent(&client).tool(admin_only()).build().unwrap();
        let session = agent.session(options).await.unwrap();
        let ended = outcome(session.run("go").unwrap()).await;
        let succeeded = level == Some(Level::Owner);
        assert_eq!(results(&ended)[0], (expected, succeeded));
        session.close().await.unwrap();
    }
}
