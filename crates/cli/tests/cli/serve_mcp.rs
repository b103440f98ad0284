//! `/mcp` of `cantle serve`, with raw requests, and with `cantle run --mcp` as its client.

use cantle_testkit::openai::{Script, ScriptedServer, ToolCall, Turn};
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::process::Child;
use tokio::time::timeout;

use crate::finish;
use crate::support::{DEADLINE, TestEnv, send, until, wait_for_exit};

const WORKSPACES: &str = ".local/state/cantle/serve-workspaces";

/// A running server with two keys.
pub(crate) struct Server {
    env: TestEnv,
    child: Child,
    pub(crate) address: String,
}

/// The status of an answer, its head and its body.
struct Answer {
    status: u16,
    head: String,
    body: String,
}

impl Answer {
    /// The id of the session that the handshake began.
    fn session(&self) -> String {
        let line = self
            .head
            .lines()
            .find_map(|line| line.strip_prefix("mcp-session-id: "));
        line.unwrap_or_else(|| panic!("{}", self.head)).to_owned()
    }

    /// The texts of the result of a call.
    fn text(&self) -> String {
        let is_answer = |line: &&str| line.contains("\"result\"") || line.contains("\"error\"");
        let line = self.body.lines().find(is_answer);
        let line = line.unwrap_or_else(|| panic!("{} {}", self.status, self.body));
        let json: Value =
            serde_json::from_str(line.strip_prefix("data: ").unwrap_or(line)).unwrap();
        let content = json["result"]["content"].as_array();
        let content = content.unwrap_or_else(|| panic!("{json}"));
        let texts = content.iter().filter_map(|block| block["text"].as_str());
        texts.collect()
    }
}

impl Server {
    pub(crate) async fn start() -> Self {
        let env = TestEnv::new();
        env.write("keys", "one\ntwo\n");
        let args = ["serve", "--listen", "127.0.0.1:0", "--key-file", "keys"];
        let mut child = env.command(args).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.as_mut().unwrap()).lines();
        let line = timeout(DEADLINE, lines.next_line()).await.unwrap();
        let line = line.unwrap().unwrap();
        let address = line.strip_prefix("listening on ").unwrap();
        let address = address.split_once(": ").unwrap().0.to_owned();
        Self {
            env,
            child,
            address,
        }
    }

    async fn request(&self, method: &str, headers: &[(&str, &str)], body: &str) -> Answer {
        let mut connection = TcpStream::connect(&self.address).await.unwrap();
        let mut request = format!(
            "{method} /mcp HTTP/1.1\r\nhost: {}\r\nconnection: close\r\naccept: application/json, text/event-stream\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n",
            self.address,
            body.len()
        );
        for (name, value) in headers {
            request += &format!("{name}: {value}\r\n");
        }
        request += &format!("\r\n{body}");
        connection.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        let reading = timeout(DEADLINE, connection.read_to_string(&mut answer)).await;
        reading.unwrap().unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        Answer {
            status,
            head: head.to_lowercase(),
            body: body.to_owned(),
        }
    }

    /// Begins a session, and returns its id.
    async fn begin(&self, key: &str) -> String {
        let key = format!("Bearer {key}");
        let initialize = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
            "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"},
        }});
        let headers = [("authorization", &*key)];
        let begun = self
            .request("POST", &headers, &initialize.to_string())
            .await;
        assert_eq!(begun.status, 200, "{}", begun.body);
        let session = begun.session();
        let initialized = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
        let headers = [("authorization", &*key), ("mcp-session-id", &session)];
        let answer = self
            .request("POST", &headers, &initialized.to_string())
            .await;
        assert_eq!(answer.status, 202, "{}", answer.body);
        session
    }

    async fn run_command(&self, key: &str, session: &str, command: &str) -> Answer {
        let call = json!({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {
            "name": "run_command", "arguments": {"command": command},
        }});
        let headers = [("x-api-key", key), ("mcp-session-id", session)];
        self.request("POST", &headers, &call.to_string()).await
    }

    fn workspaces(&self) -> usize {
        self.env.list(WORKSPACES).len()
    }

    pub(crate) async fn stop(self) {
        send(&self.child, Signal::TERM);
        let exited = wait_for_exit(self.child).await;
        assert_eq!(exited.code, Some(0), "{exited:?}");
        assert_eq!(self.env.list(WORKSPACES), [""; 0]);
    }
}

#[tokio::test]
async fn each_session_has_a_sandbox_that_no_other_key_reaches() {
    let server = Server::start().await;
    let (first, second) = (server.begin("one").await, server.begin("one").await);
    // The first call opens it.
    assert_eq!(server.workspaces(), 0);
    let written = server
        .run_command("one", &first, "echo mine > file; echo done")
        .await;
    assert!(written.text().contains("done"), "{}", written.body);
    let again = server.run_command("one", &first, "cat file").await;
    assert!(again.text().contains("mine"), "{}", again.body);
    let other = server
        .run_command("one", &second, "cat file || echo none")
        .await;
    assert!(other.text().contains("none"), "{}", other.body);
    assert_eq!(server.workspaces(), 2);

    let foreign = server.run_command("two", &first, "cat file").await;
    assert_eq!(foreign.status, 404, "{}", foreign.body);
    let unknown = server.run_command("three", &first, "cat file").await;
    assert_eq!(unknown.status, 401, "{}", unknown.body);

    // The end of a session removes its sandbox.
    let headers = [("x-api-key", "one"), ("mcp-session-id", &*first)];
    let ended = server.request("DELETE", &headers, "").await;
    assert_eq!(ended.status, 204, "{}", ended.body);
    until(|| server.workspaces() == 1).await;
    let gone = server.run_command("one", &first, "cat file").await;
    assert_eq!(gone.status, 404, "{}", gone.body);
    // A stopping server removes the others.
    server.stop().await;
}

#[tokio::test]
async fn requests_of_web_pages_and_for_other_hosts_are_refused() {
    let server = Server::start().await;
    let list = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"}).to_string();
    for (name, value) in [("origin", "http://evil.example.com"), ("origin", "null")] {
        let headers = [("x-api-key", "one"), (name, value)];
        let refused = server.request("POST", &headers, &list).await;
        assert_eq!(refused.status, 403, "{} {}", value, refused.body);
    }
    let mut connection = TcpStream::connect(&server.address).await.unwrap();
    let request = "POST /mcp HTTP/1.1\r\nhost: rebound.example.com\r\nx-api-key: one\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
    connection.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    timeout(DEADLINE, connection.read_to_string(&mut answer))
        .await
        .unwrap()
        .unwrap();
    assert!(answer.starts_with("HTTP/1.1 403"), "{answer}");
    server.stop().await;
}

#[tokio::test]
async fn clients_without_sessions_get_handles_that_no_other_key_can_use() {
    let server = Server::start().await;
    let call = |arguments: Value| {
        json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {
            "name": "run_command", "arguments": arguments,
            "_meta": {
                "io.modelcontextprotocol/protocolVersion": "2026-07-28",
                "io.modelcontextprotocol/clientInfo": {"name": "t", "version": "1"},
                "io.modelcontextprotocol/clientCapabilities": {},
            },
        }})
        .to_string()
    };
    let headers = |key| {
        [
            ("x-api-key", key),
            ("mcp-protocol-version", "2026-07-28"),
            ("mcp-method", "tools/call"),
            ("mcp-name", "run_command"),
        ]
    };
    // Sessions that the key has do not count.
    for _ in 0..64 {
        server.begin("one").await;
    }
    let written = call(json!({"command": "echo mine > file; echo done"}));
    let written = server.request("POST", &headers("one"), &written).await;
    assert!(written.text().contains("done"), "{}", written.body);
    let handle = handle(&written.text());
    let read = "cat file || echo none";
    let named = call(json!({"command": read, "sandbox": handle}));
    let again = server.request("POST", &headers("one"), &named).await;
    assert!(again.text().contains("mine"), "{}", again.body);
    assert!(!again.text().contains("(Sandbox"), "{}", again.body);
    let other = server.request("POST", &headers("two"), &named).await;
    assert!(
        other.text().contains("you have no such sandbox"),
        "{}",
        other.body
    );
    let new = call(json!({"command": read}));
    let new = server.request("POST", &headers("one"), &new).await;
    assert!(new.text().contains("none"), "{}", new.body);
    assert_eq!(server.workspaces(), 2);
    // A handshake is counted, whatever its headers say.
    let initialize = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
        "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"},
    }});
    let refused = server
        .request("POST", &[("x-api-key", "one")], &initialize.to_string())
        .await;
    assert_eq!(refused.status, 429, "{}", refused.body);
    let disguised = server
        .request("POST", &headers("one"), &initialize.to_string())
        .await;
    assert_eq!(disguised.status, 400, "{}", disguised.body);
    server.stop().await;
}

/// Returns the handle of the sandbox that a result names.
fn handle(result: &str) -> String {
    let (_, rest) = result.split_once("(Sandbox `").unwrap();
    rest.split('`').next().unwrap().to_owned()
}

#[tokio::test]
async fn a_run_uses_the_sandbox_of_a_server() {
    let server = Server::start().await;
    let call = |arguments: Value| Turn::tool(ToolCall::new("box__run_command", arguments));
    let script = Script::new().then_with(move |request| {
        let messages = request.body()["messages"].to_string();
        match messages.matches("shell_results>").count() / 2 {
            0 => call(json!({"command": "echo kept > file"})),
            1 => call(json!({"command": "cat file", "sandbox": handle(&messages)})),
            _ => finish("done", &[]),
        }
    });
    let model = ScriptedServer::start(script).await.unwrap();
    let env = TestEnv::new()
        .with_server(&model.url())
        .set("BOX_KEY", "one");
    let url = format!("http://{}/mcp", server.address);
    let servers = json!({"mcpServers": {"box": {
        "url": url, "headers": {"Authorization": "Bearer ${BOX_KEY}"},
    }}});
    env.write("servers.json", servers.to_string());
    let exited = env
        .run(["run", "Use the box", "--mcp", "servers.json"])
        .await;
    assert_eq!(exited.code, Some(0), "{exited:?}");
    let messages = model.requests().last().unwrap().body()["messages"].to_string();
    assert!(messages.contains("kept"), "{messages}");
    server.stop().await;
}
