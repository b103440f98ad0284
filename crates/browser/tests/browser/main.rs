//! A real Chromium in sandboxes, most of them of this machine and without network, and a web site inside of each.
#![cfg(target_os = "linux")]
#![expect(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "clippy knows tests by their attribute, and not the functions they call"
)]

mod container;
mod hostile;
mod network;
mod pages;
mod recovery;
mod settings;

use std::sync::Arc;

use cantle_backends_local::LocalBackend;
use cantle_browser::BrowserTools;
use cantle_core::ids::RunId;
use cantle_core::policy::Policy;
use cantle_core::sandbox::{Backend, Process, Sandbox, SandboxContext, SpawnRequest};
use cantle_core::tool::{
    OpenContext, ToolContext, ToolError, ToolOutput, ToolProvider as _, ToolSet,
};
use cantle_testkit::lane;
use futures_util::StreamExt as _;
use serde_json::{Value, json};

/// A sandbox with the site of the tests, and the browser's tools.
pub(crate) struct Fixture {
    pub(crate) sandbox: Arc<dyn Sandbox>,
    pub(crate) set: Box<dyn ToolSet>,
    /// The address of the site.
    pub(crate) site: String,
    run: RunId,
    _server: Box<dyn Process>,
}

impl Fixture {
    /// Opens a sandbox without network; `None` without Chromium.
    pub(crate) async fn open(configure: impl FnOnce(BrowserTools) -> BrowserTools) -> Option<Self> {
        Self::open_in(&LocalBackend::new(), Policy::workspace(), configure).await
    }

    /// Opens a sandbox of a backend with a policy; `None` without Chromium.
    pub(crate) async fn open_in(
        backend: &dyn Backend,
        policy: Policy,
        configure: impl FnOnce(BrowserTools) -> BrowserTools,
    ) -> Option<Self> {
        if !has_chromium() {
            return None;
        }
        let run = RunId::new();
        let context = SandboxContext::new(run, policy);
        let sandbox = backend.open(context).await.unwrap();
        let server = SpawnRequest::argv(["python3", "-c", include_str!("site.py")]);
        let mut server = sandbox.spawn(server).await.unwrap();
        let mut port = String::new();
        let mut output = server.take_output().unwrap();
        while !port.ends_with('\n') {
            let chunk = output.next().await.expect("the site starts").unwrap();
            port.push_str(&String::from_utf8_lossy(&chunk.bytes));
        }
        let mut context = OpenContext::new(run);
        context.sandbox = Some(Arc::clone(&sandbox));
        let tools = configure(BrowserTools::new());
        Some(Self {
            set: tools.open(context).await.unwrap(),
            sandbox,
            site: format!("http://127.0.0.1:{}", port.trim()),
            run,
            _server: server,
        })
    }

    pub(crate) async fn try_call(
        &self,
        name: &str,
        arguments: Value,
    ) -> Result<ToolOutput, ToolError> {
        let tools = self.set.tools();
        let tool = tools.iter().find(|tool| tool.name().ends_with(name));
        let tool = tool.expect("the tool exists");
        let arguments = tool.parse(&arguments.to_string()).unwrap().arguments;
        tool.call(arguments, ToolContext::new(self.run, "call"))
            .await
    }

    /// Calls a tool and returns the text of its success.
    pub(crate) async fn call(&self, name: &str, arguments: Value) -> String {
        let output = self.try_call(name, arguments).await.unwrap();
        assert!(output.success, "{output:?}");
        output.content.text()
    }

    /// Calls a tool and returns the text of its failure.
    pub(crate) async fn refused(&self, name: &str, arguments: Value) -> String {
        let output = self.try_call(name, arguments).await.unwrap();
        assert!(!output.success, "{output:?}");
        output.content.text()
    }

    pub(crate) async fn navigate(&self, path: &str) -> String {
        let url = format!("{}{path}", self.site);
        self.call("_navigate", json!({"url": url})).await
    }

    /// Returns the first result with a text: that of a call which was made, or of one of the next.
    pub(crate) async fn until(&self, text: &str, mut result: String) -> String {
        for _ in 0..30 {
            if result.contains(text) {
                break;
            }
            result = self.call("_wait", json!({"seconds": 1})).await;
        }
        assert!(result.contains(text), "{result}");
        result
    }

    pub(crate) async fn close(self) {
        self.set.close().await.unwrap();
        self.sandbox.close().await.unwrap();
    }
}

/// Returns whether Chromium is installed, and reports it otherwise.
pub(crate) fn has_chromium() -> bool {
    let is_installed = std::env::var_os("CANTLE_TEST_CHROMIUM").is_some();
    if !is_installed {
        lane::skip("the peer chromium is not available");
    }
    is_installed
}

/// Returns the reference of the line of a snapshot with this text.
pub(crate) fn reference(snapshot: &str, text: &str) -> String {
    let line = snapshot
        .lines()
        .find(|line| line.contains(text) && line.contains("[ref="));
    let line = line.unwrap_or_else(|| panic!("no {text:?} in {snapshot}"));
    let (_, after) = line.split_once("[ref=").unwrap();
    after.split(']').next().unwrap().to_owned()
}
