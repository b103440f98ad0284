//! Whole runs, recorded and played.

use cantle_testkit::openai::{Script, ScriptedServer, ToolCall, Turn};
use serde_json::json;

use crate::support::Place;

/// Nothing of a run is the same the next time but what it asks.
#[tokio::test]
async fn a_run_whose_commands_print_times_and_process_ids_is_played() {
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
        let place = Place::new()
            .served_by(&server.url())
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
        let recorded = place.run(run.iter().chain(&["--record", "calls"])).await;
        assert_eq!(
            (recorded.code, &*recorded.stdout),
            (Some(0), "Done.\n"),
            "{recorded:?}"
        );
        drop(server);
        assert_eq!(place.read("calls").matches("\"result\":").count(), 4);

        for _ in 0..2 {
            let played = place.run(run.iter().chain(&["--replay", "calls"])).await;
            assert_eq!(
                (played.code, &*played.stdout),
                (Some(0), "Done.\n"),
                "{played:?}"
            );
            let said = "Of 4 tool results, 3 differed from the recorded ones (-v shows how)";
            assert!(played.stderr.contains(said), "{}", played.stderr);
            // The commands are run, and what they make is handed over.
            assert_eq!(place.read("out/log"), "seen\nseen\n");
        }
        let changed = ["--replay", "calls", "--system-prompt", "Be brief."];
        let other = place.run(run.iter().chain(&changed)).await;
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
async fn a_recording_holds_no_key_that_a_command_found() {
    // Whoever runs without walls lets commands read what they like.
    let show = ToolCall::new("code_exec", json!({"cmd": "cat key.txt"}));
    let script = Script::new()
        .turn(Turn::tool(show))
        .turn(Turn::tool(ToolCall::new(
            "finish",
            json!({"reason": "The key is sk-\"other."}),
        )));
    let server = ScriptedServer::start(script).await.unwrap();
    let place = Place::new()
        .served_by(&server.url())
        .set("CANTLE_API_KEY", "sk-test-123")
        .set("OPENROUTER_API_KEY", "sk-\"other");
    place.write("key.txt", "sk-test-123 sk-\"other\n");
    let args = ["run", "Look", "--record", "calls", "--input", "key.txt"];
    let ended = place.run(args).await;
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let recording = place.read("calls");
    assert!(!recording.contains("sk-"), "{recording}");
    assert!(recording.matches("[hidden]").count() >= 4, "{recording}");
}

#[tokio::test]
async fn what_was_refused_when_it_was_recorded_is_refused_again() {
    let command = |cmd: &str| ToolCall::new("code_exec", json!({ "cmd": cmd }));
    let script = Script::new()
        .turn(Turn::tool(command("touch forbidden")))
        .turn(Turn::tool(ToolCall::new(
            "finish",
            json!({"reason": "Not allowed."}),
        )));
    let server = ScriptedServer::start(script).await.unwrap();
    let place = Place::new().served_by(&server.url());
    let rules = "default = \"allow\"\n[[rule]]\ntool = \"code_exec\"\npermission = \"deny\"\n";
    place.write("rules.toml", rules);
    let args = ["run", "Try", "--record", "calls", "--approve", "rules.toml"];
    let recorded = place.run(args).await;
    assert_eq!(recorded.code, Some(0), "{recorded:?}");
    drop(server);
    // Whoever plays it is not asked, and needs no rules.
    let played = place.run(["run", "Try", "--replay", "calls", "-v"]).await;
    assert_eq!(
        (played.code, &*played.stdout),
        (Some(0), "Not allowed.\n"),
        "{played:?}"
    );
    assert!(
        played.stderr.contains("calls like this are not allowed"),
        "{}",
        played.stderr
    );
}
