//! Use of a provider by a session: open it, call its tool, close it.

use std::sync::{Arc, Mutex};

use cantle_backends_local::LocalBackend;
use cantle_core::ids::RunId;
use cantle_core::sandbox::Sandbox;
use cantle_core::tool::{
    DynTool, OpenContext, Progress, ToolContext, ToolError, ToolOutput, ToolProvider as _, ToolSet,
};
use cantle_tools::CodeExec;
use serde_json::{Value, json};
use tokio::sync::Notify;

pub(crate) fn provider() -> CodeExec {
    CodeExec::new(LocalBackend::new())
}

pub(crate) struct Session {
    tools: Box<dyn ToolSet>,
}

impl Session {
    pub(crate) async fn open(provider: CodeExec) -> Self {
        let tools = provider.open(OpenContext::new(RunId::new())).await;
        Self {
            tools: tools.expect("the sandbox opens"),
        }
    }

    pub(crate) fn sandbox(&self) -> Arc<dyn Sandbox> {
        self.tools.sandbox().expect("a sandbox")
    }

    pub(crate) fn tool(&self) -> DynTool {
        self.tools.tools().remove(0)
    }

    pub(crate) fn context(&self) -> ToolContext {
        let mut cx = ToolContext::new(RunId::new(), "call-1");
        cx.sandbox = Some(self.sandbox());
        cx
    }

    /// Runs a command; returns its output for the model.
    pub(crate) async fn run(&self, cmd: &str) -> ToolOutput {
        let result = call(&self.tool(), json!({"cmd": cmd}), self.context()).await;
        result.expect("the tool works")
    }

    pub(crate) async fn close(self) {
        self.tools.close().await.expect("nothing is left behind");
    }
}

pub(crate) async fn call(
    tool: &DynTool,
    arguments: Value,
    cx: ToolContext,
) -> Result<ToolOutput, ToolError> {
    let arguments = tool.parse(&arguments.to_string())?.arguments;
    tool.call(arguments, cx).await
}

/// Receives the output of a call while it runs.
#[derive(Debug, Default)]
pub(crate) struct Watcher {
    seen: Mutex<String>,
    news: Notify,
}

impl Watcher {
    pub(crate) fn seen(&self) -> String {
        self.seen.lock().expect("no panic").clone()
    }

    pub(crate) async fn wait_for(&self, text: &str) {
        while !self.seen().contains(text) {
            self.news.notified().await;
        }
    }
}

impl Progress for Watcher {
    fn output(&self, text: &str) {
        self.seen.lock().expect("no panic").push_str(text);
        self.news.notify_one();
    }
}
