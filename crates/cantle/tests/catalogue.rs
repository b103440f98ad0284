//! The tools of `docs/tools.md`: which there are, and what each costs in every request.

#![expect(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "clippy exempts test functions only, not their helpers"
)]

use std::collections::BTreeMap;
use std::env;
use std::time::Duration;

use cantle::backends::local::LocalBackend;
use cantle::browser::BrowserTools;
use cantle::core::content::ImageLimits;
use cantle::core::ids::RunId;
use cantle::core::tool::{DynTool, OpenContext, ToolProvider};
use cantle::python::{Interpreter, PythonTool};
use cantle::tools::{Finish, calculator, user_input, view_image};
use cantle::web::SearchService;
use cantle_testkit::lane;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

const CATALOGUE: &str = include_str!("../../../docs/tools.md");
/// Maximum number of tokens of all tools together.
const MAX_TOKENS: u64 = 6_000;
const DEADLINE: Duration = Duration::from_secs(120);

/// Opens providers, the sandbox's first, and returns the tools of each.
async fn open(providers: &[&dyn ToolProvider]) -> Vec<Vec<DynTool>> {
    let run = RunId::new();
    let (mut sandbox, mut sets, mut tools) = (None, Vec::new(), Vec::new());
    for provider in providers {
        let mut cx = OpenContext::new(run);
        cx.sandbox.clone_from(&sandbox);
        let set = provider.open(cx).await.unwrap();
        sandbox = sandbox.or(set.sandbox());
        tools.push(set.tools());
        sets.push(set);
    }
    while let Some(set) = sets.pop() {
        set.close().await.unwrap();
    }
    tools
}

/// Returns the number of tokens of a text for an OpenAI model, as LiteLLM counts them.
async fn tokens(text: &str, url: &str, key: &str) -> u64 {
    let address = url
        .strip_prefix("http://")
        .and_then(|it| it.strip_suffix("/v1"));
    let address = address.unwrap();
    let body = json!({"model": "aimock-gpt5", "prompt": text}).to_string();
    let request = format!(
        "POST /utils/token_counter HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {key}\r\n\
         content-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    );
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (_, body) = answer.split_once("\r\n\r\n").unwrap();
    let counted: Value = serde_json::from_str(body).unwrap();
    counted["total_tokens"].as_u64().unwrap()
}

/// Returns the numbers of the catalogue, by tool.
fn documented() -> BTreeMap<String, u64> {
    let (_, table) = CATALOGUE.split_once("| tool | tokens |").unwrap();
    let rows = table
        .lines()
        .skip(2)
        .take_while(|line| line.starts_with("| "));
    let cells = rows.map(|row| row.split('|').map(str::trim).collect::<Vec<_>>());
    cells
        .map(|cells| (cells[1].replace('`', ""), cells[2].parse().unwrap()))
        .collect()
}

#[tokio::test]
async fn default_tools_run_commands_and_read_pages() {
    let (commands, web) = cantle::default_tools();
    let names = |tools: Vec<Vec<DynTool>>| -> Vec<String> {
        let tools = tools.into_iter().flatten();
        tools.map(|tool| tool.name().to_owned()).collect()
    };
    let defaults = names(open(&[&commands, &web]).await);
    assert_eq!(defaults, ["code_exec", "fetch_web_page"]);
    let web = web.search(SearchService::brave("key"));
    assert_eq!(names(open(&[&web]).await), ["fetch_web_page", "web_search"]);
}

#[tokio::test]
async fn catalogue_states_the_tokens_of_each_tool() {
    let [Ok(url), Ok(key)] = ["URL", "KEY"].map(|it| env::var(format!("CANTLE_TEST_LITELLM_{it}")))
    else {
        return lane::skip("the peer litellm is not available");
    };
    let (commands, web) = cantle::default_tools();
    let web = web.search(SearchService::brave("key"));
    let python = PythonTool::new(Interpreter::new(LocalBackend::new()));
    let browser = BrowserTools::new();
    let providers: [&dyn ToolProvider; 4] = [&commands, &web, &python, &browser];
    let mut tools: Vec<Vec<_>> = open(&providers).await;
    let others = [
        user_input(),
        calculator(),
        view_image(ImageLimits::default()),
    ];
    tools.extend(others.map(|tool| vec![tool]));
    tools.push(vec![DynTool::new(Finish)]);
    let count = async {
        let mut counted = BTreeMap::new();
        for tools in tools {
            // The 14 tools of the browser have one row.
            let first = tools[0].name();
            let group = first.starts_with("browser_").then_some("browser_*");
            for tool in &tools {
                let spec = tool.spec();
                let function = json!({
                    "name": spec.name(),
                    "description": spec.description(),
                    "parameters": spec.parameters(),
                });
                let sent = json!({"type": "function", "function": function}).to_string();
                let row = group.unwrap_or(tool.name()).to_owned();
                *counted.entry(row).or_default() += tokens(&sent, &url, &key).await;
            }
        }
        counted
    };
    let counted: BTreeMap<String, u64> = timeout(DEADLINE, count).await.unwrap();
    let total: u64 = counted.values().sum();
    assert!(total <= MAX_TOKENS, "{total} tokens: {counted:?}");
    assert_eq!(documented(), counted, "update the table in docs/tools.md");
}
