//! `cantle mcp` as a server, over its standard input and output.

use std::process::Stdio;

use cantle_testkit::openai::{Script, ScriptedServer};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout};
use tokio::time::timeout;

use crate::support::{DEADLINE, Exited, Mark, TestEnv, wait_for_exit};
use crate::{command, finish};

/// A client of `cantle mcp`.
struct Client {
    child: Child,
    stdin: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
    requests: u64,
}

impl Client {
    /// Starts the server, whose sandboxes are below `tmp`, and shakes hands.
    async fn start(env: &TestEnv, args: &[&str]) -> Self {
        std::fs::create_dir_all(env.path("tmp")).unwrap();
        let mut command = env.command([&["mcp"], args].concat());
        command.env("TMPDIR", env.path("tmp")).stdin(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let stdin = child.stdin.take().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut client = Self {
            child,
            stdin,
            lines,
            requests: 0,
        };
        let params = json!({
            "protocolVersion": "2025-06-18",
            "capabilities": {},
            "clientInfo": {"name": "test", "version": "1"},
        });
        let answer = client.request("initialize", params).await;
        assert_eq!(answer["result"]["serverInfo"]["name"], "cantle");
        client.notify("notifications/initialized", json!({})).await;
        client
    }

    async fn write(&mut self, message: Value) {
        let line = format!("{message}\n");
        self.stdin.write_all(line.as_bytes()).await.unwrap();
    }

    async fn notify(&mut self, method: &str, params: Value) {
        self.write(json!({"jsonrpc": "2.0", "method": method, "params": params}))
            .await;
    }

    /// Sends a request and returns its id.
    async fn send(&mut self, method: &str, params: Value) -> u64 {
        self.requests += 1;
        let id = self.requests;
        self.write(json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}))
            .await;
        id
    }

    /// Sends a request and returns its answer, which is the next line.
    async fn request(&mut self, method: &str, params: Value) -> Value {
        let id = self.send(method, params).await;
        let line = timeout(DEADLINE, self.lines.next_line()).await.unwrap();
        let answer: Value = serde_json::from_str(&line.unwrap().unwrap()).unwrap();
        assert_eq!(answer["id"], id, "{answer}");
        answer
    }

    /// Calls a tool, and returns the texts of its result and whether it succeeded.
    async fn call(&mut self, tool: &str, arguments: Value) -> (bool, Vec<String>) {
        let params = json!({"name": tool, "arguments": arguments});
        let answer = self.request("tools/call", params).await;
        let blocks = answer["result"]["content"].as_array().unwrap();
        let texts = blocks.iter().map(|block| block["text"].as_str().unwrap());
        let texts = texts.map(str::to_owned).collect();
        (answer["result"]["isError"] == false, texts)
    }

    /// Closes the input, and returns how the server ended.
    async fn close(self) -> Exited {
        drop(self.stdin);
        wait_for_exit(self.child).await
    }
}

#[tokio::test]
async fn a_client_works_in_one_sandbox() {
    let env = TestEnv::new();
    let mut client = Client::start(&env, &["--env", "COLOUR=red"]).await;
    let answer = client.request("tools/list", json!({})).await;
    let tools = answer["result"]["tools"].as_array().unwrap();
    let names: Vec<_> = tools.iter().map(|tool| tool["name"].as_str()).collect();
    let expected = [
        "run_command",
        "run_python",
        "read_file",
        "write_file",
        "list_files",
    ];
    assert_eq!(names, expected.map(Some));
    // Listing opens no sandbox.
    assert_eq!(env.list("tmp"), [""; 0]);

    let written = client
        .call(
            "write_file",
            json!({"path": "a/t.txt", "content": "grün\n"}),
        )
        .await;
    assert_eq!(
        written,
        (true, vec!["Wrote 6 bytes to `a/t.txt`.".to_owned()])
    );
    assert_eq!(env.list("tmp").len(), 1);
    let (success, text) = client
        .call(
            "run_command",
            json!({"command": "cat a/t.txt; echo $COLOUR; exit 3"}),
        )
        .await;
    let expected = "<shell_results>\n<exit_code>3</exit_code>\n<stdout>grün\nred\n</stdout>\n<stderr></stderr>\n</shell_results>";
    assert_eq!((success, &*text[0]), (true, expected));
    client
        .call(
            "run_python",
            json!({"code": "x = len(open('a/t.txt').read())"}),
        )
        .await;
    let (success, text) = client.call("run_python", json!({"code": "x * 2"})).await;
    assert!(
        success && text[0].contains("<result>10</result>"),
        "{text:?}"
    );
    let listed = client.call("list_files", json!({"path": "a"})).await;
    assert_eq!(listed, (true, vec!["t.txt (6 bytes)".to_owned()]));
    // The range ends within a character.
    let read = client
        .call("read_file", json!({"path": "a/t.txt", "length": 3}))
        .await;
    let note = "(bytes 0 to 2; read on with start = 2)";
    assert_eq!(read, (true, vec!["gr".to_owned(), note.to_owned()]));
    let read = client
        .call("read_file", json!({"path": "a/t.txt", "start": 2}))
        .await;
    assert_eq!(read, (true, vec!["ün\n".to_owned()]));
    let exited = client.close().await;
    assert_eq!((exited.code, &*exited.stderr), (Some(0), ""), "{exited:?}");
    assert_eq!(env.list("tmp"), [""; 0]);
}

#[tokio::test]
async fn a_client_starts_runs_only_if_that_is_allowed_and_within_their_limits() {
    let script = Script::new()
        .turn(command("cat /proc/self/limits; echo $COLOUR"))
        .turn(finish("It is done.", &[]));
    let server = ScriptedServer::start(script).await.unwrap();
    let env = TestEnv::new().with_server(&server.url());
    let mut plain = Client::start(&env, &[]).await;
    let call = json!({"name": "run_agent", "arguments": {"task": "Work"}});
    let answer = plain.request("tools/call", call).await;
    assert_eq!(answer["error"]["message"], "there is no tool `run_agent`");
    plain.close().await;

    let args = [
        "--allow-agent",
        "--limit",
        "open_files=77",
        "--",
        "--max-turns",
        "2",
    ];
    let mut client = Client::start(&env, &args).await;
    let answer = client.request("tools/list", json!({})).await;
    assert_eq!(answer["result"]["tools"][5]["name"], "run_agent");
    let done = client.call("run_agent", json!({"task": "--help me"})).await;
    assert_eq!(done, (true, vec!["It is done.".to_owned()]));
    let messages = server.requests()[1].body()["messages"].to_string();
    assert!(messages.contains("--help me"), "{messages}");
    assert!(
        messages.contains("77"),
        "the sandbox flags are those of the server: {messages}"
    );
    client.close().await;

    let args = ["--allow-agent", "--", "--max-turns", "1"];
    let mut client = Client::start(&env, &args).await;
    let (success, text) = client.call("run_agent", json!({"task": "Work"})).await;
    assert!(!success, "{text:?}");
    assert!(
        text[0].starts_with("The run ended with exit status: 3."),
        "{text:?}"
    );
    client.close().await;

    let without = TestEnv::new();
    for (args, expected) in [
        (&["--allow-agent"][..], "model"),
        (&["--allow-agent", "--", "--no-such-flag"], "--no-such-flag"),
        (&["--", "--quiet"], "--allow-agent"),
    ] {
        let exited = without.run([&["mcp"], args].concat()).await;
        assert_eq!(exited.code, Some(2), "{exited:?}");
        assert!(exited.stderr.contains(expected), "{exited:?}");
    }
}

#[tokio::test]
async fn runs_of_a_client_have_the_profile_and_the_variables_of_the_server() {
    let script = Script::new()
        .turn(command("ulimit -n; echo $COLOUR $SHAPE $SIZE"))
        .turn(finish("It is done.", &[]));
    let server = ScriptedServer::start(script).await.unwrap();
    let env = TestEnv::new()
        .with_server(&server.url())
        .set("SIZE", "large");
    env.write(
        "cantle.toml",
        "[profile.strict]\nlimit = ['open_files=77']\n",
    );
    env.write("variables", "SHAPE=round\n");
    // A directory that is not trusted has no profiles.
    let settings = ["--profile", "strict", "--trust-directory"];
    let variables = [
        "--env-file",
        "variables",
        "--env",
        "COLOUR=dark red",
        "--env",
        "SIZE",
    ];
    let args = [&["--allow-agent"][..], &settings, &variables].concat();
    let mut client = Client::start(&env, &args).await;
    let done = client.call("run_agent", json!({"task": "Work"})).await;
    assert_eq!(done, (true, vec!["It is done.".to_owned()]));
    let messages = server.requests()[1].body()["messages"].to_string();
    assert!(
        messages.contains(r"<stdout>77\ndark red round large\n"),
        "{messages}"
    );
    client.close().await;
}

#[tokio::test]
async fn a_cancelled_run_of_a_client_leaves_nothing() {
    let env = TestEnv::new();
    let mark = Mark::new(&env);
    let script = Script::new().turn(command(&format!("bash -c 'sleep 1000; :' {mark}")));
    let server = ScriptedServer::start(script).await.unwrap();
    let env = env.with_server(&server.url());
    let mut client = Client::start(&env, &["--allow-agent"]).await;
    let params = json!({"name": "run_agent", "arguments": {"task": "Wait"}});
    let id = client.send("tools/call", params).await;
    mark.appeared().await;
    client
        .notify("notifications/cancelled", json!({"requestId": id}))
        .await;
    mark.gone().await;
    client.close().await;
}

#[tokio::test]
async fn a_run_removes_its_sandbox_if_the_client_closes_the_connection() {
    let env = TestEnv::new();
    let mark = Mark::new(&env);
    let script = Script::new().turn(command(&format!("bash -c 'sleep 1000; :' {mark}")));
    let server = ScriptedServer::start(script).await.unwrap();
    let env = env.with_server(&server.url());
    let mut client = Client::start(&env, &["--allow-agent", "--", "--no-keep"]).await;
    let params = json!({"name": "run_agent", "arguments": {"task": "Wait"}});
    client.send("tools/call", params).await;
    mark.appeared().await;
    let entries = || std::fs::read_dir(env.path("tmp")).unwrap().count();
    assert_ne!(entries(), 0);
    let exited = client.close().await;
    assert_eq!((exited.code, entries()), (Some(0), 0), "{exited:?}");
    mark.gone().await;
}

#[tokio::test]
async fn bad_calls_of_a_client_are_errors() {
    let env = TestEnv::new();
    let mut client = Client::start(&env, &[]).await;
    client
        .call("run_command", json!({"command": "printf '\\377' > b"}))
        .await;
    for (tool, arguments, expected) in [
        ("run_command", json!({}), "`command`"),
        (
            "run_command",
            json!({"command": " "}),
            "The command is empty.",
        ),
        (
            "run_command",
            json!({"command": "ls", "timeout_s": -1}),
            "at most 3600 seconds",
        ),
        (
            "run_command",
            json!({"command": "sleep 100", "timeout_s": 0.1}),
            "did not finish within 0.1 s",
        ),
        (
            "run_python",
            json!({"code": "while True: pass", "timeout_s": 0.1}),
            "the time limit",
        ),
        (
            "run_python",
            json!({"code": "1", "timeout": 1}),
            "`timeout`",
        ),
        (
            "read_file",
            json!({"path": "../../etc/passwd"}),
            "`../../etc/passwd`",
        ),
        ("read_file", json!({"path": "none"}), "No such file"),
        ("read_file", json!({"path": "b"}), "not UTF-8 text"),
        ("read_file", json!({"path": "b", "start": -1}), "`start`"),
        ("write_file", json!({"path": "x"}), "`content`"),
        ("list_files", json!({"path": "b"}), "`b`"),
    ] {
        let (success, text) = client.call(tool, arguments).await;
        assert!(!success && text[0].contains(expected), "{tool}: {text:?}");
    }
    let end = client
        .call("read_file", json!({"path": "b", "start": 9}))
        .await;
    let text = "(no bytes from 9 on: the file ends there or before)";
    assert_eq!(end, (true, vec![text.to_owned()]));
    let answer = client.request("tools/call", json!({"name": "rm"})).await;
    assert_eq!(answer["error"]["message"], "there is no tool `rm`");
    client.close().await;

    let exited = env.run_with(["mcp", "--backend", "no"], b"").await;
    assert_eq!((exited.code, &*exited.stdout), (Some(2), ""), "{exited:?}");
    let exited = env.run_with(["mcp"], b"hello\n").await;
    assert_eq!((exited.code, &*exited.stdout), (Some(0), ""), "{exited:?}");
}

#[tokio::test]
async fn cancelled_and_abandoned_calls_of_a_client_leave_nothing() {
    let env = TestEnv::new();
    let mark = Mark::new(&env);
    let mut client = Client::start(&env, &[]).await;
    let endless = json!({"command": format!("bash -c 'sleep 1000; :' {mark}")});
    let params = json!({"name": "run_command", "arguments": endless});
    let id = client.send("tools/call", params.clone()).await;
    mark.appeared().await;
    client
        .notify("notifications/cancelled", json!({"requestId": id}))
        .await;
    mark.gone().await;
    // The sandbox is still there, and the cancelled call gets no answer.
    let (success, text) = client
        .call("run_command", json!({"command": "echo on"}))
        .await;
    assert!(success && text[0].contains("on\n"), "{text:?}");

    client.send("tools/call", params).await;
    mark.appeared().await;
    let exited = client.close().await;
    assert_eq!(exited.code, Some(0), "{exited:?}");
    mark.gone().await;
    assert_eq!(env.list("tmp"), [""; 0]);
}
