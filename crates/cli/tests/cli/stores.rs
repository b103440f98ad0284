//! Runs that deliver to stores and get inputs from them, and reports and journals in stores.

use std::os::unix::fs::PermissionsExt as _;

use cantle_testkit::openai::{Script, ScriptedServer, ServerOptions};
use rustix::process::Signal;
use serde_json::Value;
use tokio::time::timeout;

use crate::support::{DEADLINE, Exited, Mark, TestEnv, send, wait_for_exit};
use crate::{command, finish};

/// Returns a model that changes `a.txt`.
pub(crate) async fn server() -> ScriptedServer {
    let script = Script::new()
        .turn(command(
            "mkdir dir; sed s/1/2/ a.txt > dir/b.txt; echo 3 > c.txt; echo 4 > 'é #.txt'",
        ))
        .turn(finish("done", &["dir/b.txt", "c.txt", "é #.txt"]));
    let options = ServerOptions::new(script).api_key("sk-test-123");
    ScriptedServer::start(options).await.unwrap()
}

pub(crate) fn env(server: &ScriptedServer) -> TestEnv {
    let env = TestEnv::new()
        .with_server(&server.url())
        .set("CANTLE_API_KEY", "sk-test-123");
    env.write("a.txt", "1\n");
    env
}

pub(crate) async fn stored(env: &TestEnv) -> Vec<Value> {
    let listed = env.run(["files", "ls", "--json"]).await;
    serde_json::from_str(&listed.stdout).unwrap()
}

fn id(exited: &Exited) -> &str {
    exited.stdout.split(' ').next().unwrap()
}

pub(crate) fn file_names(files: &[Value]) -> Vec<&str> {
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
    let run = waiting(&env);
    assert_eq!(env.read(format!("{UNDELIVERED}/{run}/c.txt")), "3\n");
    // The store is there again.
    std::fs::remove_file(env.path(".local/state/cantle/files/objects")).unwrap();
    completes(&env, &run, &["c.txt", "cantle-result.json"]).await;
}

pub(crate) const UNDELIVERED: &str = ".local/state/cantle/undelivered";

/// Returns the run whose files wait to be delivered.
pub(crate) fn waiting(env: &TestEnv) -> String {
    let runs = env.list(UNDELIVERED);
    assert_eq!(runs.len(), 1, "{runs:?}");
    runs[0].clone()
}

/// Resumes a run that has not delivered its files, after which each of them is stored once.
async fn completes(env: &TestEnv, run: &str, names: &[&str]) {
    let listed = env.run(["runs", "list"]).await;
    assert!(listed.stdout.contains("undelivered"), "{listed:?}");
    let shown = env.run(["runs", "show", run]).await;
    let advice = format!("deliver  cantle run --resume {run}");
    assert!(shown.stdout.contains(&advice), "{shown:?}");

    let resumed = env.run(["run", "--resume", run]).await;
    assert_eq!(
        (resumed.code, &*resumed.stdout),
        (Some(0), "done\n"),
        "{resumed:?}"
    );
    let files = stored(env).await;
    assert_eq!(file_names(&files), names);
    for file in &files {
        let address = format!("files:{}", file["id"].as_str().unwrap());
        let is_result = file["filename"] == "cantle-result.json";
        assert!(
            is_result || resumed.stderr.contains(&address),
            "{resumed:?}"
        );
    }
    assert_eq!(env.list(UNDELIVERED), [""; 0]);
    let over = env.run(["run", "--resume", run]).await;
    assert_eq!(over.code, Some(2), "{over:?}");
}

fn catalogue(env: &TestEnv) -> rusqlite::Connection {
    rusqlite::Connection::open(env.path(".local/state/cantle/files/catalogue.sqlite")).unwrap()
}

#[tokio::test]
async fn killed_while_it_delivers_a_run_delivers_once_when_it_is_resumed() {
    let server = server().await;
    let env = env(&server);
    // Creates the catalogue.
    assert_eq!(stored(&env).await, [Value::Null; 0]);
    // Objects can be stored, and their rows can't.
    let lock = catalogue(&env);
    let command = [
        "run",
        "Change it",
        "--input",
        "a.txt",
        "--output-dir",
        "files:",
    ];
    let child = env.command(command).spawn().unwrap();
    timeout(DEADLINE, server.received(1)).await.unwrap();
    lock.execute_batch("BEGIN IMMEDIATE").unwrap();
    env.appeared(".local/state/cantle/files/objects/runs").await;
    send(&child, Signal::KILL);
    let killed = wait_for_exit(child).await;
    assert_eq!((killed.code, &*killed.stdout), (None, ""), "{killed:?}");
    drop(lock);

    let run = waiting(&env);
    let staged = std::fs::metadata(env.path(UNDELIVERED)).unwrap();
    assert_eq!(staged.permissions().mode() & 0o777, 0o700);
    assert_eq!(stored(&env).await, [Value::Null; 0]);
    let names = ["b.txt", "c.txt", "cantle-result.json", "é__.txt"];
    completes(&env, &run, &names).await;
    assert_eq!(server.requests().len(), 2, "no further model call");
    // Its sandbox is kept like that of every finished run.
    let kept = env.run(["runs", "show", &run]).await;
    assert!(kept.stdout.contains("continues in it"), "{kept:?}");
}

/// Runs the task with a catalogue that refuses the files for which the condition holds, and returns how it ended.
async fn failed(condition: &str) -> (ScriptedServer, TestEnv, Exited) {
    let server = server().await;
    let env = env(&server);
    stored(&env).await;
    let fail = format!(
        "CREATE TRIGGER fail BEFORE INSERT ON cantle_files {condition} BEGIN SELECT RAISE(ABORT, 'no'); END"
    );
    catalogue(&env).execute_batch(&fail).unwrap();
    let run = ["run", "Change it", "--input", "a.txt"];
    let exited = env.run(run.iter().chain(&["--output-dir", "files:"])).await;
    assert_eq!(exited.code, Some(1), "{exited:?}");
    (server, env, exited)
}

#[tokio::test]
async fn a_delivery_that_failed_half_way_stores_the_rest_when_it_is_resumed() {
    let (_server, env, exited) = failed("WHEN NEW.filename = 'c.txt'").await;
    let run = waiting(&env);
    let advice = format!("deliver them with: cantle run --resume {run}");
    assert!(exited.stderr.contains(&advice), "{exited:?}");
    assert_eq!(file_names(&stored(&env).await), ["b.txt"]);
    // It fails again, and nothing is stored twice.
    let again = env.run(["run", "--resume", &run]).await;
    assert_eq!(again.code, Some(1), "{again:?}");
    catalogue(&env).execute_batch("DROP TRIGGER fail").unwrap();
    let names = ["b.txt", "c.txt", "cantle-result.json", "é__.txt"];
    completes(&env, &run, &names).await;
}

#[tokio::test]
async fn killed_while_it_collects_its_files_a_run_collects_them_again() {
    let mark = Mark::new(&TestEnv::new());
    let hang = format!("echo 3 > c.txt; bash -c 'sleep 1000; :' {mark}");
    let script = Script::new()
        .turn(command(&hang))
        .turn(finish("done", &["c.txt"]));
    let server = ScriptedServer::start(script).await.unwrap();
    let env = TestEnv::new().with_server(&server.url());
    let run = ["run", "Work", "--output-dir", "files:"];
    let child = env.command(run).spawn().unwrap();
    mark.appeared().await;
    send(&child, Signal::KILL);
    wait_for_exit(child).await;
    let run = env.list(".local/state/cantle/runs").remove(0);
    env.write(format!("{UNDELIVERED}/{run}/c.txt"), "half");
    let resumed = env.run(["run", "--resume", &run]).await;
    assert_eq!(resumed.code, Some(0), "{resumed:?}");
    let files = stored(&env).await;
    assert_eq!(file_names(&files), ["c.txt", "cantle-result.json"]);
    assert_eq!(files[1]["size_bytes"], 2);
}

#[tokio::test]
async fn gc_removes_undelivered_files_of_no_run_and_old_ones() {
    let (_server, env, _) = failed("").await;
    let run = waiting(&env);
    let of_no_run = "01a2067fefe37241a2a824fac036503a";
    let young = "01a2067fefe37241a2a824fac036503b";
    let gc = async |age: &str| {
        for (run, age) in [(of_no_run, "1 hour ago"), (young, "now"), (&run, age)] {
            env.write(format!("{UNDELIVERED}/{run}/x"), "");
            let mut touch = std::process::Command::new("find");
            touch.arg(env.path(UNDELIVERED).join(run));
            touch.args(["-exec", "touch", "-d", age, "{}", "+"]);
            assert!(touch.status().unwrap().success());
        }
        let gc = env.run(["gc"]).await;
        assert_eq!(gc.code, Some(0), "{gc:?}");
        let removed = |run: &str| {
            let line = format!(
                "removed output files that were not delivered: {}",
                env.path(UNDELIVERED).join(run).display()
            );
            gc.stdout.contains(&line)
        };
        [of_no_run, young, &run].map(|run| (removed(run), env.path(UNDELIVERED).join(run).exists()))
    };
    let (gone, there) = ((true, false), (false, true));
    assert_eq!(gc("6 days ago").await, [gone, there, there]);
    assert_eq!(gc("8 days ago").await, [gone, there, gone]);
}

#[tokio::test]
async fn a_store_that_can_not_be_used_is_reported_before_the_run() {
    let server = server().await;
    let env = env(&server);
    let mut cases = vec![
        (vec!["--input", "files:x"], "is not a stored file"),
        (
            vec!["--input", "files:00000000-0000-0000-0000-000000000000"],
            "File not found",
        ),
        (
            vec!["--output-dir", "gs://bucket"],
            "`gs://bucket` is not a store",
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
    let open = cantle_files::FileStore::s3;
    delivers_to_a_bucket("s3", open, &s3_credentials(&url), SECRET).await;
}

#[cfg(feature = "s3")]
pub(crate) fn s3_credentials(url: &str) -> String {
    format!(
        "AWS_ACCESS_KEY_ID=cantle\nAWS_SECRET_ACCESS_KEY={SECRET}\nAWS_REGION=us-east-1\n\
         AWS_ALLOW_HTTP=true\nAWS_ENDPOINT_URL={url}\n"
    )
}

/// In the full lane.
#[cfg(feature = "azure")]
#[tokio::test]
async fn a_run_delivers_to_azure_with_credentials_from_a_file() {
    let variables = ["CANTLE_TEST_AZURE_URL", "CANTLE_TEST_AZURE_KEY"];
    let Some([url, key]) = crate::support::peer("azurite", variables) else {
        return;
    };
    let open = cantle_files::FileStore::azure;
    let credentials = azure_credentials(&url, &key);
    delivers_to_a_bucket("az", open, &credentials, &key).await;
}

#[cfg(feature = "azure")]
pub(crate) fn azure_credentials(url: &str, key: &str) -> String {
    format!(
        "AZURE_STORAGE_ACCOUNT_NAME=devstoreaccount1\nAZURE_STORAGE_ACCOUNT_KEY={key}\n\
         AZURE_ALLOW_HTTP=true\nAZURE_STORAGE_ENDPOINT={url}\n"
    )
}

#[cfg(feature = "s3")]
const SECRET: &str = "hunter2-secret";

/// Sets a file of credentials, which only its owner can read.
#[cfg(any(feature = "azure", feature = "s3"))]
pub(crate) fn with_credentials(env: TestEnv, credentials: &str) -> TestEnv {
    env.write("credentials", credentials);
    let private = std::fs::Permissions::from_mode(0o600);
    std::fs::set_permissions(env.path("credentials"), private).unwrap();
    env.set("CANTLE_STORE_CREDENTIALS", "credentials")
}

#[cfg(any(feature = "azure", feature = "s3"))]
pub(crate) fn unique_prefix() -> String {
    let number = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap();
    format!("cli-{}", number.as_nanos())
}

/// Returns the text of an object that has no record, if it exists.
#[cfg(any(feature = "azure", feature = "s3"))]
pub(crate) async fn object(files: &cantle_files::Files, key: &str) -> Option<String> {
    use futures_util::StreamExt as _;
    let most = 1 << 16;
    let record = serde_json::json!({
        "id": "00000000-0000-0000-0000-000000000000", "owner": "", "filename": "", "mime_type": "", "sha256": "",
        "created_at": "2026-01-01T00:00:00Z", "size_bytes": most, "key": key,
    });
    let record = serde_json::from_value(record).unwrap();
    let mut content = files.content(&record, Some(0..most)).await.ok()?;
    let mut text = Vec::new();
    // At its end is an error, since the object is shorter.
    while let Some(Ok(chunk)) = content.next().await {
        text.extend(chunk);
    }
    Some(String::from_utf8(text).unwrap())
}

/// Opens a bucket with the credentials of a file.
#[cfg(any(feature = "azure", feature = "s3"))]
pub(crate) type OpenBucket =
    fn(&str, Option<&std::path::Path>) -> Result<cantle_files::FileStore, cantle_files::FilesError>;

/// Checks that a run delivers to the bucket `cantle`, and keeps no secret.
#[cfg(any(feature = "azure", feature = "s3"))]
async fn delivers_to_a_bucket(scheme: &str, open: OpenBucket, credentials: &str, secret: &str) {
    use cantle_files::{Files, MemoryRecords};
    let server = server().await;
    let env = with_credentials(env(&server), credentials);
    let missing = format!("{scheme}://no-such-bucket/x");
    let refused = env.run(["run", "Work", "--output-dir", &missing]).await;
    assert_eq!(refused.code, Some(2), "{refused:?}");
    let problem = format!("{missing} can't be used");
    assert!(refused.stderr.contains(&problem), "{refused:?}");

    let prefix = unique_prefix();
    let target = format!("{scheme}://cantle/{prefix}/");
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
    let below = format!("{scheme}://cantle/{prefix}/{run}");
    let address = format!("{below}/dir/b.txt");
    assert!(exited.stderr.contains(&address), "{exited:?}");
    let store = open("cantle", Some(&env.path("credentials"))).unwrap();
    let store = store.with_prefix(&prefix).unwrap();
    let files = Files::open(store, MemoryRecords::new()).await.unwrap();
    let get = async |name: &str| object(&files, &format!("{run}/{name}")).await.unwrap();
    assert_eq!(get("dir/b.txt").await, "2\n");
    let result: Value = serde_json::from_str(&get("cantle-result.json").await).unwrap();
    assert_eq!(result["outputs"][1]["path"], format!("{below}/c.txt"));
    // An address has the key of the object, where characters that keys can't have are encoded.
    let name = "%C3%A9 %23.txt";
    assert_eq!(result["outputs"][2]["path"], format!("{below}/{name}"));
    assert_eq!(get(name).await, "4\n");
    let mut grep = std::process::Command::new("grep");
    let found = grep.args(["-rF", secret]).arg(env.path(".local"));
    assert_eq!(
        String::from_utf8(found.output().unwrap().stdout).unwrap(),
        ""
    );
}
