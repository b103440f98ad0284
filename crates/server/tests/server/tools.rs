//! The service of tools, with the tools of code_executor, a directory store and a SQLite catalogue.

use std::time::Duration;

use bytes::Bytes;
use cantle_core::ids::unique_id;
use cantle_core::principal::{Level, Principal};
use cantle_files::{FileStore, Files, Limits, Quota, SqliteRecords, Urls};
use cantle_server::{ServerBuilder, ServerLimits, ToolService};
use futures_util::future::join_all;
use http::{Method, Request, StatusCode};
use http_body_util::Full;
use serde_json::{Value, json};

use crate::killed::kill_above;
use crate::support::{
    TestResponse, TestServer, eventually, sandbox_directories, serve_bound, shared_tempdir,
};

/// A server with the service; its store is in a directory of its own.
struct Service {
    server: TestServer,
    stored: tempfile::TempDir,
}

async fn files(directory: &tempfile::TempDir, base: &str) -> Files {
    let store = FileStore::directory(directory.path().join("objects")).unwrap();
    let urls = Urls::Signed {
        base: base.parse().unwrap(),
        key: "signing-secret".into(),
        valid: Duration::from_secs(600),
    };
    let file = directory.path().join("catalogue.sqlite");
    let records = SqliteRecords::open(file).await.unwrap();
    let files = Files::open(store.with_urls(urls).unwrap(), records);
    files
        .await
        .unwrap()
        .with_limits(Limits::new(1 << 20, Quota::new(5, 1 << 20)))
}

impl Service {
    async fn start(change: impl FnOnce(ServerBuilder) -> ServerBuilder) -> Self {
        Self::start_with(tempfile::tempdir().unwrap(), change, |service| service).await
    }

    async fn start_with(
        stored: tempfile::TempDir,
        change: impl FnOnce(ServerBuilder) -> ServerBuilder,
        configure: impl FnOnce(ToolService) -> ToolService,
    ) -> Self {
        let with_key = |builder: ServerBuilder| change(builder.key(&"token".into()));
        let server = serve_bound(shared_tempdir(), with_key, async |server| {
            let files = files(&stored, &format!("http://{}", server.address())).await;
            let tools = cantle_code_executor::tools(&files);
            let service = ToolService::new("code_executor", "Executes code.", tools)
                .without_sandbox(cantle_code_executor::WITHOUT_SANDBOX);
            server.tools(configure(service.files(files)))
        });
        Self {
            server: server.await,
            stored,
        }
    }

    async fn get(&self, path: &str, headers: &[(&str, &str)]) -> TestResponse {
        let mut request = Request::get(path).header("host", self.server.address.to_string());
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        self.server
            .ask(request.body(Full::default()).unwrap())
            .await
    }

    async fn post(&self, token: &str, body: impl Into<Bytes>) -> TestResponse {
        // As an orchestrator addresses it in a network of containers.
        let request = Request::builder()
            .method(Method::POST)
            .uri("/execute")
            .header("host", "code_executor:8000")
            .header("authorization", format!("Bearer {token}"));
        self.server
            .ask(request.body(Full::new(body.into())).unwrap())
            .await
    }

    async fn send(&self, token: &str, call: Value) -> TestResponse {
        self.post(token, call.to_string()).await
    }

    /// Makes a call for a user, and returns the whole result.
    async fn call(&self, user: &str, tool: &str, arguments: Value) -> Value {
        let name = format!("code_executor.{tool}");
        let call = json!({"tool_name": name, "arguments": arguments, "user_id": user});
        let answer = self.send("token", call).await;
        assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
        answer.json()
    }

    async fn python(&self, user: &str, code: &str) -> Value {
        let result = self.call(user, "run_python", json!({"code": code})).await;
        assert_eq!(result["success"], true, "{result}");
        result["result"].clone()
    }

    /// Gets an address of a file.
    async fn download(&self, url: &str, headers: &[(&str, &str)]) -> TestResponse {
        let base = format!("http://{}", self.server.address);
        self.get(url.strip_prefix(&base).unwrap(), headers).await
    }
}

#[tokio::test]
async fn the_manifest_has_the_shape_that_the_orchestrator_reads() {
    let service = Service::start(|builder| builder).await;
    let health = service.get("/health", &[]).await;
    assert_eq!(
        (health.status, health.json()),
        (StatusCode::OK, json!({"status": "ok"}))
    );
    for (headers, detail) in [
        (&[][..], "Missing service auth token"),
        (
            &[("authorization", "Bearer wrong")],
            "Invalid service auth token",
        ),
    ] {
        let refused = service.get("/manifest", headers).await;
        assert_eq!(refused.status, StatusCode::UNAUTHORIZED);
        assert_eq!(refused.json(), json!({ "detail": detail }));
    }
    let manifest = service
        .get("/manifest", &[("authorization", "Bearer token")])
        .await;
    let manifest = manifest.json();
    assert_eq!(manifest["module_name"], "code_executor");
    let tools = manifest["tools"].as_array().unwrap();
    let mut names: Vec<_> = tools
        .iter()
        .map(|it| it["name"].as_str().unwrap())
        .collect();
    assert_eq!(names.len(), 9);
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), 9);
    for tool in tools {
        let name = tool["name"].as_str().unwrap();
        assert!(
            name.starts_with("code_executor.") && name.matches('.').count() == 1,
            "{name}"
        );
        assert!(!tool["description"].as_str().unwrap().is_empty(), "{name}");
        let required = if name.ends_with("delete_file") {
            "user"
        } else {
            "guest"
        };
        assert_eq!(tool["required_permission"], required, "{name}");
        for parameter in tool["parameters"].as_array().unwrap() {
            let types = ["string", "integer", "number", "boolean", "array", "object"];
            assert!(
                types.contains(&parameter["type"].as_str().unwrap()),
                "{tool}"
            );
            assert!(
                !parameter["description"].as_str().unwrap().is_empty(),
                "{tool}"
            );
        }
    }
    let expected = json!([
        {"name": "code", "type": "string", "description": "Python code to execute.", "required": true},
        {"name": "timeout", "type": "integer", "required": false,
         "description": "Max execution time in seconds (default 30, max 60)"},
    ]);
    assert_eq!(tools[0]["parameters"], expected);
    service.server.stop().await;
}

#[tokio::test]
async fn a_chart_is_found_and_changed_in_another_session_and_served() {
    let service = Service::start(|builder| builder).await;
    let code = "open('/tmp/chart.svg', 'w').write('<svg>1</svg>')";
    let made = service.python("alice", code).await;
    let Service { server, stored } = service;
    assert_eq!(sandbox_directories(&server.stop().await), 0);

    // Another server, with another sandbox, over the same files.
    let service = Service::start_with(stored, |builder| builder, |service| service).await;
    let listed = service.call("alice", "list_files", json!({})).await;
    let found = &listed["result"]["files"][0];
    assert_eq!(found["file_id"], made["files"][0]["file_id"]);
    let id = json!({"file_id": found["file_id"]});
    let loaded = service.call("alice", "load_file", id).await;
    assert_eq!(loaded["result"]["local_path"], "/tmp/chart.svg");
    // The sandbox is that of the call before.
    let code = "p = '/tmp/chart.svg'; t = open(p).read(); open(p, 'w').write(t.replace('1', '2'))";
    let changed = service.python("alice", code).await;
    let url = changed["files"][0]["url"].as_str().unwrap();
    assert!(
        changed["stdout"]
            .as_str()
            .unwrap()
            .contains(&format!("[chart.svg]({url})"))
    );

    let whole = service.download(url, &[]).await;
    assert_eq!(
        (whole.status, whole.text()),
        (StatusCode::OK, "<svg>2</svg>".to_owned())
    );
    assert_eq!(whole.header("content-type"), Some("image/svg+xml"));
    assert_eq!(whole.header("content-security-policy"), Some("sandbox"));
    let part = service.download(url, &[("range", "bytes=5-5")]).await;
    assert_eq!(
        (part.status, part.text()),
        (StatusCode::PARTIAL_CONTENT, "2".to_owned())
    );
    assert_eq!(part.header("content-range"), Some("bytes 5-5/12"));
    let beyond = service.download(url, &[("range", "bytes=12-")]).await;
    assert_eq!(beyond.status, StatusCode::RANGE_NOT_SATISFIABLE);

    let (address, query) = url.split_once('?').unwrap();
    let other = made["files"][0]["url"].as_str().unwrap();
    let (other, _) = other.split_once('?').unwrap();
    let other = other.rsplit_once("/files/").unwrap().1;
    let other = format!("http://{}/files/{other}?{query}", service.server.address);
    for wrong in [
        address.to_owned(),
        other,
        format!("{address}?{}", query.replacen("expires=", "expires=9", 1)),
        format!("{url}0"),
        format!("{address}/../../catalogue-identity?{query}"),
    ] {
        let refused = service.download(&wrong, &[]).await;
        assert_eq!(refused.status, StatusCode::FORBIDDEN, "{wrong}");
    }
    // A file that is deleted is gone at its address.
    let id = json!({"file_id": changed["files"][0]["file_id"]});
    let call = json!({
        "tool_name": "code_executor.delete_file", "arguments": id, "user_id": "alice", "level": "user",
    });
    assert_eq!(service.send("token", call).await.json()["success"], true);
    assert_eq!(
        service.download(url, &[]).await.status,
        StatusCode::NOT_FOUND
    );
    service.server.stop().await;
}

#[tokio::test]
async fn a_principal_has_a_sandbox_of_its_own() {
    let service = Service::start(|builder| builder).await;
    service
        .python("alice", "open('/tmp/secret.txt', 'w').write('alice')")
        .await;
    let look = "import os; print(os.path.exists('/tmp/secret.txt'), os.listdir('/tmp'))";
    let seen = service.python("bob", look).await;
    assert_eq!(seen["stdout"], "False []\n");
    assert!(
        service.python("alice", look).await["stdout"]
            .as_str()
            .unwrap()
            .starts_with("True")
    );
    // Without a user, the files are the key's own.
    let call = json!({"tool_name": "run_python", "arguments": {"code": look}});
    let own = service.send("token", call).await.json();
    assert_eq!(own["result"]["stdout"], "False []\n");
    assert_eq!(service.server.sandbox_directories(), 3);
    let listed = service.call("bob", "list_files", json!({})).await;
    assert_eq!(listed["result"], json!({"files": []}));
    service.server.stop().await;
}

#[tokio::test]
async fn calls_of_one_principal_take_turns_and_those_of_two_do_not() {
    let service = Service::start(|builder| builder).await;
    let step = |n: u32| {
        format!(
            "open('log', 'a').write('{n} '); import time; time.sleep(0.2); open('log', 'a').write('{n}. ')"
        )
    };
    let (one, two) = (step(1), step(2));
    join_all([service.python("alice", &one), service.python("alice", &two)]).await;
    let log = service.python("alice", "print(open('log').read())").await;
    let log = log["stdout"].as_str().unwrap();
    assert!(["1 1. 2 2. \n", "2 2. 1 1. \n"].contains(&log), "{log}");

    // Bob's call ends while a call of Alice still runs.
    let long = json!({"tool_name": "run_python", "user_id": "alice",
        "arguments": {"code": "import time; open('begun', 'w'); time.sleep(1000)", "timeout": 60}});
    let long = service.send("token", long);
    let short = async {
        service.python("bob", "print('done')").await;
    };
    tokio::select! {
        answer = long => panic!("{answer:?}"),
        () = short => {}
    }
    // The client of the long call is gone, and so is its code: the sandbox is free.
    service.python("alice", "print('next')").await;
    service.server.stop().await;
}

#[tokio::test]
async fn failures_are_no_successes_and_say_why() {
    let service = Service::start(|builder| builder).await;
    let failed = service
        .call(
            "alice",
            "run_python",
            json!({"code": "print('x'); 1/0", "timeout": "5"}),
        )
        .await;
    assert_eq!(
        (&failed["success"], &failed["result"]["exit_code"]),
        (&json!(false), &json!(1))
    );
    let error = failed["error"].as_str().unwrap();
    assert!(
        error.contains("ZeroDivisionError") && error.contains("\"stdout\":\"x"),
        "{error}"
    );
    let unknown = service.call("alice", "fly", json!({})).await;
    let expected = json!({
        "tool_name": "code_executor.fly", "success": false, "result": null,
        "error": "Unknown tool: code_executor.fly",
    });
    assert_eq!(unknown, expected);
    let wrong = service
        .call("alice", "run_python", json!({"cod": "1"}))
        .await;
    assert!(wrong["error"].as_str().unwrap().contains("code"), "{wrong}");
    let denied = service
        .call("alice", "delete_file", json!({"file_id": "x"}))
        .await;
    assert_eq!(
        denied["error"],
        "Permission denied: code_executor.delete_file requires 'user' but user has 'guest'"
    );
    let long_name = json!({"tool_name": "x".repeat(1000)}).to_string();
    for body in ["", "[]", "{\"tool_name\": 1}", &long_name] {
        let refused = service.post("token", body.to_owned()).await;
        assert_eq!(refused.status, StatusCode::UNPROCESSABLE_ENTITY, "{body}");
    }
    let large = service.post("token", vec![b' '; (4 << 20) + 1]).await;
    assert_eq!(large.status, StatusCode::PAYLOAD_TOO_LARGE);
    let user = json!({"tool_name": "list_files", "user_id": "a\nb"});
    assert_eq!(
        service.send("token", user).await.status,
        StatusCode::UNPROCESSABLE_ENTITY
    );
    let stranger = json!({"tool_name": "list_files"});
    assert_eq!(
        service.send("other", stranger).await.status,
        StatusCode::UNAUTHORIZED
    );
    service.server.stop().await;
}

#[tokio::test]
async fn a_bound_key_acts_for_its_principal_only() {
    let alice = Principal::new("alice", Level::User).unwrap();
    let bind = |builder: ServerBuilder| builder.principal(&"alices".into(), &alice);
    let service = Service::start(bind).await;
    let created = service
        .call(
            "alice",
            "create_document",
            json!({"filename": "a.txt", "content": "x"}),
        )
        .await;
    let id = json!({"file_id": created["result"]["file_id"]});
    let foreign = json!({"tool_name": "list_files", "user_id": "bob"});
    let refused = service.send("alices", foreign).await;
    assert_eq!(refused.status, StatusCode::FORBIDDEN);
    assert_eq!(
        refused.json()["detail"],
        "the key is bound to the principal `alice`"
    );
    // A call can lower the level of the key, and not raise it.
    let delete = |level: &str| json!({"tool_name": "delete_file", "arguments": id, "user_id": "alice", "level": level});
    for level in ["guest", "boss"] {
        let lowered = service.send("alices", delete(level)).await.json();
        assert_eq!(lowered["success"], false, "{lowered}");
    }
    let deleted = service.send("alices", delete("owner")).await.json();
    assert_eq!(deleted["result"]["deleted"], true, "{deleted}");
    service.server.stop().await;
}

#[tokio::test]
async fn limits_of_a_principal_are_answered_with_the_time_to_wait() {
    let stored = tempfile::tempdir().unwrap();
    let service = Service::start_with(stored, |builder| builder, |it| it.calls_per_minute(2)).await;
    for _ in 0..2 {
        service.call("alice", "list_files", json!({})).await;
    }
    let call = json!({"tool_name": "list_files", "user_id": "alice"});
    let refused = service.send("token", call).await;
    assert_eq!(refused.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(
        refused.json()["detail"],
        "the limit of 2 calls in a minute is reached"
    );
    let after: u64 = refused.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=61).contains(&after), "{after}");
    // Another principal has its own minute; the quota of files is a warning of the call.
    let code = "for n in range(7): open(f'/tmp/{n}.txt', 'w').write('x')";
    let made = service.python("bob", code).await;
    assert_eq!(made["files"].as_array().unwrap().len(), 5);
    let warnings = made["warnings"].to_string();
    assert!(warnings.contains("the quota of 5 files"), "{warnings}");
    service.server.stop().await;
}

#[tokio::test]
async fn the_sandbox_that_was_unused_the_longest_goes_first() {
    let mut limits = ServerLimits::default();
    limits.sandboxes = 2;
    let service = Service::start(|builder| builder.limits(limits)).await;
    for user in ["alice", "bob", "alice", "carol"] {
        service.python(user, "open('kept', 'w')").await;
    }
    assert_eq!(service.server.sandbox_directories(), 2);
    let kept = "import os; print(os.path.exists('kept'))";
    assert_eq!(service.python("alice", kept).await["stdout"], "True\n");
    assert_eq!(service.python("bob", kept).await["stdout"], "False\n");

    // While all are in use, a further principal is told to wait.
    let long = |user: &'static str| {
        let code = "import time; open('begun', 'w'); time.sleep(1000)";
        let arguments = json!({"code": code, "timeout": 60});
        let call = json!({"tool_name": "run_python", "user_id": user, "arguments": arguments});
        service.send("token", call)
    };
    let refused = async {
        eventually("both calls run", async || {
            let mut find = std::process::Command::new("find");
            find.arg(service.server.directory.path())
                .args(["-name", "begun"]);
            String::from_utf8(find.output().unwrap().stdout)
                .unwrap()
                .lines()
                .count()
                == 2
        })
        .await;
        let arguments = json!({"code": "1"});
        let answer = service.send(
            "token",
            json!({"tool_name": "run_python", "user_id": "carol", "arguments": arguments}),
        );
        let answer = answer.await;
        assert_eq!(answer.status, StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(answer.header("retry-after"), Some("5"));
        // A call that needs no sandbox needs no place.
        let listed = service.call("carol", "list_files", json!({})).await;
        assert_eq!(listed["success"], true, "{listed}");
    };
    tokio::select! {
        answer = long("alice") => panic!("{answer:?}"),
        answer = long("bob") => panic!("{answer:?}"),
        () = refused => {}
    }
    service.server.stop().await;
}

#[tokio::test]
async fn an_idle_sandbox_is_closed_and_the_next_call_has_another() {
    let stored = tempfile::tempdir().unwrap();
    let idle = |service: ToolService| service.idle(Duration::from_millis(100));
    let service = Service::start_with(stored, |builder| builder, idle).await;
    // A call that takes longer is not idle.
    let code = "import time; open('kept', 'w'); time.sleep(0.5); print(open('kept').read() == '')";
    assert!(
        service.python("alice", code).await["stdout"]
            .as_str()
            .unwrap()
            .starts_with("True")
    );
    eventually("it is closed", async || {
        service.server.sandbox_directories() == 0
    })
    .await;
    let seen = service
        .python("alice", "import os; print(os.listdir())")
        .await;
    assert_eq!(seen["stdout"], "[]\n");
    service.server.stop().await;
}

#[tokio::test]
async fn a_sandbox_that_ended_is_replaced() {
    let service = Service::start(|builder| builder).await;
    let mark = unique_id();
    let code =
        format!("import os; os.execve('/bin/sleep', ['sleep', '1000'], {{'MARK': '{mark}'}})");
    let running = service.call("alice", "run_python", json!({"code": code, "timeout": 60}));
    let (lost, ()) = tokio::join!(running, kill_above(&mark, "cantle-init"));
    assert_eq!(lost["success"], false, "{lost}");
    assert!(
        !lost["error"].as_str().unwrap().contains("timed out"),
        "{lost}"
    );
    // The next call has another sandbox.
    let seen = service
        .python("alice", "import os; print(os.listdir())")
        .await;
    assert_eq!(seen["stdout"], "[]\n");
    assert_eq!(service.server.sandbox_directories(), 1);
    service.server.stop().await;
}

#[tokio::test]
async fn code_reaches_nothing_of_the_service() {
    let service = Service::start(|builder| builder).await;
    let (port, stored) = (
        service.server.address.port(),
        service.stored.path().display(),
    );
    let code = format!(
        "import glob, os, socket\n\
         print([p for p in ('{stored}/catalogue.sqlite', '{stored}/objects') if os.path.exists(p)])\n\
         text = ''\n\
         for p in glob.glob('/proc/*/environ') + glob.glob('/proc/*/cmdline'):\n\
         \x20   try: text += open(p, 'rb').read().decode('latin-1')\n\
         \x20   except OSError: pass\n\
         print('signing-secret' in text, 'Bearer' in text)\n\
         for host in ('127.0.0.1', 'localhost', '::1'):\n\
         \x20   try: socket.create_connection((host, {port}), 2); print('connected')\n\
         \x20   except OSError: print('refused')"
    );
    let seen = service.python("alice", &code).await;
    assert_eq!(
        seen["stdout"],
        "[]\nFalse False\nrefused\nrefused\nrefused\n"
    );
    let shell = |command: String| service.call("alice", "run_shell", json!({"command": command}));
    for command in [
        format!("cat {stored}/catalogue.sqlite"),
        format!("ls {stored}"),
        format!("curl -sS -m 5 http://127.0.0.1:{port}/health"),
        "cat /proc/1/environ | grep -a signing-secret".to_owned(),
    ] {
        let result = shell(command.clone()).await;
        assert_eq!(result["success"], false, "{command}: {result}");
    }
    service.server.stop().await;
}
