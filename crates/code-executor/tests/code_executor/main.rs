//! The tools in real sandboxes of this machine, with a directory store and a SQLite catalogue.
#![cfg(target_os = "linux")]
#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "the lints know a test by its attribute, and what tests share has none"
)]

mod agent;
mod hostile;

use std::sync::Arc;
use std::time::Duration;

use cantle_backends_local::{LocalBackend, Mechanism};
use cantle_core::ids::RunId;
use cantle_core::policy::Policy;
use cantle_core::principal::{Level, Principal};
use cantle_core::sandbox::{Backend as _, Sandbox, SandboxContext, SandboxPath};
use cantle_core::tool::{ToolContext, ToolError};
use cantle_files::{
    FileStore, Files, Limits, MemoryRecords, PostgresRecords, Quota, SqliteRecords, Urls,
};
use serde_json::{Value, json};
use tempfile::TempDir;

pub(crate) async fn files(directory: &TempDir) -> Files {
    let store = FileStore::directory(directory.path().join("objects")).unwrap();
    let records = SqliteRecords::open(directory.path().join("catalogue.sqlite"))
        .await
        .unwrap();
    Files::open(store, records).await.unwrap()
}

/// Files in S3 with a PostgreSQL catalogue, each time from new connections, below a prefix; if there are servers.
pub(crate) async fn remote_files(prefix: &str) -> Option<Files> {
    let servers =
        ["CANTLE_TEST_S3_URL", "CANTLE_TEST_POSTGRES"].map(|name| std::env::var(name).ok());
    let [Some(s3), Some(postgres)] = servers else {
        cantle_testkit::lane::skip(
            "there is no S3 server or no PostgreSQL: CANTLE_TEST_… is not set",
        );
        return None;
    };
    let file = tempfile::NamedTempFile::new().unwrap();
    let lines = format!(
        "AWS_ACCESS_KEY_ID=cantle\nAWS_SECRET_ACCESS_KEY=cantle-secret\nAWS_REGION=us-east-1\n\
         AWS_ALLOW_HTTP=true\nAWS_ENDPOINT_URL={s3}"
    );
    std::fs::write(file.path(), lines).unwrap();
    let store = FileStore::s3("cantle", Some(file.path())).unwrap();
    let store = store.with_prefix(prefix).unwrap();
    let store = store.with_urls(Urls::Presigned(Duration::from_secs(60)));
    let records = PostgresRecords::connect(&postgres).await.unwrap();
    Some(Files::open(store.unwrap(), records).await.unwrap())
}

/// A principal's session: a sandbox of its own.
pub(crate) struct User {
    pub(crate) files: Files,
    pub(crate) sandbox: Arc<dyn Sandbox>,
    principal: Option<Principal>,
}

impl User {
    pub(crate) async fn new(files: &Files, id: &str) -> Self {
        Self::under(Policy::workspace(), files, id).await
    }

    async fn under(policy: Policy, files: &Files, id: &str) -> Self {
        let context = SandboxContext::new(RunId::new(), policy);
        Self {
            files: files.clone(),
            sandbox: LocalBackend::new().open(context).await.unwrap(),
            principal: Some(Principal::new(id, Level::User).unwrap()),
        }
    }

    pub(crate) async fn call(&self, name: &str, arguments: Value) -> Result<Value, ToolError> {
        let tools = cantle_code_executor::tools(&self.files);
        let tool = tools.into_iter().find(|tool| tool.name() == name).unwrap();
        let arguments = tool.parse(&arguments.to_string())?.arguments;
        let mut cx = ToolContext::new(RunId::new(), "call");
        cx.sandbox = Some(Arc::clone(&self.sandbox));
        cx.principal.clone_from(&self.principal);
        let output = tool.call(arguments, cx).await?;
        let result: Value = serde_json::from_str(&output.content.text()).unwrap();
        if name == "run_python" {
            assert_eq!(result["success"], output.success);
        }
        Ok(result)
    }

    pub(crate) async fn python(&self, code: &str) -> Value {
        self.call("run_python", json!({ "code": code }))
            .await
            .unwrap()
    }

    pub(crate) async fn close(self) {
        self.sandbox.close().await.unwrap();
    }
}

pub(crate) fn names(result: &Value) -> Vec<&str> {
    let files = result["files"].as_array().unwrap();
    let mut names: Vec<_> = files
        .iter()
        .map(|it| it["filename"].as_str().unwrap())
        .collect();
    names.sort_unstable();
    names
}

#[tokio::test]
async fn files_of_all_places_are_stored_also_after_a_failure() {
    let directory = TempDir::new().unwrap();
    let user = User::new(&files(&directory).await, "alice").await;
    let result = user
        .python(
            "import os, sys\n\
             for d in ['/tmp/output', 'output/sub']: os.makedirs(d)\n\
             for f in ['/tmp/a.csv', '/tmp/output/b.bin', 'rel.dat', 'output/sub/n.csv', '.hidden']: open(f, 'w').write(f)\n\
             print('x' * 9000)\n\
             sys.exit(3)",
        )
        .await;
    assert_eq!(names(&result), ["a.csv", "b.bin", "n.csv", "rel.dat"]);
    assert_eq!(
        (&result["success"], &result["exit_code"]),
        (&json!(false), &json!(3))
    );
    assert_eq!(result.get("warnings"), None);
    let stdout = result["stdout"].as_str().unwrap();
    let (output, trailer) = stdout.split_once("\n\n--- Generated Files ---\n").unwrap();
    assert_eq!(output, format!("{}\n... [truncated]", "x".repeat(8000)));
    assert_eq!(trailer.lines().count(), 4);
    // A later call stores what is new only.
    let again = user.python("open('/tmp/a.csv', 'a').write('more')").await;
    assert_eq!(names(&again), ["a.csv"]);
    assert_eq!(again["success"], true);
    // Each file of one name has its own object, whose key has more than eight random digits.
    let keys = [&result, &again].map(|result| {
        let files = result["files"].as_array().unwrap();
        let file = files.iter().find(|it| it["filename"] == "a.csv").unwrap();
        let key = file["minio_key"].as_str().unwrap();
        let digits = key.strip_prefix("generated/").unwrap();
        digits.strip_suffix("_a.csv").unwrap().to_owned()
    });
    let is_random =
        |digits: &String| digits.len() == 32 && digits.bytes().all(|it| it.is_ascii_hexdigit());
    assert!(keys.iter().all(is_random) && keys[0] != keys[1], "{keys:?}");
    let sha256 = "cd2eb0837c9b4c962c22d2ff8b5441b7b45805887f051d39bf133b583baf6860";
    let made = user.python("open('b.txt', 'w').write('x' * 3)").await;
    assert_eq!(made["files"][0]["sha256"], sha256);
    user.close().await;
}

#[tokio::test]
async fn files_are_stored_where_the_hosts_tmp_is_not_visible() {
    let directory = TempDir::new().unwrap();
    let backend = LocalBackend::new().without(Mechanism::Namespaces);
    let context = SandboxContext::new(RunId::new(), Policy::workspace());
    let user = User {
        files: files(&directory).await,
        sandbox: backend.open(context).await.unwrap(),
        principal: Some(Principal::new("alice", Level::User).unwrap()),
    };
    let made = user.python("open('a.csv', 'w').write('x')").await;
    assert_eq!(names(&made), ["a.csv"]);
    let stored = json!({ "file_id": made["files"][0]["file_id"] });
    let loaded = user.call("load_file", stored).await.unwrap();
    let code = format!("print(open({}).read())", loaded["local_path"]);
    assert_eq!(user.python(&code).await["stdout"], "x\n");
    user.close().await;
}

#[tokio::test]
async fn files_with_the_same_inode_number_are_all_stored() {
    let directory = TempDir::new().unwrap();
    let user = User::new(&files(&directory).await, "alice").await;
    // As the first files of two file systems have.
    let code = "import os; open('a.csv', 'w').write('x'); os.link('a.csv', 'b.csv')";
    assert_eq!(names(&user.python(code).await), ["a.csv", "b.csv"]);
    user.close().await;
}

#[tokio::test]
async fn tracebacks_show_the_lines_of_the_code() {
    let directory = TempDir::new().unwrap();
    let user = User::new(&files(&directory).await, "alice").await;
    let failed = user.python("x = 1\nx / 0  # divides").await;
    let stderr = failed["stderr"].as_str().unwrap();
    assert!(
        stderr.contains("line 2") && stderr.contains("x / 0  # divides"),
        "{stderr}"
    );
    let code = "import os; print(os.environ['MPLBACKEND'], os.environ['PYTHONDONTWRITEBYTECODE'], __name__)";
    assert_eq!(user.python(code).await["stdout"], "Agg 1 __main__\n");
    user.close().await;
}

#[tokio::test]
async fn a_signal_is_a_negative_exit_code() {
    let directory = TempDir::new().unwrap();
    let user = User::new(&files(&directory).await, "alice").await;
    let killed = user.python("import os; os.kill(os.getpid(), 9)").await;
    assert_eq!(
        (&killed["success"], &killed["exit_code"]),
        (&json!(false), &json!(-9))
    );
    user.close().await;
}

#[tokio::test]
async fn time_limits_are_numbers_in_any_form_and_within_bounds() {
    let directory = TempDir::new().unwrap();
    let user = User::new(&files(&directory).await, "alice").await;
    for (given, limit) in [(json!("1"), 1), (json!(1.0), 1), (json!(-5), 1)] {
        let arguments = json!({ "code": "import time; time.sleep(600)", "timeout": given });
        let late = user.call("run_python", arguments).await.unwrap();
        assert_eq!(
            late["stderr"],
            format!("Execution timed out after {limit}s"),
            "{given}"
        );
    }
    let arguments = json!({ "code": "print(1)", "timeout": 10_000 });
    assert_eq!(
        user.call("run_python", arguments).await.unwrap()["stdout"],
        "1\n"
    );
    user.close().await;
}

#[tokio::test]
async fn a_limit_that_ends_a_call_is_named() {
    let directory = TempDir::new().unwrap();
    let mut policy = Policy::workspace();
    policy.limits.set("output=1000").unwrap();
    let user = User::under(policy, &files(&directory).await, "alice").await;
    let result = user.python("while True: print('x')").await;
    assert_eq!(result["exit_code"], -1);
    assert_eq!(
        result["stderr"],
        "Execution stopped at the limit of output (1000 bytes)"
    );
    user.close().await;
}

#[tokio::test]
async fn links_are_not_stored_and_reported() {
    let directory = TempDir::new().unwrap();
    let user = User::new(&files(&directory).await, "alice").await;
    let result = user
        .python("import os; os.symlink('/etc/passwd', '/tmp/leak.txt')")
        .await;
    assert_eq!(names(&result), [""; 0]);
    assert_eq!(
        result["warnings"],
        json!(["leak.txt was not stored: it is a link, which is not followed"])
    );
    user.close().await;
}

/// Prints the processes that a command has left.
const LEFT: &str = "import os
def name(p):
    try: return open(f'/proc/{p}/comm').read().strip()
    except OSError: return ''
print([p for p in os.listdir('/proc') if p.isdigit() and name(p) == 'sleep'])";

#[tokio::test]
async fn a_timeout_ends_the_whole_tree_and_keeps_output_and_files() {
    let directory = TempDir::new().unwrap();
    let user = User::new(&files(&directory).await, "alice").await;
    let code = "import subprocess, time\n\
                print('before', flush=True)\n\
                open('/tmp/part.txt', 'w').write('x')\n\
                subprocess.Popen(['sleep', '600'])\n\
                time.sleep(600)";
    // As text, as models write it.
    let arguments = json!({ "code": code, "timeout": "3" });
    let result = user.call("run_python", arguments).await.unwrap();
    assert_eq!(result["stderr"], "Execution timed out after 3s");
    assert_eq!(
        (&result["exit_code"], &result["timed_out"]),
        (&json!(-1), &json!(true))
    );
    assert!(result["stdout"].as_str().unwrap().starts_with("before\n"));
    assert_eq!(names(&result), ["part.txt"]);
    assert_eq!(user.python(LEFT).await["stdout"], "[]\n");
    user.close().await;
}

#[tokio::test]
async fn a_call_has_more_time_than_its_code_and_less_than_an_orchestrator_waits() {
    let files = Files::open(FileStore::memory(), MemoryRecords::new())
        .await
        .unwrap();
    for tool in cantle_code_executor::tools(&files) {
        let limit = tool.properties().timeout.unwrap();
        // The code has 60 seconds at most, and its end some more.
        assert!(limit > Duration::from_secs(90), "{tool:?}");
        assert!(limit <= Duration::from_secs(300), "{tool:?}");
    }
}

#[tokio::test]
async fn files_of_others_and_of_no_one_are_refused_alike() {
    let directory = TempDir::new().unwrap();
    let files = files(&directory).await;
    let (alice, mut bob) = (
        User::new(&files, "alice").await,
        User::new(&files, "bob").await,
    );
    let created = json!({ "filename": "../../notes.md", "content": "secret" });
    let created = alice.call("create_document", created).await.unwrap();
    assert_eq!(created["filename"], "notes.md");
    let id = created["file_id"].as_str().unwrap();
    for tool in ["load_file", "get_file_link", "read_document", "delete_file"] {
        let error = bob.call(tool, json!({ "file_id": id })).await.unwrap_err();
        assert_eq!(error.to_string(), format!("File not found: {id}"), "{tool}");
    }
    let error = bob
        .call("load_file", json!({ "file_id": "x" }))
        .await
        .unwrap_err();
    assert_eq!(error.to_string(), "badly formed hexadecimal UUID string");
    bob.principal = None;
    let error = bob
        .call("run_python", json!({ "code": "1" }))
        .await
        .unwrap_err();
    assert!(
        error.to_string().starts_with("user_id is required"),
        "{error}"
    );
    let deleted = alice
        .call("delete_file", json!({ "file_id": id }))
        .await
        .unwrap();
    assert_eq!(deleted["deleted"], true);
    alice.close().await;
    bob.close().await;
}

#[tokio::test]
async fn a_file_that_can_not_be_stored_is_a_warning() {
    let directory = TempDir::new().unwrap();
    let files = files(&directory)
        .await
        .with_limits(Limits::new(10, Quota::new(100, 1000)));
    let user = User::new(&files, "alice").await;
    let code = "open('/tmp/large', 'w').write('x' * 11); open('/tmp/small', 'w').write('x')";
    let result = user.python(code).await;
    assert_eq!(names(&result), ["small"]);
    let warning = "large was not stored: the file is larger than the limit of 10 bytes";
    assert_eq!(
        (&result["success"], &result["warnings"]),
        (&json!(true), &json!([warning]))
    );
    // A store that is gone is one, too, and does not say where it was.
    std::fs::remove_dir_all(directory.path().join("objects")).unwrap();
    std::fs::write(directory.path().join("objects"), "").unwrap();
    let result = user
        .python("open('/tmp/late', 'w').write('x'); print('ran')")
        .await;
    assert_eq!(
        (&result["stdout"], names(&result).len()),
        (&json!("ran\n"), 0)
    );
    let warning = "late was not stored: the file store failed";
    assert_eq!(result["warnings"], json!([warning]));
    user.close().await;
}

#[tokio::test]
async fn code_reaches_neither_the_store_nor_the_catalogue() {
    let directory = TempDir::new().unwrap();
    let user = User::new(&files(&directory).await, "alice").await;
    let place = directory.path().display();
    let code = format!(
        "import os, socket\n\
         print(os.path.exists('{place}/catalogue.sqlite'), os.path.exists('{place}/objects'))\n\
         print(sorted(k for k in os.environ if k.startswith(('AWS_', 'CANTLE_', 'PG', 'DATABASE'))))\n\
         try: socket.create_connection(('1.1.1.1', 80), 2); print('connected')\n\
         except OSError: print('no network')"
    );
    assert_eq!(
        user.python(&code).await["stdout"],
        "False False\n[]\nno network\n"
    );
    user.close().await;
}

#[tokio::test]
async fn shell_commands_see_the_files_and_change_none() {
    let directory = TempDir::new().unwrap();
    let user = User::new(&files(&directory).await, "alice").await;
    user.python("open('data.csv', 'w').write('a,b\\n1,2\\n')")
        .await;
    let shell = async |command: &str| {
        let call = user.call("run_shell", json!({"command": command, "timeout": "5"}));
        call.await.unwrap()
    };
    let counted = shell("wc -l < data.csv; pwd > /dev/null").await;
    let expected = json!({"success": true, "stdout": "2\n", "stderr": "", "exit_code": 0});
    assert_eq!(counted, expected);
    // What it writes below TMPDIR is gone afterwards.
    let sorted = shell("sort data.csv > \"$TMPDIR/sorted\" && cat \"$TMPDIR/sorted\"").await;
    assert_eq!(sorted["stdout"], "1,2\na,b\n");
    assert_eq!(shell("ls").await["stdout"], "data.csv\n");
    let left = user
        .sandbox
        .list(&SandboxPath::working_directory())
        .await
        .unwrap();
    assert_eq!(left.len(), 1, "{left:?}");

    // The kernel refuses what the patterns do not know.
    for command in [
        "python3 -c \"open('data.csv', 'w')\"",
        "find . -name data.csv -delete; test ! -e data.csv",
        "tee data.csv < /dev/null",
        "tee /etc/x < /dev/null",
        "wget -q -O /etc/x http://127.0.0.1:1/",
        "sed -i s/1/9/ data.csv",
        "truncate -s 0 data.csv",
        "perl -e 'unlink q(data.csv) or exit 1'",
        "printf 'rm data.csv' | base64 | base64 -d | sh",
        "touch -d 2001-01-01 data.csv",
        "(sleep 0.2; echo x > data.csv) & wait $!",
        "echo x > \"$TMPDIR\"/../data.csv",
        "curl -s -o data.csv file:///etc/hostname",
        "env | grep CARGO_",
        "grep -a CARGO_ /proc/self/environ",
        "curl -sS http://minio:9000",
    ] {
        let result = shell(command).await;
        assert_eq!(result["success"], false, "{command}: {result}");
    }
    assert_eq!(shell("cat data.csv").await["stdout"], "a,b\n1,2\n");
    user.close().await;
}

#[tokio::test]
async fn shell_refuses_patterns_times_out_and_explains_the_network() {
    let directory = TempDir::new().unwrap();
    let user = User::new(&files(&directory).await, "alice").await;
    let shell = async |command: &str, timeout: i64| {
        let arguments = json!({"command": command, "timeout": timeout});
        user.call("run_shell", arguments).await.unwrap()
    };
    let refused = shell("rm -rf data", 5).await;
    let expected = json!({
        "success": false, "stdout": "", "stderr": r"Blocked command pattern: \brm\b", "exit_code": -1,
    });
    assert_eq!(refused, expected);
    // A child that holds the output does not hold the call, and what came until then is kept.
    let late = shell("echo begun; sleep 1000 & sleep 1000", 3).await;
    assert_eq!(late["stdout"], "begun\n");
    assert_eq!(late["stderr"], "Execution timed out after 3s");
    assert_eq!(
        (&late["exit_code"], &late["timed_out"]),
        (&json!(-1), &json!(true))
    );
    assert_eq!(user.python(LEFT).await["stdout"], "[]\n");
    let offline = shell("curl -sS http://example.com", 20).await;
    let stderr = offline["stderr"].as_str().unwrap();
    assert!(stderr.contains("The sandbox has no network"), "{offline}");
    let piped = shell("curl -sS http://example.com | wc -l", 20).await;
    assert_eq!(
        (&piped["success"], &piped["stdout"]),
        (&json!(true), &json!("0\n"))
    );
    assert!(
        piped["stderr"]
            .as_str()
            .unwrap()
            .contains("The sandbox has no network"),
        "{piped}"
    );

    let tools = cantle_code_executor::tools_without_patterns(&user.files);
    let tool = tools
        .iter()
        .find(|tool| tool.name() == "run_shell")
        .unwrap();
    let mut cx = ToolContext::new(RunId::new(), "call");
    cx.sandbox = Some(Arc::clone(&user.sandbox));
    let output = tool
        .call(json!({"command": "rm -f nothing; echo kept > x; ls"}), cx)
        .await
        .unwrap();
    let text = output.content.text();
    assert!(
        !text.contains("Blocked") && text.contains("denied"),
        "{text}"
    );
    user.close().await;
}
