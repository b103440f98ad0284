//! Runs that are kept: killed, gone on with, listed, removed.

use std::path::PathBuf;

use cantle_testkit::openai::{Script, ScriptedServer};
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::process::Child;

use crate::support::{Mark, Place, ended, send};
use crate::{command, finish, nothing_to_do};

const RUNS: &str = ".local/state/cantle/runs";
const WORKSPACES: &str = ".local/state/cantle/workspaces";

/// What a run does that is killed in its second turn: each turn has an effect that shows whether it
/// happened twice.
fn script(mark: &Mark) -> Script {
    let second = format!("echo two >> effects; bash -c 'sleep 1000; :' {mark}");
    Script::new()
        .turn(command("echo one >> effects"))
        .turn(command(&second))
        .turn(command("cat effects"))
        .turn(finish("all done", &["effects"]))
}

/// A run whose program is killed while the second command runs.
async fn killed(place: &Place, mark: &Mark, args: &[&str]) {
    let run = ["run", "Have effects", "--output-dir", "out"];
    let child: Child = place.command(run.iter().chain(args)).spawn().unwrap();
    mark.appeared().await;
    send(&child, Signal::KILL);
    ended(child).await;
    mark.gone().await;
}

async fn served(script: Script) -> (ScriptedServer, Place) {
    let server = ScriptedServer::start(script).await.unwrap();
    let place = Place::new().served_by(&server.url());
    (server, place)
}

#[tokio::test]
async fn a_killed_run_goes_on_where_it_was_and_does_nothing_twice() {
    let mark_place = Place::new();
    let mark = Mark::new(&mark_place);
    let (server, place) = served(script(&mark)).await;
    killed(&place, &mark, &[]).await;
    assert!(!place.path("out/cantle-result.json").exists());

    let ended = place.run(["run", "--resume", "last"]).await;
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert_eq!(place.read("out/effects"), "one\ntwo\n");
    assert_eq!(place.result("out")["turns"], 4);
    insta::assert_snapshot!(ended.told(&place));

    // The model was told what became of the second command, and was asked four times in all.
    let requests = server.requests();
    assert_eq!(requests.len(), 4);
    let messages = requests[2].body()["messages"].as_array().unwrap().clone();
    let told = messages.last().unwrap()["content"].to_string();
    assert!(
        told.contains("Interrupted: the program that ran this call ended"),
        "{told}"
    );
    // What was sent before is sent again, to the byte.
    let before = requests[1].body()["messages"].as_array().unwrap().clone();
    assert_eq!(&messages[..before.len()], before.as_slice());
    assert_eq!(place.list(WORKSPACES), [""; 0]);
}

#[tokio::test]
async fn runs_are_listed_shown_and_removed_with_their_files() {
    let mark_place = Place::new();
    let mark = Mark::new(&mark_place);
    let (_server, place) = served(script(&mark)).await;
    let none = place.run(["runs", "list"]).await;
    assert_eq!((none.code, &*none.stdout), (Some(0), "No runs are kept.\n"));

    killed(&place, &mark, &[]).await;
    let list = place.run(["runs", "list", "--json"]).await;
    let runs: Value = serde_json::from_str(&list.stdout).unwrap();
    assert_eq!(runs[0]["status"], "interrupted");
    assert_eq!(
        (&runs[0]["turns"], &runs[0]["resumable"]),
        (&json!(2), &json!(true))
    );
    let id = runs[0]["run"].as_str().unwrap();
    insta::assert_snapshot!(place.run(["runs", "list"]).await.told(&place));
    let beginning: String = id.chars().take(12).collect();
    let shown = place.run(["runs", "show", &beginning]).await;
    insta::assert_snapshot!(shown.told(&place));
    assert_eq!(place.list(WORKSPACES).len(), 1);

    let removed = place.run(["runs", "rm", id]).await;
    assert_eq!(
        (removed.code, &*removed.stdout),
        (Some(0), "1 run removed\n"),
        "{removed:?}"
    );
    assert_eq!((place.list(RUNS), place.list(WORKSPACES)), (vec![], vec![]));
    let again = place.run(["runs", "show", id]).await;
    assert_eq!(again.code, Some(2));
    assert_eq!(again.stderr, format!("cantle: no run {id} is kept\n"));
}

#[tokio::test]
async fn a_run_that_reached_a_limit_goes_on_with_a_larger_one() {
    let (_server, place) = served(
        Script::new()
            .turn(command("echo one >> effects"))
            .turn(command("echo two >> effects"))
            .turn(finish("all done", &["effects"])),
    )
    .await;
    let run = ["run", "Have effects", "--max-turns", "2"];
    let first = place.run(run).await;
    assert_eq!(first.code, Some(3), "{first:?}");
    assert!(
        first.stderr.contains("cantle run --resume "),
        "{}",
        first.stderr
    );
    let same = place.run(["runs", "resume", "last"]).await;
    assert_eq!(same.code, Some(3), "{same:?}");
    let more = place
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
    assert_eq!(place.read("out/effects"), "one\ntwo\n");
    let finished = place.run(["run", "--resume", "last"]).await;
    assert_eq!(finished.code, Some(2), "{finished:?}");
    assert!(
        finished
            .stderr
            .contains("is finished; there is nothing left to do"),
        "{finished:?}"
    );
}

#[tokio::test]
async fn another_model_or_policy_is_refused_and_the_run_stays_as_it_is() {
    let mark_place = Place::new();
    let mark = Mark::new(&mark_place);
    let (_server, place) = served(script(&mark)).await;
    killed(&place, &mark, &[]).await;
    let resume = ["run", "--resume", "last"];
    let other = place
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
    assert!(
        other.stderr.contains("providers.code_exec.policy"),
        "{other:?}"
    );
    let same = place.run(resume).await;
    assert_eq!(same.code, Some(0), "{same:?}");
}

#[tokio::test]
async fn without_its_working_directory_a_run_goes_on_only_in_a_fresh_one() {
    let mark_place = Place::new();
    let mark = Mark::new(&mark_place);
    let (server, place) = served(script(&mark)).await;
    killed(&place, &mark, &[]).await;
    std::fs::remove_dir_all(place.path(WORKSPACES)).unwrap();
    let gone = place.run(["run", "--resume", "last"]).await;
    assert_eq!(gone.code, Some(6), "{gone:?}");
    for said in [
        "is gone, and the files in it with it",
        "it can go on only in a fresh one",
    ] {
        assert!(gone.stderr.contains(said), "{gone:?}");
    }
    let fresh = place
        .run(["run", "--resume", "last", "--fresh-sandbox"])
        .await;
    // The file that it wants to finish with is lost; it is asked once more than the script goes.
    assert_eq!(fresh.code, Some(5), "{fresh:?}");
    let body = server.requests()[2].body().to_string();
    assert!(body.contains("its sandbox is gone"), "{body}");
}

#[tokio::test]
async fn a_fresh_sandbox_is_kept_like_the_first_one() {
    let mark_place = Place::new();
    let mark = Mark::new(&mark_place);
    let hang = format!("echo two > effects; bash -c 'sleep 1000; :' {mark}");
    let script = Script::new()
        .turn(command(&hang))
        .turn(command(&hang))
        .turn(finish("all done", &["effects"]));
    let (_server, place) = served(script).await;
    killed(&place, &mark, &[]).await;
    std::fs::remove_dir_all(place.path(WORKSPACES)).unwrap();
    let fresh = ["run", "--resume", "last", "--fresh-sandbox"];
    let child = place.command(fresh).spawn().unwrap();
    mark.appeared().await;
    send(&child, Signal::KILL);
    ended(child).await;
    mark.gone().await;
    let again = place.run(["run", "--resume", "last"]).await;
    assert_eq!(again.code, Some(0), "{again:?}");
    assert_eq!(place.read("out/effects"), "two\n");
    assert_eq!(place.list(WORKSPACES), [""; 0]);

    // What finished keeps its result, whatever is asked for afterwards.
    let finished = place.run(["run", "--resume", "last"]).await;
    assert_eq!(finished.code, Some(2), "{finished:?}");
    let mistake = [
        "run",
        "Again",
        "--output-dir",
        "out",
        "--schema",
        "nowhere.json",
    ];
    assert_eq!(place.run(mistake).await.code, Some(2));
    assert_eq!(place.result("out")["status"], "finished");
}

#[tokio::test]
async fn what_is_kept_is_the_owners_alone_and_holds_no_key() {
    let mark_place = Place::new();
    let mark = Mark::new(&mark_place);
    let (_server, place) = served(script(&mark)).await;
    let place = place.set("CANTLE_API_KEY", "sk-very-secret");
    killed(&place, &mark, &[]).await;
    let mut files: Vec<PathBuf> = vec![place.path(RUNS)];
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
                path == place.path(RUNS) || mode & 0o077 == 0,
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
async fn no_keep_keeps_nothing_and_without_a_place_a_run_says_so_and_goes_on() {
    let (_server, place) = served(nothing_to_do()).await;
    place.run(["run", "Nothing", "--no-keep"]).await;
    assert!(!place.path(".local").exists());
    let place = place.set("XDG_STATE_HOME", "relative");
    let ended = place.run(["run", "Nothing"]).await;
    assert!(
        ended.stderr.contains("The run is not kept for resuming"),
        "{ended:?}"
    );
}

#[tokio::test]
async fn gc_removes_what_a_killed_program_left_and_nothing_that_can_be_resumed() {
    let mark_place = Place::new();
    let mark = Mark::new(&mark_place);
    let (_server, place) = served(script(&mark)).await;
    killed(&place, &mark, &[]).await;
    let temporary = place.path("tmp");
    std::fs::create_dir(&temporary).unwrap();
    let place = place.set("TMPDIR", temporary.to_str().unwrap());
    let gc = place.run(["gc", "--verbose"]).await;
    assert_eq!(gc.code, Some(0), "{gc:?}");
    let ended = place.run(["run", "--resume", "last"]).await;
    assert_eq!(ended.code, Some(0), "{ended:?}");
}
