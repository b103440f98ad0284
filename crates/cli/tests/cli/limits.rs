//! Budgets, approvals and skills.

use cantle_testkit::openai::{Script, ScriptedServer, ToolCall, Turn};
use serde_json::json;

use crate::support::TestEnv;
use crate::{command, finish};

async fn served(script: Script) -> (ScriptedServer, TestEnv) {
    let server = ScriptedServer::start(script).await.unwrap();
    let env = TestEnv::new().with_server(&server.url());
    (server, env)
}

/// Returns the last message of a request.
fn last_message(server: &ScriptedServer, request: usize) -> String {
    let body = server.requests()[request].body();
    body["messages"].as_array().unwrap().last().unwrap()["content"].to_string()
}

#[tokio::test]
async fn exhausted_budget_leaves_one_turn() {
    let script = Script::new()
        .turn(command("echo 1"))
        .turn(command("echo 2 > forbidden"))
        .turn(finish("in time", &[]));
    let (server, env) = served(script).await;
    let args = ["run", "Work", "--budget-tokens", "15", "--json"];
    let exited = env.run(args).await;
    assert_eq!(exited.code, Some(3), "{exited:?}");
    assert!(last_message(&server, 1).contains("This is the last turn"));
    assert_eq!(server.requests().len(), 2);
    let last = exited.stdout.lines().last().unwrap();
    assert!(
        last.contains("the run's budget is spent: 15 of 15 tokens"),
        "{last}"
    );

    let hint = "Increase the limit with --budget-tokens.\n";
    assert!(exited.stderr.contains(hint), "{exited:?}");

    // The run resumes with a larger budget, and the tools that it had.
    for other in ["--tools=python", "--profile=deep"] {
        let refused = env.run(["run", "--resume", "last", other]).await;
        assert_eq!(refused.code, Some(2), "{refused:?}");
        assert!(
            refused.stderr.contains("cannot be used with"),
            "{refused:?}"
        );
    }
    // Variables are for new runs.
    let env = env.set("CANTLE_TOOLS", "python");
    let more = ["run", "--resume", "last", "--budget-tokens", "1000"];
    let exited = env.run(more).await;
    assert_eq!(
        (exited.code, &*exited.stdout),
        (Some(0), "in time\n"),
        "{exited:?}"
    );
}

#[tokio::test]
async fn commands_of_one_turn_run_side_by_side_if_wanted() {
    let code_exec = |cmd: &str| ToolCall::new("code_exec", json!({ "cmd": cmd }));
    // The first command waits for the second.
    let first = code_exec("until [ -e second ]; do sleep 0.02; done; echo met");
    let script = Script::new()
        .turn(Turn::tool(first).call(code_exec("touch second")))
        .turn(finish("done", &[]));
    let (server, env) = served(script).await;
    let args = ["run", "Work", "--parallel-commands", "--timeout", "60"];
    let exited = env.run(args).await;
    assert_eq!(exited.code, Some(0), "{exited:?}");
    let request = server.requests()[1].body()["messages"].to_string();
    assert!(request.contains("<stdout>met"), "{request}");
}

#[tokio::test]
async fn approval_rules_deny_calls() {
    let rules = r#"
        [[rule]]
        tool = "code_exec"
        arguments = { cmd = "rm *" }
        permission = "deny"
    "#;
    let script = Script::new()
        .turn(command("rm -rf ."))
        .turn(command("echo fine"))
        .turn(finish("done", &[]));
    let (server, env) = served(script).await;
    env.write("rules.toml", rules);
    let exited = env.run(["run", "Work", "--approve", "rules.toml"]).await;
    assert_eq!(exited.code, Some(0), "{exited:?}");
    assert!(last_message(&server, 1).contains("Not run: the user's rules deny this call"));
    assert!(last_message(&server, 2).contains("fine"));
    // The person sees what was denied.
    assert!(
        exited.stderr.contains("$ rm -rf .\n") && exited.stderr.contains("└ not run"),
        "{exited:?}"
    );

    // There is no user to ask: nothing is started.
    let asking = rules.replace("deny", "ask");
    let misspelled = rules.replace("code_exec", "codeexec");
    let no_argument = rules.replace("cmd =", "command =");
    for (rules, message) in [
        (&*asking, "not a terminal"),
        (&*misspelled, "the tool `codeexec`, which does not exist"),
        (
            &*no_argument,
            "the argument `command`, which does not exist",
        ),
    ] {
        env.write("rules.toml", rules);
        let exited = env.run(["run", "Work", "--approve", "rules.toml"]).await;
        assert_eq!(exited.code, Some(2), "{exited:?}");
        assert!(exited.stderr.contains(message), "{exited:?}");
    }
    for (approve, message) in [
        ("ask", "not a terminal"),
        (
            "always",
            "--approve takes `never`, `ask`, or a TOML file of rules",
        ),
    ] {
        let exited = env.run(["run", "Work", "--approve", approve]).await;
        assert_eq!(exited.code, Some(2), "{exited:?}");
        assert!(exited.stderr.contains(message), "{exited:?}");
    }
    assert_eq!(server.requests().len(), 3);

    env.write("rules.toml", "rule = 3");
    let exited = env.run(["run", "Work", "--approve", "rules.toml"]).await;
    assert_eq!(exited.code, Some(2));
    assert!(
        exited
            .stderr
            .contains("invalid approval rules in rules.toml"),
        "{exited:?}"
    );
}

#[tokio::test]
async fn sample_skill_profiles_a_table() {
    let script = Script::new()
        .turn(command("python3 skills/data-analysis/profile.py t.csv"))
        .turn(finish("Done.", &[]));
    let server = ScriptedServer::start(script).await.unwrap();
    let env = TestEnv::new().with_server(&server.url());
    env.write(
        "t.csv",
        "id,region,day\n1,north,2026-01-01\n2,n/a,2026-02-01\n3,north\n",
    );
    let skills = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/skills");
    let exited = env
        .run([
            "run",
            "Profile",
            "--skills",
            skills,
            "--input",
            "t.csv",
            "--verbose",
        ])
        .await;
    assert_eq!(exited.code, Some(0), "{exited:?}");
    let prompt = server.requests()[0].body()["messages"][0]["content"].to_string();
    assert!(prompt.contains("data-analysis"), "{prompt}");
    let result = server.requests()[1].body()["messages"].to_string();
    for expected in [
        "3 rows, 3 columns, 1 rows of another length",
        "id: number, 3 values, 0 missing",
        "region: text, 2 values, 1 missing, 1 distinct",
        "first 2026-01-01, last 2026-02-01",
    ] {
        assert!(result.contains(expected), "{expected}: {result}");
    }
}

#[tokio::test]
async fn skills_are_copied_and_invalid_ones_reported() {
    let script = Script::new()
        .turn(command("cat skills/charts/SKILL.md | tail -1"))
        .turn(finish("done", &[]));
    let (server, env) = served(script).await;
    let skill = "---\nname: charts\ndescription: How to draw charts.\n---\nUse few colours.\n";
    env.write("skills/charts/SKILL.md", skill);
    env.write("skills/broken/SKILL.md", "no front matter");
    let exited = env.run(["run", "Draw", "--skills", "skills"]).await;
    assert_eq!(exited.code, Some(0), "{exited:?}");
    assert!(
        exited.stderr.contains("! The skill `broken` is not listed"),
        "{exited:?}"
    );
    let prompt = server.requests()[0].body()["messages"][0]["content"].to_string();
    assert!(prompt.contains("How to draw charts."), "{prompt}");
    assert!(last_message(&server, 1).contains("Use few colours."));
    let exited = env.run(["run", "Draw", "--skills", "nowhere"]).await;
    assert_eq!(exited.code, Some(2), "{exited:?}");
}

#[tokio::test]
async fn limit_that_stopped_a_command_is_named() {
    let script = Script::new()
        .turn(command("seq 100000"))
        .turn(finish("Went on.", &[]));
    let server = ScriptedServer::start(script).await.unwrap();
    let env = TestEnv::new().with_server(&server.url());
    let exited = env.run(["run", "Count", "--limit", "output=1K"]).await;
    assert_eq!((exited.code, &*exited.stdout), (Some(0), "Went on.\n"));
    let shown = "  └ stopped at the limit of output, which is 1 KiB · ";
    assert!(exited.stderr.contains(shown), "{}", exited.stderr);
}
