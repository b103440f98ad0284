//! One run that uses everything outside: web pages, a search service, an MCP server and a browser.

use std::path::Path;

use cantle_testkit::lane;
use cantle_testkit::openai::{Request, Script, ScriptedServer, ToolCall, Turn};
use serde_json::{Value, json};

use crate::support::TestEnv;
use crate::web::searxng;
use crate::{command, finish};

/// A web site with a form.
const SITE: &str = include_str!("../../../browser/tests/browser/site.py");

/// Returns the texts of the tool results in a request.
fn results(request: &Request) -> Vec<String> {
    let messages = request.body()["messages"].clone();
    let messages = messages.as_array().unwrap().iter();
    let results = messages.filter(|message| message["role"] == "tool");
    let text = |message: &Value| match &message["content"] {
        Value::String(text) => text.clone(),
        parts => {
            let parts = parts.as_array().unwrap().iter();
            parts.filter_map(|part| part["text"].as_str()).collect()
        }
    };
    results.map(text).collect()
}

/// Returns what is between two texts.
fn between<'t>(text: &'t str, before: &str, after: &str) -> &'t str {
    let (_, rest) = text
        .split_once(before)
        .unwrap_or_else(|| panic!("no {before:?} in {text}"));
    rest.split_once(after)
        .unwrap_or_else(|| panic!("no {after:?} in {rest}"))
        .0
}

/// The model of the run, which goes by what its tools return.
fn next_turn(start: &str, results: &[String]) -> Turn {
    let call = |name: &str, arguments: Value| Turn::tool(ToolCall::new(name, arguments));
    let reference = |text: &str| {
        let shown = results.last().unwrap().lines();
        let mut lines = shown.filter(|line| line.contains(text));
        between(lines.next().unwrap(), "[ref=", "]").to_owned()
    };
    match results.len() {
        0 => call("fetch_web_page", json!({"url": start})),
        1 => call("web_search", json!({"query": "iniconfig"})),
        2 => {
            let found = between(&results[1], "<url>", "</url>");
            call("fetch_web_page", json!({"url": found}))
        }
        3 => call(
            "fetch_web_page",
            json!({"url": "https://elsewhere.example.org/"}),
        ),
        4 => call("every__get-sum", json!({"a": 2, "b": 3})),
        5 => call("every__get-env", json!({})),
        6 => command(
            "python3 site.py > port & until [ -s port ]; do sleep 0.05; done; echo \"port=$(cat port);\"",
        ),
        7 => {
            let port = between(&results[6], "port=", ";");
            let url = format!("http://127.0.0.1:{port}/form");
            call("browser_navigate", json!({"url": url}))
        }
        8 => {
            let name = reference("\"Name\"");
            call("browser_input_text", json!({"ref": name, "text": "Ada"}))
        }
        9 => call("browser_snapshot", json!({})),
        10 => call("browser_click", json!({"ref": reference("\"Send\"")})),
        11 => call(
            "browser_navigate",
            json!({"url": "https://elsewhere.example.org/"}),
        ),
        _ => finish("It is sent.", &[]),
    }
}

#[tokio::test]
async fn an_agent_reads_searches_calls_a_foreign_server_and_fills_in_a_form() {
    let variables = ["CHROMIUM", "INDEX", "MCP_NODE", "MCP_EVERYTHING"];
    let [Ok(_), Ok(index), Ok(node), Ok(everything)] =
        variables.map(|name| std::env::var(format!("CANTLE_TEST_{name}")))
    else {
        return lane::skip("the peers chromium, index and mcp are not all available");
    };
    let index = index.trim_end_matches('/').to_owned();
    let host = between(&index, "://", "/")
        .split(':')
        .next()
        .unwrap()
        .to_owned();
    let (search, searching) = searxng(&format!("{index}/iniconfig/")).await;
    let start = format!("{index}/pluggy/");
    let script = Script::new().then_with(move |request| next_turn(&start, &results(request)));
    let model = ScriptedServer::start(script).await.unwrap();
    let env = TestEnv::new()
        .with_server(&model.url())
        .set("SEARXNG_URL", &*search);
    env.write("site.py", SITE);
    let modules = Path::new(&everything).ancestors().nth(3).unwrap();
    let entry = json!({
        "command": node, "args": [everything], "tools": ["get-sum", "get-env"],
        "policy": {"read_roots": [modules]},
    });
    env.write(
        "servers.json",
        json!({"mcpServers": {"every": entry}}).to_string(),
    );
    let allowed = format!("{host},private");
    let exited = env
        .run([
            "run",
            "Send the form",
            "--tools",
            "web,browser",
            "--search",
            "searxng",
            "--mcp",
            "servers.json",
            "--allow-host",
            &allowed,
            "--input",
            "site.py",
        ])
        .await;
    assert_eq!(
        (exited.code, &*exited.stdout),
        (Some(0), "It is sent.\n"),
        "{exited:?}"
    );
    searching.abort();

    let requests = model.requests();
    let results = results(requests.last().unwrap());
    assert!(results[0].contains("pluggy-1.0.0"), "{}", results[0]);
    assert!(results[2].contains("iniconfig-2.0.0"), "{}", results[2]);
    assert!(results[3].contains("is not allowed"), "{}", results[3]);
    assert!(
        results[4].ends_with("The sum of 2 and 3 is 5."),
        "{}",
        results[4]
    );
    // The server's sandbox has neither the key of the model nor the files of the run.
    let shown = between(&results[5], "{", "}");
    assert!(
        !shown.contains("API_KEY") && !shown.contains("SEARXNG"),
        "{shown}"
    );
    assert!(results[10].contains("name=Ada"), "{}", results[10]);
    assert!(!results[11].contains("<title>"), "{}", results[11]);
    assert!(exited.stderr.contains("leaves this machine"), "{exited:?}");
}
