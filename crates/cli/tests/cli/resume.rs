//! Kept runs: killed, resumed, listed, removed.

use std::path::PathBuf;

use cantle_testkit::openai::{Script, ScriptedServer};
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::process::Child;

use crate::support::{Exited, Mark, TestEnv, send, wait_for_exit};
use crate::{DOT, command, finish, nothing_to_do};

const RUNS: &str = ".local/state/cantle/runs";
const WORKSPACES: &str = ".local/state/cantle/workspaces";

/// Returns a model for a run that is killed in its second turn. Each turn leaves a trace, which shows
/// whether it was repeated.
fn script(mark: &Mark) -> Script {
    let second = format!("echo two >> effects; bash -c 'sleep 1000; :' {mark}");
    Script::new()
        .turn(command("echo one >> effects"))
        .turn(command(&second))
        .turn(command("cat effects"))
        .turn(finish("all done", &["effects"]))
}

/// Starts a run and kills it during the second command.
async fn start_and_kill(env: &TestEnv, mark: &Mark, args: &[&str]) {
    let run = ["run", "Have effects", "--output-dir", "out"];
    let child: Child = env.command(run.iter().chain(args)).spawn().unwrap();
    mark.appeared().await;
    send(&child, Signal::KILL);
    wait_for_exit(child).await;
    mark.gone().await;
}

async fn served(script: Script) -> (ScriptedServer, TestEnv) {
    let server = ScriptedServer::start(script).await.unwrap();
    let env = TestEnv::new().with_server(&server.url());
    (server, env)
}

#[tokio::test]
async fn killed_run_resumes_without_repeating_work() {
    let mark_env = TestEnv::new();
    let mark = Mark::new(&mark_env);
    let (server, env) = served(script(&mark)).await;
    start_and_kill(&env, &mark, &[]).await;
    assert!(!env.path("out/cantle-result.json").exists());

    let exited = env.run(["run", "--resume", "last"]).await;
    assert_eq!(exited.code, Some(0), "{exited:?}");
    assert_eq!(env.read("out/effects"), "one\ntwo\n");
    assert_eq!(env.result("out")["turns"], 4);
    insta::assert_snapshot!(exited.transcript(&env));

    // The model is informed of the interrupted command, and is called four times in all.
    let requests = server.requests();
    assert_eq!(requests.len(), 4);
    let messages = requests[2].body()["messages"].as_array().unwrap().clone();
    let output = messages.last().unwrap()["content"].to_string();
    assert!(
        output.contains("Interrupted: the process that ran this call ended"),
        "{output}"
    );
    // Earlier messages are sent again byte for byte.
    let before = requests[1].body()["messages"].as_array().unwrap().clone();
    assert_eq!(&messages[..before.len()], before.as_slice());
    // For another task.
    assert_eq!(env.list(WORKSPACES).len(), 1);
}

#[tokio::test]
async fn runs_list_show_and_rm() {
    let mark_env = TestEnv::new();
    let mark = Mark::new(&mark_env);
    let (_server, env) = served(script(&mark)).await;
    let none = env.run(["runs", "list"]).await;
    assert_eq!((none.code, &*none.stdout), (Some(0), "No runs are kept.\n"));

    start_and_kill(&env, &mark, &[]).await;
    let list = env.run(["runs", "list", "--json"]).await;
    let runs: Value = serde_json::from_str(&list.stdout).unwrap();
    assert_eq!(runs[0]["status"], "interrupted");
    assert_eq!(
        (&runs[0]["turns"], &runs[0]["resumable"]),
        (&json!(2), &json!(true))
    );
    let id = runs[0]["run"].as_str().unwrap();
    let list = env.run(["runs", "list"]).await.transcript(&env);
    // Its column is aligned to the right, and `1.2 s` is shorter than `0.12 s`.
    let list = list.replace("        T s ago", "       T s ago");
    insta::assert_snapshot!(list);
    let beginning: String = id.chars().take(12).collect();
    let shown = env.run(["runs", "show", &beginning]).await;
    insta::assert_snapshot!(shown.transcript(&env));
    assert_eq!(env.list(WORKSPACES).len(), 1);

    // Given twice, it is one.
    let removed = env.run(["runs", "rm", id, id]).await;
    assert_eq!(
        (removed.code, &*removed.stdout),
        (Some(0), "1 run removed\n"),
        "{removed:?}"
    );
    assert_eq!((env.list(RUNS), env.list(WORKSPACES)), (vec![], vec![]));
    let again = env.run(["runs", "show", id]).await;
    assert_eq!(again.code, Some(2));
    assert_eq!(again.stderr, format!("cantle: no run {id} is kept\n"));
}

#[tokio::test]
async fn some_runs_are_listed_and_removed() {
    let script = Script::new()
        .turn(command("true"))
        .turn(finish("Done.", &[]));
    let server = ScriptedServer::start(script.repeat_last()).await.unwrap();
    let env = TestEnv::new().with_server(&server.url());
    env.run(["run", "One that fails", "--max-turns", "1"]).await;
    env.run(["run", "One that finishes"]).await;
    for (flags, tasks) in [
        (&[][..], &["One that finishes", "One that fails"][..]),
        (&["--failed"], &["One that fails"]),
        (&["--finished"], &["One that finishes"]),
        (&["--older-than", "7d"], &[]),
        (&["--failed", "--older-than", "0.001"], &["One that fails"]),
    ] {
        let listed = env
            .run(["runs", "list", "--json"].iter().chain(flags))
            .await;
        let runs: Vec<Value> = serde_json::from_str(&listed.stdout).unwrap();
        let found: Vec<_> = runs
            .iter()
            .map(|run| run["task"].as_str().unwrap())
            .collect();
        assert_eq!(found, tasks, "{flags:?}");
    }
    let both = env.run(["runs", "rm", "last", "--failed"]).await;
    assert_eq!(both.code, Some(2), "{both:?}");
    let removed = env.run(["runs", "rm", "--failed"]).await;
    assert_eq!(removed.stdout, "1 run removed\n", "{removed:?}");
    let left = env.run(["runs", "list"]).await.stdout;
    assert!(
        left.contains("One that finishes") && left.lines().count() == 1,
        "{left}"
    );
}

#[tokio::test]
async fn files_of_a_kept_run_are_exported() {
    let mark_env = TestEnv::new();
    let mark = Mark::new(&mark_env);
    let (_server, env) = served(script(&mark)).await;
    start_and_kill(&env, &mark, &[]).await;
    let export = ["runs", "export", "last", "copy"];
    let exported = env.run(export).await;
    assert_eq!(exported.code, Some(0), "{exported:?}");
    assert_eq!(env.read("copy/effects"), "one\ntwo\n");
    // Into the current directory, which can't be removed.
    std::fs::create_dir(env.path("here")).unwrap();
    let mut here = env.command(["runs", "export", "last", "."]);
    here.current_dir(env.path("here"));
    let exported = wait_for_exit(here.spawn().unwrap()).await;
    assert_eq!(exported.code, Some(0), "{exported:?}");
    assert_eq!(env.read("here/effects"), "one\ntwo\n");
    let again = env.run(export).await;
    assert_eq!(again.code, Some(2), "{again:?}");
    assert!(
        again.stderr.contains("name a new or empty directory"),
        "{again:?}"
    );

    // The run is none the worse for it. Once it has finished, its working directory can still be copied, if it is kept.
    let resumed = env.run(["run", "--resume", "last"]).await;
    assert_eq!(resumed.code, Some(0), "{resumed:?}");
    let late = env.run(["runs", "export", "last", "late"]).await;
    assert_eq!(late.code, Some(0), "{late:?}");
    std::fs::remove_dir_all(env.path(WORKSPACES)).unwrap();
    let late = env.run(["runs", "export", "last", "later"]).await;
    // What it delivered is there all the same, until the user removes it.
    assert_eq!(late.code, Some(0), "{late:?}");
    assert!(
        late.stdout.contains("is gone; copied 1 file that the run"),
        "{late:?}"
    );
    assert_eq!(env.read("later/effects"), "one\ntwo\n");
    std::fs::remove_file(env.path("out/effects")).unwrap();
    let gone = env.run(["runs", "export", "last", "gone"]).await;
    assert_ne!(gone.code, Some(0), "{gone:?}");
    assert!(
        gone.stderr.contains("is gone; not copied: effects: "),
        "{gone:?}"
    );
    assert!(!env.path("gone").exists());
}

#[tokio::test]
async fn files_that_a_run_delivers_where_it_is_resumed_are_found_again() {
    let script = Script::new()
        .turn(command("echo one >> effects"))
        .turn(finish("all done", &["effects"]));
    let (_server, env) = served(script).await;
    let first = env.run(["run", "Have effects", "--max-turns", "1"]).await;
    assert_eq!(first.code, Some(3), "{first:?}");
    std::fs::create_dir(env.path("elsewhere")).unwrap();
    let resume = ["run", "--resume", "last", "--max-turns", "5"];
    let mut resume = env.command(resume.iter().chain(&["--output-dir", "out"]));
    resume.current_dir(env.path("elsewhere"));
    let resumed = wait_for_exit(resume.spawn().unwrap()).await;
    assert_eq!(resumed.code, Some(0), "{resumed:?}");
    assert_eq!(env.read("elsewhere/out/effects"), "one\n");

    std::fs::remove_dir_all(env.path(WORKSPACES)).unwrap();
    let exported = env.run(["runs", "export", "last", "copy"]).await;
    assert_eq!(exported.code, Some(0), "{exported:?}");
    assert_eq!(env.read("copy/effects"), "one\n");
}

#[tokio::test]
async fn result_file_that_could_not_be_written_is_written_by_resuming() {
    let env = TestEnv::new();
    let result = env.path("out/cantle-result.json");
    let obstacle = result.clone();
    let script = Script::new()
        .turn(command("echo one >> effects"))
        .then_with(move |_| {
            std::fs::create_dir_all(&obstacle).unwrap();
            finish("all done", &["effects"])
        });
    let server = ScriptedServer::start(script).await.unwrap();
    let env = env.with_server(&server.url());
    let first = env.run(["run", "Have effects", "--output-dir", "out"]);
    let first = first.await;
    assert_eq!(first.code, Some(1), "{first:?}");
    assert!(first.stderr.contains("cantle run --resume "), "{first:?}");

    std::fs::remove_dir(&result).unwrap();
    let resumed = env.run(["run", "--resume", "last"]).await;
    assert_eq!(resumed.code, Some(0), "{resumed:?}");
    assert_eq!(env.result("out")["status"], "finished");
    assert_eq!(env.list("out"), ["cantle-result.json", "effects"]);
    assert_eq!(server.requests().len(), 2);
}

#[tokio::test]
async fn finish_removes_what_the_unfinished_run_left() {
    let turns = || {
        Script::new()
            .turn(command("echo one >> effects"))
            .turn(finish("all done", &["effects"]))
    };
    let (_server, env) = served(turns()).await;
    let run = ["run", "Have effects", "--max-turns", "1"];
    let first = env.run(run.iter().chain(&["--output-dir", "out"])).await;
    assert_eq!(first.code, Some(3), "{first:?}");
    assert!(env.path("out/cantle-unfinished/effects").exists());
    env.write("out/notes", "mine");
    let more = ["run", "--resume", "last", "--max-turns", "5"];
    let more = env.run(more).await;
    assert_eq!(more.code, Some(0), "{more:?}");
    assert_eq!(env.list("out"), ["cantle-result.json", "effects", "notes"]);
}

#[tokio::test]
async fn results_without_an_output_directory_are_below_cantle_out() {
    let turns = || {
        Script::new()
            .turn(command("echo 1,2 > table.csv"))
            .turn(finish("all done", &["table.csv"]))
    };
    let (_server, env) = served(turns()).await;
    let done = env.run(["run", "Have a table"]).await;
    check_default_output(&env, &done);

    let (_server, env) = served(turns()).await;
    let limited = env.run(["run", "Have a table", "--max-turns", "1"]).await;
    assert_eq!(limited.code, Some(3), "{limited:?}");
    assert!(!env.path("cantle-out").exists(), "{limited:?}");
    let resume = ["run", "--resume", "last", "--max-turns", "5"];
    check_default_output(&env, &env.run(resume).await);

    let no_files = Script::new()
        .turn(command("echo 1"))
        .turn(finish("all done", &[]));
    let (_server, env) = served(no_files).await;
    let limited = env.run(["run", "Count", "--max-turns", "1"]).await;
    assert_eq!(limited.code, Some(3), "{limited:?}");
    let resumed = env.run(resume).await;
    assert_eq!(resumed.code, Some(0), "{resumed:?}");
    assert!(!env.path("cantle-out").exists(), "{resumed:?}");
    let exported = env.run(["runs", "export", "last", "copy"]).await;
    assert_eq!(exported.code, Some(0), "{exported:?}");
    let nothing = "Nothing was copied: the working directory has no files.\n";
    assert_eq!(exported.stdout, nothing, "{exported:?}");
}

fn check_default_output(env: &TestEnv, done: &Exited) {
    assert_eq!(done.code, Some(0), "{done:?}");
    let [ignore, run] = &*env.list("cantle-out") else {
        panic!("{:?}", env.list("cantle-out"));
    };
    assert_eq!(ignore, ".gitignore");
    assert_eq!(env.read("cantle-out/.gitignore"), "*\n");
    let directory = format!("cantle-out/{run}");
    assert!(
        done.stderr.contains(&format!("{directory}/table.csv")),
        "{done:?}"
    );
    let result = env.result(&directory);
    assert_eq!(result["run"], **run);
    let output = &result["outputs"][0];
    assert_eq!(
        (&output["name"], &output["media_type"]),
        (&json!("table.csv"), &json!("text/csv"))
    );
}

#[tokio::test]
async fn run_at_a_limit_resumes_with_a_larger_one() {
    let (_server, env) = served(
        Script::new()
            .turn(command("echo one >> effects"))
            .turn(command("echo two >> effects"))
            .turn(finish("all done", &["effects"])),
    )
    .await;
    let run = ["run", "Have effects", "--max-turns", "2"];
    let first = env.run(run).await;
    assert_eq!(first.code, Some(3), "{first:?}");
    assert!(
        first.stderr.contains("cantle run --resume "),
        "{}",
        first.stderr
    );
    let same = env.run(["runs", "resume", "last"]).await;
    assert_eq!(same.code, Some(3), "{same:?}");
    let more = env
        .run([
            "run",
            "--resume",
            "last",
            "--max-turns",
            "5",
            "--output-dir",
            "out",
        ])
        .await;
    assert_eq!(more.code, Some(0), "{more:?}");
    assert_eq!(env.read("out/effects"), "one\ntwo\n");
    let finished = env.run(["run", "--resume", "last"]).await;
    assert_eq!(finished.code, Some(2), "{finished:?}");
    assert!(
        finished
            .stderr
            .contains("is finished; there is nothing left to do"),
        "{finished:?}"
    );
}

#[tokio::test]
async fn resume_refuses_another_model_or_policy() {
    let mark_env = TestEnv::new();
    let mark = Mark::new(&mark_env);
    let (_server, env) = served(script(&mark)).await;
    start_and_kill(&env, &mark, &[]).await;
    let resume = ["run", "--resume", "last"];
    let other = env
        .run(
            resume
                .iter()
                .chain(&["--model", "other", "--policy", "read_only"]),
        )
        .await;
    assert_eq!(other.code, Some(2), "{other:?}");
    assert!(
        other
            .stderr
            .contains(r#"model: "scripted" then, "other" now"#),
        "{other:?}"
    );
    assert!(other.stderr.contains("providers.code_exec"), "{other:?}");
    let same = env.run(resume).await;
    assert_eq!(same.code, Some(0), "{same:?}");
}

#[tokio::test]
async fn lost_working_directory_needs_fresh_sandbox() {
    let mark_env = TestEnv::new();
    let mark = Mark::new(&mark_env);
    let (server, env) = served(script(&mark)).await;
    start_and_kill(&env, &mark, &[]).await;
    std::fs::remove_dir_all(env.path(WORKSPACES)).unwrap();
    let gone = env.run(["run", "--resume", "last"]).await;
    assert_eq!(gone.code, Some(6), "{gone:?}");
    for expected in [
        "is gone, and the files in it with it",
        "it can go on only in a fresh one",
    ] {
        assert!(gone.stderr.contains(expected), "{gone:?}");
    }
    let fresh = env
        .run(["run", "--resume", "last", "--fresh-sandbox"])
        .await;
    // The file of the finish call is lost, so the model is called once more than scripted.
    assert_eq!(fresh.code, Some(5), "{fresh:?}");
    let body = server.requests()[2].body().to_string();
    assert!(body.contains("its sandbox is gone"), "{body}");
}

#[tokio::test]
async fn fresh_sandbox_is_kept() {
    let mark_env = TestEnv::new();
    let mark = Mark::new(&mark_env);
    let hang = format!("echo two > effects; bash -c 'sleep 1000; :' {mark}");
    let script = Script::new()
        .turn(command(&hang))
        .turn(command(&hang))
        .turn(finish("all done", &["effects"]));
    let (_server, env) = served(script).await;
    start_and_kill(&env, &mark, &[]).await;
    std::fs::remove_dir_all(env.path(WORKSPACES)).unwrap();
    let fresh = ["run", "--resume", "last", "--fresh-sandbox"];
    let child = env.command(fresh).spawn().unwrap();
    mark.appeared().await;
    send(&child, Signal::KILL);
    wait_for_exit(child).await;
    mark.gone().await;
    let again = env.run(["run", "--resume", "last"]).await;
    assert_eq!(again.code, Some(0), "{again:?}");
    assert_eq!(env.read("out/effects"), "two\n");
    assert_eq!(env.list(WORKSPACES).len(), 1);

    // Later failures do not remove the result of a finished run.
    let finished = env.run(["run", "--resume", "last"]).await;
    assert_eq!(finished.code, Some(2), "{finished:?}");
    let mistake = [
        "run",
        "Again",
        "--output-dir",
        "out",
        "--schema",
        "nowhere.json",
    ];
    assert_eq!(env.run(mistake).await.code, Some(2));
    assert_eq!(env.result("out")["status"], "finished");
}

#[tokio::test]
async fn kept_runs_are_private_and_hold_no_key() {
    let mark_env = TestEnv::new();
    let mark = Mark::new(&mark_env);
    let (_server, env) = served(script(&mark)).await;
    let env = env.set("CANTLE_API_KEY", "sk-very-secret");
    start_and_kill(&env, &mark, &[]).await;
    let mut files: Vec<PathBuf> = vec![env.path(RUNS)];
    let mut seen = 0;
    while let Some(path) = files.pop() {
        use std::os::unix::fs::PermissionsExt as _;

        let mode = path.metadata().unwrap().permissions().mode();
        if path.is_dir() {
            files.extend(
                std::fs::read_dir(&path)
                    .unwrap()
                    .map(|it| it.unwrap().path()),
            );
            assert!(
                path == env.path(RUNS) || mode & 0o077 == 0,
                "{path:?} {mode:o}"
            );
        } else {
            seen += 1;
            assert_eq!(mode & 0o077, 0, "{path:?} {mode:o}");
            assert!(
                !std::fs::read_to_string(&path)
                    .unwrap()
                    .contains("very-secret"),
                "{path:?}"
            );
        }
    }
    assert!(seen >= 2);
}

#[tokio::test]
async fn no_keep_and_missing_state_directory() {
    let (_server, env) = served(nothing_to_do()).await;
    env.run(["run", "Nothing", "--no-keep"]).await;
    assert!(!env.path(".local").exists());
    let env = env.set("XDG_STATE_HOME", "relative");
    let exited = env.run(["run", "Nothing"]).await;
    assert!(
        exited.stderr.contains("This run can't be resumed"),
        "{exited:?}"
    );
}

#[tokio::test]
async fn gc_keeps_resumable_runs() {
    let mark_env = TestEnv::new();
    let mark = Mark::new(&mark_env);
    let (_server, env) = served(script(&mark)).await;
    start_and_kill(&env, &mark, &[]).await;
    let temporary = env.path("tmp");
    std::fs::create_dir(&temporary).unwrap();
    let env = env.set("TMPDIR", temporary.to_str().unwrap());
    let gc = env.run(["gc", "--verbose"]).await;
    assert_eq!(gc.code, Some(0), "{gc:?}");
    let exited = env.run(["run", "--resume", "last"]).await;
    assert_eq!(exited.code, Some(0), "{exited:?}");
}

#[tokio::test]
async fn images_and_request_parameters_are_kept() {
    let script = Script::new()
        .turn(command("true"))
        .turn(finish("done", &[]));
    let (server, env) = served(script).await;
    env.write("dot.gif", DOT);
    let args = ["run", "Look", "--image", "dot.gif", "--max-turns", "1"];
    let parameters = ["--temperature", "0.2", "--param", "seed=7"];
    let exited = env.run(args.iter().chain(&parameters)).await;
    assert_eq!(exited.code, Some(3), "{exited:?}");
    std::fs::remove_file(env.path("dot.gif")).unwrap();

    let resume = ["run", "--resume", "last", "--max-turns", "5"];
    let changed = env
        .run(resume.iter().chain(&["--temperature", "0.9"]))
        .await;
    assert_eq!(changed.code, Some(2), "{changed:?}");
    let why = "parameters.temperature: 0.2 then, 0.9 now";
    assert!(changed.stderr.contains(why), "{changed:?}");

    let exited = env.run(resume).await;
    assert_eq!(exited.code, Some(0), "{exited:?}");
    let bodies: Vec<Value> = server.requests().iter().map(|it| it.body()).collect();
    assert_eq!(bodies.len(), 2);
    for body in &bodies {
        assert_eq!(
            (&body["temperature"], &body["seed"]),
            (&json!(0.2), &json!(7))
        );
        let image = body.pointer("/messages/1/content/1/type");
        assert_eq!(image, Some(&json!("image_url")), "{body}");
    }
}
