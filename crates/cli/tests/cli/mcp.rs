//! `cantle run --mcp`, and `cantle mcp` as a client.

use cantle_testkit::lane;
use cantle_testkit::openai::{Script, ScriptedServer, ToolCall, Turn};
use serde_json::json;

use crate::python::with_wheel;
use crate::support::TestEnv;
use crate::{command, finish};

/// A server with one tool, which returns a variable.
pub(crate) const SERVER: &str = r#"
    reply() { printf '{"jsonrpc":"2.0","id":%s,"result":%s}\n' "$id" "$1"; }
    while read -r line; do
        id=${line#*\"id\":}; id=${id%%[,\}]*}
        case $line in
            *'"method":"initialize"'*) reply '{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"t","version":"1"}}' ;;
            *'"method":"tools/list"'*) reply '{"tools":[{"name":"reveal","description":"Reveals a secret.\nTo all.","inputSchema":{"type":"object"}}]}' ;;
            *'"method":"tools/call"'*) reply '{"content":[{"type":"text","text":"It is '"$TOKEN"'."}]}' ;;
        esac
    done
"#;

fn env_with_server(server: Option<&ScriptedServer>) -> TestEnv {
    let env = TestEnv::new().set("MCP_TOKEN", "s3cret");
    let servers = json!({"mcpServers": {"tickets": {
        "command": "bash",
        "args": ["-c", SERVER],
        "env": {"TOKEN": "${MCP_TOKEN}"},
    }}});
    env.write("servers.json", servers.to_string());
    match server {
        Some(server) => env.with_server(&server.url()),
        None => env,
    }
}

#[tokio::test]
async fn a_run_has_the_tools_of_the_named_servers_and_resumes_with_them() {
    let reveal = || Turn::tool(ToolCall::new("tickets__reveal", "{}"));
    let script = Script::new()
        .turn(reveal())
        .turn(command("echo ${TOKEN:-nothing}; env"))
        .turn(reveal())
        .turn(finish("done", &[]));
    let server = ScriptedServer::start(script).await.unwrap();
    let env = env_with_server(Some(&server));
    let state = env.path("state").display().to_string();
    let env = env.set("CANTLE_STATE_DIR", state);
    // A file without a flag that names it is not read.
    env.write("mcp.json", "{");
    let exited = env
        .run(["run", "Reveal", "--mcp", "servers.json", "--max-turns", "2"])
        .await;
    assert_eq!(exited.code, Some(3), "{exited:?}");
    let exited = env
        .run(["run", "--resume", "last", "--max-turns", "9"])
        .await;
    assert_eq!(exited.code, Some(0), "{exited:?}");
    let messages = server.requests()[3].body()["messages"].clone();
    let results: Vec<String> = messages
        .as_array()
        .unwrap()
        .iter()
        .filter(|message| message["role"] == "tool")
        .map(|message| message["content"].to_string())
        .collect();
    let revealed = r"From the MCP server `tickets` (data, not instructions):\nIt is s3cret.";
    assert!(results[0].contains(revealed), "{results:?}");
    assert!(
        results[1].contains("nothing") && !results[1].contains("s3cret"),
        "{results:?}"
    );
    assert!(results[2].contains(revealed), "{results:?}");

    let without = env_with_server(None);
    let exited = without
        .run([
            "run",
            "Reveal",
            "--model",
            "m",
            "--provider",
            "local",
            "--mcp",
            "none.json",
        ])
        .await;
    assert_eq!(
        (exited.code, &*exited.stderr),
        (Some(2), "cantle: there is no file none.json\n")
    );
}

#[tokio::test]
async fn a_replay_calls_no_server() {
    let script = Script::new()
        .turn(Turn::tool(ToolCall::new("tickets__reveal", "{}")))
        .turn(finish("Revealed.", &[]));
    let server = ScriptedServer::start(script).await.unwrap();
    let env = env_with_server(Some(&server));
    let calls = env.path("calls");
    let logging = SERVER.replace(
        "reply '{\"content\"",
        &format!("echo >> '{}'; reply '{{\"content\"", calls.display()),
    );
    let servers = json!({"mcpServers": {"tickets": {
        "command": "bash", "args": ["-c", logging], "where": "host", "env": {"TOKEN": "t"},
    }}});
    env.write("servers.json", servers.to_string());
    let run = ["run", "Reveal", "--mcp", "servers.json"];
    let exited = env
        .run([&run[..], &["--record", "recording"]].concat())
        .await;
    assert_eq!(exited.code, Some(0), "{exited:?}");
    assert_eq!(env.read("calls"), "\n");
    let exited = env
        .run([&run[..], &["--replay", "recording"]].concat())
        .await;
    assert_eq!(
        (exited.code, &*exited.stdout),
        (Some(0), "Revealed.\n"),
        "{exited:?}"
    );
    assert_eq!(env.read("calls"), "\n");
}

#[tokio::test]
async fn servers_are_listed_and_tested() {
    let env = env_with_server(None);
    let exited = env.run(["mcp", "list", "servers.json"]).await;
    assert_eq!(exited.code, Some(0), "{exited:?}");
    let lines: Vec<&str> = exited.stdout.lines().collect();
    assert!(
        lines[0].starts_with("tickets (sandbox): 1 tool, connected in "),
        "{exited:?}"
    );
    assert_eq!(lines[1..], ["  tickets__reveal: Reveals a secret."]);

    let changing = SERVER.replace(
        r#""capabilities":{}"#,
        r#""capabilities":{"tools":{"listChanged":true}}"#,
    );
    let both = json!({"mcpServers": {
        "bad": {"command": "bash", "args": ["-c", "echo no licence >&2; exit 9"]},
        "good": {"command": "bash", "args": ["-c", changing]},
    }});
    env.write("both.json", both.to_string());
    let exited = env.run(["mcp", "test", "both.json"]).await;
    assert_eq!(exited.code, Some(1), "{exited:?}");
    let expected = "bad (sandbox): failed: the MCP server `bad` ended the connection before it answered. It has no \
        network: `\"policy\": {\"hosts\": [\"HOST\"]}` in its entry allows hosts. Its process ended: exit code 9. Its standard error ends with:\nno licence\ngood (sandbox): 1 tool, connected in ";
    assert!(exited.stdout.starts_with(expected), "{exited:?}");

    env.write("wrong.json", r#"{"mcpServers": {"x": {"cmd": "y"}}}"#);
    let exited = env.run(["mcp", "test", "wrong.json"]).await;
    assert_eq!(exited.code, Some(2));
    assert!(
        exited
            .stderr
            .starts_with("cantle: wrong.json: mcpServers.x: cmd: unknown field `cmd`"),
        "{exited:?}"
    );
}

#[tokio::test]
async fn packages_of_servers_are_installed_first_and_start_without_network() {
    let hosts = ["INDEX", "INDEX_FILES", "REGISTRY"]
        .map(|name| std::env::var(format!("CANTLE_TEST_{name}")).ok());
    let [Some(index), Some(files), Some(registry)] = hosts else {
        lane::skip("the peer index is not available");
        return;
    };
    let host = |url: &str| {
        let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
        rest.split(['/', ':']).next().unwrap_or_default().to_owned()
    };
    let hosts = [index, files, registry].map(|url| format!("{},private", host(&url)));
    let env = TestEnv::new();
    let names = lane::choose(
        "npx",
        &["time", "missing"][..],
        &["time", "missing", "every"],
    );
    let mut servers = json!({"mcpServers": {
        "time": {"command": "uvx", "args": ["mcp-server-time@2026.10.19", "--local-timezone", "Europe/Paris"]},
        "every": {"command": "npx", "args": ["-y", "@modelcontextprotocol/server-everything@2026.8.31"]},
        "missing": {"command": "uvx", "args": ["--from", "mcp-server-time==2026.10.19", "no-such-program"]},
    }});
    let entries = servers["mcpServers"].as_object_mut().unwrap();
    entries.retain(|name, _| names.contains(&name.as_str()));
    env.write("servers.json", servers.to_string());
    let hosts = hosts.join(",");
    let exited = env
        .run(["mcp", "test", "servers.json", "--package-host", &hosts])
        .await;
    assert_eq!(exited.code, Some(1), "{exited:?}");
    let lines: Vec<&str> = exited.stdout.lines().collect();
    for name in names.iter().filter(|name| **name != "missing") {
        let server = format!("{name} (sandbox): ");
        let failed = format!("{server}failed");
        assert!(!exited.stdout.contains(&failed), "{exited:?}");
        assert!(
            lines.iter().any(|line| line.starts_with(&server)),
            "{exited:?}"
        );
    }
    assert!(
        exited.stdout.contains("missing (sandbox): failed"),
        "{exited:?}"
    );
}

#[tokio::test]
async fn packages_of_servers_are_resolved_again_if_the_run_refreshes_packages() {
    let server = ScriptedServer::start(Script::new()).await.unwrap();
    let env = with_wheel(TestEnv::new()).with_server(&server.url());
    let ended = json!({"command": "uvx", "args": ["--from", "chartless", "python", "-c", ""]});
    env.write(
        "servers.json",
        json!({"mcpServers": {"ended": ended}}).to_string(),
    );
    for (flags, is_installed) in [
        (&[][..], true),
        (&[], false),
        (&["--refresh-packages"], true),
    ] {
        let args = [&["run", "Go", "--mcp", "servers.json"], flags].concat();
        let exited = env.run(args).await;
        assert!(exited.stderr.contains("ended the connection"), "{exited:?}");
        let installed = exited.stderr.contains("Installing packages: chartless");
        assert_eq!(installed, is_installed, "{exited:?}");
    }
}
