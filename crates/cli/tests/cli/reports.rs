//! Kept runs as pages, in a real Chromium.

use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;

use cantle::backends::local::LocalBackend;
use cantle::browser::BrowserTools;
use cantle::core::ids::RunId;
use cantle::core::policy::Policy;
use cantle::core::sandbox::{Backend as _, Sandbox, SandboxContext, SandboxExt as _, SandboxPath};
use cantle::core::tool::{OpenContext, ToolContext, ToolProvider as _, ToolSet};
use cantle_testkit::lane;
use cantle_testkit::openai::{Script, ScriptedServer, ServerOptions, ToolCall, Turn};
use serde_json::{Value, json};
use tokio::process::Command;
use tokio::time::timeout;

use crate::support::{DEADLINE, TestEnv};
use crate::{command, finish};

/// Markup that would run, or load something, if it were parsed as such.
const HOSTILE: &str = "</script><script>document.title='TAKEN'</script><img src=x onerror=\"document.title='TAKEN'\">";
const SECRET: &str = "sk-report-\"0123456789";

/// Keeps a run whose texts are hostile, and returns its page and its server.
async fn page() -> (ScriptedServer, TestEnv) {
    let shell = format!(
        "printf '%s\\n' \"$OPENAI_API_KEY\" '{}'; head -c 300000 /dev/zero | tr '\\0' x; \
         printf '\\033[31mred \\342\\200\\256evil\\n'; echo lost >&2; exit 3",
        HOSTILE.replace('\'', "'\\''")
    );
    let script = Script::new()
        .turn(command(&shell))
        .turn(command("echo needle-in-output"))
        .turn(finish(&format!("Done {HOSTILE} {SECRET}"), &[]));
    let server = ScriptedServer::start(script).await.unwrap();
    let env = TestEnv::new()
        .with_server(&server.url())
        .set("REPORT_TOKEN", SECRET);
    let task = format!("Show {HOSTILE}");
    let exited = env.run(["run", &task, "--budget-tokens", "100000"]).await;
    assert_eq!(exited.code, Some(0), "{exited:?}");
    write_page(&env).await;
    (server, env)
}

/// Writes the page of the latest run to `report.html`.
async fn write_page(env: &TestEnv) {
    let show = ["runs", "show", "last", "--format", "html"];
    let exited = env.run(show.iter().chain(&["-o", "report.html"])).await;
    assert_eq!(exited.code, Some(0), "{exited:?}");
    assert!(
        exited.stdout.starts_with("Wrote report.html ("),
        "{exited:?}"
    );
}

/// Returns the path of Chromium; `None`, with a message, without it.
fn chromium() -> Option<String> {
    let program = std::env::var("CANTLE_TEST_CHROMIUM").ok();
    if program.is_none() {
        lane::skip("the peer chromium is not available");
    }
    program
}

/// Returns the DOM of a page and the browser's messages; `None`, with a message, without Chromium.
async fn open(page: &Path, fragment: &str) -> Option<(String, String)> {
    browse(page, fragment, &["--dump-dom"]).await
}

/// Starts Chromium with a page, and returns its output and its messages.
async fn browse(page: &Path, fragment: &str, flags: &[&str]) -> Option<(String, String)> {
    let program = chromium()?;
    let profile = tempfile::tempdir().unwrap();
    let mut browser = Command::new(program);
    browser
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
        ])
        .args(["--enable-logging=stderr", "--virtual-time-budget=10000"])
        .args(flags)
        .arg(format!("--user-data-dir={}", profile.path().display()))
        .arg(format!("file://{}{fragment}", page.display()))
        .stdin(Stdio::null())
        .kill_on_drop(true);
    let output = timeout(DEADLINE, browser.output()).await.unwrap().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}", text(&output.stderr));
    Some((text(&output.stdout), text(&output.stderr)))
}

#[tokio::test]
async fn page_renders_hostile_content_as_text() {
    let (_server, env) = page().await;
    let path = env.path("report.html");
    let source = env.read("report.html");
    assert!(!source.contains(SECRET) && source.contains("[REPORT_TOKEN redacted]"));
    assert!(!source.contains("<img") && source.contains("&lt;img src=x onerror="));
    let Some((dom, messages)) = open(&path, "").await else {
        return;
    };
    for refused in ["Content Security Policy", "Uncaught", "TypeError"] {
        assert!(!messages.contains(refused), "{messages}");
    }
    assert!(
        !dom.contains("TAKEN'</title>") && !dom.contains("<title>TAKEN"),
        "{dom}"
    );
    assert!(!dom.contains("<img"), "{dom}");
    assert!(dom.contains("Turn 3") && dom.contains("exit 3"), "{dom}");
    assert!(dom.contains(">of 100k</text>"), "{dom}");
    // The page has no more scripts than its own data and code.
    assert_eq!(
        dom.matches("<script").count() - dom.matches("<script>document.title").count(),
        2
    );
}

#[tokio::test]
async fn page_is_searched_by_its_address() {
    let (_server, env) = page().await;
    let path = env.path("report.html");
    let Some((dom, _)) = open(&path, "#search=NEEDLE-in-output").await else {
        return;
    };
    let hidden = dom.matches("hidden=\"\"").count();
    assert!(dom.contains(">1 of ") && hidden > 3, "{dom}");
}

/// Resolves when the timeline is there.
const SHOWN: &str = "new Promise((resolve) => {
    const look = () => document.querySelector('#list > .entry') ? resolve(true) : setTimeout(look, 20);
    look();
})";

/// A page that is used with the browser's tools.
struct OpenPage {
    sandbox: Arc<dyn Sandbox>,
    tools: Box<dyn ToolSet>,
    run: RunId,
}

impl OpenPage {
    /// Opens a page, and waits for its timeline; `None`, with a message, without Chromium.
    async fn load(page: &Path) -> Option<Self> {
        let browser = BrowserTools::new().executable_path(chromium()?);
        let run = RunId::new();
        let context = SandboxContext::new(run, Policy::workspace());
        let sandbox = LocalBackend::new().open(context).await.unwrap();
        let path = SandboxPath::new("report.html").unwrap();
        let content = std::fs::read(page).unwrap();
        sandbox.write_bytes(&path, content.into()).await.unwrap();
        let url = format!("file://{}/{path}", sandbox.info().working_directory);
        let mut context = OpenContext::new(run);
        context.sandbox = Some(Arc::clone(&sandbox));
        let tools = browser.open(context).await.unwrap();
        let page = Self {
            sandbox,
            tools,
            run,
        };
        page.call("browser_navigate", json!({ "url": url })).await;
        page.value(SHOWN).await;
        Some(page)
    }

    /// Calls a tool, and returns the text of its success.
    async fn call(&self, name: &str, arguments: Value) -> String {
        let tools = self.tools.tools();
        let tool = tools.iter().find(|tool| tool.name() == name).unwrap();
        let arguments = tool.parse(&arguments.to_string()).unwrap().arguments;
        let context = ToolContext::new(self.run, "call");
        let output = tool.call(arguments, context).await.unwrap();
        assert!(output.success, "{output:?}");
        output.content.text()
    }

    /// Returns the value of a script in the page.
    async fn value(&self, script: &str) -> Value {
        let arguments = json!({ "script": script });
        let text = self.call("browser_evaluate_js", arguments).await;
        let (_, value) = text.split_once("<javascript_result>\n").unwrap();
        let (value, _) = value.split_once("\n</javascript_result>").unwrap();
        serde_json::from_str(value).unwrap()
    }

    async fn press(&self, keys: &str) {
        self.call("browser_send_keys", json!({ "keys": keys }))
            .await;
    }

    /// Clicks a button of the page.
    async fn click(&self, button: &str) {
        let snapshot = json!({"interactive_only": true});
        let snapshot = self.call("browser_snapshot", snapshot).await;
        let (_, line) = snapshot
            .split_once(&format!("button \"{button}\""))
            .unwrap();
        let (_, reference) = line.split_once("[ref=").unwrap();
        let (reference, _) = reference.split_once(']').unwrap();
        self.call("browser_click", json!({ "ref": reference }))
            .await;
    }

    async fn close(self) {
        self.tools.close().await.unwrap();
        self.sandbox.close().await.unwrap();
    }
}

/// The filter of a page, the number of its visible entries, the index of the current one among them (or -1), and how
/// many of them are open.
const STATE: &str = "(() => {
    const shown = [...document.querySelectorAll('#list > .entry')].filter((entry) => !entry.hidden);
    return [
        document.querySelector('#filters [aria-pressed=true]').dataset.filter,
        shown.length,
        shown.findIndex((entry) => entry.classList.contains('current')),
        shown.filter((entry) => entry.open).length,
    ];
})()";

#[tokio::test(flavor = "multi_thread")]
async fn page_obeys_its_keys_and_filters() {
    let (_server, env) = page().await;
    let Some(page) = OpenPage::load(&env.path("report.html")).await else {
        return;
    };
    let count = async |selector: &str| {
        let script = format!("document.querySelectorAll(\"{selector}\").length");
        page.value(&script).await.as_u64().unwrap()
    };
    let entries = count("#list > .entry").await;
    let foldable = count("#list > details").await;
    let turns = count("#list > .turn").await;
    // Two commands and the end.
    assert!(foldable >= 3 && turns == 3, "{foldable} {turns}");
    assert_eq!(page.value(STATE).await, json!(["all", entries, -1, 0]));
    for (keys, state) in [
        ("j", json!(["all", entries, 0, 0])),
        ("j j", json!(["all", entries, 2, 0])),
        ("k", json!(["all", entries, 1, 0])),
        ("e", json!(["all", entries, 1, foldable])),
        ("e", json!(["all", entries, 1, 0])),
        ("f", json!(["failed", 1, -1, 0])),
        ("j", json!(["failed", 1, 0, 0])),
        ("o", json!(["failed", 1, 0, 1])),
    ] {
        page.press(keys).await;
        assert_eq!(page.value(STATE).await, state, "{keys}");
    }
    let output = page.value("document.querySelector('#list > [open] .stderr').textContent.trim()");
    assert_eq!(output.await, "lost");
    for (keys, state) in [
        ("o", json!(["failed", 1, 0, 0])),
        ("f", json!(["all", entries, -1, 0])),
    ] {
        page.press(keys).await;
        assert_eq!(page.value(STATE).await, state, "{keys}");
    }
    page.click("Model").await;
    assert_eq!(page.value(STATE).await, json!(["model", turns, -1, 0]));
    page.press("Escape").await;
    assert_eq!(page.value(STATE).await, json!(["all", entries, -1, 0]));
    // In the field of the search, they are letters.
    page.press("/ j f").await;
    let searched = page.value("document.getElementById('search').value");
    assert_eq!(searched.await, "jf");
    page.close().await;
}

/// Returns the brightness of the page's corner in a screenshot, of 255.
async fn brightness(page: &Path, screenshot: &Path, scheme: &str) -> Option<u8> {
    let target = format!("--screenshot={}", screenshot.display());
    let scheme = format!("--blink-settings=preferredColorScheme={scheme}");
    browse(page, "", &[&target, &scheme, "--window-size=1000,800"]).await?;
    let picture = image::open(screenshot).unwrap().into_luma8();
    Some(picture.get_pixel(2, 2).0[0])
}

#[tokio::test]
async fn page_shows_images_changes_and_sub_agents_and_their_hostile_texts_as_text() {
    let echo = format!("cat <<'END'\n{HOSTILE}\nEND");
    let change = format!(
        "printf 'end\\r\\n' > ends; cat > 'x <img src=x onerror=alert(1)>' <<'END'\n{HOSTILE}\nEND"
    );
    let main = Script::new()
        .turn(command(&change))
        .turn(Turn::tool(ToolCall::new(
            "view_image",
            json!({"path": "dot.gif"}),
        )))
        .turn(Turn::tool(ToolCall::new(
            "reviewer",
            json!({"task": HOSTILE}),
        )))
        .turn(finish(HOSTILE, &[]));
    let critic = Script::new()
        .turn(command(&echo))
        .turn(finish(HOSTILE, &[]));
    let options = ServerOptions::new(main).model("critic", critic);
    let server = ScriptedServer::start(options).await.unwrap();
    let env = TestEnv::new().with_server(&server.url());
    env.write("repo/dot.gif", crate::DOT);
    let team = "[reviewer]\ndescription = \"Reviews.\"\nmodel = \"critic\"\n";
    env.write("team.toml", team);
    let args = [
        "run",
        "Show all",
        "--workdir",
        "repo",
        "--sub-agents",
        "team.toml",
        "--vision",
        "on",
        "--image",
        "repo/dot.gif",
    ];
    let exited = env.run(args).await;
    assert_eq!(exited.code, Some(0), "{exited:?}");
    write_page(&env).await;
    let page = env.path("report.html");
    let of_task = "<h2>Images of the task</h2><img src=\"data:image/gif;base64,";
    assert!(env.read("report.html").contains(of_task));

    let Some((dom, messages)) = open(&page, "#open").await else {
        return;
    };
    for refused in ["Content Security Policy", "Uncaught", "TypeError"] {
        assert!(!messages.contains(refused), "{messages}");
    }
    assert!(!dom.contains("<title>TAKEN"), "{dom}");
    // The images of the task and of a result are the only ones, and the page's own elements are its only scripts.
    assert_eq!(dom.matches("<img").count(), 2, "{dom}");
    let images = dom.matches("<img src=\"data:image/gif;base64,").count();
    assert_eq!(images, 2, "{dom}");
    assert_eq!(dom.matches("<script").count(), 2, "{dom}");
    let hostile = HOSTILE.replace('<', "&lt;").replace('>', "&gt;");
    // The change, the file's name, and the sub-agent's task, command, output and answer.
    assert!(
        dom.contains(&format!("<span class=\"add\">+{hostile}")),
        "{dom}"
    );
    assert!(dom.contains("<span class=\"add\">+end\\u{d}\n"), "{dom}");
    assert!(
        dom.contains("x &lt;img src=x onerror=alert(1)&gt;"),
        "{dom}"
    );
    assert!(dom.contains("class=\"agent\"> · reviewer<"), "{dom}");
    assert!(dom.matches(&hostile).count() > 6, "{dom}");

    let shot = env.path("shot.png");
    let light = brightness(&page, &shot, "1").await.unwrap();
    let dark = brightness(&page, &shot, "0").await.unwrap();
    assert!(light > 200 && dark < 60, "{light} {dark}");
}

#[tokio::test]
async fn every_format_is_redacted() {
    let (_server, env) = page().await;
    for format in ["markdown", "json"] {
        let shown = env.run(["runs", "show", "last", "--format", format]).await;
        assert!(
            shown.stdout.contains("[REPORT_TOKEN redacted]"),
            "{shown:?}"
        );
        assert!(!shown.stdout.contains("0123456789"), "{shown:?}");
        for line in shown.stdout.lines().filter(|_| format == "json") {
            serde_json::from_str::<Value>(line).unwrap();
        }
    }
}
