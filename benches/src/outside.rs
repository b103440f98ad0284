//! Tools for the outside world: MCP servers, web pages, and a browser.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use cantle_backends_local::LocalBackend;
use cantle_browser::BrowserTools;
use cantle_core::ids::RunId;
use cantle_core::policy::Policy;
use cantle_core::sandbox::{
    Backend as _, Sandbox, SandboxContext, SandboxExt as _, SandboxPath, SpawnRequest,
};
use cantle_core::tool::{OpenContext, ToolContext, ToolOutput, ToolProvider as _, ToolSet};
use cantle_mcp::{McpServer, McpTools};
use futures_util::StreamExt as _;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};

use crate::process::{median, peak_memory_mb, run_part};
use crate::report::Report;
use crate::sandboxes::{in_runtime, milliseconds};

const CALLS: usize = 200;
const SERVERS: usize = 50;
const PAGE_BYTES: usize = 1_000_000;
const ROUNDS: usize = 10;
const SNAPSHOTS: usize = 30;

/// A server with one tool. It waits for the time in `$1` before it answers the handshake.
const SERVER: &str = r#"
    reply() { printf '{"jsonrpc":"2.0","id":%s,"result":%s}\n' "$id" "$1"; }
    while read -r line; do
        id=${line#*\"id\":}; id=${id%%[,\}]*}
        case $line in
            *'"method":"initialize"'*) sleep "$1"; reply '{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"s","version":"1"}}' ;;
            *'"method":"tools/list"'*) reply '{"tools":[{"name":"work","inputSchema":{"type":"object"}}]}' ;;
            *'"method":"tools/call"'*) reply '{"content":[{"type":"text","text":"done"}]}' ;;
        esac
    done
"#;
const CALL: &[u8] = b"{\"id\":7,\"method\":\"tools/call\"}\n";

/// Measures all of it in separate processes.
pub(crate) fn measure(report: &mut Report) -> Result<()> {
    let number = |answer: &Value, name: &str| answer[name].as_f64().context("not a number");
    let servers = run_part(&["mcp-servers"])?;
    report.at_most(
        "call of an MCP server over stdio, more than the server's own time",
        number(&servers, "call_ms")?,
        "ms",
        1.0,
    );
    let what = "50 MCP servers that wait 500 ms each: connected after";
    report.at_most(what, number(&servers, "connect_s")?, "s", 1.0);
    let page = run_part(&["web-page"])?;
    let what = "a page of 1 MB as Markdown";
    report.at_most(what, number(&page, "ms")?, "ms", 100.0);
    report.at_most("… peak memory", number(&page, "peak_mb")?, "MB", 64.0);
    let browser = run_part(&["browser"])?;
    let what = "browser: start and the first page";
    report.at_most(what, number(&browser, "first_s")?, "s", 1.5);
    let what = "browser: snapshot of a page with 200 elements";
    report.at_most(what, number(&browser, "snapshot_ms")?, "ms", 20.0);
    Ok(())
}

/// Part: servers in sandboxes, beside the same script without Cantle.
pub(crate) fn run_servers() -> Result<()> {
    let answer = in_runtime(async {
        let mut raw = tokio::process::Command::new("bash")
            .args(["-c", SERVER, "bash", "0"])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let mut requests = raw.stdin.take().context("no stdin")?;
        let mut answers = BufReader::new(raw.stdout.take().context("no stdout")?).lines();
        let set = connect(1, "0").await?;
        let (mut own, mut calls) = (Vec::new(), Vec::new());
        for _ in 0..CALLS {
            let started = Instant::now();
            requests.write_all(CALL).await?;
            ensure!(answers.next_line().await?.is_some(), "the server ended");
            own.push(milliseconds(started));
            let started = Instant::now();
            call(&*set, "work", json!({})).await?;
            calls.push(milliseconds(started));
        }
        set.close().await?;
        let started = Instant::now();
        let sets = connect(SERVERS, "0.5").await?;
        let connect_s = started.elapsed().as_secs_f64();
        ensure!(sets.tools().len() == SERVERS, "a server is missing");
        sets.close().await?;
        Ok(json!({
            "call_ms": median(&mut calls) - median(&mut own),
            "connect_s": connect_s,
        }))
    })?;
    println!("{answer}");
    Ok(())
}

/// Connects to servers that wait before their handshake.
async fn connect(servers: usize, wait: &str) -> Result<Box<dyn ToolSet>> {
    let server = |n| McpServer::command(format!("s{n}"), ["bash", "-c", SERVER, "bash", wait]);
    let tools = McpTools::new((0..servers).map(server)).sandboxes(LocalBackend::new());
    Ok(tools.open(OpenContext::new(RunId::new())).await?)
}

/// Part: a page.
pub(crate) fn run_page() -> Result<()> {
    let page = page(PAGE_BYTES);
    let mut times = Vec::new();
    for _ in 0..ROUNDS {
        let started = Instant::now();
        let url = "https://example.org/guide/";
        let markdown = cantle_web::html_to_markdown(page.as_bytes(), None, url);
        times.push(milliseconds(started));
        ensure!(markdown.contains("cantle run"), "the page is lost");
    }
    println!(
        "{}",
        json!({"ms": median(&mut times), "peak_mb": peak_memory_mb()?})
    );
    Ok(())
}

/// Returns a page of documentation.
fn page(bytes: usize) -> String {
    let mut page =
        "<html><head><title>Guide</title></head><body><nav><a href=/>Home</a></nav><article>"
            .to_owned();
    let mut n = 0;
    while page.len() < bytes {
        n += 1;
        let _ = write!(
            page,
            "<h2>Chapter {n}</h2><p>A command of chapter {n} has <b>options</b>, and <a href=\"#{n}\">further</a> \
             words explain what each of them changes, when it is useful, and what it costs.</p>\
             <ul><li>first, of {n}</li><li>second</li></ul><pre><code>cantle run \"chapter {n}\"</code></pre>\
             <table><tr><th>name</th><th>value</th></tr><tr><td>chapter</td><td>{n}</td></tr></table>"
        );
    }
    page.push_str("</article></body></html>");
    page
}

/// Part: Chromium.
pub(crate) fn run_browser() -> Result<()> {
    let answer = in_runtime(async {
        let run = RunId::new();
        let context = SandboxContext::new(run, Policy::workspace());
        let sandbox = LocalBackend::new().open(context).await?;
        let form: String = (0..200)
            .map(|n| format!("<p><button>Button {n}</button>"))
            .collect();
        let path: SandboxPath = "index.html".parse()?;
        sandbox.write_bytes(&path, form.into()).await?;
        let address = serve(&*sandbox).await?;
        let mut context = OpenContext::new(run);
        context.sandbox = Some(Arc::clone(&sandbox));
        let set = BrowserTools::new().open(context).await?;
        let started = Instant::now();
        call(&*set, "_navigate", json!({"url": address})).await?;
        let first_s = started.elapsed().as_secs_f64();
        let mut snapshots = Vec::new();
        for _ in 0..SNAPSHOTS {
            let started = Instant::now();
            let output = call(&*set, "_snapshot", json!({})).await?;
            snapshots.push(milliseconds(started));
            ensure!(output.content.text().contains("Button 1"), "{output:?}");
        }
        set.close().await?;
        sandbox.close().await?;
        Ok(json!({"first_s": first_s, "snapshot_ms": median(&mut snapshots)}))
    })?;
    println!("{answer}");
    Ok(())
}

/// Serves the working directory inside of the sandbox, and returns the address.
async fn serve(sandbox: &dyn Sandbox) -> Result<String> {
    let server = SpawnRequest::argv(["python3", "-u", "-m", "http.server", "-b", "127.0.0.1", "0"]);
    let mut server = sandbox.spawn(server).await?;
    let mut output = server.take_output().context("no output")?;
    let mut line = String::new();
    while !line.contains(") ...") {
        let chunk = tokio::time::timeout(Duration::from_secs(30), output.next()).await?;
        let chunk = chunk.context("the server ended")??;
        line.push_str(&String::from_utf8_lossy(&chunk.bytes));
    }
    // It runs until the sandbox is closed.
    tokio::spawn(async move {
        while output.next().await.is_some() {}
        drop(server);
    });
    let start = line.find("http://").context("no address")?;
    Ok(line[start..]
        .split(')')
        .next()
        .unwrap_or_default()
        .to_owned())
}

/// Calls the first tool whose name ends with `name`.
async fn call(set: &dyn ToolSet, name: &str, arguments: Value) -> Result<ToolOutput> {
    let tools = set.tools();
    let tool = tools.iter().find(|tool| tool.name().ends_with(name));
    let tool = tool.context("no such tool")?;
    let arguments = tool.parse(&arguments.to_string())?.arguments;
    let context = ToolContext::new(RunId::new(), "call-1");
    let output = tool.call(arguments, context).await?;
    ensure!(output.success, "{output:?}");
    Ok(output)
}
