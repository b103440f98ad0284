//! What a run may use and do, as flags say it: budgets, approvals, skills.

use cantle_testkit::openai::{Script, ScriptedServer};

use crate::support::Place;
use crate::{command, finish};

async fn served(script: Script) -> (ScriptedServer, Place) {
    let server = ScriptedServer::start(script).await.unwrap();
    let place = Place::new().served_by(&server.url());
    (server, place)
}

/// What the model was told last in a request.
fn told(server: &ScriptedServer, request: usize) -> String {
    let body = server.requests()[request].body();
    body["messages"].as_array().unwrap().last().unwrap()["content"].to_string()
}

#[tokio::test]
async fn a_spent_budget_leaves_one_turn_and_has_the_exit_code_of_limits() {
    let script = Script::new()
        .turn(command("echo 1"))
        .turn(command("echo 2 > forbidden"))
        .turn(finish("in time", &[]));
    let (server, place) = served(script).await;
    let args = ["run", "Work", "--budget-tokens", "15", "--json"];
    let ended = place.run(args).await;
    assert_eq!(ended.code, Some(3), "{ended:?}");
    assert!(told(&server, 1).contains("This is the last turn"));
    assert_eq!(server.requests().len(), 2);
    let last = ended.stdout.lines().last().unwrap();
    assert!(
        last.contains("the run's budget is spent: 15 of 15 tokens"),
        "{last}"
    );

    // It goes on with a larger one.
    let more = ["run", "--resume", "last", "--budget-tokens", "1000"];
    let ended = place.run(more).await;
    assert_eq!(
        (ended.code, &*ended.stdout),
        (Some(0), "in time\n"),
        "{ended:?}"
    );
}

#[tokio::test]
async fn rules_deny_calls_and_what_would_be_asked_is_not_run_without_a_terminal() {
    let rules = r#"
        [[rule]]
        tool = "code_exec"
        arguments = { cmd = "rm *" }
        permission = "deny"

        [[rule]]
        tool = "code_exec"
        arguments = { cmd = "*push*" }
        permission = "ask"
    "#;
    let script = Script::new()
        .turn(command("rm -rf ."))
        .turn(command("git push"))
        .turn(command("echo fine"))
        .turn(finish("done", &[]));
    let (server, place) = served(script).await;
    place.write("rules.toml", rules);
    let ended = place.run(["run", "Work", "--approve", "rules.toml"]).await;
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(told(&server, 1).contains("Not run: calls like this are not allowed"));
    assert!(told(&server, 2).contains("nobody can be asked in this run"));
    assert!(told(&server, 3).contains("fine"));

    place.write("rules.toml", "rule = 3");
    let ended = place.run(["run", "Work", "--approve", "rules.toml"]).await;
    assert_eq!(ended.code, Some(2));
    assert!(
        ended
            .stderr
            .contains("rules.toml has no rules for approvals"),
        "{ended:?}"
    );
}

#[tokio::test]
async fn skills_are_copied_and_listed_and_what_cant_be_listed_is_a_warning() {
    let script = Script::new()
        .turn(command("cat skills/charts/SKILL.md | tail -1"))
        .turn(finish("done", &[]));
    let (server, place) = served(script).await;
    let skill = "---\nname: charts\ndescription: How to draw charts.\n---\nUse few colours.\n";
    place.write("skills/charts/SKILL.md", skill);
    place.write("skills/broken/SKILL.md", "no front matter");
    let ended = place.run(["run", "Draw", "--skills", "skills"]).await;
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(
        ended.stderr.contains("! The skill `broken` is not listed"),
        "{ended:?}"
    );
    let prompt = server.requests()[0].body()["messages"][0]["content"].to_string();
    assert!(prompt.contains("How to draw charts."), "{prompt}");
    assert!(told(&server, 1).contains("Use few colours."));
    let ended = place.run(["run", "Draw", "--skills", "nowhere"]).await;
    assert_eq!(ended.code, Some(2), "{ended:?}");
}
