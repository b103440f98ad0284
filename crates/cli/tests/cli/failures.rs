//! Failures: messages and exit codes.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;

use cantle_testkit::openai::{Fault, Reply, Script, ScriptedServer, ServerOptions, ToolCall, Turn};
use rustix::process::{Pid, Resource, Rlimit, prlimit};
use serde_json::{Value, json};

use crate::support::{Exited, TestEnv, wait_for_exit};
use crate::{command, finish, nothing_to_do};

const KEY: &str = "sk-very-secret-0123456789";

/// Runs with a model that always answers with this response, and returns the transcript.
async fn run_with_response(reply: Reply) -> String {
    let script = Script::new().turn(Turn::text("").fault_always(Fault::Reply(reply)));
    let server = ScriptedServer::start(script).await.unwrap();
    let env = TestEnv::new()
        .with_server(&server.url())
        .set("CANTLE_API_KEY", KEY);
    let output = env.run(["run", "Hello", "-q"]).await.transcript(&env);
    assert!(!output.contains(KEY), "{output}");
    output
}

#[tokio::test]
async fn missing_model_or_key_is_explained() {
    let env = TestEnv::new();
    insta::assert_snapshot!(
        "nothing_set",
        env.run(["run", "Hello"]).await.transcript(&env)
    );
    let exited = env
        .run([
            "run",
            "Hello",
            "--model",
            "gpt-5",
            "--provider",
            "openrouter",
        ])
        .await;
    insta::assert_snapshot!("no_key", exited.transcript(&env));
    let env = env.set("OPENROUTER_API_KEY", KEY);
    let exited = env.run(["run", "Hello", "--model", "gpt-5"]).await;
    insta::assert_snapshot!("another_key", exited.transcript(&env));
    let exited = env.run(["run", "Hello", "--provider", "local"]).await;
    insta::assert_snapshot!("no_model", exited.transcript(&env));
}

#[tokio::test]
async fn refused_key_names_its_variable() {
    let options = ServerOptions::new(nothing_to_do()).api_key("sk-right");
    let server = ScriptedServer::start(options).await.unwrap();
    let env = TestEnv::new().with_server(&server.url());
    let none = env.run(["run", "Hello"]).await;
    insta::assert_snapshot!("key_missing", none.transcript(&env));
    let env = env.set("CANTLE_API_KEY", KEY);
    let wrong = env.run(["run", "Hello"]).await;
    insta::assert_snapshot!("key_wrong", wrong.transcript(&env));
}

#[tokio::test]
async fn unreachable_server_is_named() {
    // Bound but not listening, so connections are refused.
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let port = socket.local_addr().unwrap().port();
    let env = TestEnv::new().with_server(&format!("http://127.0.0.1:{port}/v1"));
    insta::assert_snapshot!(
        env.run(["run", "Hello", "-q", "--no-retry"])
            .await
            .transcript(&env)
    );
}

#[tokio::test]
async fn run_that_cannot_be_kept_says_how_to_go_on() {
    let server = ScriptedServer::start(nothing_to_do()).await.unwrap();
    let env = TestEnv::new().with_server(&server.url());
    let directory = env.path(OsStr::from_bytes(b"not-utf-8-\xff"));
    std::fs::create_dir(&directory).unwrap();
    let mut command = env.command(["run", "Hello"]);
    let exited = wait_for_exit(command.current_dir(directory).spawn().unwrap()).await;
    assert_eq!(exited.code, Some(2), "{exited:?}");
    assert!(exited.stderr.contains("use --no-keep"), "{exited:?}");
}

#[tokio::test]
async fn invalid_base_url_is_refused() {
    let env = TestEnv::new().with_server("localhost:8000");
    insta::assert_snapshot!(env.run(["run", "Hello"]).await.transcript(&env));
}

#[tokio::test]
async fn http_404_names_the_url() {
    let body = json!({"error": {"message": "not found", "code": 404}}).to_string();
    insta::assert_snapshot!(run_with_response(Reply::new(404, "application/json", body)).await);
}

#[tokio::test]
async fn web_page_response_is_reported() {
    let page = "<!doctype html><html><head><title>Sign in</title></head></html>";
    insta::assert_snapshot!(run_with_response(Reply::new(200, "text/html", page)).await);
}

#[tokio::test]
async fn malformed_response_is_reported() {
    let nonsense = format!("{{\"choices\": [ {KEY}");
    insta::assert_snapshot!(run_with_response(Reply::new(200, "application/json", nonsense)).await);
}

#[tokio::test]
async fn broken_stream_keeps_the_work() {
    let broken = Turn::text("I was about to").fault_always(Fault::CutAfterEvents(3));
    let script = Script::new()
        .turn(command("echo done > work.txt"))
        .turn(broken);
    let server = ScriptedServer::start(script).await.unwrap();
    let env = TestEnv::new().with_server(&server.url());
    let exited = env.run(["run", "Work", "--output-dir", "out"]).await;
    assert_eq!(exited.code, Some(5), "{exited:?}");
    assert_eq!(
        env.list("out"),
        [
            ".cantle-unfinished",
            "cantle-history.json",
            "cantle-unfinished"
        ]
    );
    assert_eq!(env.read("out/cantle-unfinished/work.txt"), "done\n");
    let history: Value = serde_json::from_str(&env.read("out/cantle-history.json")).unwrap();
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

    // The history can be continued.
    let script = Script::new()
        .turn(Turn::text(""))
        .turn(finish("Went on.", &["work.txt"]));
    let server = ScriptedServer::start(script).await.unwrap();
    let env = env.set("CANTLE_BASE_URL", server.url());
    let args = [
        "run",
        "Go on",
        "--history",
        "out/cantle-history.json",
        "--output-dir",
        "out",
    ];
    let exited = env
        .run(args.iter().chain(&["--input", "out/cantle-unfinished/"]))
        .await;
    assert_eq!(exited.code, Some(0), "{exited:?}");
    assert_eq!(env.read("out/work.txt"), "done\n");
}

#[tokio::test]
async fn turn_limit_has_its_own_exit_code() {
    let script = Script::new().turn(command("echo again")).repeat_last();
    let server = ScriptedServer::start(script).await.unwrap();
    let env = TestEnv::new().with_server(&server.url());
    let exited = env
        .run([
            "run",
            "Never end",
            "--max-turns",
            "2",
            "--output-dir",
            "out",
        ])
        .await;
    insta::assert_snapshot!(exited.transcript(&env));
    assert!(!env.path("out/cantle-result.json").exists());
}

#[tokio::test]
async fn output_limit_is_a_limit() {
    let script = Script::new().turn(Turn::text("Once upon a").finish_reason("length"));
    let server = ScriptedServer::start(script).await.unwrap();
    let env = TestEnv::new().with_server(&server.url());
    insta::assert_snapshot!(env.run(["run", "Tell", "-q"]).await.transcript(&env));
}

#[tokio::test]
async fn context_overflow_is_a_limit() {
    let body = json!({"error": {"message": "This model's maximum context length is 8192 tokens.",
        "type": "invalid_request_error", "code": "context_length_exceeded"}});
    let output = run_with_response(Reply::new(400, "application/json", body.to_string())).await;
    assert!(output.starts_with("exit code 3\n"), "{output}");
}

#[tokio::test]
async fn retries_are_displayed() {
    let busy = Reply::error(429).header("retry-after", "0");
    let script = Script::new().turn(finish("At last.", &[]).fault(Fault::Reply(busy)));
    let server = ScriptedServer::start(script).await.unwrap();
    let env = TestEnv::new().with_server(&server.url());
    let exited = env.run(["run", "Hello"]).await;
    assert_eq!(exited.code, Some(0));
    assert!(
        exited.stderr.contains("(HTTP 429); attempt 2 in 0."),
        "{}",
        exited.stderr
    );
}

#[tokio::test]
async fn model_mistakes_do_not_end_the_run() {
    let call = |name: &str, arguments: &str| Turn::tool(ToolCall::new(name, arguments));
    let script = Script::new()
        .turn(call("no_such_tool", "{}"))
        .turn(call("code_exec", r#"{"command": "ls"}"#))
        .turn(call("code_exec", r#"{"cmd": "#))
        .turn(finish("Enough.", &["not-there.txt"]))
        .turn(finish("Enough.", &[]));
    let server = ScriptedServer::start(script).await.unwrap();
    let env = TestEnv::new().with_server(&server.url());
    let exited = env.run(["run", "Err"]).await;
    assert_eq!(
        (exited.code, &*exited.stdout),
        (Some(0), "Enough.\n"),
        "{exited:?}"
    );
    for expected in [
        "no_such_tool is not a valid tool",
        "Tool arguments are not valid",
        "not-there.txt",
    ] {
        assert!(exited.stderr.contains(expected), "{}", exited.stderr);
    }
}

/// Runs a command line that is refused before any model call.
async fn refused(env: &TestEnv, args: &[&str]) -> Exited {
    let server = ScriptedServer::start(nothing_to_do()).await.unwrap();
    let mut command = env.command(args);
    command
        .env("CANTLE_BASE_URL", server.url())
        .env("CANTLE_MODEL", "m");
    let exited = wait_for_exit(command.spawn().unwrap()).await;
    assert_eq!((exited.code, &*exited.stdout), (Some(2), ""), "{exited:?}");
    assert_eq!(server.requests().len(), 0);
    exited
}

#[tokio::test]
async fn invalid_inputs_are_refused() {
    let env = TestEnv::new();
    env.write("a/data.csv", "1");
    env.write("b/data.csv", "2");
    let cases: [&[&str]; 3] = [
        &["--input", "missing.csv"],
        &["--input", "*.parquet"],
        &["--input", "a/data.csv", "--input", "b/data.csv"],
    ];
    let mut output = String::new();
    for inputs in cases {
        let args: Vec<&str> = ["run", "Read"].iter().chain(inputs).copied().collect();
        output += &refused(&env, &args).await.stderr;
    }
    insta::assert_snapshot!(output);
}

#[tokio::test]
async fn missing_key_of_a_remote_backend_is_explained() {
    let args = ["run", "Read", "--backend", "remote"];
    let refused = refused(&TestEnv::new(), &args).await;
    assert_eq!(
        refused.stderr,
        "cantle: no API key is set for the remote backend. Set E2B_API_KEY, or pass the key to the backend.\n"
    );
}

#[tokio::test]
async fn unquoted_pattern_is_explained() {
    let env = TestEnv::new();
    let args = ["run", "--input", "a.csv", "b.csv", "Sum them up"];
    insta::assert_snapshot!(refused(&env, &args).await.transcript(&env));
}

#[tokio::test]
async fn unwritable_output_directory_is_refused() {
    let env = TestEnv::new();
    env.write("file", "in the way");
    let exited = refused(&env, &["run", "Write", "--output-dir", "file"]).await;
    insta::assert_snapshot!(exited.transcript(&env));
    let exited = refused(&env, &["run", "Write", "--output-dir", "/proc/none/of/it"]).await;
    assert!(
        exited.stderr.contains("/proc/none/of/it"),
        "{}",
        exited.stderr
    );
    assert_eq!(env.read("file"), "in the way");
}

#[tokio::test]
async fn unremovable_earlier_result_is_an_error() {
    let env = TestEnv::new();
    env.write("out/cantle-result.json/file", "in the way");
    let exited = refused(&env, &["run", "Write", "--output-dir", "out"]).await;
    let expected = "cantle: failed to move out/cantle-result.json of an earlier run: ";
    assert!(exited.stderr.starts_with(expected), "{}", exited.stderr);
}

#[tokio::test]
async fn full_disk_is_an_error() {
    let run = "run Hello --policy unconfined --output-dir out --no-keep";
    let (_server, env, exited) = on_a_full_disk(run).await;
    assert_eq!(exited.code, Some(1), "{exited:?}");
    let expected = "failed to write out/cantle-result.json: ";
    assert!(exited.stderr.contains(expected), "{}", exited.stderr);
    assert_eq!(env.list("out"), [""; 0]);
}

#[tokio::test]
async fn full_disk_ends_a_kept_run_which_can_be_resumed() {
    let (_server, env, exited) = on_a_full_disk("run Hello --policy unconfined").await;
    assert_eq!(exited.code, Some(1), "{exited:?}");
    assert!(exited.stderr.contains("the journal "), "{}", exited.stderr);
    assert!(
        exited.stderr.contains(" can't be written: "),
        "{}",
        exited.stderr
    );
    let exited = env.run(["run", "--resume", "last"]).await;
    assert_eq!(
        (exited.code, &*exited.stdout),
        (Some(0), "Done.\n"),
        "{exited:?}"
    );
}

/// Runs `cantle` with a file size limit of zero from its first model call on. The model runs a command and
/// finishes.
async fn on_a_full_disk(run: &str) -> (ScriptedServer, TestEnv, Exited) {
    let env = TestEnv::new().set("PROGRAM", env!("CARGO_BIN_EXE_cantle"));
    let go = env.path("go");
    let wait = format!("until [ -e {} ]; do sleep 0.01; done", go.display());
    let script = Script::new()
        .turn(command(&wait))
        .turn(finish("Done.", &[]));
    let server = ScriptedServer::start(script).await.unwrap();
    let env = env.with_server(&server.url());
    // SIGXFSZ would kill the program.
    let mut shell = env.command_of("bash");
    shell.args(["-c", &format!("trap '' XFSZ; exec \"$PROGRAM\" {run}")]);
    let child = shell.spawn().unwrap();
    server.received(1).await;
    let pid = Pid::from_raw(child.id().unwrap().cast_signed());
    let nothing = Rlimit {
        current: Some(0),
        maximum: Some(0),
    };
    prlimit(pid, Resource::Fsize, nothing).unwrap();
    env.write("go", "");
    let exited = wait_for_exit(child).await;
    (server, env, exited)
}

#[tokio::test]
async fn invalid_files_are_named() {
    let env = TestEnv::new();
    env.write(
        "broken.json",
        r#"[{"role": "user", "content": "hi"}, {"role": "wizard"}]"#,
    );
    env.write("array.json", "[]");
    env.write(
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
    let mut output = String::new();
    for flags in cases {
        let args: Vec<&str> = ["run", "Read"].iter().chain(flags).copied().collect();
        output += &refused(&env, &args).await.stderr;
    }
    insta::assert_snapshot!(output);
}

#[tokio::test]
async fn empty_task_is_refused() {
    let env = TestEnv::new();
    let output = refused(&env, &["run", "-"]).await.stderr;
    assert_eq!(output, "cantle: the task is empty\n");
    let output = refused(&env, &["run"]).await.stderr;
    assert!(output.contains("<TASK>"), "{output}");
}

#[tokio::test]
async fn a_path_that_is_not_utf8_is_named() {
    let server = ScriptedServer::start(nothing_to_do()).await.unwrap();
    let env = TestEnv::new().with_server(&server.url());
    let directory = OsStr::from_bytes(b"odd-\xff");
    std::fs::create_dir(env.path(directory)).unwrap();
    for flag in ["--output-dir", "--workdir", "--skills"] {
        let args = ["run", "Hello", flag].map(OsStr::new);
        let exited = env.run(args.iter().copied().chain([directory])).await;
        assert_eq!((exited.code, &*exited.stdout), (Some(2), ""), "{exited:?}");
        let reason = "odd-\u{fffd} is not UTF-8; use --no-keep\n";
        assert!(exited.stderr.ends_with(reason), "{exited:?}");
    }
    assert!(server.requests().is_empty());
}

#[tokio::test]
async fn missing_bash_is_an_error() {
    let env = TestEnv::new().set("PATH", "/nowhere");
    let server = ScriptedServer::start(nothing_to_do()).await.unwrap();
    let env = env.with_server(&server.url());
    let exited = env.run(["run", "Hello"]).await;
    insta::assert_snapshot!(exited.transcript(&env));
}

#[tokio::test]
async fn unwritable_state_directory_is_an_error() {
    let server = ScriptedServer::start(nothing_to_do()).await.unwrap();
    let env = TestEnv::new()
        .with_server(&server.url())
        .set("TMPDIR", "/proc/nowhere")
        .set("CANTLE_STATE_DIR", "/proc/nowhere");
    for (args, code) in [
        (&["run", "Hello"][..], 2),
        (&["run", "Hello", "--no-keep"], 6),
        (&["exec", "--", "true"], 125),
        (&["demo"], 6),
    ] {
        let exited = env.run(args).await;
        assert_eq!(
            (exited.code, &*exited.stdout),
            (Some(code), ""),
            "{exited:?}"
        );
        assert!(exited.stderr.contains("/proc/nowhere"), "{}", exited.stderr);
    }
    assert_eq!(server.requests().len(), 0);
}

#[tokio::test]
async fn keys_are_never_displayed() {
    let script = Script::new()
        .turn(command("env; cat /proc/self/environ"))
        .turn(finish("Looked.", &[]));
    let server = ScriptedServer::start(script).await.unwrap();
    let env = TestEnv::new()
        .with_server(&server.url())
        .set("CANTLE_API_KEY", KEY)
        .set("OPENAI_API_KEY", KEY);
    for flags in [&["-v"][..], &["--json"], &["-q"]] {
        let args = ["run", "Look around", "--output-dir", "out"];
        let exited = env.run(args.iter().chain(flags)).await;
        assert_eq!(exited.code, Some(0));
        assert!(
            !exited.stdout.contains(KEY) && !exited.stderr.contains(KEY),
            "{exited:?}"
        );
        assert!(!env.result("out").to_string().contains(KEY));
    }
    let sent = server.requests();
    assert_eq!(sent[0].headers["authorization"], format!("Bearer {KEY}"));
    assert!(
        sent.iter()
            .all(|request| !request.body().to_string().contains(KEY))
    );
}

/// A model that never calls the finish tool, but answers.
#[tokio::test]
async fn an_answer_in_text_is_the_result() {
    let script = Script::new().turn(Turn::text("It is 42.")).repeat_last();
    let server = ScriptedServer::start(script).await.unwrap();
    let env = TestEnv::new().with_server(&server.url());
    let quiet = env.run(["run", "Count", "-q"]).await;
    assert_eq!(
        (quiet.code, &*quiet.stdout),
        (Some(0), "It is 42.\n"),
        "{quiet:?}"
    );
    assert!(quiet.stderr.contains("--strict-finish"), "{quiet:?}");
    assert_eq!(server.requests().len(), 2);

    let json = env
        .run(["run", "Count", "--json", "--output-dir", "out"])
        .await;
    let ended = json.stdout.lines().last().unwrap();
    let ended: Value = serde_json::from_str(ended).unwrap();
    assert_eq!(ended["status"], "answered_in_text");
    let result = env.result("out");
    assert_eq!(
        (&result["status"], &result["finish"]),
        (&ended["status"], &Value::Null)
    );
    assert_eq!(json.code, Some(0));

    let strict = ["run", "Count", "--strict-finish", "--max-turns", "5"];
    assert_eq!(env.run(strict).await.code, Some(3));
}

#[tokio::test]
async fn files_that_an_answer_in_text_leaves_behind_are_named_and_kept() {
    let script = Script::new()
        .turn(command("echo 42 > answer.txt"))
        .turn(Turn::text("It is in answer.txt."))
        .repeat_last();
    let server = ScriptedServer::start(script).await.unwrap();
    let env = TestEnv::new().with_server(&server.url());
    let exited = env.run(["run", "Count", "--output-dir", "out"]).await;
    assert_eq!(exited.code, Some(3), "{exited:?}");
    let named = "did not deliver these files: answer.txt";
    assert!(exited.stderr.contains(named), "{}", exited.stderr);
    assert_eq!(env.result("out")["undelivered"], json!(["answer.txt"]));
    let kept = env.path("out/cantle-unfinished/answer.txt");
    assert_eq!(std::fs::read_to_string(kept).unwrap(), "42\n");
    assert!(
        exited.stderr.contains("cantle run --resume"),
        "{}",
        exited.stderr
    );
}
