//! Resumed runs with sub-agents, and the removal of their sandboxes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::Duration;

use async_trait::async_trait;
use cantle_agent::{
    AfterTool, Agent, AtFinish, Hooks, KeptStatus, Outcome, ResumeOptions, Run, RunErrorKind,
    RunStore, Session, SessionErrorKind, SessionOptions, SubAgent, TextAnswers,
};
use cantle_backends_local::LocalBackend;
use cantle_core::content::Content;
use cantle_core::event::{EventKind, Finish, RunStatus};
use cantle_core::ids::RunId;
use cantle_core::message::{Message, ToolCall};
use cantle_core::sandbox::{SandboxExt as _, SandboxPath};
use cantle_core::tool::{DynTool, ToolOutput, ToolSpec};
use cantle_tools::{CodeExec, Finish as FinishTool};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::support::{
    Scripted, agent, calls, finish, finish_tool, outcome, results, session, text, user_messages,
};

/// The directory of a test's sandboxes and runs.
struct TestDirectory {
    directory: tempfile::TempDir,
    store: RunStore,
}

impl TestDirectory {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let store = RunStore::new(directory.path().join("runs"));
        fs::create_dir(directory.path().join("sandboxes")).unwrap();
        // Commands of root's sandboxes are another user's.
        let open = |path: &Path| {
            use std::os::unix::fs::PermissionsExt as _;
            fs::set_permissions(path, fs::Permissions::from_mode(0o711)).unwrap();
        };
        open(directory.path());
        open(&directory.path().join("sandboxes"));
        Self { directory, store }
    }

    fn commands(&self) -> CodeExec {
        let backend = LocalBackend::new().in_directory(self.directory.path().join("sandboxes"));
        CodeExec::new(backend)
    }

    fn sandboxes(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.directory.path().join("sandboxes")).unwrap();
        entries.map(|entry| entry.unwrap().path()).collect()
    }

    fn kept(&self) -> SessionOptions {
        SessionOptions::default().kept_in(self.store.clone(), Value::Null)
    }

    async fn resume_when_released(
        &self,
        agent: &Agent,
        run: RunId,
        options: ResumeOptions,
    ) -> Session {
        let deadline = tokio::time::Instant::now() + Duration::from_secs(120);
        loop {
            match agent.resume(&self.store, run, options.clone()).await {
                Ok(session) => return session,
                Err(error) => assert!(tokio::time::Instant::now() < deadline, "{error}"),
            }
            tokio::task::yield_now().await;
        }
    }

    async fn resume_to_end(&self, agent: &Agent, run: RunId) -> Outcome {
        let session = self
            .resume_when_released(agent, run, ResumeOptions::default())
            .await;
        let outcome = outcome(session.resume().unwrap()).await;
        session.close().await.unwrap();
        outcome
    }
}

/// Reads events until a tool of this name begins.
async fn until_it_calls(run: &mut Run, tool: &str) {
    let called = async {
        let is_it = |kind: &EventKind| matches!(kind, EventKind::ToolStarted { tool: name, .. } if name == tool);
        while !is_it(&run.next().await.expect("it ended").kind) {}
    };
    tokio::time::timeout(Duration::from_secs(120), called)
        .await
        .unwrap();
}

#[tokio::test]
async fn a_cancelled_run_resumes_like_a_killed_one() {
    let test_directory = TestDirectory::new();
    let helper = Scripted::new(|turn, _| match turn {
        0 => calls(&[("code_exec", "a", json!({"cmd": "echo hello > kept.txt"}))]),
        1 => calls(&[("hang", "b", json!({}))]),
        2 => calls(&[("code_exec", "c", json!({"cmd": "cat kept.txt"}))]),
        _ => calls(&[(
            "finish",
            "f",
            json!({"reason": "helped", "paths": ["kept.txt"]}),
        )]),
    });
    let spec = ToolSpec::new("hang", "Hangs.", json!({"type": "object"}));
    let hang = DynTool::from_schema(spec, |_, cx| async move {
        cx.cancellation.cancelled().await;
        Ok(ToolOutput::failure("stopped"))
    });
    let helper = Agent::builder("helper", helper)
        .provider(test_directory.commands())
        .tool(hang)
        .finish(FinishTool)
        .turn_warning_threshold(0)
        .build()
        .unwrap();
    let client = Scripted::new(|turn, _| match turn {
        0 => calls(&[("helper", "call", json!({"task": "Help."}))]),
        1 => calls(&[("code_exec", "d", json!({"cmd": "cat kept.txt"}))]),
        _ => finish("done"),
    });
    let agent = agent(&client)
        .provider(test_directory.commands())
        .sub_agent(SubAgent::new(&helper, "Helps."))
        .build()
        .unwrap();
    let session = agent.session(test_directory.kept()).await.unwrap();
    let mut run = session.run("the task").unwrap();
    until_it_calls(&mut run, "hang").await;
    let id = run.id();
    run.cancel();
    let cancelled = outcome(run).await;
    assert_eq!(
        cancelled.error.as_ref().unwrap().kind(),
        RunErrorKind::Cancelled
    );
    // One turn above, two below.
    assert_eq!(cancelled.ledger.reported_usage().total(), 3 * 15);
    let (told, _) = &results(&cancelled)[0];
    assert_eq!(
        told,
        "Not finished: the run was cancelled. This call continues when the run is resumed."
    );
    session.close().await.unwrap();
    assert_eq!(test_directory.sandboxes().len(), 2, "both are kept");
    let events = test_directory.store.events(id).unwrap();
    let Some(EventKind::RunFinished { ledger, .. }) = events.last().map(|it| &it.kind) else {
        panic!("{events:?}");
    };
    assert_eq!(ledger.reported_usage().total(), 3 * 15);

    let outcome = test_directory.resume_to_end(&agent, id).await;
    assert!(outcome.error.is_none(), "{:?}", outcome.error);
    let results = results(&outcome);
    assert!(
        results[0].0.contains("<response>helped</response>"),
        "{results:?}"
    );
    assert!(results[1].0.contains("hello"), "{results:?}");
    // Three turns above, four below, each counted once.
    assert_eq!(outcome.ledger.reported_usage().total(), 7 * 15);
    assert_eq!(
        test_directory.sandboxes(),
        [""; 0].map(PathBuf::from),
        "nothing is left"
    );
}

#[tokio::test]
async fn without_a_store_a_cancelled_sub_agent_leaves_nothing() {
    let test_directory = TestDirectory::new();
    let helper = Scripted::new(|_, _| calls(&[("code_exec", "a", json!({"cmd": "sleep 1000"}))]));
    let helper = Agent::builder("helper", helper)
        .provider(test_directory.commands())
        .finish(FinishTool)
        .build()
        .unwrap();
    let client = Scripted::new(|_, _| calls(&[("helper", "call", json!({"task": "Help."}))]));
    let session = session(agent(&client).sub_agent(SubAgent::new(&helper, "Helps."))).await;
    let mut run = session.run("the task").unwrap();
    until_it_calls(&mut run, "code_exec").await;
    run.cancel();
    let outcome = outcome(run).await;
    let (told, success) = &results(&outcome)[0];
    assert!(
        !success && told.contains("<error>the run was cancelled"),
        "{told}"
    );
    // One turn each.
    assert_eq!(outcome.ledger.reported_usage().total(), 2 * 15);
    session.close().await.unwrap();
    assert_eq!(test_directory.sandboxes(), [""; 0].map(PathBuf::from));
}

#[tokio::test]
async fn after_an_answer_in_text_only_new_files_are_undelivered_even_if_the_run_is_resumed() {
    let test_directory = TestDirectory::new();
    let host = test_directory.directory.path();
    fs::create_dir_all(host.join("skills/greet")).unwrap();
    fs::write(
        host.join("skills/greet/SKILL.md"),
        "---\nname: greet\ndescription: Greets.\n---\n",
    )
    .unwrap();
    fs::write(host.join("in.txt"), "1").unwrap();
    let client = Scripted::new(|_, _| text("It is in out.txt."));
    let agent = agent(&client)
        .provider(test_directory.commands())
        .text_answers(TextAnswers::EndTurn)
        .build()
        .unwrap();
    let options = test_directory
        .kept()
        .input_file(host.join("in.txt"))
        .skills(host.join("skills"));
    let session = agent.session(options).await.unwrap();
    for name in [
        ".cantle/results/saved.txt",
        "a/b/deep.txt",
        "out.txt",
        "skills/own.txt",
    ] {
        let path = SandboxPath::new(name).unwrap();
        let written = session.sandbox().unwrap().write_bytes(&path, "1".into());
        written.await.unwrap();
    }
    let first = outcome(session.run("the task").unwrap()).await;
    session.close().await.unwrap();
    let expected = ["out.txt", "skills/own.txt", "a/b/deep.txt"];
    assert_eq!(first.status(), RunStatus::AnsweredInText);
    assert_eq!(first.undelivered, expected);
    let resumed = test_directory.resume_to_end(&agent, first.run).await;
    assert_eq!(resumed.status(), RunStatus::AnsweredInText);
    assert_eq!(resumed.undelivered, expected);
}

/// Keeps a copy of the sandbox as it is when its agent finishes.
#[derive(Debug)]
struct Copying {
    from: PathBuf,
    to: PathBuf,
}

#[async_trait]
impl Hooks for Copying {
    async fn at_finish(&self, _: &Finish) -> AtFinish {
        let from = format!("{}/.", self.from.display());
        let copied = Command::new("cp")
            .args(["-a", &from])
            .arg(&self.to)
            .status();
        assert!(copied.unwrap().success());
        AtFinish::Accept
    }
}

/// Hangs when a call of the helper has its result, and says that it does.
#[derive(Debug)]
struct Hanging(CancellationToken, Mutex<bool>);

#[async_trait]
impl Hooks for Hanging {
    async fn after_tool(&self, call: &ToolCall, _: &Content, _: bool) -> AfterTool {
        let hangs = std::mem::take(&mut *self.1.lock().unwrap());
        if call.name == "helper" && hangs {
            self.0.cancel();
            std::future::pending::<()>().await;
        }
        AfterTool::Keep
    }
}

#[tokio::test]
async fn a_sub_agent_that_finished_just_before_a_kill_reports_everything_and_leaves_nothing() {
    let test_directory = TestDirectory::new();
    let copy = test_directory.directory.path().join("copy");
    fs::create_dir(&copy).unwrap();
    let helper = Scripted::new(|turn, _| match turn {
        0 => calls(&[("code_exec", "a", json!({"cmd": "echo hello > out.txt"}))]),
        _ => calls(&[(
            "finish",
            "f",
            json!({"reason": "helped", "paths": ["out.txt"]}),
        )]),
    });
    let requests = helper.clone();
    let helper = Agent::builder("helper", helper)
        .provider(test_directory.commands())
        .finish(FinishTool)
        .hooks(Copying {
            from: test_directory.directory.path().join("sandboxes"),
            to: copy.clone(),
        })
        .turn_warning_threshold(0)
        .build()
        .unwrap();
    let client = Scripted::new(|turn, _| match turn {
        0 => calls(&[("helper", "call", json!({"task": "Help."}))]),
        _ => finish("done"),
    });
    let reached = CancellationToken::new();
    let agent = agent(&client)
        .provider(test_directory.commands())
        .sub_agent(SubAgent::new(&helper, "Helps."))
        .hooks(Hanging(reached.clone(), Mutex::new(true)))
        .build()
        .unwrap();
    let id = killed_at(&reached, &agent, &test_directory).await;
    // As where the process is killed before the helper's sandbox was removed.
    let own = test_directory.sandboxes();
    let from = format!("{}/.", copy.display());
    let to = test_directory.directory.path().join("sandboxes");
    let restored = Command::new("cp")
        .args(["-a", "-n", &from])
        .arg(&to)
        .status();
    assert!(restored.unwrap().success());
    assert_eq!((own.len(), test_directory.sandboxes().len()), (1, 2));

    let outcome = test_directory.resume_to_end(&agent, id).await;
    assert!(outcome.error.is_none(), "{:?}", outcome.error);
    let (text, success) = &results(&outcome)[0];
    assert_eq!(
        (text.as_str(), *success),
        (
            "<sub_agent_result>\n<response>helped</response>\n<finished>True</finished>\n\
             <files_available>\nout.txt\n</files_available>\n</sub_agent_result>",
            true
        )
    );
    // Two turns above, two below.
    assert_eq!(outcome.ledger.reported_usage().total(), 4 * 15);
    assert_eq!(
        outcome.ledger.sub_agents["helper"][0].tools["code_exec"].calls,
        1
    );
    assert_eq!(requests.requests(), 2, "it was not asked again");
    assert_eq!(
        test_directory.sandboxes(),
        [""; 0].map(PathBuf::from),
        "nothing is left"
    );
}

/// Drops a run of an agent when a point is reached, as if its process were killed.
async fn killed_at(
    reached: &CancellationToken,
    agent: &Agent,
    test_directory: &TestDirectory,
) -> RunId {
    let session = agent.session(test_directory.kept()).await.unwrap();
    let run = session.run("the task").unwrap();
    tokio::time::timeout(Duration::from_secs(120), reached.cancelled())
        .await
        .unwrap();
    run.id()
}

#[tokio::test]
async fn a_sub_agent_that_answered_in_text_just_before_a_kill_is_not_asked_again() {
    let test_directory = TestDirectory::new();
    let helper = Scripted::new(|_, _| text("It is 42."));
    let requests = helper.clone();
    let helper = Agent::builder("helper", helper)
        .finish(FinishTool)
        .text_answers(TextAnswers::EndTurn)
        .turn_warning_threshold(0)
        .build()
        .unwrap();
    let client = Scripted::new(|turn, _| match turn {
        0 => calls(&[("helper", "call", json!({"task": "Help."}))]),
        _ => finish("done"),
    });
    let reached = CancellationToken::new();
    let agent = agent(&client)
        .sub_agent(SubAgent::new(&helper, "Helps."))
        .hooks(Hanging(reached.clone(), Mutex::new(true)))
        .build()
        .unwrap();
    let id = killed_at(&reached, &agent, &test_directory).await;

    let outcome = test_directory.resume_to_end(&agent, id).await;
    assert!(outcome.error.is_none(), "{:?}", outcome.error);
    let (text, success) = &results(&outcome)[0];
    assert_eq!(
        (text.as_str(), *success),
        (
            "<sub_agent_result>\n<error>it answered in text and did not call its finish tool. Its last message: \
             It is 42.</error>\n<finished>False</finished>\n</sub_agent_result>",
            false
        )
    );
    assert_eq!(requests.requests(), 1, "it was not asked again");
    // Two turns above, one below.
    assert_eq!(outcome.ledger.reported_usage().total(), 3 * 15);
}

#[tokio::test]
async fn a_run_killed_between_its_end_and_its_closing_delivers_again() {
    let test_directory = TestDirectory::new();
    let client = Scripted::new(|turn, _| match turn {
        0 => calls(&[("code_exec", "a", json!({"cmd": "echo hello > out.txt"}))]),
        _ => calls(&[(
            "finish",
            "f",
            json!({"reason": "done", "paths": ["out.txt"]}),
        )]),
    });
    let agent = Agent::builder("test", client.clone())
        .provider(test_directory.commands())
        .finish(FinishTool)
        .build()
        .unwrap();
    let output = test_directory.directory.path().join("out");
    let session = agent
        .session(test_directory.kept().output_dir(&output))
        .await
        .unwrap();
    let first = outcome(session.run("the task").unwrap()).await;
    assert_eq!(first.status(), RunStatus::Finished, "{:?}", first.error);
    drop(session);
    fs::remove_file(output.join("out.txt")).unwrap();
    let kept = test_directory.store.get(first.run).unwrap();
    assert_eq!(kept.status, KeptStatus::Ended(RunStatus::Finished));

    let options = ResumeOptions::default().output_dir(&output);
    let session = test_directory
        .resume_when_released(&agent, first.run, options.clone())
        .await;
    let again = outcome(session.resume().unwrap()).await;
    assert_eq!(again.status(), RunStatus::Finished, "{:?}", again.error);
    assert_eq!((again.finish, again.turns), (first.finish, first.turns));
    assert_eq!(again.ledger.model_calls, first.ledger.model_calls);
    assert_eq!(
        fs::read_to_string(output.join("out.txt")).unwrap(),
        "hello\n"
    );
    assert_eq!(client.requests(), 2, "the model is asked nothing more");
    session.close().await.unwrap();
    assert_eq!(test_directory.sandboxes(), [""; 0].map(PathBuf::from));

    let over = agent
        .resume(&test_directory.store, first.run, options)
        .await
        .unwrap_err();
    assert_eq!(over.kind(), SessionErrorKind::Journal);
    assert_eq!(
        over.to_string(),
        format!("run {} is finished; there is nothing left to do", first.run)
    );
}

#[tokio::test]
async fn a_run_that_cannot_begin_leaves_the_sandbox_to_the_earlier_run() {
    let test_directory = TestDirectory::new();
    let client = Scripted::new(|turn, _| match turn {
        0 => calls(&[("code_exec", "a", json!({"cmd": "echo hello > kept.txt"}))]),
        _ => finish("done"),
    });
    let agent = |turns| {
        let agent = agent(&client).provider(test_directory.commands());
        agent.max_turns(turns).build().unwrap()
    };
    let session = agent(1).session(test_directory.kept()).await.unwrap();
    let first = outcome(session.run("the task").unwrap()).await;
    session.close().await.unwrap();
    let handle = test_directory.store.get(first.run).unwrap().sandbox;

    let file = test_directory.directory.path().join("a file");
    fs::write(&file, "").unwrap();
    let options = SessionOptions::default()
        .kept_in(RunStore::new(file), Value::Null)
        .in_sandbox(handle.unwrap());
    let session = agent(1).session(options).await.unwrap();
    let refused = outcome(session.run("more").unwrap()).await;
    assert_eq!(refused.error.unwrap().kind(), RunErrorKind::Journal);
    session.close().await.unwrap();
    assert_eq!(test_directory.sandboxes().len(), 1);

    let resumed = test_directory.resume_to_end(&agent(9), first.run).await;
    assert!(resumed.error.is_none(), "{:?}", resumed.error);
}

#[tokio::test]
async fn a_sub_agent_is_informed_that_the_sandbox_that_it_shares_is_a_new_one() {
    let test_directory = TestDirectory::new();
    let helper_client = Scripted::new(|turn, _| match turn {
        0 => calls(&[("hang", "h", json!({}))]),
        _ => finish("helped"),
    });
    let spec = ToolSpec::new("hang", "Hangs.", json!({"type": "object"}));
    let hang = DynTool::from_schema(spec, |_, cx| async move {
        cx.cancellation.cancelled().await;
        Ok(ToolOutput::failure("stopped"))
    });
    let helper = Agent::builder("helper", helper_client.clone())
        .tool(hang)
        .finish(finish_tool())
        .build()
        .unwrap();
    let client = Scripted::new(|turn, _| match turn {
        0 => calls(&[("helper", "call", json!({"task": "Help."}))]),
        _ => finish("done"),
    });
    let agent = agent(&client)
        .provider(test_directory.commands())
        .sub_agent(SubAgent::new(&helper, "Helps.").share_sandbox())
        .build()
        .unwrap();
    let session = agent.session(test_directory.kept()).await.unwrap();
    let mut run = session.run("the task").unwrap();
    until_it_calls(&mut run, "hang").await;
    let id = run.id();
    run.cancel();
    outcome(run).await;
    session.close().await.unwrap();
    for sandbox in test_directory.sandboxes() {
        fs::remove_dir_all(sandbox).unwrap();
    }

    let options = ResumeOptions::default().fresh_sandbox();
    let session = agent.resume(&test_directory.store, id, options);
    let session = session.await.unwrap();
    let resumed = outcome(session.resume().unwrap()).await;
    session.close().await.unwrap();
    assert!(resumed.error.is_none(), "{:?}", resumed.error);
    let requests = helper_client.asked();
    let messages = user_messages(&requests.last().unwrap().messages);
    let is_informed = |text: &String| text.contains("its sandbox is gone");
    assert!(messages.iter().any(is_informed), "{messages:?}");
}

#[tokio::test(start_paused = true)]
async fn a_sub_agent_that_needs_its_whole_grace_is_still_in_its_callers_ledger() {
    // Two levels below, a tool that does not hear that it is to end.
    let reached = CancellationToken::new();
    let deaf = reached.clone();
    let spec = ToolSpec::new("deaf", "Hears nothing.", json!({"type": "object"}));
    let deaf = DynTool::from_schema(spec, move |_, _| {
        deaf.cancel();
        async {
            std::future::pending::<()>().await;
            Ok(ToolOutput::text("never"))
        }
    });
    let leaf = Scripted::new(|_, _| calls(&[("deaf", "d", json!({}))]));
    let leaf = Agent::builder("leaf", leaf)
        .tool(deaf)
        .finish(finish_tool())
        .build()
        .unwrap();
    let helper = Scripted::new(|_, _| calls(&[("leaf", "l", json!({"task": "Hang."}))]));
    let helper = Agent::builder("helper", helper)
        .sub_agent(SubAgent::new(&leaf, "Hangs."))
        .finish(finish_tool())
        .build()
        .unwrap();
    let client = Scripted::new(|_, _| calls(&[("helper", "h", json!({"task": "Hang."}))]));
    let session = session(agent(&client).sub_agent(SubAgent::new(&helper, "Hangs."))).await;
    let run = session.run("the task").unwrap();
    tokio::time::timeout(Duration::from_secs(120), reached.cancelled())
        .await
        .unwrap();
    run.cancel();
    let outcome = outcome(run).await;
    let (told, _) = &results(&outcome)[0];
    assert!(
        told.contains("<error>the run was cancelled"),
        "not abandoned: {told}"
    );
    let helper = &outcome.ledger.sub_agents["helper"][0];
    let leaf = &helper.sub_agents["leaf"][0];
    assert_eq!(leaf.tools["deaf"].cancelled, 1);
    assert_eq!(outcome.ledger.reported_usage().total(), 3 * 15);
    session.close().await.unwrap();
}

#[tokio::test]
async fn a_later_run_in_a_resumed_session_knows_the_skills() {
    let test_directory = TestDirectory::new();
    let skills = test_directory.directory.path().join("skills");
    fs::create_dir_all(skills.join("greet")).unwrap();
    let skill = skills.join("greet/SKILL.md");
    fs::write(&skill, "---\nname: greet\ndescription: Greets.\n---\n").unwrap();
    let client = Scripted::new(|_, _| text("Done."));
    let agent = agent(&client)
        .provider(test_directory.commands())
        .text_answers(TextAnswers::EndTurn)
        .build()
        .unwrap();
    let options = test_directory.kept().skills(&skills);
    let session = agent.session(options).await.unwrap();
    let first = outcome(session.run("the task").unwrap()).await;
    session.suspend().await.unwrap();
    fs::write(skills.join("later.txt"), "").unwrap();
    let options = ResumeOptions::default().skills(&skills);
    let session = test_directory
        .resume_when_released(&agent, first.run, options)
        .await;
    outcome(session.resume().unwrap()).await;
    let second = outcome(session.run("more").unwrap()).await;
    let Message::System(prompt) = &*second.history[0] else {
        panic!("{:?}", second.history);
    };
    let prompt = prompt.content.text();
    assert!(prompt.contains("skills/greet"), "{prompt}");
    let uploaded = SandboxPath::new("skills/later.txt").unwrap();
    let uploaded = session.sandbox().unwrap().read_bytes(&uploaded, 1).await;
    assert!(uploaded.is_err(), "its own sandbox stays as it is");
    session.close().await.unwrap();
}
