//! Policies, tried out by commands.

use cantle_testkit::openai::{Script, ScriptedServer};
use serde_json::Value;

use crate::support::{Exited, TestEnv};
use crate::{command, finish};

/// Runs a shell command with these flags.
async fn exec(env: &TestEnv, flags: &[&str], line: &str) -> Exited {
    let args = ["exec"].iter().chain(flags);
    env.run(args.chain(&["--", "bash", "-c", line])).await
}

/// Returns a shell command that writes to a file in this directory.
fn write(env: &TestEnv) -> String {
    format!("echo out > {}", env.path("outside.txt").display())
}

#[tokio::test]
async fn default_policy_writes_nothing_outside() {
    let env = TestEnv::new();
    let line = format!("{} || echo refused; echo in > f && cat f", write(&env));
    let exited = exec(&env, &[], &line).await;
    assert_eq!((exited.code, &*exited.stdout), (Some(0), "refused\nin\n"));
    assert_eq!(env.list(""), [""; 0]);
    // Another policy allows it.
    let exited = exec(&env, &["--policy", "unconfined"], &write(&env)).await;
    assert_eq!((exited.code, &*exited.stderr), (Some(0), ""));
    assert_eq!(env.read("outside.txt"), "out\n");
}

#[tokio::test]
async fn default_policy_has_no_network() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let line = format!("exec 3<>/dev/tcp/127.0.0.1/{port} && echo connected");
    let env = TestEnv::new();
    assert_eq!(exec(&env, &[], &line).await.stdout, "");
    let exited = exec(&env, &["--policy=unconfined"], &line).await;
    assert_eq!(exited.stdout, "connected\n");
}

#[tokio::test]
async fn read_only_writes_nothing() {
    let exited = exec(
        &TestEnv::new(),
        &["--policy=read_only"],
        "touch f || ls /usr",
    )
    .await;
    assert_eq!(exited.code, Some(0), "{exited:?}");
    assert!(exited.stdout.contains("bin\n"), "{exited:?}");
}

#[tokio::test]
async fn resource_limits_are_enforced() {
    let env = TestEnv::new();
    let line = "head -c 4000 /dev/zero > f; stat -c %s f; ulimit -n";
    let flags = ["--limit=file_size=2K", "--limit", "open_files=77"];
    let exited = exec(&env, &flags, line).await;
    assert_eq!(exited.stdout, "2048\n77\n", "{exited:?}");
    let exited = exec(&env, &["--limit=wall_time=0.2s"], "sleep 1000").await;
    assert_eq!(exited.code, Some(124), "{exited:?}");
    // The command can't report it itself.
    let exited = exec(&env, &["--limit=output=1K"], "exec yes").await;
    assert_eq!((exited.code, exited.stdout.len()), (Some(137), 1024));
    let expected = "cantle: stopped at the limit of output (1 KiB)\n";
    assert_eq!(exited.stderr, expected);
}

#[tokio::test]
async fn verbose_reports_the_isolation() {
    let env = TestEnv::new();
    let exited = exec(&env, &["-v", "--limit", "memory=1G"], "echo out").await;
    assert_eq!((exited.code, &*exited.stdout), (Some(0), "out\n"));
    let expected: Vec<&str> = exited.stderr.lines().collect();
    let [sandbox, enforced] = expected[..] else {
        panic!("{expected:?}");
    };
    assert!(sandbox.starts_with("cantle: sandbox local · "), "{sandbox}");
    assert!(sandbox.ends_with(" · no network"), "{sandbox}");
    assert!(enforced.contains("network kernel, memory "), "{enforced}");
    let exited = exec(&env, &["-v", "--policy", "unconfined"], "echo out").await;
    assert_eq!(
        exited.stderr,
        "cantle: sandbox local · not isolated · network open\n"
    );
}

#[tokio::test]
async fn unenforceable_policy_is_refused_or_listed() {
    let env = TestEnv::new();
    let flags = ["exec", "--allow-host", "api.example.com"];
    let command = ["--", "echo", "out"];
    let strict = flags.iter().chain(&command);
    let Some(exited) = env.run_without_namespaces(strict).await else {
        return;
    };
    assert_eq!(
        (exited.code, &*exited.stdout),
        (Some(125), ""),
        "{exited:?}"
    );
    for expected in ["policy here: network.", "--best-effort", "cantle doctor"] {
        assert!(exited.stderr.contains(expected), "{}", exited.stderr);
    }
    let best_effort = flags.iter().chain(&["--best-effort"]).chain(&command);
    let exited = env.run_without_namespaces(best_effort).await.unwrap();
    let expected = Exited {
        code: Some(0),
        stdout: "out\n".to_owned(),
        stderr: "cantle: not enforced here: network\n".to_owned(),
    };
    assert_eq!(exited, expected);
}

#[tokio::test]
async fn run_with_unenforceable_policy_has_its_own_code() {
    let script = Script::new()
        .turn(command("echo out"))
        .turn(finish("Done.", &[]));
    let server = ScriptedServer::start(script).await.unwrap();
    let env = TestEnv::new()
        .with_server(&server.url())
        .set("CANTLE_ALLOW_HOST", "api.example.com");
    let Some(exited) = env.run_without_namespaces(["run", "Hello"]).await else {
        return;
    };
    assert_eq!((exited.code, &*exited.stdout), (Some(6), ""), "{exited:?}");
    for expected in ["policy here: network.", "--best-effort", "cantle doctor"] {
        assert!(exited.stderr.contains(expected), "{}", exited.stderr);
    }
    assert_eq!(server.requests().len(), 0);

    let env = env.set("CANTLE_BEST_EFFORT", "1");
    let exited = env.run_without_namespaces(["run", "Hello"]).await;
    let exited = exited.unwrap();
    assert_eq!((exited.code, &*exited.stdout), (Some(0), "Done.\n"));
    let expected =
        "! The policy's network is not enforced: commands may reach what this machine can.\n";
    assert!(exited.stderr.contains(expected), "{}", exited.stderr);
}

#[tokio::test]
async fn first_event_describes_the_isolation() {
    let script = Script::new().turn(finish("Done.", &[]));
    let server = ScriptedServer::start(script).await.unwrap();
    let env = TestEnv::new().with_server(&server.url());
    let exited = env.run(["run", "Hello", "--json"]).await;
    assert_eq!(exited.code, Some(0), "{exited:?}");
    let first: Value = serde_json::from_str(exited.stdout.lines().next().unwrap()).unwrap();
    let sandbox = &first["sandbox"];
    assert_eq!(sandbox["isolation"], "kernel");
    assert!(!sandbox["walls"].as_array().unwrap().is_empty());
    let enforcement = sandbox["enforcement"].as_array().unwrap();
    let fields: Vec<&str> = enforcement
        .iter()
        .map(|it| it["field"].as_str().unwrap())
        .collect();
    assert!(
        fields.starts_with(&["read_roots", "write_roots", "network"]),
        "{fields:?}"
    );
    let mut demanded = enforcement.iter().filter(|it| it["is_default"] != true);
    assert!(demanded.all(|it| it["by"] != "not_enforced"));
}

#[tokio::test]
async fn policy_is_read_from_files_and_environment() {
    let env = TestEnv::new();
    env.write(
        ".config/cantle/cantle.toml",
        "policy = \"unconfined\"\nlimit = [\"open_files=99\"]\n",
    );
    let line = format!("{} || echo refused; ulimit -n", write(&env));
    assert_eq!(exec(&env, &[], &line).await.stdout, "99\n");
    env.write("cantle.toml", "policy = \"workspace\"\n");
    assert_eq!(env.run(["trust"]).await.code, Some(0));
    assert_eq!(exec(&env, &[], &line).await.stdout, "refused\n99\n");
    let env = env.set("CANTLE_POLICY", "unconfined");
    assert_eq!(exec(&env, &[], &line).await.stdout, "99\n");
    let flags = ["--policy=workspace", "--limit=open_files=98"];
    assert_eq!(exec(&env, &flags, &line).await.stdout, "refused\n98\n");
}

#[tokio::test]
async fn contradictory_policies_are_usage_errors() {
    let env = TestEnv::new();
    let mut output = String::new();
    for flags in [
        &["--policy=unconfined", "--allow-host=api.example.com"][..],
        &["--policy=network"],
    ] {
        for (before, after) in [
            (
                &["run", "Hello", "--model=m", "--provider=local"][..],
                &[][..],
            ),
            (&["exec"], &["--", "true"]),
            (&["demo"], &[]),
        ] {
            let exited = env.run(before.iter().chain(flags).chain(after)).await;
            assert_eq!((exited.code, &*exited.stdout), (Some(2), ""), "{exited:?}");
            if before[0] == "run" {
                output += &exited.stderr;
            } else {
                assert!(output.ends_with(&exited.stderr), "{exited:?}");
            }
        }
    }
    insta::assert_snapshot!(output);
}
