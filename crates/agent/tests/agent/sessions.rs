//! Sessions: what is opened, in which order, and that it is closed again.

use std::sync::{Arc, Mutex};

use crate::support::{Scripted, agent, finish, finish_tool, outcome, text};
use async_trait::async_trait;
use cantle_agent::{Agent, ResumeOptions, RunStore, SessionErrorKind, SessionOptions};
use cantle_core::message::{AssistantBlock, AssistantMessage, Message};
use cantle_core::sandbox::Sandbox;
use cantle_core::tool::{
    DynTool, OpenContext, ProviderError, Requirements, ToolOutput, ToolProvider, ToolSet, ToolSpec,
};
use serde_json::{Value, json};

type Log = Arc<Mutex<Vec<String>>>;

#[derive(Debug)]
struct Provider {
    name: &'static str,
    tool: &'static str,
    fails: bool,
    log: Log,
}

struct Set {
    name: &'static str,
    tool: &'static str,
    log: Log,
}

fn provider(log: &Log, name: &'static str) -> Provider {
    Provider {
        name,
        tool: name,
        fails: false,
        log: Arc::clone(log),
    }
}

#[async_trait]
impl ToolProvider for Provider {
    fn name(&self) -> &str {
        self.name
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
        self.log.lock().unwrap().push(format!("open {}", self.name));
        if self.fails {
            return Err(ProviderError::new("the port is taken"));
        }
        Ok(Box::new(Set {
            name: self.name,
            tool: self.tool,
            log: Arc::clone(&self.log),
        }))
    }
}

#[async_trait]
impl ToolSet for Set {
    fn tools(&self) -> Vec<DynTool> {
        let spec = ToolSpec::new(self.tool, "A test.", json!({}));
        vec![DynTool::from_schema(spec, |_, _| async {
            Ok(ToolOutput::text("ok"))
        })]
    }

    fn sandbox(&self) -> Option<Arc<dyn Sandbox>> {
        None
    }

    async fn suspend(self: Box<Self>) -> Result<(), ProviderError> {
        let entry = format!("suspend {}", self.name);
        self.log.lock().unwrap().push(entry);
        Ok(())
    }

    async fn close(self: Box<Self>) -> Result<(), ProviderError> {
        self.log
            .lock()
            .unwrap()
            .push(format!("close {}", self.name));
        match self.name {
            "b" => Err(ProviderError::new("b would not close")),
            _ => Ok(()),
        }
    }
}

#[tokio::test]
async fn providers_close_in_reverse_order_and_all_errors_are_reported() {
    let log = Log::default();
    let client = Scripted::new(|_, _| finish("done"));
    let agent = agent(&client)
        .provider(provider(&log, "a"))
        .provider(provider(&log, "b"));
    let session = crate::support::session(agent).await;
    let error = session.close().await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "failed to close the session: b: b would not close"
    );
    assert_eq!(
        *log.lock().unwrap(),
        ["open a", "open b", "close b", "close a"]
    );
}

#[tokio::test]
async fn what_a_different_agent_opened_to_resume_a_run_is_closed() {
    let directory = tempfile::tempdir().unwrap();
    let store = RunStore::new(directory.path());
    let log = Log::default();
    let agent = |model: &str| {
        let client = Scripted::new(|_, _| text("done?")).named(model);
        let agent = agent(&client).provider(provider(&log, "a"));
        agent.max_turns(1).build().unwrap()
    };
    let options = SessionOptions::default().kept_in(store.clone(), Value::Null);
    let session = agent("one").session(options).await.unwrap();
    let run = outcome(session.run("the task").unwrap()).await.run;
    session.close().await.unwrap();
    log.lock().unwrap().clear();
    let other = agent("other");
    let resumed = other.resume(&store, run, ResumeOptions::default());
    let error = resumed.await.unwrap_err();
    assert_eq!(error.kind(), SessionErrorKind::Identity, "{error}");
    assert_eq!(*log.lock().unwrap(), ["open a", "close a"]);
}

#[tokio::test]
async fn opened_providers_are_closed_when_a_later_one_fails() {
    let log = Log::default();
    let client = Scripted::new(|_, _| finish("done"));
    let broken = Provider {
        fails: true,
        ..provider(&log, "broken")
    };
    let agent = agent(&client)
        .provider(provider(&log, "a"))
        .provider(broken)
        .build()
        .unwrap();
    let error = agent.session(SessionOptions::default()).await.unwrap_err();
    assert_eq!(error.kind(), SessionErrorKind::Provider);
    assert_eq!(
        error.to_string(),
        "failed to open broken: the port is taken"
    );
    assert_eq!(*log.lock().unwrap(), ["open a", "open broken", "close a"]);
}

#[tokio::test]
async fn two_tools_with_one_name_are_refused_whoever_brings_them() {
    let log = Log::default();
    let client = Scripted::new(|_, _| finish("done"));
    let clash = Provider {
        tool: "finish",
        ..provider(&log, "clash")
    };
    let with_clash = agent(&client).provider(clash).build().unwrap();
    let error = with_clash
        .session(SessionOptions::default())
        .await
        .unwrap_err();
    assert_eq!(error.to_string(), "two tools are called `finish`");
    assert_eq!(*log.lock().unwrap(), ["open clash", "close clash"]);

    let error = agent(&client).finish(finish_tool()).build().unwrap_err();
    assert_eq!(error.to_string(), "two tools are called `finish`");
}

#[tokio::test]
async fn a_definition_that_makes_no_sense_is_refused() {
    let client = Scripted::new(|_, _| finish("done"));
    let build = |name: &str| {
        Agent::builder(name, client.clone())
            .finish(finish_tool())
            .build()
    };
    for name in ["", "a b", "ä", &"x".repeat(129)] {
        let error = build(name).unwrap_err().to_string();
        assert!(
            error.contains("must be 1 to 128 letters, digits, `_` or `-`"),
            "{error}"
        );
    }
    assert!(build(&"x".repeat(128)).is_ok());
    let none = Agent::builder("test", client.clone()).build().unwrap_err();
    assert_eq!(
        none.to_string(),
        "an agent needs at least one finish tool; `Finish` is the usual one"
    );
    let never = agent(&client).max_turns(0).build().unwrap_err();
    assert_eq!(never.to_string(), "max_turns must be at least 1");
}

#[tokio::test]
async fn a_given_history_is_continued_under_our_own_system_message() {
    let client = Scripted::new(|turn, request| {
        let systems = request
            .messages
            .iter()
            .filter(|m| matches!(&***m, Message::System(_)));
        finish(&format!("turn {turn}, {} system messages", systems.count()))
    });
    let history = vec![
        Message::system("an older prompt"),
        Message::user("an older task"),
        AssistantMessage::new(vec![AssistantBlock::text("an older answer")]).into(),
    ];
    let agent = agent(&client).build().unwrap();
    let session = agent
        .session(SessionOptions::default().history(history))
        .await
        .unwrap();
    let outcome = outcome(session.run("the task").unwrap()).await;
    assert_eq!(
        outcome.finish.unwrap().params["reason"],
        "turn 1, 1 system messages"
    );
}

#[tokio::test]
async fn wrong_inputs_and_outputs_are_found_before_anything_is_opened() {
    let log = Log::default();
    let client = Scripted::new(|_, _| finish("done"));
    let agent = agent(&client)
        .provider(provider(&log, "a"))
        .build()
        .unwrap();
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    std::fs::create_dir_all(at("x")).unwrap();
    std::fs::create_dir_all(at("y")).unwrap();
    std::fs::write(at("x/data.csv"), "x").unwrap();
    std::fs::write(at("y/data.csv"), "y").unwrap();
    std::fs::write(at("plain"), "").unwrap();

    let open = |options| agent.session(options);
    let options = SessionOptions::default;
    let missing = open(options().input_file(at("nothing"))).await.unwrap_err();
    assert_eq!(missing.kind(), SessionErrorKind::Input);
    assert!(
        missing
            .to_string()
            .contains("nothing` can't be read: No such file"),
        "{missing}"
    );
    let no_match = open(options().input_file(at("*.parquet")))
        .await
        .unwrap_err();
    assert!(
        no_match.to_string().contains("*.parquet` matches no file"),
        "{no_match}"
    );
    let clash = options()
        .input_file(at("x/data.csv"))
        .input_file(at("y/data.csv"));
    let clash = open(clash).await.unwrap_err();
    assert!(
        clash
            .to_string()
            .contains("would both be `data.csv` in the sandbox"),
        "{clash}"
    );
    let output = open(options().output_dir(at("plain/out")))
        .await
        .unwrap_err();
    assert_eq!(output.kind(), SessionErrorKind::Output);
    assert_eq!(*log.lock().unwrap(), Vec::<String>::new());

    let no_sandbox = open(options().input_file(at("x/*.csv"))).await.unwrap_err();
    let expected = "input files need a sandbox: give the agent a `CodeExec` provider";
    assert_eq!(no_sandbox.to_string(), expected);
    assert_eq!(*log.lock().unwrap(), ["open a", "close a"]);
}
