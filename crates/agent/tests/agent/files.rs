//! Files in and out, commands and a model over HTTP: an agent of real parts, only the model's words
//! are scripted.

use std::path::Path;
use std::time::{Duration, Instant};

use cantle_agent::{Agent, SessionOptions};
use cantle_backends_local::LocalBackend;
use cantle_clients::chat::ChatClient;
use cantle_core::event::{EventKind, RunStatus};
use cantle_core::message::Message;
use cantle_core::policy::Policy;
use cantle_testkit::openai::{Script, ScriptedServer, ToolCall, Turn, Usage};
use cantle_tools::{CodeExec, Finish};
use serde_json::json;

use crate::support::{outcome, results};

fn command(cmd: &str) -> Turn {
    Turn::tool(ToolCall::new("code_exec", json!({"cmd": cmd})))
}

fn done(paths: &[&str]) -> Turn {
    Turn::tool(ToolCall::new(
        "finish",
        json!({"reason": "done", "paths": paths}),
    ))
}

fn agent(server: &ScriptedServer) -> Agent {
    agent_under(server, Policy::workspace())
}

/// An agent whose sandbox is where its commands say it is.
fn unconfined(server: &ScriptedServer) -> Agent {
    agent_under(server, Policy::unconfined())
}

fn agent_under(server: &ScriptedServer, policy: Policy) -> Agent {
    let client = ChatClient::builder("scripted")
        .base_url(server.url())
        .build()
        .unwrap();
    Agent::builder("files", client)
        .provider(CodeExec::new(LocalBackend::new()).policy(policy))
        .finish(Finish)
        .turn_warning_threshold(0)
        .build()
        .unwrap()
}

async fn serve(turns: impl IntoIterator<Item = Turn>) -> ScriptedServer {
    let script = turns.into_iter().fold(Script::new(), Script::turn);
    ScriptedServer::start(script).await.unwrap()
}

fn write(directory: &Path, name: &str, text: &str) {
    let path = directory.join(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
}

#[tokio::test]
async fn patterns_follow_no_link_out() {
    let outside = tempfile::tempdir().unwrap();
    write(outside.path(), "secret.rs", "secret");
    let host = tempfile::tempdir().unwrap();
    write(host.path(), "src/main.rs", "main");
    let link = host.path().join("src/linked.rs");
    std::os::unix::fs::symlink(outside.path().join("secret.rs"), link).unwrap();
    std::os::unix::fs::symlink(outside.path(), host.path().join("src/directory")).unwrap();
    let server = serve([command("find . -type f"), done(&[])]).await;
    let mut options = SessionOptions::default();
    for input in ["src/*.rs", "src/*/*.rs", "src/main.rs"] {
        options = options.input_file(host.path().join(input));
    }
    let error = agent(&server).session(options.clone()).await.err().unwrap();
    assert!(
        error.to_string().contains("src/*/*.rs` matches no file"),
        "{error}"
    );
    options.input_files.remove(1);
    let session = agent(&server).session(options).await.unwrap();
    let mut run = session.run("the task").unwrap();
    let mut warnings = Vec::new();
    while let Some(event) = run.next().await {
        if let EventKind::Warning { message } = event.kind {
            warnings.push(message);
        }
    }
    let expected = "src/linked.rs` was passed over: the link leads out of the directory";
    assert!(
        matches!(&warnings[..], [one, ..] if one.ends_with(expected)),
        "{warnings:?}"
    );
}

#[tokio::test]
async fn inputs_arrive_commands_run_and_outputs_are_saved_with_every_token_counted() {
    let host = tempfile::tempdir().unwrap();
    write(host.path(), "one.txt", "1\n");
    write(host.path(), "data/deep/two.csv", "2\n");
    write(host.path(), "loose/three.md", "3\n");
    write(host.path(), "logs/a.log", "a\n");
    write(host.path(), "logs/sub/b.log", "b\n");
    write(host.path(), "logs/c.txt", "c\n");
    // A directory that `loose/*.md` must not care about.
    write(host.path(), "loose/deeper/four.md", "4\n");
    let server = serve([
        command("find . -type f | sort").usage(Usage::new(100, 10).cached(60).reasoning(4)),
        command("mkdir -p out/deep && cat one.txt > out/deep/result && echo no > out/other"),
        done(&[
            "out/deep/result",
            "./out/deep/result",
            "../escape",
            "empty*",
        ]),
        done(&["out/deep/result", "out/deep", "one.t?t", "one.txt"]),
    ])
    .await;

    let out = tempfile::tempdir().unwrap();
    let mut options = SessionOptions::default().output_dir(out.path());
    for input in ["one.txt", "data", "loose/*.md", "logs/**/*.log"] {
        options = options.input_file(host.path().join(input));
    }
    let session = agent(&server).session(options).await.unwrap();
    let outcome = outcome(session.run("the task").unwrap()).await;
    assert_eq!(outcome.status(), RunStatus::Finished, "{:?}", outcome.error);

    let listed = &results(&outcome)[0].0;
    let expected = [
        "./a.log",
        "./data/deep/two.csv",
        "./one.txt",
        "./sub/b.log",
        "./three.md",
    ];
    assert!(
        listed.contains(&format!("<stdout>{}\n</stdout>", expected.join("\n"))),
        "{listed}"
    );
    let (refused, accepted) = &results(&outcome)[2];
    assert!(
        !accepted
            && refused.contains(
                "`../escape` (there is no such file in the working directory), `empty*` (there is no such file"
            ),
        "{refused}"
    );

    let saved: Vec<_> = outcome
        .outputs
        .saved
        .iter()
        .map(|file| file.source.as_str())
        .collect();
    assert_eq!(saved, ["out/deep/result", "one.txt"]);
    assert_eq!(
        std::fs::read_to_string(out.path().join("out/deep/result")).unwrap(),
        "1\n"
    );
    assert!(!out.path().join("out/other").exists());
    assert_eq!(
        std::fs::read_dir(out.path()).unwrap().count(),
        2,
        "nothing else is left there"
    );

    let sent = server.usage_sent();
    let usage = outcome.ledger.reported_usage();
    assert_eq!(
        (usage.input_total(), usage.output_total()),
        (sent.prompt, sent.completion)
    );
    assert_eq!((usage.cache_read, usage.reasoning), (60, 4));
    assert_eq!(outcome.ledger.tools["code_exec"].calls, 2);
    let Message::User(task) = &*outcome.history[1] else {
        panic!("no task")
    };
    let task = task.content.text();
    for fact in [
        "<environment>\nDate: 20",
        "\nTurns: 30 (",
        "\nSandbox: ",
        "\nInstalled: ",
        "\nNetwork: off;",
        "\ndata/\n  deep/\n    two.csv\n",
    ] {
        assert!(task.contains(fact), "{fact} in {task}");
    }
    assert!(task.ends_with("\n</environment>\n\nthe task"), "{task}");
    session.close().await.unwrap();
}

#[tokio::test]
async fn closing_the_session_leaves_no_directory_behind() {
    let server = serve([command("pwd"), done(&[])]).await;
    let session = unconfined(&server)
        .session(SessionOptions::default())
        .await
        .unwrap();
    outcome(session.run("the task").unwrap()).await;
    let directory = session
        .sandbox()
        .unwrap()
        .info()
        .working_directory
        .to_string();
    assert!(Path::new(&directory).exists());
    session.close().await.unwrap();
    assert!(!Path::new(&directory).exists());
}

#[tokio::test]
async fn cancelling_during_a_command_kills_it_and_keeps_its_output() {
    let server = serve([command("echo before; sleep 600; echo after")]).await;
    let session = agent(&server)
        .session(SessionOptions::default())
        .await
        .unwrap();
    let mut run = session.run("the task").unwrap();
    let (mut shown, mut cancelled) = (String::new(), None);
    while let Some(event) = run.next().await {
        if let EventKind::ToolOutputDelta { text, .. } = event.kind {
            shown.push_str(&text);
            if shown == "before\n" {
                cancelled = Some(Instant::now());
                run.cancel();
            }
        }
    }
    let outcome = outcome(run).await;
    assert!(cancelled.unwrap().elapsed() < Duration::from_secs(60));
    assert_eq!(outcome.status(), RunStatus::Cancelled);
    let (result, success) = &results(&outcome)[0];
    assert!(
        result.contains("<error_kind>cancelled</error_kind>"),
        "{result}"
    );
    assert!(
        result.contains("<stdout>before\n</stdout>") && !success,
        "{result}"
    );
    session.close().await.unwrap();
}

#[tokio::test]
async fn a_sandbox_that_is_gone_ends_the_run_instead_of_leaving_the_model_with_a_dead_one() {
    let server = serve([command("rm -rf \"$PWD\""), command("ls"), command("ls")]).await;
    let session = unconfined(&server)
        .session(SessionOptions::default())
        .await
        .unwrap();
    let outcome = outcome(session.run("the task").unwrap()).await;
    assert_eq!(
        outcome.status(),
        RunStatus::SandboxFailed,
        "{:?}",
        results(&outcome)
    );
    assert!(outcome.turns <= 2);
}

#[tokio::test]
async fn concurrent_sessions_have_files_of_their_own() {
    let turns = [command("cat *; echo \"$PWD\" > mine"), done(&["mine"])];
    let server = serve(turns).await;
    let agent = agent(&server);
    let host = tempfile::tempdir().unwrap();
    let mut running = Vec::new();
    for number in 0..8 {
        write(
            host.path(),
            &format!("{number}/in"),
            &format!("input {number}\n"),
        );
        let options = SessionOptions::default()
            .input_file(host.path().join(format!("{number}/in")))
            .output_dir(host.path().join(format!("{number}/out")));
        let session = agent.session(options).await.unwrap();
        let run = session.run(format!("task {number}")).unwrap();
        running.push((number, session, run));
    }
    for (number, session, run) in running {
        let outcome = outcome(run).await;
        let result = &results(&outcome)[0].0;
        assert!(
            result.contains(&format!("<stdout>input {number}\n</stdout>")),
            "{result}"
        );
        let saved =
            std::fs::read_to_string(host.path().join(format!("{number}/out/mine"))).unwrap();
        let own = session
            .sandbox()
            .unwrap()
            .info()
            .working_directory
            .to_string();
        assert_eq!(saved.trim(), own);
        session.close().await.unwrap();
    }
}
