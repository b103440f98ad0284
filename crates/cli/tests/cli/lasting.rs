//! What a run that lasts has to do right at its edges: money, tools, its last moment, and what is left
//! where none ever began.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use cantle_testkit::openai::{Script, ScriptedServer, ToolCall, Turn};
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::process::Child;
use tokio::time::timeout;

use crate::support::{DEADLINE, Place, ended, send};
use crate::{command, finish, nothing_to_do};

const WORKSPACES: &str = ".local/state/cantle/workspaces";

async fn served(script: Script) -> (ScriptedServer, Place) {
    let server = ScriptedServer::start(script).await.unwrap();
    let place = Place::new().served_by(&server.url());
    (server, place)
}

#[tokio::test]
async fn a_budget_of_money_is_refused_where_nobody_says_what_a_call_costs() {
    let (server, place) = served(nothing_to_do()).await;
    let place = place.set("CANTLE_API_KEY", "k");
    let who = [
        ("openai", "OpenAI"),
        ("anthropic", "Anthropic"),
        ("local", "a server on this machine"),
    ];
    for (provider, name) in who {
        let args = [
            "run",
            "Nothing",
            "--budget-usd",
            "1",
            "--provider",
            provider,
        ];
        let url = server.url();
        let refused = place
            .run(args.into_iter().chain(["--base-url", &url]))
            .await;
        assert_eq!(refused.code, Some(2), "{refused:?}");
        let why = format!(
            "--budget-usd can't be kept: {name} does not say what a call costs, and no prices were given. \
             Give them with --price-input and --price-output, or limit tokens with --budget-tokens"
        );
        assert!(refused.stderr.contains(&why), "{refused:?}");
    }
    assert_eq!(server.requests().len(), 0);
}

#[tokio::test]
async fn with_prices_money_is_limited_and_without_it_is_said_that_it_is_not() {
    let script = Script::new().turn(finish("done", &[])).repeat_last();
    let (server, place) = served(script).await;
    let place = place.set("CANTLE_API_KEY", "k");
    let url = server.url();
    let args = [
        "run",
        "Nothing",
        "--budget-usd",
        "1",
        "--provider",
        "openai",
    ];
    let prices = [
        "--base-url",
        &url,
        "--price-input",
        "1",
        "--price-output",
        "2",
    ];
    let ended = place.run(args.into_iter().chain(prices)).await;
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(!ended.stderr.contains("Nobody says"), "{ended:?}");
    // Of a server that nobody knows, it is said as soon as it is known.
    let ended = place.run(["run", "Nothing", "--budget-usd", "1"]).await;
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(
        ended.stderr.contains("the budget of $1 does not count it"),
        "{ended:?}"
    );
}

/// The tools that a model was offered.
fn offered(body: &Value) -> Vec<String> {
    let tools = body["tools"].as_array().unwrap().iter();
    let mut names: Vec<_> = tools
        .map(|tool| tool["function"]["name"].as_str().unwrap().to_owned())
        .collect();
    names.sort();
    names
}

#[tokio::test]
async fn a_model_can_calculate_and_look_at_pictures_where_it_takes_them() {
    let calculate = ToolCall::new("calculator", json!({"expression": "2**100"}));
    let script = Script::new()
        .turn(Turn::tool(calculate))
        .turn(finish("done", &[]))
        .turn(finish("done", &[]));
    let (server, place) = served(script).await;
    let ended = place.run(["run", "Calculate"]).await;
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let place = place.set("CANTLE_API_KEY", "k");
    let url = server.url();
    let eyes = ["run", "Look", "--provider", "openai", "--base-url", &url];
    let ended = place.run(eyes).await;
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let requests = server.requests();
    let blind = ["calculator", "code_exec", "finish"];
    assert_eq!(offered(&requests[0].body()), blind);
    let result = requests[1].body()["messages"]
        .as_array()
        .unwrap()
        .last()
        .unwrap()["content"]
        .clone();
    assert!(
        result
            .to_string()
            .contains("1267650600228229401496703205376"),
        "{result}"
    );
    let seeing = ["calculator", "code_exec", "finish", "view_image"];
    assert_eq!(offered(&requests[2].body()), seeing);
}

fn copy(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("-a").args([from, to]).status();
    assert!(copied.unwrap().success());
}

/// Waits until the model is asked for the last time, and has the program stand still from then on.
async fn asked_last(server: &ScriptedServer, child: &Child) {
    timeout(DEADLINE, server.received(2)).await.unwrap();
    send(child, Signal::STOP);
}

#[tokio::test]
async fn a_run_killed_before_its_result_was_written_writes_it_when_it_is_resumed() {
    let last = finish("all done", &["out.txt"]).latency(Duration::from_secs(3));
    let (server, place) = served(Script::new().turn(command("echo hi > out.txt")).turn(last)).await;
    let run = ["run", "Write", "--output-dir", "out"];
    let child = place.command(run).spawn().unwrap();
    asked_last(&server, &child).await;
    // As it is while the model is asked for the last time.
    let name = place.list(WORKSPACES).remove(0);
    let workspace = place.path(WORKSPACES).join(&name);
    copy(&workspace, &place.path("copy"));
    send(&child, Signal::CONT);
    let first = ended(child).await;
    assert_eq!(first.code, Some(0), "{first:?}");
    let result = place.result("out");
    assert_eq!(place.list(WORKSPACES), [""; 0]);
    // As where it is killed once it has noted its end, and before anything comes of that.
    copy(&place.path("copy"), &workspace);
    std::fs::remove_dir_all(place.path("out")).unwrap();

    let again = place.run(["run", "--resume", "last"]).await;
    assert_eq!(again.code, Some(0), "{again:?}");
    assert_eq!(place.read("out/out.txt"), "hi\n");
    let written = place.result("out");
    for field in ["run", "status", "finish", "turns", "ledger"] {
        assert_eq!(written[field], result[field], "{field}");
    }
    assert_eq!(server.requests().len(), 2, "nobody is asked again");
    assert_eq!(place.list(WORKSPACES), [""; 0]);

    let over = place.run(["run", "--resume", "last"]).await;
    assert_eq!(over.code, Some(2), "{over:?}");
    assert!(
        over.stderr
            .contains("is finished; there is nothing left to do"),
        "{over:?}"
    );
}

#[tokio::test]
async fn gc_removes_what_was_kept_for_a_run_that_never_began() {
    let last = finish("all done", &[]).latency(Duration::from_secs(3));
    let (server, place) = served(Script::new().turn(command("echo hi > a")).turn(last)).await;
    let child = place.command(["run", "Write"]).spawn().unwrap();
    asked_last(&server, &child).await;
    let name = place.list(WORKSPACES).remove(0);
    let workspace = place.path(WORKSPACES).join(&name);
    copy(&workspace, &place.path("copy"));
    send(&child, Signal::CONT);
    let first = ended(child).await;
    assert_eq!(first.code, Some(0), "{first:?}");
    // One that a journal names, one that none does, and a young one.
    let (head, _) = name.split_at(name.len() - 6);
    let nobodys = place.path(WORKSPACES).join(format!("{head}bbbbbb"));
    let young = place.path(WORKSPACES).join(format!("{head}aaaaaa"));
    for to in [&workspace, &nobodys, &young] {
        copy(&place.path("copy"), to);
    }
    for old in [&workspace, &nobodys] {
        let touched = Command::new("touch")
            .args(["-d", "1 hour ago"])
            .arg(old)
            .status();
        assert!(touched.unwrap().success());
    }
    let touched = Command::new("touch").arg(&young).status();
    assert!(touched.unwrap().success());
    let temporary = place.path("tmp");
    std::fs::create_dir(&temporary).unwrap();
    let place = place.set("TMPDIR", temporary.to_str().unwrap());
    let gc = place.run(["gc", "--verbose"]).await;
    assert_eq!(gc.code, Some(0), "{gc:?}");
    assert!(gc.stdout.contains(nobodys.to_str().unwrap()), "{gc:?}");
    let left = [workspace.exists(), nobodys.exists(), young.exists()];
    assert_eq!(left, [true, false, true]);
}
