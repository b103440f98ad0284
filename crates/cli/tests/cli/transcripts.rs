//! Kept runs as they are shown afterwards.

use cantle_testkit::openai::{Script, ScriptedServer, ServerOptions, ToolCall, Turn};
use serde_json::{Value, json};

use crate::finish;
use crate::support::TestEnv;

/// Runs a command whose output tries to end its code block, and delivers a file.
async fn kept() -> (ScriptedServer, TestEnv) {
    let command = "echo '```'; echo '# no heading'; printf '\\033[31mred\\n'; echo 3 > count.txt";
    let call = ToolCall::new("code_exec", json!({"cmd": command}));
    let script = Script::new()
        .turn(Turn::text("I count **first**.").call(call))
        .turn(finish("There are 3 words.", &["count.txt"]));
    let server = ScriptedServer::start(ServerOptions::new(script))
        .await
        .unwrap();
    let env = TestEnv::new().with_server(&server.url());
    let task = ["run", "Count the words", "--output-dir", "out"];
    let exited = env.run(task).await;
    assert_eq!(exited.code, Some(0), "{exited:?}");
    (server, env)
}

#[tokio::test]
async fn kept_run_is_shown_in_every_form() {
    let (_server, env) = kept().await;
    let shown = env.run(["runs", "show", "last"]).await;
    assert!(
        shown.stdout.contains("answer   There are 3 words."),
        "{shown:?}"
    );
    assert!(shown.stdout.contains("out/count.txt"), "{shown:?}");
    let markdown = env
        .run(["runs", "show", "last", "--format", "markdown"])
        .await;
    insta::assert_snapshot!(markdown.transcript(&env));
    let log = env.run(["runs", "show", "last", "--log"]).await;
    insta::assert_snapshot!(log.transcript(&env));

    let json = env
        .run(["runs", "show", "last", "--format", "json"])
        .await
        .stdout;
    let events = json
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap());
    let events: Vec<_> = events.map(|event| event["event"].clone()).collect();
    assert_eq!(events.first(), Some(&json!("run_started")));
    assert_eq!(events.last(), Some(&json!("run_finished")));
}
