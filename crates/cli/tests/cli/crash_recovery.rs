//! Cost budgets, extra tools, a crash at the end of a run, and orphaned working directories.

use std::path::Path;
use std::process::Command;

use cantle_testkit::openai::{Script, ScriptedServer};
use serde_json::Value;

use crate::support::TestEnv;
use crate::{command, finish, nothing_to_do};

const WORKSPACES: &str = ".local/state/cantle/workspaces";

async fn served(script: Script) -> (ScriptedServer, TestEnv) {
    let server = ScriptedServer::start(script).await.unwrap();
    let env = TestEnv::new().with_server(&server.url());
    (server, env)
}

#[tokio::test]
async fn cost_budget_is_refused_without_prices() {
    let (server, env) = served(nothing_to_do()).await;
    let env = env.set("CANTLE_API_KEY", "k");
    let prices = ["--price-input", "1", "--price-output", "2"];
    let fallback = [&prices[..], &["--fallback-model", "other"]].concat();
    for (flags, model, advice) in [
        (
            &["--provider", "openai"][..],
            "scripted",
            "Set --price-input/--price-output or use --budget-tokens.",
        ),
        (
            &["--provider", "anthropic"],
            "scripted",
            "Set --price-input/--price-output or use --budget-tokens.",
        ),
        (
            &[],
            "scripted",
            "Set --price-input/--price-output or use --budget-tokens.",
        ),
        (&fallback, "other", "Use --budget-tokens."),
    ] {
        let args = ["run", "Nothing", "--budget-usd", "1", "--base-url"];
        let url = server.url();
        let refused = env.run(args.iter().chain([&&*url]).chain(flags)).await;
        let why = format!(
            "cantle: no price is known for {model}, so --budget-usd can't be enforced. {advice}\n"
        );
        assert_eq!((refused.code, refused.stderr), (Some(2), why), "{flags:?}");
    }
    assert_eq!(server.requests().len(), 0);
}

#[tokio::test]
async fn cost_budget_needs_prices_or_reported_costs() {
    let (_server, env) = served(nothing_to_do()).await;
    let budget = ["run", "Nothing", "--budget-usd", "1"];
    let prices = ["--price-input", "1", "--price-output", "2"];
    let exited = env.run(budget.iter().chain(&prices)).await;
    assert_eq!(exited.code, Some(0), "{exited:?}");

    // This server does not report what its type should: the run ends before the next request.
    let script = Script::new()
        .turn(command("true"))
        .turn(finish("done", &[]));
    let (server, env) = served(script).await;
    let router = ["--server", "openrouter"];
    let exited = env.run(budget.iter().chain(&router)).await;
    assert_eq!(exited.code, Some(3), "{exited:?}");
    let why =
        "the cost of a call of scripted is unknown, so the run's budget of money can't be enforced";
    assert!(exited.stderr.contains(why), "{exited:?}");
    assert!(exited.stderr.contains("--price-input"), "{exited:?}");
    assert_eq!(server.requests().len(), 1);

    // Known models count with the highest list price of their provider.
    let script = Script::new()
        .turn(command("true"))
        .turn(finish("done", &[]));
    let (_server, env) = served(script).await;
    let known = ["--model", "anthropic/claude-next", "--output-dir", "out"];
    let exited = env.run(budget.iter().chain(&router).chain(&known)).await;
    assert_eq!(exited.code, Some(0), "{exited:?}");
    let result = env.result("out");
    let call = result.pointer("/ledger/model_calls/0").unwrap();
    assert!(call["cost_usd"].as_f64().unwrap() > 0.0, "{call}");
    assert!(call["list_price_date"].is_string(), "{call}");
    assert!(
        exited.stderr.contains(" (list price of 2026-"),
        "{exited:?}"
    );
    let shown = env.run(["runs", "show", "last"]).await.stdout;
    assert!(shown.contains(" list price of 2026-"), "{shown}");
}

/// Returns the names of the tools in a request.
fn offered(body: &Value) -> Vec<String> {
    let tools = body["tools"].as_array().unwrap().iter();
    let mut names: Vec<_> = tools
        .map(|tool| tool["function"]["name"].as_str().unwrap().to_owned())
        .collect();
    names.sort();
    names
}

#[tokio::test]
async fn extra_tools_depend_on_the_model() {
    let script = Script::new()
        .turn(finish("done", &[]))
        .turn(finish("done", &[]));
    let (server, env) = served(script).await;
    let exited = env.run(["run", "Look"]).await;
    assert_eq!(exited.code, Some(0), "{exited:?}");
    let env = env.set("CANTLE_API_KEY", "k");
    let url = server.url();
    let openai = ["run", "Look", "--provider", "openai", "--base-url", &url];
    let exited = env.run(openai).await;
    assert_eq!(exited.code, Some(0), "{exited:?}");
    let requests = server.requests();
    assert_eq!(offered(&requests[0].body()), ["code_exec", "finish"]);
    let with_images = ["code_exec", "finish", "view_image"];
    assert_eq!(offered(&requests[1].body()), with_images);
}

fn copy(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("-a").args([from, to]).status();
    assert!(copied.unwrap().success());
}

/// Starts a model for a run that executes a command and finishes. Its working directory is copied to `copy` during the
/// last model call, whose answer it waits for.
async fn copied(cmd: &str, paths: &'static [&'static str]) -> (ScriptedServer, TestEnv) {
    let env = TestEnv::new();
    let (workspaces, to) = (env.path(WORKSPACES), env.path("copy"));
    let script = Script::new().turn(command(cmd)).then_with(move |_| {
        copy(&workspaces, &to);
        finish("all done", paths)
    });
    let server = ScriptedServer::start(script).await.unwrap();
    let env = env.with_server(&server.url());
    (server, env)
}

#[tokio::test]
async fn resume_writes_a_missing_result_file() {
    let (server, env) = copied("echo hi > out.txt", &["out.txt"]).await;
    let env = env.set("CANTLE_KEEP_DAYS", "0");
    let first = env.run(["run", "Write", "--output-dir", "out"]).await;
    assert_eq!(first.code, Some(0), "{first:?}");
    let result = env.result("out");
    assert_eq!(env.list(WORKSPACES), [""; 0]);
    // The state after a kill between the journal's last entry and the result file.
    let name = env.list("copy").remove(0);
    copy(
        &env.path("copy").join(&name),
        &env.path(WORKSPACES).join(&name),
    );
    std::fs::remove_dir_all(env.path("out")).unwrap();

    let again = env.run(["run", "--resume", "last"]).await;
    assert_eq!(again.code, Some(0), "{again:?}");
    assert_eq!(env.read("out/out.txt"), "hi\n");
    let written = env.result("out");
    for field in ["run", "status", "finish", "turns", "ledger"] {
        assert_eq!(written[field], result[field], "{field}");
    }
    assert_eq!(server.requests().len(), 2, "no further model call");
    assert_eq!(env.list(WORKSPACES), [""; 0]);

    let over = env.run(["run", "--resume", "last"]).await;
    assert_eq!(over.code, Some(2), "{over:?}");
    assert!(
        over.stderr
            .contains("is finished; there is nothing left to do"),
        "{over:?}"
    );
}

#[tokio::test]
async fn gc_removes_orphaned_working_directories() {
    let (_server, env) = copied("echo hi > a", &[]).await;
    let first = env.run(["run", "Write"]).await;
    assert_eq!(first.code, Some(0), "{first:?}");
    let name = env.list("copy").remove(0);
    let kept = env.path("copy").join(&name);
    let workspace = env.path(WORKSPACES).join(&name);
    // One that a journal names, one that no journal names, and a young one.
    let (head, _) = name.split_at(name.len() - 6);
    let orphan = env.path(WORKSPACES).join(format!("{head}bbbbbb"));
    let young = env.path(WORKSPACES).join(format!("{head}aaaaaa"));
    for to in [&workspace, &orphan, &young] {
        copy(&kept, to);
    }
    // A process was killed before its run began.
    let begun = env.path(".local/state/cantle/runs/01a2067fefe37241a2a824fac036503a");
    std::fs::create_dir(&begun).unwrap();
    for old in [&workspace, &orphan, &begun] {
        let touched = Command::new("touch")
            .args(["-d", "1 hour ago"])
            .arg(old)
            .status();
        assert!(touched.unwrap().success());
    }
    let touched = Command::new("touch").arg(&young).status();
    assert!(touched.unwrap().success());
    let temporary = env.path("tmp");
    std::fs::create_dir(&temporary).unwrap();
    let env = env.set("TMPDIR", temporary.to_str().unwrap());
    let gc = env.run(["gc", "--verbose"]).await;
    assert_eq!(gc.code, Some(0), "{gc:?}");
    assert!(gc.stdout.contains(orphan.to_str().unwrap()), "{gc:?}");
    let left = [&workspace, &orphan, &young, &begun].map(|path| path.exists());
    assert_eq!(left, [true, false, true, false]);

    // The journal of a sub-agent that can't be read may name any of them.
    copy(&kept, &orphan);
    let touched = Command::new("touch")
        .args(["-d", "1 hour ago"])
        .arg(&orphan)
        .status();
    assert!(touched.unwrap().success());
    let runs = ".local/state/cantle/runs";
    let run = env.list(runs).remove(0);
    let damaged = "agents/call/01a2067fefe37241a2a824fac036503b/journal.jsonl";
    env.write(format!("{runs}/{run}/{damaged}"), "{}\n");
    let gc = env.run(["gc"]).await;
    assert_eq!(gc.code, Some(1), "{gc:?}");
    assert!(
        gc.stderr.contains("no kept working directory is removed"),
        "{gc:?}"
    );
    assert!(orphan.exists());
}
