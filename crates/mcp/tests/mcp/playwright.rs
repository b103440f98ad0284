//! `examples/mcp/browser.json`: Playwright's server, which starts Chromium in its own sandbox.

use std::path::Path;

use cantle_mcp::McpServer;
use cantle_testkit::lane;
use serde_json::{Value, json};

use super::{call, open};

const EXAMPLE: &str = include_str!("../../../../examples/mcp/browser.json");
const PAGE: &str = "data:text/html,<title>Form</title><label>Name <input oninput=\"out.textContent=`Hello ${this.value}`\"></label><p id=out>";

#[tokio::test(flavor = "multi_thread")]
async fn browser_of_the_example_fills_in_a_form_and_reaches_allowed_hosts() {
    if !lane::is_full() {
        return lane::skip("it belongs to the full lane");
    }
    let variables = ["CHROMIUM", "MCP_NODE", "MCP_PLAYWRIGHT", "INDEX"];
    let [Ok(chromium), Ok(node), Ok(program), Ok(index)] =
        variables.map(|it| std::env::var(format!("CANTLE_TEST_{it}")))
    else {
        return lane::skip("the peers chromium, mcp and index are not all available");
    };
    let mut example: Value = serde_json::from_str(EXAMPLE).unwrap();
    let entry = &mut example["mcpServers"]["browser"];
    let offered = entry["tools"].as_array().unwrap().len();
    // Where the peers are, and an index that may be a mirror in a private network with a certificate of its own.
    let arguments = entry["args"].as_array_mut().unwrap();
    arguments.insert(0, program.clone().into());
    arguments.push("--ignore-https-errors".into());
    for argument in arguments {
        if argument == "/usr/lib/chromium/chromium" {
            *argument = chromium.clone().into();
        }
    }
    let root = Path::new(&program).ancestors().nth(3).unwrap();
    let node_root = Path::new(&node).ancestors().nth(2);
    let roots: Vec<_> = [Some(root), node_root].into_iter().flatten().collect();
    let (_, host) = index.split_once("://").unwrap();
    let host = host.split('/').next().unwrap();
    entry["command"] = node.clone().into();
    entry["policy"] = json!({"hosts": [format!("{host},private")], "read_roots": roots});
    let mut servers = McpServer::from_json(&example.to_string(), |_| None).unwrap();
    let set = open(servers.remove(0)).await;
    assert_eq!((set.tools().len(), offered), (12, 12));

    // Navigating returns no snapshot, only the name of a file that the model does not see.
    call(&*set, "browser__browser_navigate", json!({"url": PAGE})).await;
    let page = call(&*set, "browser__browser_snapshot", json!({})).await;
    let page = page.content.text();
    let (_, reference) = page.split_once("textbox \"Name\" [ref=").unwrap();
    let (reference, _) = reference.split_once(']').unwrap();
    let typed = json!({"target": reference, "element": "Name", "text": "Ada"});
    call(&*set, "browser__browser_type", typed).await;
    let page = call(&*set, "browser__browser_snapshot", json!({})).await;
    assert!(page.content.text().contains("Hello Ada"), "{page:?}");

    let package = json!({"url": format!("{}/iniconfig/", index.trim_end_matches('/'))});
    call(&*set, "browser__browser_navigate", package).await;
    let page = call(&*set, "browser__browser_snapshot", json!({})).await;
    let page = page.content.text();
    assert!(page.contains("iniconfig-2.0.0"), "{page}");
    let elsewhere = json!({"url": "https://example.com/"});
    let refused = call(&*set, "browser__browser_navigate", elsewhere).await;
    assert!(!refused.success, "{refused:?}");
    set.close().await.unwrap();
}
