use serde_json::json;

use super::*;

fn parse(entry: &str) -> Result<McpServer, InvalidMcpConfig> {
    let text = format!(r#"{{"mcpServers": {{"s": {entry}}}}}"#);
    let variable = |name: &str| (name == "KEY").then(|| "s3cret".to_owned());
    Ok(McpServer::from_json(&text, variable)?.remove(0))
}

fn problem(entry: &str) -> String {
    parse(entry).unwrap_err().to_string()
}

#[test]
fn values_name_variables_and_the_identity_has_no_secrets() {
    let server = parse(
        r#"{"command": "npx", "args": ["-y", "tickets", "--key=${KEY}"], "env": {"TOKEN": "x-${env:KEY}${id%%[,}]}${"},
            "policy": {"hosts": ["api.example.com"], "read_roots": ["/opt/data"], "workspace": "ro"},
            "tools": ["list"], "call_timeout_s": 20}"#,
    )
    .unwrap();
    let Transport::Stdio(stdio) = &server.transport else {
        panic!("{server:?}");
    };
    assert_eq!(stdio.argv[3].expose(), "--key=s3cret");
    assert_eq!(stdio.environment["TOKEN"].expose(), "x-s3cret${id%%[,}]}${");
    assert_eq!(server.call_timeout, Duration::from_secs(20));
    assert!(!format!("{server:?}").contains("s3cret"));
    assert_eq!(
        server.identity(),
        json!({
            "command": ["npx", "-y", "tickets", "--key=${KEY}"],
            "cwd": null,
            "env": ["TOKEN"],
            "policy": {
                "read_roots": {"system": true, "paths": ["/opt/data"]},
                "write_roots": [],
                "network": {"hosts": ["api.example.com"]},
                "limits": {"processes": 1024},
                "strictness": "strict",
            },
            "set": {
                "read_roots": {"paths": ["/opt/data"]},
                "network": {"hosts": ["api.example.com"]},
            },
            "workspace": "read_only",
            "where": "sandbox",
            "tools": ["list"],
        })
    );
}

#[test]
fn a_server_at_a_url_has_headers() {
    let server =
        parse(r#"{"url": "https://example.com/mcp?k=${KEY}", "headers": {"X-Key": "${KEY}"}}"#);
    let server = server.unwrap();
    assert!(!format!("{server:?}").contains("s3cret"));
    assert_eq!(
        server.identity(),
        json!({"url": "https://example.com/mcp?k=${KEY}", "headers": ["X-Key"]})
    );
}

#[test]
fn what_is_not_understood_is_refused_with_its_name() {
    let cases = [
        (
            r#"{"cmd": "x"}"#,
            "cmd: unknown field `cmd`, expected one of `type`, `command`, ",
        ),
        (
            r#"{"command": "x", "policy": {"network": true}}"#,
            "policy.network: unknown field",
        ),
        (
            r#"{"command": "x", "where": "here"}"#,
            "where: unknown variant `here`, expected `sandbox` or `host`",
        ),
        (
            r#"{"command": "x", "policy": {"hosts": ["127.0.0.1"]}}"#,
            "policy.hosts[0]: ",
        ),
        ("{}", "missing field `command`"),
        (
            r#"{"command": "x", "url": "http://example.com"}"#,
            "command: unknown field `command`, expected one of `type`, `url`, ",
        ),
        (
            r#"{"url": "http://example.com", "env": {}}"#,
            "env: unknown field",
        ),
        (
            r#"{"command": "x", "headers": {}}"#,
            "headers: unknown field",
        ),
        (
            r#"{"type": "sse", "url": "http://example.com"}"#,
            "type: unknown variant `sse`, expected `http` or `streamable-http`",
        ),
        (
            r#"{"command": "x", "where": "host", "policy": {}}"#,
            "a `policy` can't be enforced",
        ),
        (
            r#"{"command": "x", "env": {"A": "${NONE}"}}"#,
            "the variable `NONE` is not set",
        ),
    ];
    for (entry, expected) in cases {
        let problem = problem(entry);
        let expected = format!("mcpServers.s: {expected}");
        assert!(problem.starts_with(&expected), "{entry}: {problem}");
    }
    for name in ["", "a b", "a__b", &"a".repeat(33)] {
        let text = json!({"mcpServers": {name: {"command": "x"}}}).to_string();
        let problem = McpServer::from_json(&text, |_| None)
            .unwrap_err()
            .to_string();
        assert!(problem.contains("a server's name has 1 to 32"), "{problem}");
    }
}
