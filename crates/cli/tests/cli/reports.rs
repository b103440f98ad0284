//! Kept runs as pages, in a real Chromium.

use std::path::Path;
use std::process::Stdio;

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

/// Returns the DOM of a page and the browser's messages; `None`, with a message, without Chromium.
async fn open(page: &Path, fragment: &str) -> Option<(String, String)> {
    browse(page, fragment, &["--dump-dom"]).await
}

/// Starts Chromium with a page, and returns its output and its messages.
async fn browse(page: &Path, fragment: &str, flags: &[&str]) -> Option<(String, String)> {
    let Ok(program) = std::env::var("CANTLE_TEST_CHROMIUM") else {
        lane::skip("the peer chromium is not available");
        return None;
    };
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
