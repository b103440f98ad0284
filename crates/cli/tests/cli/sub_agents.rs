//! `cantle run --sub-agents FILE`.

use cantle_testkit::openai::{Script, ScriptedServer, ServerOptions, ToolCall, Turn};
use serde_json::{Value, json};

use crate::support::TestEnv;
use crate::{command, finish};

const FILE: &str = r#"
[reviewer]
description = "Reviews a file."
system_prompt = "@prompts/reviewer.md"
model = "critic"
effort = "high"
max_turns = 3

[helper]
description = "Works on the files of its caller."
model = "worker"
share_sandbox = true
"#;

fn delegate(tool: &str, arguments: Value) -> Turn {
    Turn::tool(ToolCall::new(tool, arguments))
}

fn env(server: &ScriptedServer) -> TestEnv {
    let env = TestEnv::new().with_server(&server.url());
    env.write("agents/team.toml", FILE);
    env.write("agents/prompts/reviewer.md", "You are strict.");
    env
}

#[tokio::test]
async fn sub_agents_of_a_file_work_for_a_run() {
    let task = json!({"task": "Review notes.txt.", "input_files": ["notes.txt"]});
    let main = Script::new()
        .turn(command("echo draft > notes.txt"))
        .turn(delegate("reviewer", task))
        .turn(delegate("helper", json!({"task": "Append the verdict."})))
        .turn(finish("Reviewed.", &["notes.txt", "review.txt"]));
    let critic = Script::new()
        .turn(command("sed s/draft/good/ notes.txt > review.txt"))
        .turn(finish("It is good.", &["review.txt"]));
    let worker = Script::new()
        .turn(command("echo verdict >> notes.txt"))
        .turn(finish("Appended.", &[]));
    let options = ServerOptions::new(main)
        .model("critic", critic)
        .model("worker", worker);
    let server = ScriptedServer::start(options).await.unwrap();
    let env = env(&server);
    let flags = ["--sub-agents", "agents/team.toml", "--temperature", "0.5"];
    let task = [
        "run",
        "Have it reviewed.",
        "--system-prompt",
        "Be brief.",
        "--output-dir",
        "out",
    ];
    let exited = env.run(task.iter().chain(&flags)).await;
    assert_eq!(exited.code, Some(0), "{exited:?}");
    assert_eq!(env.read("out/review.txt"), "good\n");
    assert_eq!(env.read("out/notes.txt"), "draft\nverdict\n");
    assert!(
        exited.stderr.contains("    $ sed s/draft/good/"),
        "{exited:?}"
    );

    let bodies: Vec<Value> = server.requests().iter().map(|it| it.body()).collect();
    let of_critic = bodies
        .iter()
        .find(|body| body["model"] == "critic")
        .unwrap();
    assert_eq!(of_critic["reasoning_effort"], "high");
    assert_eq!(
        of_critic.get("temperature"),
        None,
        "it belongs to the other model"
    );
    let prompt = of_critic["messages"][0]["content"].to_string();
    assert!(
        prompt.contains("You are strict.") && !prompt.contains("Be brief."),
        "{prompt}"
    );
    assert_eq!(bodies[0]["temperature"], 0.5);
    let ledger = &env.result("out")["ledger"]["sub_agents"];
    assert!(
        ledger["reviewer"].is_array() || ledger["reviewer"].is_object(),
        "{ledger}"
    );
}

#[tokio::test]
async fn data_that_can_leave_through_a_sub_agent_is_announced_and_reported() {
    let script = Script::new()
        .turn(delegate("reader", json!({"task": "Read."})))
        .turn(finish("It was read.", &[]))
        .turn(finish("Done.", &[]));
    let server = ScriptedServer::start(script).await.unwrap();
    let env = env(&server);
    let reader = "[reader]\ndescription = \"Reads.\"\ntools = [\"web\"]\n";
    env.write("reader.toml", reader);
    let exited = env
        .run(["run", "Have it read.", "--sub-agents", "reader.toml"])
        .await;
    assert_eq!(exited.code, Some(0), "{exited:?}");
    let notice = "leaves this machine";
    assert_eq!(exited.stderr.matches(notice).count(), 1, "{exited:?}");
    let page = ["runs", "show", "last", "--format", "html"];
    let page = env.run(page).await;
    let header = page.stdout.split("</header>").next().unwrap_or_default();
    assert!(header.contains(notice), "{page:?}");
}

#[tokio::test]
async fn resumed_run_has_its_sub_agents() {
    let main = Script::new()
        .turn(command("echo draft > notes.txt"))
        .turn(delegate("helper", json!({"task": "Append the verdict."})))
        .turn(finish("Done.", &["notes.txt"]));
    let worker = Script::new()
        .turn(command("echo verdict >> notes.txt"))
        .turn(finish("Appended.", &[]));
    let options = ServerOptions::new(main).model("worker", worker);
    let server = ScriptedServer::start(options).await.unwrap();
    let env = env(&server);
    let flags = ["--sub-agents", "agents/team.toml", "--max-turns", "1"];
    let exited = env.run(["run", "Write notes."].iter().chain(&flags)).await;
    assert_eq!(exited.code, Some(3), "{exited:?}");
    env.write("agents/team.toml", "");
    let resumed = [
        "run",
        "--resume",
        "last",
        "--max-turns",
        "9",
        "--output-dir",
        "out",
    ];
    let exited = env.run(resumed).await;
    assert_eq!(exited.code, Some(0), "{exited:?}");
    assert_eq!(env.read("out/notes.txt"), "draft\nverdict\n");
}

#[tokio::test]
async fn invalid_file_of_sub_agents_is_an_error() {
    let server = ScriptedServer::start(Script::new()).await.unwrap();
    for (text, expected) in [
        ("[a]\nmax_turns = 3", "missing field `description`"),
        (
            "[a]\ndescription = \"x\"\npolicy = \"unconfined\"",
            "`policy` can't be set here",
        ),
        (
            "[a]\ndescription = \"x\"\napi_key = \"secret-1\"",
            "`api_key` can't be set here",
        ),
        (
            "[a]\ndescription = \"x\"\nmax_turns = \"many\"",
            "`max_turns`",
        ),
        (
            "[a]\ndescription = \"x\"\nsystem_prompt = \"@gone.md\"",
            "there is no file agents/gone.md",
        ),
        (
            "[\"a b\"]\ndescription = \"x\"",
            "the agent's name `a b` must be",
        ),
        (
            "[finish]\ndescription = \"x\"",
            "two tools are called `finish`",
        ),
        (
            "[code_exec]\ndescription = \"x\"",
            "two tools are called `code_exec`",
        ),
        (
            "[a]\ndescription = \"x\"\nbudget_usd = -0.5",
            "`budget_usd`: expected a number above 0",
        ),
        (
            "[a]\ndescription = \"x\"\nbudget_tokens = 0",
            "`budget_tokens`: expected a number above 0",
        ),
        (
            "[a]\ndescription = \"x\"\nbudget_calls = 0",
            "`budget_calls`: expected a number above 0",
        ),
        (
            "[a]\ndescription = \"x\"\nbudget_time = 0",
            "expected a time",
        ),
        ("[a", "invalid sub-agents in agents/team.toml"),
    ] {
        let env = env(&server);
        env.write("agents/team.toml", text);
        let exited = env
            .run(["run", "x", "--sub-agents", "agents/team.toml"])
            .await;
        assert_eq!(exited.code, Some(2), "{text}: {exited:?}");
        assert!(exited.stderr.contains(expected), "{text}: {exited:?}");
        assert!(!exited.stderr.contains("secret-1"), "{exited:?}");
    }
    assert_eq!(server.requests().len(), 0);
}
