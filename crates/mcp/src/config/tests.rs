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
            "mcpServers.s.cmd: unknown field `cmd`, expected one of",
        ),
        (
            r#"{"command": "x", "policy": {"network": true}}"#,
            "mcpServers.s.policy.network: unknown field",
        ),
        (
            r#"{"command": "x", "where": "here"}"#,
            "mcpServers.s.where: unknown variant `here`",
        ),
        (
            r#"{"command": "x", "policy": {"hosts": ["127.0.0.1"]}}"#,
            "mcpServers.s.policy.hosts[0]: ",
        ),
        ("{}", "mcpServers.s: give either `command` or `url`"),
        (
            r#"{"command": "x", "url": "http://example.com"}"#,
            "mcpServers.s: give either",
        ),
        (
            r#"{"url": "http://example.com", "env": {}}"#,
            "mcpServers.s: `env` is for a server with `command`",
        ),
        (
            r#"{"command": "x", "headers": {}}"#,
            "mcpServers.s: `headers` are for a server with `url`",
        ),
        (
            r#"{"type": "sse", "url": "http://example.com"}"#,
            "mcpServers.s: type `sse` is not supported here",
        ),
        (
            r#"{"command": "x", "where": "host", "policy": {}}"#,
            "mcpServers.s: a `policy` can't be enforced",
        ),
        (
            r#"{"command": "x", "env": {"A": "${NONE}"}}"#,
            "mcpServers.s: the variable `NONE` is not set",
        ),
    ];
    for (entry, expected) in cases {
        let problem = problem(entry);
        assert!(problem.starts_with(expected), "{entry}: {problem}");
        assert!(!problem.contains("s3cret"));
    }
    for name in ["", "a b", "a__b", &"a".repeat(33)] {
        let text = json!({"mcpServers": {name: {"command": "x"}}}).to_string();
        let problem = McpServer::from_json(&text, |_| None)
            .unwrap_err()
            .to_string();
        assert!(problem.contains("a server's name has 1 to 32"), "{problem}");
    }
}
