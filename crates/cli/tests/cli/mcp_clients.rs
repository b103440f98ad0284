//! The MCP project's own clients, its Python SDK and its inspector, with `cantle mcp` and `/mcp` of `cantle serve`.

use cantle_testkit::lane;
use cantle_testkit::openai::{Script, ScriptedServer, ToolCall, Turn};
use serde_json::{Value, json};

use crate::finish;
use crate::serve_mcp::Server;
use crate::support::{TestEnv, wait_for_exit};

/// Uses the tools of a server, a program or an address, in both revisions of the protocol, and prints what it got.
const SDK: &str = r#"
import asyncio, json, sys
import httpx2
from mcp import StdioServerParameters
from mcp.client.client import Client
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client

async def use(transport, mode):
    async with Client(transport, mode=mode) as client:
        names = [tool.name for tool in (await client.list_tools()).tools]
        written = await client.call_tool("write_file", {"path": "data.txt", "content": "forty-two"})
        # Without a session, the result names the sandbox.
        named = [block.text.split("`")[1] for block in written.content[1:]]
        where = {"sandbox": named[0]} if named else {}
        shown = await client.call_tool("run_command", {"command": "cat data.txt; exit 3", **where})
        missing = await client.call_tool("read_file", {"path": "missing"})
        print(json.dumps([names, shown.content[0].text, shown.is_error, missing.is_error]))

async def main():
    server, key = sys.argv[1:]
    for mode in ["legacy", "2026-07-28"]:
        if server.startswith("http"):
            async with httpx2.AsyncClient(headers={"authorization": f"Bearer {key}"}) as http:
                await use(streamable_http_client(server, http_client=http), mode)
        else:
            await use(stdio_client(StdioServerParameters(command=server, args=["mcp"])), mode)

asyncio.run(main())
"#;

const TOOLS: [&str; 5] = [
    "run_command",
    "run_python",
    "read_file",
    "write_file",
    "list_files",
];

/// Runs the script, and checks what it printed.
async fn use_by_sdk(python: &str, env: &TestEnv, server: &str, key: &str) {
    let mut client = env.command_of(python);
    client.args(["-c", SDK, server, key]);
    let exited = wait_for_exit(client.spawn().unwrap()).await;
    assert_eq!(exited.code, Some(0), "{exited:?}");
    let shown = "<shell_results>\n<exit_code>3</exit_code>\n<stdout>forty-two</stdout>\n<stderr></stderr>\n</shell_results>";
    let expected = json!([TOOLS, shown, false, true]);
    let lines = exited.stdout.lines();
    let got: Vec<Value> = lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(got, [expected.clone(), expected], "{exited:?}");
    assert!(!exited.stderr.contains("failed"), "{exited:?}");
}

#[tokio::test]
async fn python_sdk_uses_the_tools() {
    let Ok(python) = std::env::var("CANTLE_TEST_MCP_PYTHON") else {
        return lane::skip("MCP's Python SDK belongs to the full lane");
    };
    let env = TestEnv::new();
    use_by_sdk(&python, &env, env!("CARGO_BIN_EXE_cantle"), "").await;
    let server = Server::start().await;
    let address = format!("http://{}/mcp", server.address);
    use_by_sdk(&python, &env, &address, "one").await;
    server.stop().await;
}

#[tokio::test]
async fn inspector_uses_the_tools() {
    let Ok(inspector) = std::env::var("CANTLE_TEST_MCP_INSPECTOR") else {
        return lane::skip("MCP's inspector belongs to the full lane");
    };
    let env = TestEnv::new();
    let inspect = async |arguments: &[&str]| -> Value {
        let mut client = env.command_of(&inspector);
        client.args(["--cli", env!("CARGO_BIN_EXE_cantle"), "mcp"]);
        let exited = wait_for_exit(client.args(arguments).spawn().unwrap()).await;
        assert_eq!(exited.code, Some(0), "{exited:?}");
        serde_json::from_str(&exited.stdout).unwrap()
    };
    let listed = inspect(&["--method", "tools/list"]).await;
    let names = listed["tools"].as_array().unwrap().iter();
    assert!(names.map(|tool| &tool["name"]).eq(&TOOLS), "{listed}");
    let call = ["--method", "tools/call", "--tool-name", "run_command"];
    let arguments = ["--tool-arg", "command=echo $((6*7))"];
    let called = inspect(&[&call[..], &arguments].concat()).await;
    let text = called["content"][0]["text"].as_str().unwrap();
    assert!(text.contains("<stdout>42\n</stdout>"), "{called}");
}

/// Codex's client is made with the Rust SDK, too.
#[tokio::test]
async fn rust_sdk_uses_the_tools() {
    let call = |name: &str, arguments: Value| Turn::tool(ToolCall::new(name, arguments));
    let code = json!({"code": "open('data.txt').read() * 2"});
    let script = Script::new()
        .turn(call(
            "box__write_file",
            json!({"path": "data.txt", "content": "ab"}),
        ))
        .turn(call("box__run_python", code))
        .turn(finish("Done.", &[]));
    let model = ScriptedServer::start(script).await.unwrap();
    let env = TestEnv::new().with_server(&model.url());
    let program = env!("CARGO_BIN_EXE_cantle");
    let servers =
        json!({"mcpServers": {"box": {"command": program, "args": ["mcp"], "where": "host"}}});
    env.write("servers.json", servers.to_string());
    let exited = env
        .run(["run", "Use the box", "--mcp", "servers.json"])
        .await;
    assert_eq!(exited.code, Some(0), "{exited:?}");
    let messages = model.requests()[2].body()["messages"].to_string();
    assert!(messages.contains("'abab'"), "{messages}");
}
