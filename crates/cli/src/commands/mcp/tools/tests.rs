use async_trait::async_trait;
use cantle::backends::local::LocalBackend;
use cantle::core::sandbox::{SandboxContext, SandboxErrorKind, SandboxHandle};
use serde_json::Value;
use tokio::time::{sleep, timeout};

use super::*;

const DEADLINE: Duration = Duration::from_secs(60);

async fn run(tools: &SandboxTools, command: &str) -> Result<ToolOutput, ToolError> {
    call(tools, "run_command", json!({"command": command})).await
}

async fn call(tools: &SandboxTools, name: &str, arguments: Value) -> Result<ToolOutput, ToolError> {
    let mut tools = tools.list().into_iter();
    let tool = tools.find(|tool| tool.name() == name).unwrap();
    let cx = ToolContext::new(RunId::new(), "call-1");
    tool.call(tool.parse(&arguments.to_string())?.arguments, cx)
        .await
}

#[tokio::test(flavor = "multi_thread")]
async fn unused_sandbox_is_closed_and_the_next_call_says_so() {
    let backend = Arc::new(LocalBackend::new());
    let idle = Some(Duration::from_millis(100));
    let tools = SandboxTools::new(backend, Policy::workspace(), None, idle);
    // A call that takes longer than that keeps the sandbox.
    let output = run(&tools, "echo kept > file; sleep 1; cat file").await;
    let output = output.unwrap().content.text();
    assert!(output.contains("kept"), "{output}");
    let closed = async {
        while !matches!(*tools.0.state.lock().await, State::Expired) {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(DEADLINE, closed).await.unwrap();
    let refused = run(&tools, "cat file").await.unwrap_err();
    assert!(refused.to_string().contains("closed"), "{refused}");
    let output = run(&tools, "cat file").await.unwrap().content.text();
    assert!(output.contains("No such file"), "{output}");
    tools.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn each_call_is_a_use_of_the_sandbox() {
    let backend = Arc::new(LocalBackend::new());
    let tools = SandboxTools::new(backend, Policy::workspace(), None, None);
    let mut latest = None;
    for _ in 0..3 {
        // Too short to be seen running.
        call(&tools, "list_files", json!({})).await.unwrap();
        let state = tools.0.state.lock().await;
        let State::Open(opened) = &*state else {
            panic!("the sandbox is not open");
        };
        let used = Some(*opened.used.lock());
        assert!(used > latest, "{used:?} after {latest:?}");
        latest = used;
    }
    tools.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_range_after_the_end_of_a_file_is_reported() {
    let backend = Arc::new(LocalBackend::new());
    let tools = SandboxTools::new(backend, Policy::workspace(), None, None);
    run(&tools, "printf text > file").await.unwrap();
    let read = async |start: u64| {
        let arguments = json!({"path": "file", "start": start});
        let output = call(&tools, "read_file", arguments).await;
        output.unwrap().content.text()
    };
    assert_eq!(read(2).await, "xt");
    for start in [4, 5000] {
        let note = format!("(no bytes from {start} on: the file ends there or before)");
        assert_eq!(read(start).await, note);
    }
    tools.close().await.unwrap();
}

#[tokio::test]
async fn an_empty_range_of_a_file_is_refused() {
    let tools = SandboxTools::new(Arc::new(Unavailable), Policy::workspace(), None, None);
    let arguments = json!({"path": "file", "length": 0});
    let refused = call(&tools, "read_file", arguments).await.unwrap_err();
    assert_eq!(refused.to_string(), "Argument `length`: at least 1 byte.");
}

/// A backend that opens no sandbox.
#[derive(Debug)]
struct Unavailable;

impl Unavailable {
    fn refused() -> Result<Arc<dyn Sandbox>, SandboxError> {
        let kind = SandboxErrorKind::Unavailable;
        Err(SandboxError::new(kind, "there is no engine"))
    }
}

#[async_trait]
impl Backend for Unavailable {
    fn name(&self) -> &str {
        "unavailable"
    }

    async fn open(&self, _: SandboxContext) -> Result<Arc<dyn Sandbox>, SandboxError> {
        Self::refused()
    }

    async fn reattach(
        &self,
        _: &SandboxHandle,
        _: SandboxContext,
    ) -> Result<Arc<dyn Sandbox>, SandboxError> {
        Self::refused()
    }
}

#[tokio::test]
async fn failure_to_open_a_sandbox_is_reported_without_a_gap() {
    let tools = SandboxTools::new(Arc::new(Unavailable), Policy::workspace(), None, None);
    let refused = run(&tools, "true").await.unwrap_err();
    assert_eq!(refused.to_string(), "there is no engine");
}
