//! The tool `python`: what a model sees, and whose sandbox it uses.

use std::sync::Arc;

use cantle_backends_local::LocalBackend;
use cantle_core::content::{Content, Part};
use cantle_core::ids::RunId;
use cantle_core::policy::Policy;
use cantle_core::sandbox::{Backend as _, Sandbox, SandboxContext, SandboxExt as _};
use cantle_core::tool::{
    DynTool, OpenContext, ToolContext, ToolOutput, ToolProvider as _, ToolSet,
};
use cantle_python::PythonTool;
use serde_json::json;

use crate::{interpreter, without_carets};

/// A PNG of one pixel.
const PNG: &str = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";

async fn sandbox(run: RunId) -> Arc<dyn Sandbox> {
    let context = SandboxContext::new(run, Policy::workspace());
    LocalBackend::new().open(context).await.expect("a sandbox")
}

async fn open(
    provider: &PythonTool,
    run: RunId,
    sandbox: &Arc<dyn Sandbox>,
) -> (Box<dyn ToolSet>, DynTool) {
    let mut cx = OpenContext::new(run);
    cx.sandbox = Some(Arc::clone(sandbox));
    let set = provider.open(cx).await.expect("the tools");
    let tool = set.tools().remove(0);
    (set, tool)
}

async fn call(tool: &DynTool, code: &str) -> ToolOutput {
    let cx = ToolContext::new(RunId::new(), "1");
    tool.call(json!({"code": code}), cx)
        .await
        .expect("a result")
}

async fn text(tool: &DynTool, code: &str) -> String {
    call(tool, code).await.content.text()
}

#[tokio::test]
async fn a_model_sees_output_values_and_errors() {
    let run = RunId::new();
    let sandbox = sandbox(run).await;
    let (set, tool) = open(&PythonTool::new(interpreter()), run, &sandbox).await;
    let printed = text(&tool, "x = 20\nprint('a')\nx + 1").await;
    assert_eq!(
        printed,
        "<python_results>\n<stdout>a</stdout>\n<result>21</result>\n</python_results>"
    );
    let failed = call(&tool, "x / 0").await;
    assert!(failed.success);
    let expected = "<python_results>\n<error>Traceback (most recent call last):\n  File \"<cell 2>\", line 1, in <module>\n    \
                    x / 0\nZeroDivisionError: division by zero</error>\n</python_results>";
    assert_eq!(without_carets(&failed.content.text()), expected);
    let silent = text(&tool, "x = 1").await;
    assert_eq!(
        silent,
        "<python_results>\n<outcome>The code ended without output.</outcome>\n</python_results>"
    );
    let invalid = text(&tool, "x = (").await;
    assert!(invalid.contains("SyntaxError: "), "{invalid}");
    let offline = text(
        &tool,
        "import urllib.request as r\nr.urlopen('http://192.0.2.1/')",
    )
    .await;
    assert!(
        offline.contains("<advice>Network access is disabled"),
        "{offline}"
    );

    // Commands and code have the same files.
    let printed = text(&tool, "open('made.txt', 'w').write('by code')").await;
    assert!(printed.contains("<files>Created or changed: made.txt (7 bytes)</files>"));
    let made = "made.txt".parse().unwrap();
    assert_eq!(sandbox.read_bytes(&made, 100).await.unwrap(), "by code");
    set.close().await.unwrap();
    assert!(
        sandbox.is_file(&made).await.unwrap(),
        "the sandbox is the session's"
    );
    sandbox.close().await.unwrap();
}

#[tokio::test]
async fn a_model_sees_which_files_a_call_changed() {
    let run = RunId::new();
    let sandbox = sandbox(run).await;
    let (set, tool) = open(&PythonTool::new(interpreter()), run, &sandbox).await;
    let many = "for n in range(100): open('f%02d' % n, 'w').close()\nraise ValueError";
    let many = text(&tool, many).await;
    assert!(
        many.contains("<files>Created or changed: f00 (0 bytes), f01 (0 bytes), ")
            && many.contains(", f19 (0 bytes) and 80 more</files>"),
        "{many}"
    );
    // Not what commands changed between two calls.
    let by_command = "by-command".parse().unwrap();
    sandbox.write_bytes(&by_command, "x".into()).await.unwrap();
    let odd = text(
        &tool,
        "open('a\\nb', 'w').close(); open('f01', 'w').write('x')",
    )
    .await;
    let named = "<files>Created or changed: a\\nb (0 bytes), f01 (1 bytes)</files>";
    assert!(odd.contains(named), "{odd}");
    let none = text(&tool, "1").await;
    assert!(!none.contains("<files>"), "{none}");
    set.close().await.unwrap();
    sandbox.close().await.unwrap();
}

#[tokio::test]
async fn long_output_is_cut_and_kept_in_a_file() {
    let run = RunId::new();
    let sandbox = sandbox(run).await;
    let (set, tool) = open(&PythonTool::new(interpreter()), run, &sandbox).await;
    let text = text(
        &tool,
        "import os; os.makedirs('below'); os.chdir('below')\nprint('x' * 200_000)",
    )
    .await;
    let (_, file) = text.split_once("all of it is in ").unwrap();
    let (file, _) = file.split_once(']').unwrap();
    assert!(
        text.len() < 21_000 && file.starts_with(".cantle/output/"),
        "{file}"
    );
    let kept = sandbox
        .read_bytes(&file.parse().unwrap(), 1 << 20)
        .await
        .unwrap();
    assert_eq!(kept.len(), 200_001);
    set.close().await.unwrap();
    sandbox.close().await.unwrap();
}

#[tokio::test]
async fn images_go_to_models_that_take_them() {
    let run = RunId::new();
    let sandbox = sandbox(run).await;
    let code = format!(
        "class Plot:\n  def _repr_png_(self): return '{PNG}'\n  def __repr__(self): return 'plot'\nPlot()"
    );
    let (set, tool) = open(&PythonTool::new(interpreter()).images(true), run, &sandbox).await;
    let Content::Parts(parts) = call(&tool, &code).await.content else {
        panic!("no parts");
    };
    assert!(
        matches!(&parts[..], [Part::Text(text), Part::Media(_)] if text.contains("<result>plot\n(image 1)</result>"))
    );
    set.close().await.unwrap();
    let (set, tool) = open(&PythonTool::new(interpreter()), run, &sandbox).await;
    let shown = text(&tool, &code).await;
    assert!(shown.contains("not shown; save it to a file"), "{shown}");
    set.close().await.unwrap();
    sandbox.close().await.unwrap();
}

#[tokio::test]
async fn a_resumed_run_is_told_that_variables_are_lost() {
    let run = RunId::new();
    let sandbox = sandbox(run).await;
    let provider = PythonTool::new(interpreter());
    for (lost, code) in [(false, "x = 1"), (true, "x = 2")] {
        let (set, tool) = open(&provider, run, &sandbox).await;
        assert_eq!(text(&tool, code).await.contains("are lost"), lost);
        assert!(!text(&tool, "x").await.contains("are lost"));
        set.suspend().await.unwrap();
    }
    // A sub-agent's own run in the same sandbox has lost nothing.
    let (set, tool) = open(&provider, RunId::new(), &sandbox).await;
    assert!(!text(&tool, "x = 1").await.contains("are lost"));
    set.close().await.unwrap();
    sandbox.close().await.unwrap();
}

#[tokio::test]
async fn without_a_sandbox_the_tool_opens_and_closes_its_own() {
    let provider = PythonTool::new(interpreter());
    let set = provider.open(OpenContext::new(RunId::new())).await.unwrap();
    let tool = set.tools().remove(0);
    assert!(set.sandbox().is_none());
    assert!(text(&tool, "6 * 7").await.contains("<result>42</result>"));
    set.close().await.unwrap();
    let cx = ToolContext::new(RunId::new(), "1");
    assert!(tool.call(json!({"code": "1"}), cx).await.is_err());
}
