//! Runs that are recorded and replayed.

use cantle_testkit::openai::{Script, ScriptedServer, ToolCall, Turn};
use serde_json::json;

use crate::support::TestEnv;

#[tokio::test]
async fn volatile_output_is_replayed() {
    let volatile = "date +%s%N; echo $$; mktemp; echo seen >> log";
    let command = |cmd: &str| ToolCall::new("code_exec", json!({ "cmd": cmd }));
    let script = || {
        let finish = ToolCall::new("finish", json!({"reason": "Done.", "paths": ["log"]}));
        Script::new()
            .turn(Turn::tool(command(volatile)).call(command(volatile).without_id()))
            .turn(Turn::tool(command(
                "cat no-such-file; echo $RANDOM$RANDOM$RANDOM >&2; exit 3",
            )))
            .turn(Turn::tool(finish))
    };
    for api in ["chat", "messages", "responses"] {
        let server = ScriptedServer::start(script()).await.unwrap();
        let env = TestEnv::new()
            .with_server(&server.url())
            .set("CANTLE_API", api)
            .set("CANTLE_API_KEY", "sk-test-123");
        let run = [
            "run",
            "Look at the clock",
            "--output-dir",
            "out",
            "--budget-time",
            "1h",
        ];
        let recorded = env.run(run.iter().chain(&["--record", "calls"])).await;
        assert_eq!(
            (recorded.code, &*recorded.stdout),
            (Some(0), "Done.\n"),
            "{recorded:?}"
        );
        drop(server);
        assert_eq!(env.read("calls").matches("\"result\":").count(), 4);

        // What the model is told of its environment may differ: here the turns, later the date.
        for turns in ["30", "29"] {
            let replay = ["--replay", "calls", "--max-turns", turns];
            let played = env.run(run.iter().chain(&replay)).await;
            assert_eq!(
                (played.code, &*played.stdout),
                (Some(0), "Done.\n"),
                "{played:?}"
            );
            let expected = "3 of 4 tool results differed from the recorded ones (-v shows how)";
            assert!(played.stderr.contains(expected), "{}", played.stderr);
            // The commands are executed, and their output files are saved.
            assert_eq!(env.read("out/log"), "seen\nseen\n");
        }
        let changed = ["--replay", "calls", "--system-prompt", "Be brief."];
        let other = env.run(run.iter().chain(&changed)).await;
        assert_eq!(other.code, Some(5), "{other:?}");
        assert!(
            other
                .stderr
                .contains("message 1 (system) differs at `content`"),
            "{}",
            other.stderr
        );
    }
}

#[tokio::test]
async fn recordings_contain_no_keys() {
    let show = ToolCall::new("code_exec", json!({"cmd": "cat key.txt"}));
    let script = Script::new()
        .turn(Turn::tool(show))
        .turn(Turn::tool(ToolCall::new(
            "finish",
            json!({"reason": "The key is sk-\"other."}),
        )));
    let server = ScriptedServer::start(script).await.unwrap();
    let env = TestEnv::new()
        .with_server(&server.url())
        .set("CANTLE_API_KEY", "sk-test-123")
        .set("OPENROUTER_API_KEY", "sk-\"other");
    env.write("key.txt", "sk-test-123 sk-\"other\n");
    let args = ["run", "Look", "--record", "calls", "--input", "key.txt"];
    let exited = env.run(args).await;
    assert_eq!(exited.code, Some(0), "{exited:?}");
    let recording = env.read("calls");
    assert!(!recording.contains("sk-"), "{recording}");
    assert!(recording.matches("[hidden]").count() >= 4, "{recording}");
}

#[tokio::test]
async fn recorded_refusals_are_replayed() {
    let command = |cmd: &str| ToolCall::new("code_exec", json!({ "cmd": cmd }));
    let script = Script::new()
        .turn(Turn::tool(command("touch forbidden")))
        .turn(Turn::tool(ToolCall::new(
            "finish",
            json!({"reason": "Not allowed."}),
        )));
    let server = ScriptedServer::start(script).await.unwrap();
    let env = TestEnv::new().with_server(&server.url());
    let rules = "default = \"allow\"\n[[rule]]\ntool = \"code_exec\"\npermission = \"deny\"\n";
    env.write("rules.toml", rules);
    let args = ["run", "Try", "--record", "calls", "--approve", "rules.toml"];
    let recorded = env.run(args).await;
    assert_eq!(recorded.code, Some(0), "{recorded:?}");
    drop(server);
    // Replaying needs no approval rules.
    let played = env.run(["run", "Try", "--replay", "calls", "-v"]).await;
    assert_eq!(
        (played.code, &*played.stdout),
        (Some(0), "Not allowed.\n"),
        "{played:?}"
    );
    assert!(
        played.stderr.contains("the user's rules deny this call"),
        "{}",
        played.stderr
    );
}
