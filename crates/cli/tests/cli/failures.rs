//! What goes wrong, what is said about it, and the exit code.

use cantle_testkit::openai::{Fault, Reply, Script, ScriptedServer, ServerOptions, ToolCall, Turn};
use rustix::process::{Pid, Resource, Rlimit, prlimit};
use serde_json::{Value, json};

use crate::support::{Ended, Place, ended};
use crate::{command, finish, nothing_to_do};

const KEY: &str = "sk-very-secret-0123456789";

/// What a run says whose model always answers like this.
async fn refused_with(reply: Reply) -> String {
    let script = Script::new().turn(Turn::text("").fault_always(Fault::Reply(reply)));
    let server = ScriptedServer::start(script).await.unwrap();
    let place = Place::new()
        .served_by(&server.url())
        .set("CANTLE_API_KEY", KEY);
    let told = place.run(["run", "Hello", "-q"]).await.told(&place);
    assert!(!told.contains(KEY), "{told}");
    told
}

#[tokio::test]
async fn without_a_model_or_key_it_says_what_to_set() {
    let place = Place::new();
    insta::assert_snapshot!(
        "nothing_set",
        place.run(["run", "Hello"]).await.told(&place)
    );
    let ended = place
        .run([
            "run",
            "Hello",
            "--model",
            "gpt-5",
            "--provider",
            "openrouter",
        ])
        .await;
    insta::assert_snapshot!("no_key", ended.told(&place));
    let place = place.set("OPENROUTER_API_KEY", KEY);
    let ended = place.run(["run", "Hello", "--model", "gpt-5"]).await;
    insta::assert_snapshot!("another_key", ended.told(&place));
    let ended = place.run(["run", "Hello", "--provider", "local"]).await;
    insta::assert_snapshot!("no_model", ended.told(&place));
}

#[tokio::test]
async fn a_wrong_key_says_where_it_came_from() {
    let options = ServerOptions::new(nothing_to_do()).api_key("sk-right");
    let server = ScriptedServer::start(options).await.unwrap();
    let place = Place::new().served_by(&server.url());
    let none = place.run(["run", "Hello"]).await;
    insta::assert_snapshot!("key_missing", none.told(&place));
    let place = place.set("CANTLE_API_KEY", KEY);
    let wrong = place.run(["run", "Hello"]).await;
    insta::assert_snapshot!("key_wrong", wrong.told(&place));
}

#[tokio::test]
async fn a_server_that_is_down_is_named() {
    // Ours as long as it is held, and nobody listens.
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let port = socket.local_addr().unwrap().port();
    let place = Place::new().served_by(&format!("http://127.0.0.1:{port}/v1"));
    insta::assert_snapshot!(place.run(["run", "Hello", "-q"]).await.told(&place));
}

#[tokio::test]
async fn an_address_that_is_no_address_is_refused() {
    let place = Place::new().served_by("localhost:8000");
    insta::assert_snapshot!(place.run(["run", "Hello"]).await.told(&place));
}

#[tokio::test]
async fn a_path_that_is_not_there() {
    let body = json!({"error": {"message": "not found", "code": 404}}).to_string();
    insta::assert_snapshot!(refused_with(Reply::new(404, "application/json", body)).await);
}

#[tokio::test]
async fn a_web_page_in_place_of_an_answer() {
    let page = "<!doctype html><html><head><title>Sign in</title></head></html>";
    insta::assert_snapshot!(refused_with(Reply::new(200, "text/html", page)).await);
}

#[tokio::test]
async fn an_answer_that_is_not_json() {
    let nonsense = format!("{{\"choices\": [ {KEY}");
    insta::assert_snapshot!(refused_with(Reply::new(200, "application/json", nonsense)).await);
}

#[tokio::test]
async fn a_stream_that_breaks_keeps_what_was_done() {
    let broken = Turn::text("I was about to").fault_always(Fault::CutAfterEvents(3));
    let script = Script::new()
        .turn(command("echo done > work.txt"))
        .turn(broken);
    let server = ScriptedServer::start(script).await.unwrap();
    let place = Place::new().served_by(&server.url());
    let ended = place.run(["run", "Work", "--output-dir", "out"]).await;
    assert_eq!(ended.code, Some(5), "{ended:?}");
    assert_eq!(
        place.list("out"),
        ["cantle-history.json", "cantle-unfinished"]
    );
    assert_eq!(place.read("out/cantle-unfinished/work.txt"), "done\n");
    let history: Value = serde_json::from_str(&place.read("out/cantle-history.json")).unwrap();
    let roles: Vec<_> = history
        .as_array()
        .unwrap()
        .iter()
        .map(|m| m["role"].clone())
        .collect();
    assert!(
        roles.starts_with(&[json!("system"), json!("user")]),
        "{roles:?}"
    );
    assert!(
        roles.contains(&json!("assistant")) && roles.contains(&json!("tool")),
        "{roles:?}"
    );

    // And it can be gone on from.
    let script = Script::new()
        .turn(Turn::text(""))
        .turn(finish("Went on.", &["work.txt"]));
    let server = ScriptedServer::start(script).await.unwrap();
    let place = place.set("CANTLE_BASE_URL", server.url());
    let args = [
        "run",
        "Go on",
        "--history",
        "out/cantle-history.json",
        "--output-dir",
        "out",
    ];
    let ended = place
        .run(args.iter().chain(&["--input", "out/cantle-unfinished/"]))
        .await;
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert_eq!(place.read("out/work.txt"), "done\n");
}

#[tokio::test]
async fn a_limit_on_turns_is_an_exit_code_of_its_own() {
    let script = Script::new().turn(command("echo again")).repeat_last();
    let server = ScriptedServer::start(script).await.unwrap();
    let place = Place::new().served_by(&server.url());
    let ended = place
        .run([
            "run",
            "Never end",
            "--max-turns",
            "2",
            "--output-dir",
            "out",
        ])
        .await;
    insta::assert_snapshot!(ended.told(&place));
    assert!(!place.path("out/cantle-result.json").exists());
}

#[tokio::test]
async fn an_answer_that_is_cut_off_is_a_limit_too() {
    let script = Script::new().turn(Turn::text("Once upon a").finish_reason("length"));
    let server = ScriptedServer::start(script).await.unwrap();
    let place = Place::new().served_by(&server.url());
    insta::assert_snapshot!(place.run(["run", "Tell", "-q"]).await.told(&place));
}

#[tokio::test]
async fn a_conversation_that_does_not_fit() {
    let body = json!({"error": {"message": "This model's maximum context length is 8192 tokens.",
        "type": "invalid_request_error", "code": "context_length_exceeded"}});
    let told = refused_with(Reply::new(400, "application/json", body.to_string())).await;
    assert!(told.starts_with("exit code 3\n"), "{told}");
}

#[tokio::test]
async fn retries_are_told() {
    let busy = Reply::error(429).header("retry-after", "0");
    let script = Script::new().turn(finish("At last.", &[]).fault(Fault::Reply(busy)));
    let server = ScriptedServer::start(script).await.unwrap();
    let place = Place::new().served_by(&server.url());
    let ended = place.run(["run", "Hello"]).await;
    assert_eq!(ended.code, Some(0));
    assert!(
        ended.stderr.contains("(HTTP 429); attempt 2 in 0.00 s\n"),
        "{}",
        ended.stderr
    );
}

#[tokio::test]
async fn what_a_model_gets_wrong_does_not_end_the_run() {
    let call = |name: &str, arguments: &str| Turn::tool(ToolCall::new(name, arguments));
    let script = Script::new()
        .turn(call("no_such_tool", "{}"))
        .turn(call("code_exec", r#"{"command": "ls"}"#))
        .turn(call("code_exec", r#"{"cmd": "#))
        .turn(finish("Enough.", &["not-there.txt"]))
        .turn(finish("Enough.", &[]));
    let server = ScriptedServer::start(script).await.unwrap();
    let place = Place::new().served_by(&server.url());
    let ended = place.run(["run", "Err"]).await;
    assert_eq!(
        (ended.code, &*ended.stdout),
        (Some(0), "Enough.\n"),
        "{ended:?}"
    );
    for said in [
        "no_such_tool is not a valid tool",
        "Tool arguments are not valid",
        "not-there.txt",
    ] {
        assert!(ended.stderr.contains(said), "{}", ended.stderr);
    }
}

/// What a run says that can't begin; nothing is asked of the model, and nothing is left.
async fn not_begun(place: &Place, args: &[&str]) -> Ended {
    let server = ScriptedServer::start(nothing_to_do()).await.unwrap();
    let mut command = place.command(args);
    command
        .env("CANTLE_BASE_URL", server.url())
        .env("CANTLE_MODEL", "m");
    let ended = ended(command.spawn().unwrap()).await;
    assert_eq!((ended.code, &*ended.stdout), (Some(2), ""), "{ended:?}");
    assert_eq!(server.requests().len(), 0);
    ended
}

#[tokio::test]
async fn inputs_that_make_no_sense_are_told_before_anything_begins() {
    let place = Place::new();
    place.write("a/data.csv", "1");
    place.write("b/data.csv", "2");
    let cases: [&[&str]; 3] = [
        &["--input", "missing.csv"],
        &["--input", "*.parquet"],
        &["--input", "a/data.csv", "--input", "b/data.csv"],
    ];
    let mut told = String::new();
    for inputs in cases {
        let args: Vec<&str> = ["run", "Read"].iter().chain(inputs).copied().collect();
        told += &not_begun(&place, &args).await.stderr;
    }
    insta::assert_snapshot!(told);
}

#[tokio::test]
async fn a_pattern_that_the_shell_expanded_is_explained() {
    let place = Place::new();
    let args = ["run", "--input", "a.csv", "b.csv", "Sum them up"];
    insta::assert_snapshot!(not_begun(&place, &args).await.told(&place));
}

#[tokio::test]
async fn an_output_directory_that_cant_be_written() {
    let place = Place::new();
    place.write("file", "in the way");
    let ended = not_begun(&place, &["run", "Write", "--output-dir", "file"]).await;
    insta::assert_snapshot!(ended.told(&place));
    let ended = not_begun(
        &place,
        &["run", "Write", "--output-dir", "/proc/none/of/it"],
    )
    .await;
    assert!(
        ended.stderr.contains("/proc/none/of/it"),
        "{}",
        ended.stderr
    );
    assert_eq!(place.read("file"), "in the way");
}

#[tokio::test]
async fn a_result_of_an_earlier_run_that_cant_be_removed() {
    let place = Place::new();
    place.write("out/cantle-result.json/file", "in the way");
    let ended = not_begun(&place, &["run", "Write", "--output-dir", "out"]).await;
    let said = "cantle: failed to remove out/cantle-result.json of an earlier run: ";
    assert!(ended.stderr.starts_with(said), "{}", ended.stderr);
}

#[tokio::test]
async fn a_full_disk_is_no_success() {
    let run = "run Hello --policy unconfined --output-dir out --no-keep";
    let (_server, place, ended) = on_a_full_disk(run).await;
    assert_eq!(ended.code, Some(1), "{ended:?}");
    let said = "failed to write out/cantle-result.json: ";
    assert!(ended.stderr.contains(said), "{}", ended.stderr);
    assert_eq!(place.list("out"), [""; 0]);
}

#[tokio::test]
async fn a_journal_that_cant_be_written_ends_the_run_which_goes_on_when_there_is_room() {
    let (_server, place, ended) = on_a_full_disk("run Hello --policy unconfined").await;
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.stderr.contains("the journal "), "{}", ended.stderr);
    assert!(
        ended.stderr.contains(" can't be written: "),
        "{}",
        ended.stderr
    );
    let ended = place.run(["run", "--resume", "last"]).await;
    assert_eq!(
        (ended.code, &*ended.stdout),
        (Some(0), "Done.\n"),
        "{ended:?}"
    );
}

/// Runs `cantle`, which from its first request on may not make any file larger. Its model has a
/// command run, and finishes.
async fn on_a_full_disk(run: &str) -> (ScriptedServer, Place, Ended) {
    let place = Place::new().set("PROGRAM", env!("CARGO_BIN_EXE_cantle"));
    let go = place.path("go");
    let wait = format!("until [ -e {} ]; do sleep 0.01; done", go.display());
    let script = Script::new()
        .turn(command(&wait))
        .turn(finish("Done.", &[]));
    let server = ScriptedServer::start(script).await.unwrap();
    let place = place.served_by(&server.url());
    // The signal that a file may not grow is not deadly.
    let mut shell = place.command_of("bash");
    shell.args(["-c", &format!("trap '' XFSZ; exec \"$PROGRAM\" {run}")]);
    let child = shell.spawn().unwrap();
    server.received(1).await;
    let pid = Pid::from_raw(child.id().unwrap().cast_signed());
    let nothing = Rlimit {
        current: Some(0),
        maximum: Some(0),
    };
    prlimit(pid, Resource::Fsize, nothing).unwrap();
    place.write("go", "");
    let ended = ended(child).await;
    (server, place, ended)
}

#[tokio::test]
async fn files_that_cant_be_used_are_named() {
    let place = Place::new();
    place.write(
        "broken.json",
        r#"[{"role": "user", "content": "hi"}, {"role": "wizard"}]"#,
    );
    place.write("array.json", "[]");
    place.write(
        "turns.jsonl",
        "{\"format\": \"other\", \"version\": 1, \"model\": \"m\"}\n",
    );
    let cases: [&[&str]; 7] = [
        &["--history", "broken.json"],
        &["--history", "missing.json"],
        &["--schema", "array.json"],
        &["--schema", "turns.jsonl"],
        &["--replay", "turns.jsonl"],
        &["--system-prompt", "@missing.md"],
        &["--max-tokens", "9000", "--context-window", "8000"],
    ];
    let mut told = String::new();
    for flags in cases {
        let args: Vec<&str> = ["run", "Read"].iter().chain(flags).copied().collect();
        told += &not_begun(&place, &args).await.stderr;
    }
    insta::assert_snapshot!(told);
}

#[tokio::test]
async fn a_task_that_is_empty_is_no_task() {
    let place = Place::new();
    let told = not_begun(&place, &["run", "-"]).await.stderr;
    assert_eq!(told, "cantle: the task is empty\n");
    let told = not_begun(&place, &["run"]).await.stderr;
    assert!(told.contains("<TASK>"), "{told}");
}

#[tokio::test]
async fn without_bash_nothing_begins() {
    let place = Place::new().set("PATH", "/nowhere");
    let server = ScriptedServer::start(nothing_to_do()).await.unwrap();
    let place = place.served_by(&server.url());
    let ended = place.run(["run", "Hello"]).await;
    insta::assert_snapshot!(ended.told(&place));
}

#[tokio::test]
async fn without_a_place_for_the_sandbox_nothing_begins() {
    let server = ScriptedServer::start(nothing_to_do()).await.unwrap();
    let place = Place::new()
        .served_by(&server.url())
        .set("TMPDIR", "/proc/nowhere")
        .set("CANTLE_STATE_DIR", "/proc/nowhere");
    for (args, code) in [
        (&["run", "Hello"][..], 2),
        (&["run", "Hello", "--no-keep"], 6),
        (&["exec", "--", "true"], 125),
        (&["demo"], 6),
    ] {
        let ended = place.run(args).await;
        assert_eq!((ended.code, &*ended.stdout), (Some(code), ""), "{ended:?}");
        assert!(ended.stderr.contains("/proc/nowhere"), "{}", ended.stderr);
    }
    assert_eq!(server.requests().len(), 0);
}

#[tokio::test]
async fn a_key_is_nowhere_in_what_is_said() {
    let script = Script::new()
        .turn(command("env; cat /proc/self/environ"))
        .turn(finish("Looked.", &[]));
    let server = ScriptedServer::start(script).await.unwrap();
    let place = Place::new()
        .served_by(&server.url())
        .set("CANTLE_API_KEY", KEY)
        .set("OPENAI_API_KEY", KEY);
    for flags in [&["-v"][..], &["--json"], &["-q"]] {
        let args = ["run", "Look around", "--output-dir", "out"];
        let ended = place.run(args.iter().chain(flags)).await;
        assert_eq!(ended.code, Some(0));
        assert!(
            !ended.stdout.contains(KEY) && !ended.stderr.contains(KEY),
            "{ended:?}"
        );
        assert!(!place.result("out").to_string().contains(KEY));
    }
    let sent = server.requests();
    assert_eq!(sent[0].headers["authorization"], format!("Bearer {KEY}"));
    assert!(
        sent.iter()
            .all(|request| !request.body().to_string().contains(KEY))
    );
}
