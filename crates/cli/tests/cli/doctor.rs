//! `cantle doctor`.

use serde_json::Value;

use crate::support::{Exited, TestEnv};

/// Each check's name and state.
type Checks = Vec<(String, String)>;
/// Each policy's name, and whether it works.
type Policies = Vec<(String, bool)>;

fn read(exited: &Exited) -> (Checks, Policies) {
    let report: Value = serde_json::from_str(&exited.stdout).unwrap();
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
async fn report_agrees_with_exec() {
    let exited = TestEnv::new().run(["doctor", "--json"]).await;
    assert_eq!((exited.code, &*exited.stderr), (Some(0), ""));
    let (checks, policies) = read(&exited);
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
        "default limits",
        "bash",
        "Python",
        "Docker",
        "keys",
        "web tools",
        "disk",
    ];
    assert_eq!(names, expected);
    let names: Vec<&str> = policies.iter().map(|(name, _)| &**name).collect();
    assert_eq!(names, ["workspace", "network", "read_only", "unconfined"]);
    // `exec` works under the policies that are reported to work.
    for policy in works(&policies) {
        let mut args = vec!["exec", "--policy", policy];
        if policy == "network" {
            args.extend(["--allow-host", "example.org"]);
        }
        args.extend(["--", "true"]);
        let exited = TestEnv::new().run(args).await;
        assert_eq!((exited.code, &*exited.stderr), (Some(0), ""), "{policy}");
    }
}

#[tokio::test]
async fn reports_forbidden_namespaces() {
    let env = TestEnv::new();
    let args = ["doctor", "--json"];
    let Some(exited) = env.run_without_namespaces(args).await else {
        return;
    };
    assert_eq!(exited.code, Some(0), "{exited:?}");
    let (checks, policies) = read(&exited);
    assert_eq!(state(&checks, "namespaces"), "missing");
    if state(&checks, "Landlock") == "ok" {
        assert_eq!(works(&policies), ["workspace", "read_only", "unconfined"]);
    }
    let exited = env.run_without_namespaces(["doctor"]).await.unwrap();
    for expected in [
        "✗ namespaces     no new namespaces (`user.max_user_namespaces` is used up, or 0): ",
        "so the policy `network` is refused",
        "can't be enforced: network (no new namespaces (`user.max_user_namespaces` is used up, or 0): ",
    ] {
        assert!(exited.stdout.contains(expected), "{}", exited.stdout);
    }
}

#[tokio::test]
async fn reports_when_no_sandbox_opens() {
    let env = TestEnv::new().set("TMPDIR", "/proc/nowhere");
    let exited = env.run(["doctor"]).await;
    assert_eq!((exited.code, &*exited.stderr), (Some(1), ""));
    for expected in [
        "✗ namespaces     unknown: ",
        "set TMPDIR to a writable directory",
        "No policy works here",
    ] {
        assert!(exited.stdout.contains(expected), "{}", exited.stdout);
    }
}

#[tokio::test]
async fn keys_are_named_but_not_displayed() {
    let env = TestEnv::new().set("OPENROUTER_API_KEY", "sk-secret");
    for flags in [&["doctor"][..], &["doctor", "--json"]] {
        let exited = env.run(flags).await;
        assert_eq!(exited.code, Some(0));
        assert!(exited.stdout.contains("OPENROUTER_API_KEY set"));
        assert!(!format!("{exited:?}").contains("sk-secret"));
    }
}

#[tokio::test]
async fn container_engine_is_found_by_docker_host() {
    let docker = async |host: &str| {
        let env = TestEnv::new().set("DOCKER_HOST", host);
        let (checks, _) = read(&env.run(["doctor", "--json"]).await);
        state(&checks, "Docker").to_owned()
    };
    assert_eq!(docker("unix:///nowhere/engine.sock").await, "missing");
    match std::env::var("CANTLE_TEST_DOCKER_HOST") {
        Ok(host) => assert_eq!(docker(&host).await, "ok"),
        Err(_) => eprintln!("SKIPPED: CANTLE_TEST_DOCKER_HOST is not set"),
    }
}
