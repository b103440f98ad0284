//! Successful runs, their display and their files.

use cantle_testkit::openai::{Script, ScriptedServer, ServerOptions, ToolCall, Turn, Usage};
use serde_json::{Value, json};

use crate::support::{Exited, TestEnv};
use crate::{command, finish, finish_with, nothing_to_do};

/// Returns a model that counts the words of `data/in.txt`.
fn counting() -> Script {
    let look = ToolCall::new("code_exec", json!({"cmd": "cat data/in.txt"}));
    let look = Turn::text("I look at the file first.").call(look);
    Script::new()
        .turn(look.usage(Usage::new(300, 20)))
        .turn(command("wc -w < data/in.txt > count.txt").usage(Usage::new(400, 25).cached(256)))
        .turn(finish("There are 3 words.", &["count.txt"]))
}

async fn counted(flags: &[&str]) -> (ScriptedServer, TestEnv, Exited) {
    let options = ServerOptions::new(counting()).api_key("sk-test-123");
    let server = ScriptedServer::start(options).await.unwrap();
    let env = TestEnv::new()
        .with_server(&server.url())
        .set("CANTLE_API_KEY", "sk-test-123");
    env.write("data/in.txt", "one two three\n");
    env.write("out/cantle-result.json", "left by an earlier run");
    let task = [
        "run",
        "Count the words",
        "--input",
        "data",
        "--output-dir",
        "out",
    ];
    let exited = env.run(task.iter().chain(flags)).await;
    (server, env, exited)
}

#[tokio::test]
async fn task_is_done_with_and_without_streaming() {
    let mut output = Vec::new();
    for flags in [&[][..], &["--no-stream"]] {
        let (server, env, exited) = counted(flags).await;
        assert_eq!(
            (exited.code, &*exited.stdout),
            (Some(0), "There are 3 words.\n")
        );
        assert_eq!(env.read("out/count.txt").trim(), "3");
        assert_eq!(env.list("out"), ["cantle-result.json", "count.txt"]);
        let bodies: Vec<Value> = server.requests().iter().map(|r| r.body()).collect();
        assert_eq!(bodies.len(), 3);
        assert!(bodies.iter().all(|body| body["stream"] == flags.is_empty()));
        let seen = bodies[1]["messages"].to_string();
        assert!(seen.contains("one two three"), "{seen}");
        output.push(exited.transcript(&env));
    }
    assert_eq!(output[0], output[1]);
    insta::assert_snapshot!(output[0]);
}

#[tokio::test]
async fn result_file_describes_the_run() {
    let (_server, env, _) = counted(&[]).await;
    let mut result = env.result("out");
    assert_eq!(result["run"].as_str().unwrap().len(), 32);
    assert!(result["duration_s"].as_f64().unwrap() > 0.0);
    assert_eq!(result["ledger"]["model_calls"].as_array().unwrap().len(), 3);
    assert_eq!(result["ledger"]["tools"]["code_exec"]["calls"], 2);
    for field in ["run", "duration_s", "ledger"] {
        result.as_object_mut().unwrap().remove(field);
    }
    let expected = json!({
        "version": 1,
        "status": "finished",
        "finish": {
            "tool": "finish",
            "params": {"reason": "There are 3 words.", "paths": ["count.txt"]},
        },
        "outputs": [{
            "source": "count.txt",
            "path": "out/count.txt",
            "name": "count.txt",
            "size_bytes": 2, "media_type": "text/plain",
            "sha256": "1121cfccd5913f0a63fec40a6ffd44ea64f9dc135c66634ba001d10bcf4302a2",
        }],
        "earlier": {},
        "refused": [],
        "turns": 3,
        "dotted": {
            "code_exec": {"num_uses": 2},
            "finish": {"num_uses": 1},
            "token_usage": [{"input": 710, "answer": 50, "reasoning": 0, "cache_read": 256}],
        },
    });
    assert_eq!(result, expected);
}

#[tokio::test]
async fn json_events_are_numbered_without_gaps() {
    let (_server, _place, exited) = counted(&["--json"]).await;
    assert_eq!((exited.code, &*exited.stderr), (Some(0), ""));
    let events: Vec<Value> = exited
        .stdout
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let numbers: Vec<u64> = events
        .iter()
        .filter_map(|event| event["number"].as_u64())
        .collect();
    assert_eq!(numbers, (0..numbers.len() as u64).collect::<Vec<_>>());
    let deltas = events.iter().filter(|event| event["number"].is_null());
    assert!(deltas.clone().count() > 0);
    assert!(
        deltas
            .clone()
            .all(|event| event["event"].as_str().unwrap().ends_with("_delta"))
    );
    // Messages to the model do not matter here.
    let kinds = events
        .iter()
        .filter(|event| !event["number"].is_null())
        .map(|event| event["event"].as_str().unwrap())
        .filter(|kind| *kind != "user_message");
    let expected = [
        "run_started",
        "turn_started",
        "model_answered",
        "tool_started",
        "tool_finished",
        "turn_started",
        "model_answered",
        "tool_started",
        "tool_finished",
        "turn_started",
        "model_answered",
        "tool_started",
        "tool_finished",
        "output_saved",
        "run_finished",
    ];
    assert_eq!(kinds.collect::<Vec<_>>(), expected);
    assert_eq!(events.last().unwrap()["status"], "finished");
}

#[tokio::test]
async fn quiet_displays_only_the_result() {
    let (_server, env, exited) = counted(&["--quiet"]).await;
    assert_eq!(
        exited.transcript(&env),
        "exit code 0\n--- stdout\nThere are 3 words.\n--- stderr\n"
    );
}

#[tokio::test]
async fn verbose_displays_everything() {
    let script = Script::new()
        .turn(command("seq 40").reasoning("I should count."))
        .turn(finish("Counted.", &[]));
    let server = ScriptedServer::start(script).await.unwrap();
    let env = TestEnv::new().with_server(&server.url());
    let folded = env.run(["run", "Count"]).await.stderr;
    assert!(folded.contains("  │ … 34 more lines\n"), "{folded}");
    assert!(!folded.contains("I should count."), "{folded}");
    let whole = env.run(["run", "Count", "-v"]).await.stderr;
    assert!(whole.contains("  │ 19\n  │ 20\n  │ 21\n"), "{whole}");
    assert!(whole.contains("I should count."), "{whole}");
}

#[tokio::test]
async fn task_is_read_from_stdin() {
    let server = ScriptedServer::start(nothing_to_do()).await.unwrap();
    let env = TestEnv::new().with_server(&server.url());
    let exited = env
        .run_with(["run", "-", "-q"], "Line one\nline two\n".as_bytes())
        .await;
    assert_eq!(exited.code, Some(0));
    let body = server.requests()[0].body();
    let messages = body["messages"].as_array().unwrap();
    assert!(
        messages
            .last()
            .unwrap()
            .to_string()
            .contains("Line one\\nline two")
    );
}

#[tokio::test]
async fn stdin_beside_a_task_is_its_context() {
    let server = ScriptedServer::start(nothing_to_do()).await.unwrap();
    let env = TestEnv::new().with_server(&server.url());
    let sent = |exited: &Exited| {
        assert_eq!(exited.code, Some(0), "{exited:?}");
        let messages = server.requests().last().unwrap().body()["messages"].clone();
        messages.as_array().unwrap().last().unwrap().to_string()
    };
    let exited = env
        .run_with(["run", "Review this", "-q"], b"+ added\n")
        .await;
    let message = sent(&exited);
    let expected = "Review this\\n\\n<stdin>\\n+ added\\n</stdin>";
    assert!(message.contains(expected), "{message}");
    let exited = env.run_with(["run", "Review this", "-q"], b"").await;
    assert!(!sent(&exited).contains("stdin"));

    for (input, expected) in [
        (
            vec![b'x'; 300 * 1024],
            "standard input is larger than 256 KiB",
        ),
        (vec![0xff, 0xfe], "standard input is not UTF-8 text"),
    ] {
        let exited = env.run_with(["run", "Review this"], &input).await;
        assert_eq!(exited.code, Some(2), "{exited:?}");
        assert!(exited.stderr.contains(expected), "{exited:?}");
        assert!(exited.stderr.contains("--input"), "{exited:?}");
    }
}

#[tokio::test]
async fn ignored_files_and_secrets_are_left_out() {
    let script = Script::new()
        .turn(command("find . -type f | LC_ALL=C sort"))
        .turn(finish("Found.", &[]));
    let server = ScriptedServer::start(script).await.unwrap();
    let env = TestEnv::new().with_server(&server.url());
    for file in [
        ".git/config",
        "project/.git/config",
        "project/.env",
        "project/.env.sample",
        "project/cantle-out/old.txt",
        "project/deploy/id_rsa",
        "project/public.pem",
        "project/src/main.rs",
        "project/src/notes.tmp",
        "project/target/debug/a",
        "outside.env",
    ] {
        env.write(file, "x");
    }
    env.write(".gitignore", "*.rs\n");
    env.write("project/.gitignore", "target/\n");
    env.write("project/server.key", "-----BEGIN PRIVATE KEY-----\nabc\n");
    let found = async |flags: &[&str]| {
        let exited = env.run(["run", "Find", "-v"].iter().chain(flags)).await;
        assert_eq!(exited.code, Some(0), "{exited:?}");
        let lines = exited.stderr.lines();
        let files = lines.filter_map(|line| line.trim().strip_prefix("│ ./"));
        (
            files.map(str::to_owned).collect::<Vec<_>>(),
            exited.stderr.clone(),
        )
    };
    let whole = ["--input", "project/"];
    let (files, stderr) = found(&whole).await;
    let expected = [
        ".env.sample",
        ".gitignore",
        "public.pem",
        "src/main.rs",
        "src/notes.tmp",
    ];
    assert_eq!(files, expected, "{stderr}");
    let warning =
        "left out files that look like secrets: .env, deploy/id_rsa, server.key (--include-secrets";
    assert!(stderr.contains(warning), "{stderr}");

    let flags = [
        "--exclude",
        "*.tmp",
        "--exclude",
        "/public*",
        "--include-secrets",
    ];
    let (files, stderr) = found(&[&whole[..], &flags].concat()).await;
    let expected = [
        ".env",
        ".env.sample",
        ".gitignore",
        "deploy/id_rsa",
        "server.key",
        "src/main.rs",
    ];
    assert_eq!(files, expected, "{stderr}");

    let (files, stderr) = found(&[&whole[..], &["--no-ignore"]].concat()).await;
    assert!(files.contains(&".git/config".to_owned()), "{stderr}");
    assert!(files.contains(&"target/debug/a".to_owned()), "{stderr}");
    assert!(
        !files.contains(&"cantle-out/old.txt".to_owned()),
        "{stderr}"
    );

    // A file that is named itself is copied, and patterns honour the same rules.
    let (files, stderr) = found(&["--input", "outside.env", "--input", "project/**/*"]).await;
    assert!(files.contains(&"outside.env".to_owned()), "{stderr}");
    assert!(!files.contains(&".env".to_owned()), "{stderr}");
    assert!(!files.contains(&"target/debug/a".to_owned()), "{stderr}");

    let exited = env
        .run(["run", "Find", "--input", "project", "--exclude", "a{b"])
        .await;
    assert_eq!(exited.code, Some(2), "{exited:?}");
    assert!(
        exited.stderr.contains("a pattern to exclude is not valid"),
        "{exited:?}"
    );
}

#[tokio::test]
async fn inputs_are_copied_by_name() {
    let script = Script::new()
        .turn(command("find . -type f | sort"))
        .turn(finish("Found.", &[]));
    let server = ScriptedServer::start(script).await.unwrap();
    let env = TestEnv::new().with_server(&server.url());
    for file in ["whole/a", "inside/b", "src/deep/c.rs", "src/c.txt", "one"] {
        env.write(file, "x");
    }
    std::os::unix::fs::symlink("nowhere", env.path("whole/dangling")).unwrap();
    let pipe = std::process::Command::new("mkfifo")
        .arg(env.path("whole/pipe"))
        .status();
    assert!(pipe.unwrap().success());
    let inputs = ["whole", "inside/", "src/**/*.rs", "one"];
    let inputs = inputs.iter().flat_map(|input| ["--input", input]);
    let exited = env
        .run(["run", "Find", "-v"].into_iter().chain(inputs))
        .await;
    assert_eq!(exited.code, Some(0), "{exited:?}");
    let found = "  │ ./b\n  │ ./deep/c.rs\n  │ ./one\n  │ ./whole/a\n  └ exit 0";
    assert!(exited.stderr.contains(found), "{}", exited.stderr);
    for path in ["whole/dangling", "whole/pipe"] {
        let warned = |line: &str| line.starts_with("! ") && line.contains(path);
        assert!(exited.stderr.lines().any(warned), "{}", exited.stderr);
    }
}

#[tokio::test]
async fn command_timeout_does_not_end_the_run() {
    let script = Script::new()
        .turn(command("echo so far; sleep 1000"))
        .turn(finish("Went on.", &[]));
    let server = ScriptedServer::start(script).await.unwrap();
    let env = TestEnv::new().with_server(&server.url());
    let exited = env.run(["run", "Wait", "--timeout", "6s"]).await;
    assert_eq!((exited.code, &*exited.stdout), (Some(0), "Went on.\n"));
    let shown = "  │ so far\n  └ timed out · ";
    assert!(exited.stderr.contains(shown), "{}", exited.stderr);
}

#[tokio::test]
async fn limits_and_instructions_reach_the_model() {
    let server = ScriptedServer::start(nothing_to_do()).await.unwrap();
    let env = TestEnv::new().with_server(&server.url());
    env.write("prompt.md", "Speak like a pirate.");
    let flags = [
        "--max-tokens",
        "500",
        "--context-window",
        "8000",
        "--max-turns",
        "7",
    ];
    let args = ["run", "Hello", "--system-prompt", "@prompt.md"];
    assert_eq!(env.run(args.iter().chain(&flags)).await.code, Some(0));
    let body = server.requests()[0].body();
    assert_eq!(body["max_completion_tokens"], 500);
    let system = body["messages"][0].to_string();
    assert!(system.contains("Speak like a pirate."), "{system}");
    let task = body["messages"][1].to_string();
    assert!(
        task.contains("\\nTurns: 7 (") && task.contains("Network: off;"),
        "{task}"
    );
    assert!(task.contains("</environment>\\n\\nHello"), "{task}");
}

#[tokio::test]
async fn a_weak_model_makes_the_usual_mistakes_and_ends_well() {
    let call = |name: &str, arguments: Value| ToolCall::new(name, arguments);
    // What the model does, and what it reads then.
    let steps = [
        // Answers instead of working.
        (
            Turn::text("I will count the words."),
            "call `finish` with your answer",
        ),
        // A tool that it knows from elsewhere.
        (
            Turn::tool(call("bash", json!({"command": "wc -w a.txt"}))),
            "bash is not a valid tool. The tools are: code_exec, finish.",
        ),
        // A parameter of another name, and arguments that are cut off.
        (
            Turn::tool(call("code_exec", json!({"command": "wc -w a.txt"}))),
            "missing argument `cmd`",
        ),
        (
            Turn::tool(ToolCall::new("code_exec", "{\"cmd\": \"wc -w")),
            "Tool arguments are not valid",
        ),
        // State of a shell that is gone, and a download.
        (command("cd sub && n=3"), "<exit_code>0</exit_code>"),
        (
            command("[ $(basename $PWD) = sub ] || { echo not in sub; exit 1; }"),
            "not in sub",
        ),
        (
            command("exec 3<>/dev/tcp/192.0.2.1/80"),
            "Network access is disabled in this sandbox.",
        ),
        // Finishes beside a command, twice, and with files that are not there.
        (
            finish("3 words", &[]).call(call("finish", json!({"reason": "three"}))),
            "Make exactly one finish call",
        ),
        (
            finish("3 words", &["count.txt"]),
            "these can't be delivered: `count.txt`",
        ),
        (command("echo 3 > count.txt"), "<exit_code>0</exit_code>"),
        (finish("3 words", &["count.txt"]), ""),
    ];
    let mut script = Script::new();
    for (turn, _) in &steps {
        script = script.turn(turn.clone());
    }
    let server = ScriptedServer::start(script).await.unwrap();
    let env = TestEnv::new().with_server(&server.url());
    env.write("a.txt", "one two three\n");
    env.write("sub/b.txt", "");
    let args = [
        "run",
        "Count",
        "--input",
        "a.txt",
        "--input",
        "sub",
        "--output-dir",
        "out",
    ];
    let exited = env.run(args).await;
    assert_eq!(
        (exited.code, &*exited.stdout),
        (Some(0), "3 words\n"),
        "{exited:?}"
    );
    assert_eq!(env.read("out/count.txt"), "3\n");
    let requests = server.requests();
    for ((_, expected), request) in steps.iter().zip(&requests[1..]) {
        let messages = request.body()["messages"].to_string();
        let messages = messages.replace("\\\"", "\"");
        assert!(messages.contains(expected), "{expected}: {messages}");
    }
}

#[tokio::test]
async fn schema_structures_the_result() {
    let params = json!({"words": 3, "paths": ["count.txt"], "odd": "\u{9b}2J"});
    let script = Script::new()
        .turn(command("echo 3 > count.txt"))
        .turn(finish_with(json!({"words": "many"})))
        .turn(finish_with(params.clone()));
    let server = ScriptedServer::start(script).await.unwrap();
    let env = TestEnv::new().with_server(&server.url());
    let schema = json!({
        "type": "object",
        "properties": {
            "words": {"type": "integer"},
            "paths": {"type": "array", "items": {"type": "string"}},
            "odd": {"type": "string"},
        },
        "required": ["words"],
    });
    env.write("schema.json", schema.to_string());
    let args = [
        "run",
        "Count",
        "--schema",
        "schema.json",
        "--output-dir",
        "out",
        "-q",
    ];
    let exited = env.run(args).await;
    assert_eq!(exited.code, Some(0), "{exited:?}");
    assert_eq!(
        serde_json::from_str::<Value>(&exited.stdout).unwrap(),
        params
    );
    assert!(!exited.stdout.contains('\u{9b}'));
    assert_eq!(env.result("out")["finish"]["params"], params);
    assert_eq!(env.read("out/count.txt"), "3\n");
    let tools = server.requests()[0].body()["tools"].to_string();
    assert!(tools.contains("\"words\""), "{tools}");
}

#[tokio::test]
async fn history_is_continued() {
    let script = Script::new()
        .turn(Turn::text("unused"))
        .turn(finish("Still 3.", &[]));
    let server = ScriptedServer::start(script).await.unwrap();
    let env = TestEnv::new().with_server(&server.url());
    let v02 = json!([
        {"role": "system", "content": "an older prompt"},
        {"role": "user", "kind": "user", "content": "How many words?"},
        {"role": "assistant", "blocks": [{"kind": "text", "text": "Three, I think."}]},
    ]);
    let v01 = json!([
        {"role": "user", "content": "How many words?"},
        {"role": "assistant", "content": "Three, I think.", "tool_calls": [], "reasoning": null},
    ]);
    for (name, history) in [("v02.json", v02), ("v01.json", v01)] {
        env.write(name, history.to_string());
        let exited = env
            .run(["run", "Are you sure?", "--history", name, "-q"])
            .await;
        assert_eq!(
            (exited.code, &*exited.stdout),
            (Some(0), "Still 3.\n"),
            "{exited:?}"
        );
    }
    for request in server.requests() {
        let body = request.body().to_string();
        assert!(
            body.contains("Three, I think.") && body.contains("Are you sure?"),
            "{body}"
        );
        assert!(!body.contains("an older prompt"), "{body}");
    }
}

#[tokio::test]
async fn recorded_turns_are_replayed() {
    let env = TestEnv::new();
    let call = |name: &str, arguments: Value| {
        let arguments = arguments.to_string();
        json!({"role": "assistant", "blocks": [
            {"kind": "tool_call", "name": name, "arguments": arguments, "tool_call_id": name},
        ]})
    };
    let recording = [
        json!({"format": "cantle-recording", "version": 1, "model": "taped"}),
        call("code_exec", json!({"cmd": "echo hi > hi.txt"})),
        call("finish", json!({"reason": "Said hi.", "paths": ["hi.txt"]})),
    ];
    env.write(
        "turns.jsonl",
        recording.map(|line| format!("{line}\n")).concat(),
    );
    let args = [
        "run",
        "Say hi",
        "--replay",
        "turns.jsonl",
        "--output-dir",
        "new/out",
        "-q",
    ];
    let exited = env.run(args).await;
    assert_eq!(
        exited.transcript(&env),
        "exit code 0\n--- stdout\nSaid hi.\n--- stderr\n"
    );
    assert_eq!(env.read("new/out/hi.txt"), "hi\n");
}

#[tokio::test]
async fn recording_is_replayed_and_compared() {
    for flags in [&[][..], &["--no-stream"]] {
        let flags: Vec<&str> = flags.iter().copied().chain(["--record", "calls"]).collect();
        let (server, env, recorded) = counted(&flags).await;
        assert_eq!(recorded.code, Some(0), "{recorded:?}");
        drop(server);
        let recording = env.read("calls");
        assert!(!recording.contains("sk-test-123"), "{recording}");
        assert_eq!(recording.matches("\"call\":").count(), 3, "{recording}");

        let task = ["run", "Count the words", "--replay", "calls", "--input"];
        let again: Vec<_> = task.iter().chain(&["data"]).copied().collect();
        let played = env.run(again.iter()).await;
        assert_eq!(
            (played.code, &*played.stdout),
            (Some(0), "There are 3 words.\n")
        );

        // With other files, the model receives the recorded results and the user the differences.
        env.write("data/in.txt", "one two three four\n");
        let other = env.run(again.iter().chain(&["-v"])).await;
        assert_eq!(
            (other.code, &*other.stdout),
            (Some(0), "There are 3 words.\n"),
            "{other:?}"
        );
        for expected in [
            "differs at ``",
            "now:      ",
            "one two three four",
            "differed from the recorded ones; the model received the recorded ones.",
        ] {
            assert!(other.stderr.contains(expected), "{}", other.stderr);
        }

        let task = ["run", "Count the lines", "--replay", "calls", "--input"];
        let other = env.run(task.iter().chain(&["data"])).await;
        assert_eq!(other.code, Some(5), "{other:?}");
        for expected in [
            "this request was not recorded. The most similar is call 1",
            "message 2 (user) differs at `content`",
            "recorded: Count the words",
            "now:      Count the lines",
        ] {
            assert!(other.stderr.contains(expected), "{}", other.stderr);
        }
    }
}

#[tokio::test]
async fn control_sequences_are_removed() {
    let script = Script::new()
        .turn(Turn::text("\u{1b}]0;title\u{7}plain").call(ToolCall::new(
            "code_exec",
            json!({"cmd": "printf '\\033[2J\\033[31mred\\033[0m\\a\\n'"}),
        )))
        .turn(finish("\u{1b}[2Jdone", &[]));
    let server = ScriptedServer::start(script).await.unwrap();
    let env = TestEnv::new().with_server(&server.url());
    let exited = env.run(["run", "Be nasty \u{1b}[31m"]).await;
    assert_eq!((exited.code, &*exited.stdout), (Some(0), "done\n"));
    let control = |c: char| c.is_control() && c != '\n';
    assert!(!exited.stderr.contains(control), "{:?}", exited.stderr);
    assert!(exited.stderr.contains("  │ red\n"), "{}", exited.stderr);
}

#[tokio::test]
async fn closed_output_does_not_stop_the_run() {
    let server = ScriptedServer::start(counting()).await.unwrap();
    let env = TestEnv::new().with_server(&server.url());
    env.write("data/in.txt", "one two three\n");
    for flags in [&[][..], &["--json"], &["--quiet"]] {
        let task = [
            "run",
            "Count the words",
            "--input",
            "data",
            "--output-dir",
            "out",
        ];
        let mut child = env.command(task.iter().chain(flags)).spawn().unwrap();
        drop(child.stdout.take());
        drop(child.stderr.take());
        let exited = crate::support::wait_for_exit(child).await;
        assert_eq!(exited.code, Some(0));
        assert_eq!(env.result("out")["status"], "finished");
    }
}

#[tokio::test]
async fn unwritable_stdout_is_an_error() {
    let server = ScriptedServer::start(nothing_to_do()).await.unwrap();
    let env = TestEnv::new().with_server(&server.url());
    let full = std::fs::OpenOptions::new()
        .write(true)
        .open("/dev/full")
        .unwrap();
    let mut command = env.command(["run", "Hello", "-q"]);
    let exited = crate::support::wait_for_exit(command.stdout(full).spawn().unwrap()).await;
    assert_eq!(exited.code, Some(1));
    assert!(
        exited
            .stderr
            .starts_with("cantle: failed to write the result: "),
        "{}",
        exited.stderr
    );
}

#[tokio::test]
async fn escaping_output_paths_are_refused() {
    // The finish tool refuses missing files; other paths are refused when output files are saved.
    let script = Script::new()
        .turn(command(
            "echo ok > good.txt; ln -s /etc/passwd link; mkdir -p sub",
        ))
        .turn(finish("Tried.", &["good.txt", "../../etc/passwd"]))
        .turn(finish("Tried.", &["good.txt", "link"]))
        .turn(finish("Done.", &["good.txt", "sub/../good.txt"]));
    let server = ScriptedServer::start(script).await.unwrap();
    let env = TestEnv::new().with_server(&server.url());
    let exited = env.run(["run", "Escape", "--output-dir", "out"]).await;
    assert_eq!(
        (exited.code, &*exited.stdout),
        (Some(0), "Done.\n"),
        "{exited:?}"
    );
    assert_eq!(env.list("out"), ["cantle-result.json", "good.txt"]);
    let refused = env.result("out")["refused"].clone();
    assert_eq!(refused[0]["source"], "sub/../good.txt");
    assert!(
        exited.stderr.contains("  refused  sub/../good.txt: "),
        "{}",
        exited.stderr
    );
}

#[tokio::test]
async fn files_that_a_run_did_not_deliver_stay() {
    let script = Script::new()
        .turn(command(
            "echo new > report.md; mkdir -p .git/hooks; echo x > .git/hooks/pre-commit",
        ))
        .turn(finish("Done.", &["report.md", ".git/hooks/pre-commit"]))
        .turn(finish("Done.", &["report.md"]));
    let server = ScriptedServer::start(script).await.unwrap();
    let env = TestEnv::new().with_server(&server.url());
    env.write("out/report.md", "mine");
    let exited = env.run(["run", "Write", "--output-dir", "out"]).await;
    assert_eq!(exited.code, Some(0), "{exited:?}");
    for expected in [
        "out has files that no earlier run delivered, such as report.md: an output file",
        "can't be delivered: `.git/hooks/pre-commit`",
        "! The name of the output file `report.md` is taken, so it was saved as `out/report.md.1`.",
    ] {
        assert!(exited.stderr.contains(expected), "{exited:?}");
    }
    assert_eq!(env.read("out/report.md"), "mine");
    assert_eq!(env.read("out/report.md.1"), "new\n");
    assert_eq!(
        env.list("out"),
        ["cantle-result.json", "report.md", "report.md.1"]
    );
}

#[tokio::test]
async fn files_of_an_earlier_run_are_replaced() {
    let env = TestEnv::new();
    let deliver = async |line: &str, flags: &[&str]| {
        let script = Script::new()
            .turn(command(line))
            .turn(finish("Done.", &["report.md"]));
        let server = ScriptedServer::start(script).await.unwrap();
        let url = server.url();
        let args = [
            "run",
            "Write",
            "--output-dir=out",
            "--model=m",
            "--base-url",
            &url,
        ];
        let exited = env.run(args.iter().chain(flags)).await;
        assert_eq!(exited.code, Some(0), "{exited:?}");
        (env.list("out").len(), env.read("out/report.md"))
    };
    assert_eq!(
        deliver("echo 1 > report.md", &[]).await,
        (2, "1\n".to_owned())
    );
    assert_eq!(
        deliver("echo 2 > report.md", &[]).await,
        (2, "2\n".to_owned())
    );
    env.write("out/report.md", "edited");
    assert_eq!(
        deliver("echo 3 > report.md", &[]).await,
        (3, "edited".to_owned())
    );
    assert_eq!(
        deliver("echo 4 > report.md", &["--overwrite"]).await,
        (3, "4\n".to_owned())
    );
}

#[tokio::test]
async fn a_file_that_cannot_be_saved_is_named_and_exported() {
    // The name is taken, and longer ones are too long.
    let name = "n".repeat(255);
    let script = Script::new()
        .turn(command(&format!("echo new > {name}; echo ok > good")))
        .turn(finish("Done.", &["good", &name]));
    let server = ScriptedServer::start(script).await.unwrap();
    let env = TestEnv::new().with_server(&server.url());
    env.write(format!("out/{name}"), "mine");
    let exited = env.run(["run", "Write", "--output-dir", "out"]).await;
    assert_eq!(
        (exited.code, &*exited.stdout),
        (Some(3), "Done.\n"),
        "{exited:?}"
    );
    let result = env.result("out");
    assert_eq!(result["status"], "finished");
    assert_eq!(result["refused"][0]["source"], name);
    assert_eq!(env.read("out/good"), "ok\n");
    assert_eq!(env.read(format!("out/{name}")), "mine");

    let run = result["run"].as_str().unwrap();
    let export = format!("cantle runs export {run} DIR");
    let shown = env.run(["runs", "show", run]).await;
    for (text, expected) in [
        (&exited.stderr, format!("  refused  {name}: ")),
        (
            &exited.stderr,
            format!("  kept     the files of its sandbox: {export}\n"),
        ),
        (&shown.stdout, format!("refused  {name}: ")),
        (&shown.stdout, format!("export   {export}\n")),
    ] {
        assert!(text.contains(&expected), "{expected}: {text}");
    }
    let exported = env.run(["runs", "export", run, "saved"]).await;
    assert_eq!(exported.code, Some(0), "{exported:?}");
    assert_eq!(env.read(format!("saved/{name}")), "new\n");
}
