//! `cantle doctor`.

use serde_json::Value;

use crate::support::{Ended, Place};

/// Each check's name and state.
type Checks = Vec<(String, String)>;
/// Each policy's name, and whether it works.
type Policies = Vec<(String, bool)>;

fn read(ended: &Ended) -> (Checks, Policies) {
    let report: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(report["version"], 1);
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let checks = report["checks"].as_array().unwrap().iter();
    let policies = report["policies"].as_array().unwrap().iter();
    (
        checks
            .map(|check| (text(&check["name"]), text(&check["state"])))
            .collect(),
        policies
            .map(|it| (text(&it["policy"]), it["works"].as_bool().unwrap()))
            .collect(),
    )
}

fn state<'a>(checks: &'a [(String, String)], name: &str) -> &'a str {
    let mut checks = checks.iter();
    &checks.find(|(it, _)| it == name).unwrap().1
}

fn works(policies: &[(String, bool)]) -> Vec<&str> {
    let works = policies.iter().filter(|(_, works)| *works);
    works.map(|(name, _)| &**name).collect()
}

#[tokio::test]
async fn it_says_what_this_machine_can_do() {
    let ended = Place::new().run(["doctor", "--json"]).await;
    assert_eq!((ended.code, &*ended.stderr), (Some(0), ""));
    let (checks, policies) = read(&ended);
    let names: Vec<&str> = checks.iter().map(|(name, _)| &**name).collect();
    let expected = [
        "cantle",
        "kernel",
        "namespaces",
        "Landlock",
        "seccomp",
        "identity",
        "control groups",
        "limits",
        "bash",
        "Python",
        "Docker",
        "keys",
        "disk",
    ];
    assert_eq!(names, expected);
    let names: Vec<&str> = policies.iter().map(|(name, _)| &**name).collect();
    assert_eq!(names, ["workspace", "network", "read_only", "unconfined"]);
    // What it says works, works.
    for policy in works(&policies) {
        let mut args = vec!["exec", "--policy", policy];
        if policy == "network" {
            args.extend(["--allow-host", "example.org"]);
        }
        args.extend(["--", "true"]);
        let ended = Place::new().run(args).await;
        assert_eq!((ended.code, &*ended.stderr), (Some(0), ""), "{policy}");
    }
}

#[tokio::test]
async fn where_namespaces_are_forbidden_it_says_what_follows() {
    let place = Place::new();
    let args = ["doctor", "--json"];
    let Some(ended) = place.run_without_namespaces(args).await else {
        return;
    };
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let (checks, policies) = read(&ended);
    assert_eq!(state(&checks, "namespaces"), "missing");
    if state(&checks, "Landlock") == "ok" {
        assert_eq!(works(&policies), ["workspace", "read_only", "unconfined"]);
    }
    let ended = place.run_without_namespaces(["doctor"]).await.unwrap();
    for said in [
        "✗ namespaces     no new namespaces (`user.max_user_namespaces` is used up, or 0): ",
        "so the policy `network` is refused",
        "can't be enforced: network (no new namespaces (`user.max_user_namespaces` is used up, or 0): ",
    ] {
        assert!(ended.stdout.contains(said), "{}", ended.stdout);
    }
}

#[tokio::test]
async fn where_nothing_works_it_says_so() {
    let place = Place::new().set("TMPDIR", "/proc/nowhere");
    let ended = place.run(["doctor"]).await;
    assert_eq!((ended.code, &*ended.stderr), (Some(1), ""));
    for said in [
        "✗ namespaces     not found out: ",
        "set TMPDIR to a directory that can be written",
        "No policy works here",
    ] {
        assert!(ended.stdout.contains(said), "{}", ended.stdout);
    }
}

#[tokio::test]
async fn keys_are_named_and_never_shown() {
    let place = Place::new().set("OPENROUTER_API_KEY", "sk-secret");
    for flags in [&["doctor"][..], &["doctor", "--json"]] {
        let ended = place.run(flags).await;
        assert_eq!(ended.code, Some(0));
        assert!(ended.stdout.contains("OPENROUTER_API_KEY set"));
        assert!(!format!("{ended:?}").contains("sk-secret"));
    }
}

#[tokio::test]
async fn a_container_engine_is_asked_where_it_is_said_to_be() {
    let docker = async |host: &str| {
        let place = Place::new().set("DOCKER_HOST", host);
        let (checks, _) = read(&place.run(["doctor", "--json"]).await);
        state(&checks, "Docker").to_owned()
    };
    assert_eq!(docker("unix:///nowhere/engine.sock").await, "missing");
    match std::env::var("CANTLE_TEST_DOCKER_HOST") {
        Ok(host) => assert_eq!(docker(&host).await, "ok"),
        Err(_) => eprintln!("SKIPPED: CANTLE_TEST_DOCKER_HOST is not set"),
    }
}
