//! The settings of the provider.

use cantle_core::sandbox::{SandboxExt as _, SandboxPath, SpawnRequest};
use serde_json::json;

use super::Fixture;

#[tokio::test(flavor = "multi_thread")]
async fn a_program_of_the_sandbox_gets_the_arguments() {
    let configured = |tools: cantle_browser::BrowserTools| {
        let tools = tools.executable_path("./browser").tool_prefix("");
        tools.extra_args(["--user-agent=Cantle test"])
    };
    let Some(fixture) = Fixture::open(configured).await else {
        return;
    };
    let tools = fixture.set.tools();
    assert!(tools.iter().any(|tool| tool.name() == "get_url"));
    let program = format!(
        "#!/bin/sh\necho \"$@\" > arguments\nexec {} \"$@\"\n",
        std::env::var("CANTLE_TEST_CHROMIUM").unwrap()
    );
    let [browser, written] = ["browser", "arguments"].map(|name| SandboxPath::new(name).unwrap());
    let sandbox = &fixture.sandbox;
    sandbox.write_bytes(&browser, program.into()).await.unwrap();
    let executable = SpawnRequest::shell("chmod +x browser");
    sandbox.run(executable).await.unwrap();
    let agent = json!({"script": "navigator.userAgent"});
    let agent = fixture.call("evaluate_js", agent).await;
    assert!(agent.contains("\"Cantle test\""), "{agent}");
    let arguments = sandbox.read_bytes(&written, 1 << 16).await.unwrap();
    let arguments = String::from_utf8_lossy(&arguments);
    assert!(arguments.contains(" --headless "), "{arguments}");
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_window_needs_a_display() {
    let Some(fixture) = Fixture::open(|tools| tools.headless(false)).await else {
        return;
    };
    let error = fixture.try_call("_get_url", json!({})).await.unwrap_err();
    let error = error.to_string();
    assert!(error.contains("its standard error ends with"), "{error}");
    assert!(error.contains("$DISPLAY"), "{error}");
    fixture.close().await;
}
