//! Kept runs as they are shown afterwards.

use cantle_testkit::openai::{Script, ScriptedServer, ServerOptions, ToolCall, Turn};
use serde_json::{Value, json};

use crate::support::TestEnv;
use crate::{command, finish};

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

#[tokio::test]
async fn an_answer_in_text_is_shown_as_the_result() {
    let script = Script::new()
        .turn(Turn::text("There are **3** words."))
        .repeat_last();
    let server = ScriptedServer::start(script).await.unwrap();
    let env = TestEnv::new().with_server(&server.url());
    let exited = env.run(["run", "Count the words"]).await;
    assert_eq!(exited.code, Some(0), "{exited:?}");
    let shown = env.run(["runs", "show", "last"]).await.stdout;
    assert!(shown.contains("answer   There are **3** words."), "{shown}");
    assert!(!shown.contains("--resume"), "{shown}");
    let page = env
        .run(["runs", "show", "last", "--format", "html"])
        .await
        .stdout;
    assert!(page.contains("There are **3** words."), "{page}");
}

#[tokio::test]
async fn runs_are_compared_as_a_diff() {
    let answers = |word: &str| {
        Script::new()
            .turn(command("echo same"))
            .turn(command(&format!("printf '{word}\\033[31m'")))
            .turn(finish(&format!("The {word} answer."), &[]))
    };
    let first_server = ScriptedServer::start(answers("first")).await.unwrap();
    let second_server = ScriptedServer::start(answers("second")).await.unwrap();
    let env = TestEnv::new().with_server(&first_server.url());
    env.run(["run", "Say it"]).await;
    let kept = env.run(["runs", "list", "--json"]).await.stdout;
    let kept: Value = serde_json::from_str(&kept).unwrap();
    let first = kept[0]["run"].as_str().unwrap();
    env.run(["run", "Say it"]).await;
    let same = env.run(["runs", "diff", first, "last"]).await;
    assert_eq!(same.stdout, "The runs do not differ.\n");

    env.run(["run", "Say it", "--base-url", &second_server.url()])
        .await;
    let compared = env.run(["runs", "diff", first, "last"]).await;
    assert_eq!(compared.code, Some(0), "{compared:?}");
    let text = &compared.stdout;
    assert!(text.starts_with(&format!("--- {first}\n+++ ")), "{text}");
    for line in ["-answer: The first answer.", "+answer: The second answer."] {
        assert!(text.lines().any(|shown| shown == line), "{text}");
    }
    assert!(text.contains("-<stdout>first"), "{text}");
    assert!(
        !text.contains("task:") && !text.contains('\u{1b}'),
        "{text}"
    );
}
