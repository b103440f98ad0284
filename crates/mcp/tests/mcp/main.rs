//! Real MCP servers: in sandboxes of this machine, and over HTTP on this machine's loopback interface.
#![cfg(target_os = "linux")]
#![expect(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stderr,
    clippy::unwrap_used,
    reason = "clippy knows tests by their attribute, and not the functions they call"
)]

mod changes;
mod conformance;
mod hostile;
mod http;
mod peer;
mod playwright;
mod server;
mod stdio;

use cantle_backends_local::LocalBackend;
use cantle_core::ids::RunId;
use cantle_core::tool::{
    DynTool, OpenContext, ToolContext, ToolOutput, ToolProvider as _, ToolSet,
};
use cantle_mcp::{McpServer, McpTools};
use serde_json::Value;

/// The test server of this program, in a sandbox.
pub(crate) fn own_server(name: &str) -> McpServer {
    McpServer::from_json(
        &own_config(name, r#""env": {"TOKEN": "${SECRET}"}"#),
        |name| (name == "SECRET").then(|| "s3cret".to_owned()),
    )
    .expect("the configuration is valid")
    .remove(0)
}

/// An `mcp.json` with the test server, and further keys of its entry.
pub(crate) fn own_config(name: &str, more: &str) -> String {
    let program = std::env::current_exe().expect("this program has a path");
    let directory = program.parent().expect("it is in a directory");
    format!(
        r#"{{"mcpServers": {{{name:?}: {{
            "command": {program:?},
            "args": ["server::over_stdio", "--exact", "--ignored", "--nocapture", "--test-threads=2"],
            "policy": {{"read_roots": [{directory:?}]}}, {more}}}}}}}"#
    )
}

/// A server that is a script for bash, with functions to read requests and to answer them.
pub(crate) fn script(script: &str) -> McpServer {
    const FUNCTIONS: &str = r#"
        reply() { printf '{"jsonrpc":"2.0","id":%s,"result":%s}\n' "$id" "$1"; }
        next() {
            while read -r line; do
                case $line in *'"method":"'"$1"'"'*)
                    id=${line#*\"id\":}; id=${id%%[,\}]*}; return ;;
                esac
            done
            exit 0
        }
        greet() {
            next initialize
            reply '{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"s","version":"1"}}'
        }
        offer() { next tools/list; reply '{"tools":[{"name":"work","inputSchema":{"type":"object"}}]}'; }
    "#;
    McpServer::command("s", ["bash", "-c", &format!("{FUNCTIONS}\n{script}")])
}

pub(crate) fn provider(servers: impl IntoIterator<Item = McpServer>) -> McpTools {
    McpTools::new(servers)
        .sandboxes(LocalBackend::new())
        .images(true)
}

pub(crate) async fn open(server: McpServer) -> Box<dyn ToolSet> {
    let opened = provider([server])
        .open(OpenContext::new(RunId::new()))
        .await;
    opened.unwrap_or_else(|error| panic!("{error}"))
}

/// Opens a server that must fail, and returns the error.
pub(crate) async fn refused(server: McpServer) -> String {
    match provider([server])
        .open(OpenContext::new(RunId::new()))
        .await
    {
        Ok(_) => panic!("the server was accepted"),
        Err(error) => error.to_string(),
    }
}

pub(crate) fn context() -> ToolContext {
    ToolContext::new(RunId::new(), "call-1")
}

pub(crate) fn tool(set: &dyn ToolSet, name: &str) -> DynTool {
    let tools = set.tools();
    let found = tools.into_iter().find(|tool| tool.name() == name);
    found.unwrap_or_else(|| panic!("there is no tool {name}"))
}

pub(crate) async fn call(set: &dyn ToolSet, name: &str, arguments: Value) -> ToolOutput {
    call_with(set, name, arguments, context()).await
}

pub(crate) async fn call_with(
    set: &dyn ToolSet,
    name: &str,
    arguments: Value,
    cx: ToolContext,
) -> ToolOutput {
    let called = tool(set, name).call(arguments, cx).await;
    called.unwrap_or_else(|error| panic!("{error}"))
}
