//! Further tasks for earlier runs: `cantle run --continue`.

use cantle_testkit::openai::{Script, ScriptedServer, Turn};
use serde_json::{Value, json};

use crate::support::TestEnv;
use crate::{command, finish};

const RUNS: &str = ".local/state/cantle/runs";
const WORKSPACES: &str = ".local/state/cantle/workspaces";

async fn served(script: Script) -> (ScriptedServer, TestEnv) {
    let server = ScriptedServer::start(script).await.unwrap();
    let env = TestEnv::new().with_server(&server.url());
    (server, env)
}

/// Returns the texts of the messages of the latest request.
fn last_messages(server: &ScriptedServer) -> Vec<String> {
    let requests = server.requests();
    let body = requests.last().unwrap().body();
    let messages = body["messages"].as_array().unwrap();
    messages.iter().map(Value::to_string).collect()
}

#[track_caller]
fn assert_contains(messages: &[String], text: &str) {
    assert!(
        messages.iter().any(|message| message.contains(text)),
        "no {text:?} in {messages:#?}"
    );
}

#[tokio::test]
async fn finished_run_gets_another_task_with_its_conversation_and_delivered_files() {
    let script = Script::new()
        .turn(command(
            "mkdir sub; echo first > sub/report.md; echo x > scratch",
        ))
        .turn(finish("The first answer.", &["sub/report.md"]))
        .turn(command(
            "cat sub/report.md; test ! -e scratch && echo second >> sub/report.md",
        ))
        .turn(finish("The second answer.", &["sub/report.md"]));
    let (server, env) = served(script).await;
    let env = env.set("CANTLE_KEEP_DAYS", "0");
    let first = env
        .run([
            "run",
            "Write a report",
            "--output-dir",
            "out",
            "--max-turns",
            "7",
        ])
        .await;
    assert_eq!(first.code, Some(0), "{first:?}");

    let second = env.run(["run", "--continue", "last", "Extend it"]).await;
    assert_eq!(second.code, Some(0), "{second:?}");
    assert!(
        second
            .stderr
            .contains("in a new sandbox, with 1 delivered file"),
        "{second:?}"
    );
    // The output directory is that of the earlier run, whose file may be replaced.
    assert_eq!(env.read("out/sub/report.md"), "first\nsecond\n");
    let messages = last_messages(&server);
    assert_contains(&messages, "Write a report");
    assert_contains(&messages, "The first answer.");
    assert_contains(&messages, "The files that it delivered are back");
    assert_contains(&messages, "Extend it");

    let runs = env.run(["runs", "list", "--finished"]).await;
    assert_eq!(runs.stdout.lines().count(), 2, "{runs:?}");
}

#[tokio::test]
async fn missing_delivered_files_are_named() {
    let script = Script::new()
        .turn(command("echo a > a.md; echo b > b.md"))
        .turn(finish("Done.", &["a.md", "b.md"]))
        .turn(finish("Nothing to do.", &[]));
    let (server, env) = served(script).await;
    let env = env.set("CANTLE_KEEP_DAYS", "0");
    env.run(["run", "Write", "--output-dir", "out"]).await;
    std::fs::remove_file(env.path("out/a.md")).unwrap();
    // A link is not what the run delivered.
    std::os::unix::fs::symlink("b.md", env.path("out/a.md")).unwrap();
    let second = env.run(["run", "--continue", "last", "Go on"]).await;
    assert_eq!(second.code, Some(0), "{second:?}");
    assert_contains(&last_messages(&server), "these are gone: a.md.");
}

#[tokio::test]
async fn unfinished_run_is_continued_in_its_sandbox_and_not_resumed_any_more() {
    let script = Script::new()
        .turn(command("echo one > effects"))
        .turn(command("echo two >> effects"))
        .turn(command("echo three >> effects"))
        .turn(finish("Done.", &["effects"]));
    let (server, env) = served(script).await;
    let first = env
        .run([
            "run",
            "Have effects",
            "--output-dir",
            "out",
            "--max-turns",
            "2",
        ])
        .await;
    assert_eq!(first.code, Some(3), "{first:?}");

    // A run that can't begin leaves the sandbox as it is.
    std::fs::create_dir(env.path("out/cantle-result.json")).unwrap();
    let refused = env.run(["run", "--continue", "last", "Have more"]).await;
    assert_eq!(refused.code, Some(2), "{refused:?}");
    std::fs::remove_dir(env.path("out/cantle-result.json")).unwrap();

    // The second run is unfinished, too.
    let flags = ["--max-turns", "1"];
    let second = ["run", "--continue", "last", "Have more"];
    let second = env.run(second.iter().chain(&flags)).await;
    assert_eq!(second.code, Some(3), "{second:?}");
    assert!(second.stderr.contains("in its sandbox"), "{second:?}");
    assert_contains(&last_messages(&server), "goes on in the same sandbox");

    let runs: Value =
        serde_json::from_str(&env.run(["runs", "list", "--json"]).await.stdout).unwrap();
    assert_eq!(
        (&runs[0]["resumable"], &runs[1]["resumable"]),
        (&json!(true), &json!(false))
    );
    let earlier = runs[1]["run"].as_str().unwrap();
    let resumed = env.run(["run", "--resume", earlier]).await;
    assert_eq!(resumed.code, Some(2), "{resumed:?}");
    assert!(
        resumed.stderr.contains("was continued by run"),
        "{resumed:?}"
    );

    // Removing the earlier run leaves the sandbox to the later one.
    let removed = env.run(["runs", "rm", earlier]).await;
    assert_eq!(removed.code, Some(0), "{removed:?}");
    let resumed = env
        .run(["run", "--resume", "last", "--max-turns", "5"])
        .await;
    assert_eq!(resumed.code, Some(0), "{resumed:?}");
    assert_eq!(env.read("out/effects"), "one\ntwo\nthree\n");
}

#[tokio::test]
async fn run_that_answered_in_text_and_has_its_sandbox_is_not_resumable() {
    let script = Script::new().turn(Turn::text("It is 42.")).repeat_last();
    let (_server, env) = served(script).await;
    assert_eq!(env.run(["run", "Count"]).await.code, Some(0));
    let resumed = env.run(["run", "--resume", "last"]).await;
    assert_eq!(resumed.code, Some(2), "{resumed:?}");

    let json = async |args: &[&str]| -> Value {
        serde_json::from_str(&env.run(args).await.stdout).unwrap()
    };
    let shown = json(&["runs", "show", "last", "--json"]).await;
    assert_eq!(
        (&shown["status"], &shown["resumable"]),
        (&json!("answered_in_text"), &json!(false))
    );
    assert_eq!(json(&["runs", "list", "--json"]).await, json!([shown]));
    let shown = env.run(["runs", "show", "last"]).await;
    assert!(!shown.stdout.contains("--resume"), "{shown:?}");
}

#[tokio::test]
async fn run_on_a_directory_is_continued_on_a_new_copy() {
    let script = Script::new()
        .turn(command("echo first >> notes.txt"))
        .turn(finish("Done.", &[]))
        .turn(command("cat notes.txt; echo second >> notes.txt"))
        .turn(finish("Done.", &[]));
    let (server, env) = served(script).await;
    env.write("repo/notes.txt", "begin\n");
    let first = env
        .run(["run", "Add a note", "--workdir", "repo", "--apply"])
        .await;
    assert_eq!(first.code, Some(0), "{first:?}");
    let second = env
        .run(["run", "--continue", "last", "Add another", "--apply"])
        .await;
    assert_eq!(second.code, Some(0), "{second:?}");
    assert_eq!(env.read("repo/notes.txt"), "begin\nfirst\nsecond\n");
    assert_contains(&last_messages(&server), "is a new copy");
}

#[tokio::test]
async fn what_was_left_out_of_a_copy_and_secrets_of_further_inputs_stay_outside() {
    let script = Script::new()
        .turn(finish("Done.", &[]))
        .turn(command("find . -type f"))
        .turn(finish("Done.", &[]));
    let (server, env) = served(script).await;
    env.write("repo/notes.txt", "begin\n");
    env.write("repo/customers.csv", "1\n");
    env.write("data/new.txt", "new\n");
    env.write("data/.env", "SECRET=1\n");
    let first = ["run", "Look", "--workdir", "repo", "--exclude", "*.csv"];
    assert_eq!(env.run(first).await.code, Some(0));
    let second = ["run", "--continue", "last", "Look again", "--input", "data"];
    let second = env.run(second).await;
    assert_eq!(second.code, Some(0), "{second:?}");
    let found = last_messages(&server);
    assert_contains(&found, "./notes.txt");
    assert_contains(&found, "./data/new.txt");
    for left_out in ["./customers.csv", "./data/.env"] {
        assert!(!found.concat().contains(left_out), "{found:?}");
    }
}

#[tokio::test]
async fn wrong_use_is_refused() {
    let script = Script::new().turn(finish("Done.", &[]));
    let (_server, env) = served(script).await;
    for (arguments, message) in [
        (
            &["run", "--continue", "last", "x"][..],
            "no run `last` is kept",
        ),
        (&["run", "--continue", "last"], "required"),
        (
            &["run", "x", "--continue", "last", "--no-keep"],
            "cannot be used with",
        ),
        (
            &["run", "x", "--continue", "last", "--profile", "deep"],
            "cannot be used with",
        ),
        (
            &[
                "mcp",
                "--allow-agent",
                "--",
                "--continue",
                "last",
                "--no-keep",
            ],
            "cannot be used with",
        ),
        (
            &["run", "x", "--fresh-sandbox"],
            "goes with --resume or --continue",
        ),
        (
            &["run", "x", "--continue", "last", "--resume", "last"],
            "cannot be used with",
        ),
    ] {
        let refused = env.run(arguments).await;
        assert_eq!(refused.code, Some(2), "{refused:?}");
        assert!(refused.stderr.contains(message), "{refused:?}");
    }
}

#[tokio::test]
async fn finished_run_keeps_its_working_directory_for_another_task() {
    let script = Script::new()
        .turn(command("echo first > report.md; echo x > scratch"))
        .turn(finish("The first answer.", &["report.md"]))
        .turn(command("cat scratch >> report.md"))
        .turn(finish("The second answer.", &["report.md"]));
    let (server, env) = served(script).await;
    let first = ["run", "Write a report", "--output-dir", "out"];
    assert_eq!(env.run(first).await.code, Some(0));
    let list = env.run(["runs", "list", "--json"]).await;
    let runs: Value = serde_json::from_str(&list.stdout).unwrap();
    assert!(runs[0]["workspace_bytes"].as_u64().unwrap() > 0, "{runs}");
    let first = runs[0]["run"].as_str().unwrap();

    // It has finished, so there is nothing to resume.
    let resumed = env.run(["run", "--resume", first]).await;
    assert_eq!(resumed.code, Some(2), "{resumed:?}");
    assert!(resumed.stderr.contains("is finished"), "{resumed:?}");

    let second = env.run(["run", "--continue", "last", "Extend it"]).await;
    assert_eq!(second.code, Some(0), "{second:?}");
    assert!(second.stderr.contains("in its sandbox"), "{second:?}");
    assert_eq!(env.read("out/report.md"), "first\nx\n");
    assert_contains(&last_messages(&server), "goes on in the same sandbox");

    // The later run has the working directory now, which is there once.
    assert_eq!(env.list(WORKSPACES).len(), 1);
    env.run(["runs", "rm", first]).await;
    assert_eq!(env.list(WORKSPACES).len(), 1);
    env.run(["runs", "rm", "last"]).await;
    assert_eq!(env.list(WORKSPACES), [""; 0]);
}

#[tokio::test]
async fn working_directory_of_a_removed_run_is_that_of_the_earlier_one_again() {
    let script = Script::new()
        .turn(command("echo x > scratch"))
        .turn(finish("Done.", &[]))
        .turn(command("cat scratch"))
        .turn(finish("Done again.", &[]));
    let (_server, env) = served(script).await;
    assert_eq!(env.run(["run", "Write"]).await.code, Some(0));
    let again = env.run(["run", "--continue", "last", "Again"]).await;
    assert_eq!(again.code, Some(0), "{again:?}");
    env.run(["runs", "rm", "last"]).await;
    let list = env.run(["runs", "list", "--json"]).await;
    let runs: Value = serde_json::from_str(&list.stdout).unwrap();
    assert_eq!(runs.as_array().unwrap().len(), 1, "{runs}");
    assert!(runs[0]["workspace_bytes"].as_u64().is_some(), "{runs}");
}

#[tokio::test]
async fn working_directories_of_finished_runs_are_bounded_in_age_and_size() {
    let mut script = Script::new();
    for _ in 0..4 {
        script = script
            .turn(command("head -c 300000 /dev/zero > file"))
            .turn(finish("Done.", &[]));
    }
    let server = ScriptedServer::start(script).await.unwrap();
    let env = TestEnv::new().with_server(&server.url());
    let run = |flags: &'static [&'static str]| {
        env.run(["run", "Write"].into_iter().chain(flags.iter().copied()))
    };
    assert_eq!(run(&[]).await.code, Some(0));
    assert_eq!(env.list(WORKSPACES).len(), 1);
    // One is not larger than the limit, two are.
    let first = env.list(WORKSPACES);
    assert_eq!(run(&["--keep-size", "500k"]).await.code, Some(0));
    let second = env.list(WORKSPACES);
    assert_eq!(second.len(), 1);
    assert_ne!(first, second);
    // Too large by itself, or not to be kept at all.
    assert_eq!(run(&["--keep-size", "200k"]).await.code, Some(0));
    assert_eq!(run(&["--keep-days", "0"]).await.code, Some(0));
    assert_eq!(env.list(WORKSPACES), second);

    let list = env.run(["runs", "list", "--json"]).await;
    let runs: Value = serde_json::from_str(&list.stdout).unwrap();
    let sizes: Vec<_> = runs
        .as_array()
        .unwrap()
        .iter()
        .map(|run| !run["workspace_bytes"].is_null())
        .collect();
    assert_eq!(sizes, [false, false, true, false]);

    let kept = env.run(["gc"]).await;
    assert_eq!(
        (kept.code, env.list(WORKSPACES)),
        (Some(0), second),
        "{kept:?}"
    );
    // A week later.
    let record = env
        .path(RUNS)
        .join(runs[2]["run"].as_str().unwrap())
        .join("kept-sandbox.json");
    let old = std::time::SystemTime::now() - std::time::Duration::from_secs(8 * 24 * 3600);
    std::fs::File::open(&record)
        .unwrap()
        .set_modified(old)
        .unwrap();
    let pruned = env.run(["gc"]).await;
    assert_eq!(
        (pruned.code, env.list(WORKSPACES)),
        (Some(0), vec![]),
        "{pruned:?}"
    );
    assert!(!record.exists());
}
