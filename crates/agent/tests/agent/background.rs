//! Background sub-agents: start, status, wait, stop, announcement and resuming.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use cantle_agent::{
    Agent, AgentBuilder, ResumeOptions, Run, RunErrorKind, RunStore, Session, SessionOptions,
    SubAgent,
};
use cantle_core::event::EventKind;
use cantle_core::ids::RunId;
use cantle_core::llm::{ChatEvent, ChatRequest, LlmError};
use cantle_core::sandbox::Sandbox;
use cantle_core::tool::{
    DynTool, OpenContext, ProviderError, Requirements, ToolOutput, ToolProvider, ToolSet, ToolSpec,
};
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::support::{
    Scripted, agent, calls, echo, finish, finish_tool, outcome, results, session, text,
    user_messages, watch,
};

type Events = Vec<Result<ChatEvent, LlmError>>;

fn start(id: &str) -> Events {
    calls(&[("helper", id, json!({"action": "start", "task": "Help."}))])
}

/// Waits with `wait` in its first turn, and finishes in its second.
fn helper(wait: DynTool) -> Agent {
    helper_builder(wait).build().unwrap()
}

fn helper_builder(wait: DynTool) -> AgentBuilder {
    let client = Scripted::new(|turn, _| match turn {
        0 => {
            let mut events = text("I begin.");
            events.pop();
            events.extend(calls(&[("wait", "w", json!({}))]));
            events
        }
        _ => finish("helped"),
    });
    Agent::builder("helper", client)
        .tool(wait)
        .finish(finish_tool())
        .turn_warning_threshold(0)
}

/// A tool that waits for a permit, or until it is cancelled.
fn waits_for(permits: &Arc<Semaphore>) -> DynTool {
    let permits = Arc::clone(permits);
    let spec = ToolSpec::new("wait", "Waits.", json!({"type": "object"}));
    DynTool::from_schema(spec, move |_, cx| {
        let permits = Arc::clone(&permits);
        async move {
            tokio::select! {
                permit = permits.acquire() => permit.unwrap().forget(),
                () = cx.cancellation.cancelled() => return Ok(ToolOutput::failure("told to end")),
            }
            Ok(ToolOutput::text("waited"))
        }
    })
}

fn in_background(helper: &Agent) -> SubAgent {
    SubAgent::new(helper, "Helps.").background()
}

/// A tool that lets one that waits go on.
fn lets_go(permits: &Arc<Semaphore>) -> DynTool {
    let permits = Arc::clone(permits);
    let spec = ToolSpec::new("go", "Lets one go on.", json!({"type": "object"}));
    DynTool::from_schema(spec, move |_, _| {
        permits.add_permits(1);
        async { Ok(ToolOutput::text("gone")) }
    })
}

const ENDED: &str = "<sub_agent id=\"helper-1\" state=\"ended\">\n<sub_agent_result>\n\
                     <response>helped</response>\n<finished>True</finished>\n</sub_agent_result>\n\
                     </sub_agent>";

#[tokio::test]
async fn a_background_sub_agent_is_started_observed_and_awaited() {
    let permits = Arc::new(Semaphore::new(0));
    let client = Scripted::new(|turn, _| match turn {
        0 => start("s"),
        1 => calls(&[("helper", "l", json!({"action": "look", "id": "helper-1"}))]),
        2 => calls(&[("helper", "w0", json!({"action": "wait", "timeout_s": 0.01}))]),
        3 => calls(&[("go", "g", json!({}))]),
        4 => calls(&[("helper", "w1", json!({"action": "wait", "id": "helper-1"}))]),
        _ => finish("done"),
    });
    let builder = agent(&client)
        .sub_agent(in_background(&helper(waits_for(&permits))))
        .tool(lets_go(&permits));
    let session = session(builder).await;
    let (events, outcome) = watch(session.run("the task").unwrap()).await;
    assert!(outcome.error.is_none(), "{:?}", outcome.error);
    let results: Vec<_> = results(&outcome)
        .into_iter()
        .map(|(text, _)| text)
        .collect();
    assert_eq!(
        results[0],
        "<sub_agent id=\"helper-1\" state=\"working\">\nIt has begun. You are informed when it has ended.\n\
         </sub_agent>"
    );
    let working = "<sub_agent id=\"helper-1\" state=\"working\">";
    assert!(results[1].starts_with(working), "{}", results[1]);
    assert!(
        results[2].starts_with(&format!(
            "Not ended within 0.01 s; it continues.\n{working}"
        )),
        "{}",
        results[2]
    );
    // Either the wait returns it, or it was announced before.
    assert_eq!(results[4], ENDED);
    assert_eq!(outcome.ledger.sub_agents["helper"].len(), 1);
    // Six turns here, two below.
    assert_eq!(outcome.ledger.reported_usage().total(), 8 * 15);
    assert!(events.iter().any(|event| event.depth == 1));
    session.close().await.unwrap();
}

#[tokio::test]
async fn looking_shows_turns_tokens_and_the_latest_words() {
    let permits = Arc::new(Semaphore::new(0));
    let client = Scripted::new(|turn, request| match turn {
        0 => start("s"),
        // Until it works, there is nothing to see.
        _ if last(request).contains("<doing>") => finish("seen"),
        n => calls(&[("helper", &format!("l{n}"), json!({"action": "look"}))]),
    });
    let builder = agent(&client)
        .max_turns(1000)
        .sub_agent(in_background(&helper(waits_for(&permits))));
    let session = session(builder).await;
    let outcome = outcome(session.run("the task").unwrap()).await;
    assert!(outcome.error.is_none(), "{:?}", outcome.error);
    let results = results(&outcome);
    let (seen, _) = &results[results.len() - 2];
    assert_eq!(
        seen,
        "<sub_agent id=\"helper-1\" state=\"working\">\n<turns>1</turns>\n<tokens>15</tokens>\n\
         <doing>wait</doing>\n<last_words>I begin.</last_words>\n</sub_agent>"
    );
    session.close().await.unwrap();
}

/// The text of the latest message.
fn last(request: &ChatRequest) -> String {
    match &**request.messages.last().unwrap() {
        cantle_core::message::Message::Tool(message) => message.content.text(),
        cantle_core::message::Message::User(message) => message.content.text(),
        _ => String::new(),
    }
}

#[tokio::test]
async fn the_caller_is_informed_when_one_has_ended() {
    let permits = Arc::new(Semaphore::new(1));
    let announced = "The sub-agent helper-1 has ended.\n<sub_agent_result>\n<response>helped</response>\n\
                     <finished>True</finished>\n</sub_agent_result>";
    let client = Scripted::new(move |turn, request| match turn {
        0 => start("s"),
        _ if user_messages(&request.messages)
            .iter()
            .any(|text| text == announced) =>
        {
            finish("heard")
        }
        n => calls(&[("work", &format!("w{n}"), json!({"n": n}))]),
    });
    let builder = agent(&client)
        .max_turns(100_000)
        .summarize_at(None)
        .tool(echo("work"))
        .sub_agent(in_background(&helper(waits_for(&permits))));
    let session = session(builder).await;
    let outcome = outcome(session.run("the task").unwrap()).await;
    assert!(outcome.error.is_none(), "{:?}", outcome.error);
    let times = user_messages(&outcome.history);
    let times = times.iter().filter(|text| *text == announced).count();
    assert_eq!(times, 1);
    session.close().await.unwrap();
}

#[tokio::test]
async fn working_sub_agents_are_stopped_on_demand_and_at_the_end_and_in_the_ledger() {
    let permits = Arc::new(Semaphore::new(0));
    let client = Scripted::new(|turn, request| match turn {
        0 => calls(&[
            ("helper", "a", json!({"action": "start", "task": "Help."})),
            (
                "helper",
                "b",
                json!({"action": "start", "task": "Help, too."}),
            ),
        ]),
        // Until both work.
        _ if last(request).matches("<doing>").count() == 2 => {
            calls(&[("helper", "x", json!({"action": "stop", "id": "helper-1"}))])
        }
        _ if last(request).contains("state=\"ended\"") => finish("enough"),
        n => calls(&[("helper", &format!("l{n}"), json!({"action": "look"}))]),
    });
    let builder = agent(&client)
        .max_turns(100_000)
        .summarize_at(None)
        .sub_agent(in_background(&helper(waits_for(&permits))));
    let session = session(builder).await;
    let outcome = outcome(session.run("the task").unwrap()).await;
    assert!(outcome.error.is_none(), "{:?}", outcome.error);
    let results = results(&outcome);
    let (stopped, _) = &results[results.len() - 2];
    assert!(
        stopped.contains("<error>the run was cancelled. Its last message: I begin.</error>"),
        "{stopped}"
    );
    let used = &outcome.ledger.sub_agents["helper"];
    let used: Vec<_> = used.iter().map(|it| it.reported_usage().total()).collect();
    assert_eq!(used, [15, 15]);
    session.close().await.unwrap();
}

#[tokio::test]
async fn invalid_operations_return_advice() {
    let permits = Arc::new(Semaphore::new(0));
    let client = Scripted::new(|turn, _| match turn {
        0 => calls(&[
            ("helper", "a", json!({"action": "look"})),
            ("helper", "b", json!({"action": "look", "id": "helper-7"})),
            ("helper", "c", json!({"action": "start"})),
            ("helper", "d", json!({"action": "stop"})),
        ]),
        1 => start("e"),
        2 => calls(&[("helper", "f", json!({"action": "wait", "id": "helper-7"}))]),
        _ => finish("done"),
    });
    let builder = agent(&client).sub_agent(in_background(&helper(waits_for(&permits))));
    let session = session(builder).await;
    let outcome = outcome(session.run("the task").unwrap()).await;
    let mut results = results(&outcome);
    results.remove(4);
    results.pop();
    let expected = [
        ("None was started.", true),
        (
            "It can't be done: there is no `helper-7`: none was started.",
            false,
        ),
        (
            "It can't be done: `start` needs a `task`: what to do, with everything it has to know.",
            false,
        ),
        (
            "It can't be done: `stop` needs the `id` of the one that is to end.",
            false,
        ),
        (
            "It can't be done: there is no `helper-7`; there are: helper-1.",
            false,
        ),
    ];
    let expected = expected.map(|(text, success)| (text.to_owned(), success));
    assert_eq!(results, expected);
    session.close().await.unwrap();
}

/// Opens as soon as `permits` allow it.
#[derive(Debug)]
struct OpensLate(Arc<Semaphore>);

#[async_trait]
impl ToolProvider for OpensLate {
    fn name(&self) -> &str {
        "late"
    }

    fn provides_sandbox(&self) -> bool {
        false
    }

    fn identity(&self) -> Value {
        Value::Null
    }

    fn requirements(&self) -> Requirements {
        Requirements::new()
    }

    async fn open(&self, _: OpenContext) -> Result<Box<dyn ToolSet>, ProviderError> {
        self.0.acquire().await.unwrap().forget();
        Ok(Box::new(NoTools))
    }
}

struct NoTools;

#[async_trait]
impl ToolSet for NoTools {
    fn tools(&self) -> Vec<DynTool> {
        Vec::new()
    }

    fn sandbox(&self) -> Option<Arc<dyn Sandbox>> {
        None
    }

    async fn suspend(self: Box<Self>) -> Result<(), ProviderError> {
        Ok(())
    }

    async fn close(self: Box<Self>) -> Result<(), ProviderError> {
        Ok(())
    }
}

#[tokio::test]
async fn starts_of_one_turn_keep_the_maximum_of_working_sub_agents() {
    const STARTS: usize = 20;
    const MAX_WORKING: usize = 16;
    let client = Scripted::new(|turn, _| match turn {
        0 => {
            let ids: Vec<_> = (0..STARTS).map(|number| format!("s{number}")).collect();
            let arguments = json!({"action": "start", "task": "Help."});
            let starts = ids.iter().map(|id| ("helper", &**id, arguments.clone()));
            calls(&starts.collect::<Vec<_>>())
        }
        _ => finish("done"),
    });
    let (opening, permits) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let helper = helper_builder(waits_for(&permits)).provider(OpensLate(Arc::clone(&opening)));
    let builder = agent(&client).sub_agent(in_background(&helper.build().unwrap()));
    let session = session(builder).await;
    let mut run = session.run("the task").unwrap();
    // The refused ones end before any other has opened its session.
    let refusals = async {
        let mut refused = 0;
        while refused < STARTS - MAX_WORKING {
            let event = run.next().await.unwrap();
            refused += usize::from(matches!(event.kind, EventKind::ToolFinished { .. }));
        }
    };
    tokio::time::timeout(Duration::from_secs(60), refusals)
        .await
        .unwrap();
    opening.add_permits(STARTS);
    let outcome = outcome(run).await;
    let results = results(&outcome);
    let is_refusal =
        |(text, _): &&(String, bool)| text.contains("16 sub-agents work for you already");
    assert_eq!(
        results.iter().filter(is_refusal).count(),
        STARTS - MAX_WORKING
    );
    session.close().await.unwrap();
}

/// An agent whose sub-agent has an effect, and then hangs until it is cancelled.
struct Kept {
    store: RunStore,
    hangs: Arc<AtomicBool>,
    reached: CancellationToken,
    effects: Arc<std::sync::Mutex<Vec<String>>>,
    _directory: tempfile::TempDir,
}

impl Kept {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        Self {
            store: RunStore::new(directory.path()),
            hangs: Arc::new(AtomicBool::new(true)),
            reached: CancellationToken::new(),
            effects: Arc::default(),
            _directory: directory,
        }
    }

    fn agent(&self) -> AgentBuilder {
        let effects = Arc::clone(&self.effects);
        let spec = ToolSpec::new("effect", "Has an effect.", json!({"type": "object"}));
        let effect = DynTool::from_schema(spec, move |_, _| {
            effects.lock().unwrap().push("effect".to_owned());
            async { Ok(ToolOutput::text("had")) }
        });
        let (hangs, reached) = (self.hangs.clone(), self.reached.clone());
        let spec = ToolSpec::new("wait", "Waits.", json!({"type": "object"}));
        let wait = DynTool::from_schema(spec, move |_, cx| {
            let (hangs, reached) = (hangs.clone(), reached.clone());
            async move {
                if hangs.load(Ordering::SeqCst) {
                    reached.cancel();
                    cx.cancellation.cancelled().await;
                    return Err(cantle_core::tool::ToolError::cancelled());
                }
                Ok(ToolOutput::text("waited"))
            }
        })
        .with_repeatable(true);
        let helper = Scripted::new(|turn, _| match turn {
            0 => calls(&[("effect", "a", json!({}))]),
            1 => calls(&[("wait", "b", json!({}))]),
            _ => finish("helped"),
        });
        let helper = Agent::builder("helper", helper)
            .tool(effect)
            .tool(wait)
            .finish(finish_tool())
            .turn_warning_threshold(0)
            .build()
            .unwrap();
        let client = Scripted::new(|turn, _| match turn {
            0 => start("s"),
            1 => calls(&[("helper", "w", json!({"action": "wait", "id": "helper-1"}))]),
            _ => finish("done"),
        });
        agent(&client).sub_agent(in_background(&helper))
    }

    /// A run that waits for its sub-agent, which hangs.
    async fn hanging(&self) -> (Session, Run) {
        let options = SessionOptions::default().kept_in(self.store.clone(), Value::Null);
        let session = self
            .agent()
            .build()
            .unwrap()
            .session(options)
            .await
            .unwrap();
        let mut run = session.run("the task").unwrap();
        let waits = async {
            while let Some(event) = run.next().await {
                if matches!(event.kind, EventKind::ToolStarted { ref call_id, .. } if call_id == "w")
                {
                    break;
                }
            }
            self.reached.cancelled().await;
        };
        tokio::time::timeout(Duration::from_secs(120), waits)
            .await
            .unwrap();
        (session, run)
    }

    /// Goes on, and no call of the sub-agent hangs any more.
    async fn go_on(&self, run: RunId) {
        self.hangs.store(false, Ordering::SeqCst);
        let agent = self.agent().build().unwrap();
        let deadline = tokio::time::Instant::now() + Duration::from_secs(120);
        let session = loop {
            match agent
                .resume(&self.store, run, ResumeOptions::default())
                .await
            {
                Ok(session) => break session,
                Err(error) => assert!(tokio::time::Instant::now() < deadline, "{error}"),
            }
            tokio::task::yield_now().await;
        };
        let outcome = outcome(session.resume().unwrap()).await;
        assert!(outcome.error.is_none(), "{:?}", outcome.error);
        assert_eq!(*self.effects.lock().unwrap(), ["effect"]);
        let results = results(&outcome);
        assert_eq!(results[1], (ENDED.to_owned(), true));
        // Three turns above, three below, each counted once.
        assert_eq!(outcome.ledger.reported_usage().total(), 6 * 15);
        assert_eq!(self.store.get(run).unwrap().tokens, 6 * 15);
        session.close().await.unwrap();
    }
}

#[tokio::test]
async fn a_background_sub_agent_resumes_after_its_caller_was_killed() {
    let kept = Kept::new();
    let (session, run) = kept.hanging().await;
    let id = run.id();
    drop(run);
    drop(session);
    kept.go_on(id).await;
}

#[tokio::test]
async fn a_background_sub_agent_resumes_after_its_caller_was_cancelled_and_counts_meanwhile() {
    let kept = Kept::new();
    let (session, run) = kept.hanging().await;
    let id = run.id();
    run.cancel();
    let outcome = outcome(run).await;
    assert_eq!(outcome.error.unwrap().kind(), RunErrorKind::Cancelled);
    // Two turns above, two below.
    assert_eq!(outcome.ledger.reported_usage().total(), 4 * 15);
    assert_eq!(kept.store.get(id).unwrap().tokens, 4 * 15);
    session.close().await.unwrap();
    kept.go_on(id).await;
}
