//! The web tools of `cantle run`.

use cantle_testkit::openai::{Script, ScriptedServer, ToolCall, Turn};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use crate::finish;
use crate::support::TestEnv;

/// Starts a SearXNG that has one result, and returns its URL and its task. `NO_PROXY` of the tests does not name its address.
pub(crate) async fn searxng(found: &str) -> (String, tokio::task::JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.2:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let result = json!({"title": "Found", "url": found, "content": "An excerpt."});
    let body = json!({"results": [result], "unresponsive_engines": []}).to_string();
    let server = tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = vec![0; 8192];
            let length = stream.read(&mut request).await.unwrap();
            let request = String::from_utf8_lossy(&request[..length]).into_owned();
            assert!(request.starts_with("GET /search?"), "{request}");
            let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close";
            let answer = format!("{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len());
            stream.write_all(answer.as_bytes()).await.unwrap();
        }
    });
    (url, server)
}

fn names(request: &Value) -> Vec<&str> {
    let tools = request["tools"].as_array().unwrap();
    tools
        .iter()
        .map(|tool| tool["function"]["name"].as_str().unwrap())
        .collect()
}

#[tokio::test]
async fn approvals_apply_to_web_tools_and_hosts_bind_them() {
    let fetch = |url: &str| Turn::tool(ToolCall::new("fetch_web_page", json!({"url": url})));
    let script = Script::new()
        .turn(fetch("https://secret.example.com/"))
        .turn(fetch("https://ads.example.org/"))
        .turn(fetch("https://other.invalid/"))
        .turn(finish("Done.", &[]));
    let server = ScriptedServer::start(script).await.unwrap();
    let env = TestEnv::new().with_server(&server.url());
    env.write(
        "rules.toml",
        "default = \"allow\"\n[[rule]]\ntool = \"fetch_web_page\"\narguments.url = \"*secret*\"\npermission = \"deny\"\n",
    );
    let hosts = [
        "--allow-host",
        "*.example.org,*.example.com",
        "--deny-host",
        "ads.example.org",
    ];
    let run = ["run", "Read", "--tools", "web", "--approve", "rules.toml"];
    let exited = env.run(run.iter().chain(&hosts)).await;
    assert_eq!(exited.code, Some(0), "{exited:?}");
    let requests = server.requests();
    let messages = requests[3].body()["messages"].clone();
    let results: Vec<String> = messages
        .as_array()
        .unwrap()
        .iter()
        .filter(|message| message["role"] == "tool")
        .map(|message| message["content"].to_string())
        .collect();
    assert!(results[0].contains("rules deny this call"), "{results:?}");
    assert!(
        results[1].contains("`ads.example.org` is denied"),
        "{results:?}"
    );
    assert!(results[2].contains("is not allowed"), "{results:?}");
}

#[tokio::test]
async fn a_model_searches_and_reads_pages_if_the_user_says_so() {
    let (url, searxng) = searxng("https://docs.example.com/found").await;
    let search = ToolCall::new("web_search", json!({"query": "cantle"}));
    let fetch = ToolCall::new("fetch_web_page", json!({"url": url}));
    let script = || {
        Script::new()
            .turn(Turn::tool(search.clone()).call(fetch.clone()))
            .turn(finish("Found.", &[]))
    };
    let server = ScriptedServer::start(script()).await.unwrap();
    let env = TestEnv::new()
        .with_server(&server.url())
        // Web tools don't use it.
        .set("http_proxy", "http://127.0.0.1:9")
        .set("SEARXNG_URL", &*url);
    let run = ["run", "Search", "--search", "searxng"];
    let exited = env.run(run.iter().chain(&["--record", "calls"])).await;
    assert_eq!(exited.code, Some(0), "{exited:?}");
    assert!(exited.stderr.contains("leaves this machine"), "{exited:?}");
    let requests = server.requests();
    assert_eq!(
        names(&requests[0].body()),
        ["code_exec", "fetch_web_page", "web_search", "finish"]
    );
    let results = requests[1].body()["messages"].to_string();
    assert!(
        results.contains("https://docs.example.com/found"),
        "{results}"
    );
    // A page on this machine is none of the public internet.
    assert!(results.contains("not public"), "{results}");

    // Those who read the report know it, too.
    for format in ["markdown", "html"] {
        let shown = ["runs", "show", "last", "--format", format, "-o", "report"];
        let exited = env.run(shown).await;
        assert_eq!(exited.code, Some(0), "{exited:?}");
        let report = env.read("report");
        assert!(report.contains("leaves this machine"), "{report}");
    }

    // A replay reaches nothing.
    searxng.abort();
    let replayed = env.run(["run", "Search", "--replay", "calls"]).await;
    assert_eq!(
        (replayed.code, &*replayed.stdout),
        (Some(0), "Found.\n"),
        "{replayed:?}"
    );

    let plain = ScriptedServer::start(Script::new().turn(finish("Done.", &[])))
        .await
        .unwrap();
    let env = env.with_server(&plain.url());
    env.run(["run", "Do nothing", "--tools", "web"]).await;
    env.run(["run", "Do nothing"]).await;
    let offered: Vec<_> = plain
        .requests()
        .iter()
        .map(|it| names(&it.body()).len())
        .collect();
    assert_eq!(offered, [3, 2]);
}

#[tokio::test]
async fn a_search_without_key_or_permission_is_refused() {
    let env = TestEnv::new()
        .with_server("http://127.0.0.1:9")
        .set("BRAVE_API_KEY", " ")
        .set("TAVILY_API_KEY", "tvly-secret");
    for (flags, part) in [
        (vec!["--search", "brave"], "--search needs BRAVE_API_KEY"),
        (
            vec!["--search", "tavily", "--allow-host", "docs.example.com"],
            "which is not among the allowed hosts: add --allow-host ",
        ),
        (vec!["--search", "other"], "invalid value"),
        (vec!["--tools", "webb"], "invalid value"),
    ] {
        let exited = env.run(["run", "Search"].iter().chain(&flags)).await;
        assert_eq!(exited.code, Some(2), "{exited:?}");
        assert!(exited.stderr.contains(part), "{exited:?}");
        assert!(!exited.stderr.contains("tvly-secret"), "{exited:?}");
    }
}
