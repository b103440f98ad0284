//! Runs that deliver to stores and get inputs from them, and reports and journals in stores.

use cantle_testkit::openai::{Script, ScriptedServer, ServerOptions};
use serde_json::Value;

use crate::support::{Exited, TestEnv};
use crate::{command, finish};

/// Returns a model that changes `a.txt`.
async fn server() -> ScriptedServer {
    let script = Script::new()
        .turn(command(
            "mkdir dir; sed s/1/2/ a.txt > dir/b.txt; echo 3 > c.txt; echo 4 > 'é #.txt'",
        ))
        .turn(finish("done", &["dir/b.txt", "c.txt", "é #.txt"]));
    let options = ServerOptions::new(script).api_key("sk-test-123");
    ScriptedServer::start(options).await.unwrap()
}

fn env(server: &ScriptedServer) -> TestEnv {
    let env = TestEnv::new()
        .with_server(&server.url())
        .set("CANTLE_API_KEY", "sk-test-123");
    env.write("a.txt", "1\n");
    env
}

async fn stored(env: &TestEnv) -> Vec<Value> {
    let listed = env.run(["files", "ls", "--json"]).await;
    serde_json::from_str(&listed.stdout).unwrap()
}

fn id(exited: &Exited) -> &str {
    exited.stdout.split(' ').next().unwrap()
}

fn file_names(files: &[Value]) -> Vec<&str> {
    let mut names: Vec<_> = files
        .iter()
        .map(|it| it["filename"].as_str().unwrap())
        .collect();
    names.sort_unstable();
    names
}

#[tokio::test]
async fn a_run_reads_stored_files_and_delivers_to_them() {
    let server = server().await;
    let env = env(&server);
    let put = env.run(["files", "put", "a.txt"]).await;
    std::fs::remove_file(env.path("a.txt")).unwrap();
    let input = format!("files:{}", id(&put));
    let run = [
        "run",
        "Change it",
        "--input",
        &input,
        "--output-dir",
        "files:",
    ];
    let exited = env.run(run).await;
    assert_eq!(
        (exited.code, &*exited.stdout),
        (Some(0), "done\n"),
        "{exited:?}"
    );
    // Nothing is left on this machine but the stored files.
    assert_eq!(env.list(".local/state/cantle/undelivered"), [""; 0]);
    assert_eq!(env.list("."), [".local"]);
    let files = stored(&env).await;
    assert_eq!(
        file_names(&files),
        ["a.txt", "b.txt", "c.txt", "cantle-result.json", "é__.txt"]
    );
    // The newest is the result, which was written last and names the others.
    let result = env
        .run(["files", "get", files[0]["id"].as_str().unwrap(), "-"])
        .await;
    let result: Value = serde_json::from_str(&result.stdout).unwrap();
    assert_eq!(
        (&result["status"], &result["run"]),
        (&"finished".into(), &files[0]["run"])
    );
    let output = &result["outputs"][0];
    assert_eq!(output["name"], "dir/b.txt");
    let address = output["path"].as_str().unwrap();
    assert!(exited.stderr.contains(address), "{exited:?}");
    let content = env
        .run(["files", "get", address.strip_prefix("files:").unwrap(), "-"])
        .await;
    assert_eq!(content.stdout, "2\n");

    let shown = env.run(["runs", "show", "last"]).await;
    assert!(shown.stdout.contains("stored   dir/b.txt"), "{shown:?}");
    let shown = env
        .run(["runs", "show", "last", "--format", "html", "-o", "files:"])
        .await;
    assert_eq!(shown.code, Some(0), "{shown:?}");
    let exported = env
        .run(["runs", "export", "last", "files:", "--journal"])
        .await;
    assert_eq!(exported.code, Some(0), "{exported:?}");
    let files = stored(&env).await;
    let names = file_names(&files);
    assert!(
        names.contains(&"run.html") && names.contains(&"journal.jsonl"),
        "{names:?}"
    );
    let exported = env
        .run(["runs", "export", "last", "journal", "--journal"])
        .await;
    assert_eq!(exported.code, Some(0), "{exported:?}");
    assert!(env.read("journal/journal.jsonl").contains("Change it"));
}

#[tokio::test]
async fn files_that_can_not_be_stored_stay_on_this_machine() {
    let env = TestEnv::new().set("CANTLE_API_KEY", "sk-test-123");
    let objects = env.path(".local/state/cantle/files/objects");
    // The store is gone once the run has begun.
    let script = Script::new()
        .turn(command("echo 3 > c.txt"))
        .then_with(move |_| {
            std::fs::remove_dir_all(&objects).unwrap();
            std::fs::write(&objects, "").unwrap();
            finish("done", &["c.txt"])
        });
    let options = ServerOptions::new(script).api_key("sk-test-123");
    let server = ScriptedServer::start(options).await.unwrap();
    let env = env.with_server(&server.url());
    let exited = env.run(["run", "Work", "--output-dir", "files:"]).await;
    assert_eq!(exited.code, Some(1), "{exited:?}");
    assert!(
        exited
            .stderr
            .contains("the output files are not in the store, but in"),
        "{exited:?}"
    );
    let runs = env.list(".local/state/cantle/undelivered");
    let kept = format!(".local/state/cantle/undelivered/{}/c.txt", runs[0]);
    assert_eq!(env.read(kept), "3\n");
}

#[tokio::test]
async fn a_store_that_can_not_be_used_is_reported_before_the_run() {
    let server = server().await;
    let env = env(&server);
    let mut cases = vec![
        (vec!["--input", "files:x"], "is no stored file"),
        (
            vec!["--input", "files:00000000-0000-0000-0000-000000000000"],
            "File not found",
        ),
        (
            vec!["--output-dir", "gs://bucket"],
            "`gs://bucket` is no store",
        ),
    ];
    if cfg!(not(feature = "s3")) {
        cases.push((vec!["--output-dir", "s3://b"], "this build has no S3"));
    }
    if cfg!(not(feature = "azure")) {
        cases.push((vec!["--output-dir", "az://c"], "this build has no Azure"));
    }
    for (flags, message) in cases {
        let exited = env.run(["run", "Work"].iter().chain(&flags)).await;
        assert_eq!(exited.code, Some(2), "{flags:?}: {exited:?}");
        assert!(exited.stderr.contains(message), "{exited:?}");
    }
    assert_eq!(server.requests().len(), 0);
}

#[cfg(feature = "s3")]
#[tokio::test]
async fn a_run_delivers_to_s3_with_credentials_from_a_file() {
    let Some([url]) = crate::support::peer("moto", ["CANTLE_TEST_S3_URL"]) else {
        return;
    };
    let server = server().await;
    let credentials = format!(
        "AWS_ACCESS_KEY_ID=cantle\nAWS_SECRET_ACCESS_KEY=hunter2-secret\nAWS_REGION=us-east-1\n\
         AWS_ALLOW_HTTP=true\nAWS_ENDPOINT_URL={url}\n"
    );
    let env = env(&server).set("CANTLE_STORE_CREDENTIALS", "credentials");
    env.write("credentials", credentials);
    let missing = env
        .run(["run", "Work", "--output-dir", "s3://no-such-bucket/x"])
        .await;
    assert_eq!(missing.code, Some(2), "{missing:?}");
    assert!(
        missing
            .stderr
            .contains("s3://no-such-bucket/x can't be used"),
        "{missing:?}"
    );

    let prefix = unique_prefix();
    let target = format!("s3://cantle/{prefix}/");
    let run = [
        "run",
        "Change it",
        "--input",
        "a.txt",
        "--output-dir",
        &target,
    ];
    let exited = env.run(run).await;
    assert_eq!(exited.code, Some(0), "{exited:?}");
    let runs = env.run(["runs", "list", "--json"]).await;
    let runs: Value = serde_json::from_str(&runs.stdout).unwrap();
    let run = runs[0]["run"].as_str().unwrap();
    let below = format!("cantle/{prefix}/{run}");
    assert!(
        exited.stderr.contains(&format!("s3://{below}/dir/b.txt")),
        "{exited:?}"
    );
    let get = |name: &str| {
        let mut curl = std::process::Command::new("curl");
        let content = curl
            .args(["-sf", "--aws-sigv4", "aws:amz:us-east-1:s3"])
            .args(["--user", "cantle:hunter2-secret"])
            .arg(format!("{url}/{below}/{name}"))
            .output()
            .unwrap();
        String::from_utf8(content.stdout).unwrap()
    };
    assert_eq!(get("dir/b.txt"), "2\n");
    let result: Value = serde_json::from_str(&get("cantle-result.json")).unwrap();
    assert_eq!(result["outputs"][1]["path"], format!("s3://{below}/c.txt"));
    // An address has the key of the object, where characters that keys can't have are encoded.
    let key = format!("s3://{below}/%C3%A9 %23.txt");
    assert_eq!(result["outputs"][2]["path"], key);
    assert_eq!(get("%25C3%25A9%20%2523.txt"), "4\n");
    // The secret is in nothing that is kept.
    let kept = env.path(".local");
    let mut grep = std::process::Command::new("grep");
    let found = grep
        .args(["-r", "hunter2-secret"])
        .arg(kept)
        .output()
        .unwrap();
    assert_eq!(String::from_utf8(found.stdout).unwrap(), "");
}

#[cfg(feature = "s3")]
fn unique_prefix() -> String {
    let number = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap();
    format!("cli-{}", number.as_nanos())
}
