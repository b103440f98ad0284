//! Processes over RPC.

use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use cantle_server::ServerLimits;
use http::{Method, StatusCode};
use http_body_util::Full;
use serde_json::{Value, json};

use crate::support::{DEADLINE, Sandbox, StreamEvent, eventually, serve, serve_with};

async fn call(sandbox: &Sandbox<'_>, method: &str, message: Value) -> (u16, String) {
    let answer = sandbox
        .call(&format!("process.Process/{method}"), message)
        .await;
    (
        answer.status.as_u16(),
        answer.json()["code"].as_str().unwrap_or("").to_owned(),
    )
}

async fn running(sandbox: &Sandbox<'_>) -> usize {
    let list = sandbox.call("process.Process/List", json!({})).await.json();
    list["processes"].as_array().map_or(0, Vec::len)
}

const OK: (u16, String) = (200, String::new());

fn error(status: u16, code: &str) -> (u16, String) {
    (status, code.to_owned())
}

#[tokio::test]
async fn a_time_limit_kills_the_whole_process_tree() {
    let server = serve().await;
    let sandbox = server.create_default().await;
    let line = "setsid bash -c 'trap \"\" TERM; while true; do date +%N > alive; done' & sleep 300";
    let started = Instant::now();
    let mut stream = sandbox.start(line, &[("connect-timeout-ms", "2000")]).await;
    stream.pid().await;
    let end = loop {
        match stream.next().await {
            StreamEvent::Message(_) => {}
            other => break other,
        }
    };
    let StreamEvent::End(end) = end else {
        panic!("{end:?}")
    };
    assert_eq!(end["error"]["code"], "deadline_exceeded");
    // The command would never end by itself.
    assert!(started.elapsed() < DEADLINE, "{:?}", started.elapsed());
    eventually("nothing runs", async || running(&sandbox).await == 0).await;
    let (last, _) = sandbox.run("rm -f alive; sleep 0.3; ls").await;
    assert!(!last.contains("alive"), "{last}");
    server.stop().await;
}

#[tokio::test]
async fn disconnecting_does_not_end_a_command_and_others_may_subscribe() {
    let server = serve().await;
    let sandbox = server.create_default().await;
    let line = "until [ -e go ]; do sleep 0.02; done; echo told; exit 2";
    let mut first = sandbox.start(line, &[]).await;
    let pid = first.pid().await;
    drop(first);
    let selector = json!({ "process": { "pid": pid } });
    let mut listeners = Vec::new();
    for _ in 0..2 {
        let mut other = sandbox
            .stream("process.Process/Connect", selector.clone(), &[])
            .await;
        assert_eq!(other.pid().await, pid);
        listeners.push(other);
    }
    sandbox.put("go", "").await;
    for mut listener in listeners {
        assert_eq!(listener.until_written("told\n").await, "told\n");
        assert_eq!(listener.event().await.unwrap()["end"]["exitCode"], 2);
        assert_eq!(listener.event().await, None);
    }
    // An ended command can still be queried.
    let mut late = sandbox
        .stream("process.Process/Connect", selector, &[])
        .await;
    assert_eq!(late.pid().await, pid);
    assert_eq!(late.event().await.unwrap()["end"]["exitCode"], 2);
    assert_eq!(late.event().await, None);
    let unknown = json!({ "process": { "pid": 4_000_000 } });
    let mut unknown = sandbox
        .stream("process.Process/Connect", unknown, &[])
        .await;
    let StreamEvent::End(end) = unknown.next().await else {
        panic!()
    };
    assert_eq!(end["error"]["code"], "not_found");
    server.stop().await;
}

#[tokio::test]
async fn keepalive_messages_are_sent() {
    let server = serve().await;
    let sandbox = server.create_default().await;
    let mut stream = sandbox
        .start("sleep 300", &[("keepalive-ping-interval", "1")])
        .await;
    stream.pid().await;
    assert_eq!(stream.event().await, Some(json!({ "keepalive": {} })));
    server.stop().await;
}

#[tokio::test]
async fn stdin_is_written_closed_and_refused_if_absent() {
    let server = serve().await;
    let sandbox = server.create_default().await;
    let start = json!({ "process": { "cmd": "cat" }, "tag": "reader" });
    let mut stream = sandbox.stream("process.Process/Start", start, &[]).await;
    let pid = stream.pid().await;
    let selector = json!({ "tag": "reader" });
    let send = |input: Value| json!({ "process": selector, "input": input });
    let data = STANDARD.encode("ping");
    assert_eq!(
        call(&sandbox, "SendInput", send(json!({ "stdin": data }))).await,
        OK
    );
    assert!(stream.until_written("ping").await.contains("ping"));
    let to_terminal = send(json!({ "pty": data }));
    assert_eq!(
        call(&sandbox, "SendInput", to_terminal).await,
        error(500, "internal")
    );
    let close = json!({ "process": { "pid": pid } });
    assert_eq!(call(&sandbox, "CloseStdin", close.clone()).await, OK);
    assert_eq!(stream.event().await.unwrap()["end"]["exited"], true);
    assert_eq!(
        call(&sandbox, "CloseStdin", close).await,
        error(404, "not_found")
    );
    let mut without = sandbox.start("sleep 300", &[]).await;
    let pid = without.pid().await;
    let message = json!({ "process": { "pid": pid }, "input": { "stdin": data } });
    assert_eq!(
        call(&sandbox, "SendInput", message).await,
        error(500, "internal")
    );
    server.stop().await;
}

#[tokio::test]
async fn signals_reach_a_command_and_kill_ends_its_tree() {
    let server = serve().await;
    let sandbox = server.create_default().await;
    let line = "trap 'echo caught; exit 9' TERM; echo ready; while true; do sleep 0.05; done";
    let mut stream = sandbox.start(line, &[]).await;
    let pid = stream.pid().await;
    stream.until_written("ready").await;
    let signal = |pid: u64, signal: Value| json!({ "process": { "pid": pid }, "signal": signal });
    assert_eq!(
        call(&sandbox, "SendSignal", signal(pid, json!("SIGNAL_SIGTERM"))).await,
        OK
    );
    stream.until_written("caught").await;
    assert_eq!(stream.until_end().await["exitCode"], 9);
    let mut stream = sandbox
        .start("setsid sleep 321 & echo ready; sleep 321", &[])
        .await;
    let pid = stream.pid().await;
    stream.until_written("ready").await;
    assert_eq!(
        call(&sandbox, "SendSignal", signal(pid, json!(9))).await,
        OK
    );
    let end = stream.until_end().await;
    assert_eq!(
        (end["exitCode"].as_i64(), &end["status"]),
        (Some(-1), &json!("signal: killed"))
    );
    // Processes may end while /proc is read.
    let count = "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' ' | grep -c 'sleep 32[1]'";
    eventually("nothing of it is left", async || {
        sandbox.run(count).await.0 == "0\n"
    })
    .await;
    assert_eq!(
        call(&sandbox, "SendSignal", signal(pid, json!(9))).await,
        error(404, "not_found")
    );
    assert_eq!(
        call(&sandbox, "SendSignal", signal(pid, json!(0))).await.0,
        404
    );
    server.stop().await;
}

#[tokio::test]
async fn a_terminal_has_a_size_and_accepts_keys() {
    let server = serve().await;
    let sandbox = server.create_default().await;
    let size = |cols: u32, rows: u32| json!({ "size": { "cols": cols, "rows": rows } });
    let start = json!({
        "process": { "cmd": "/bin/bash", "args": ["--norc"], "envs": { "PS1": "> " } },
        "pty": size(80, 24),
    });
    let mut stream = sandbox.stream("process.Process/Start", start, &[]).await;
    let pid = stream.pid().await;
    let keys = |line: &str| json!({ "process": { "pid": pid }, "input": { "pty": STANDARD.encode(line) } });
    assert_eq!(call(&sandbox, "SendInput", keys("stty size\n")).await, OK);
    stream.until_written("24 80").await;
    let update = json!({ "process": { "pid": pid }, "pty": size(100, 30) });
    assert_eq!(call(&sandbox, "Update", update).await, OK);
    assert_eq!(call(&sandbox, "SendInput", keys("stty size\n")).await, OK);
    stream.until_written("30 100").await;
    let to_stdin = json!({ "process": { "pid": pid }, "input": { "stdin": "eA==" } });
    assert_eq!(
        call(&sandbox, "SendInput", to_stdin).await,
        error(500, "internal")
    );
    let close = json!({ "process": { "pid": pid } });
    assert_eq!(
        call(&sandbox, "CloseStdin", close).await,
        error(500, "unknown")
    );
    server.stop().await;
}

#[tokio::test]
async fn start_failures_have_reasons() {
    let server = serve().await;
    let sandbox = server.create_default().await;
    let ended = async |process: Value| {
        let start = json!({ "process": process });
        let mut stream = sandbox.stream("process.Process/Start", start, &[]).await;
        let StreamEvent::End(end) = stream.next().await else {
            panic!("the command was started")
        };
        let error = &end["error"];
        (
            error["code"].clone(),
            error["message"].as_str().unwrap().to_owned(),
        )
    };
    for (process, expected) in [
        (json!({}), "the command is missing"),
        (json!({ "cmd": "no-such-program" }), "no-such-program"),
        (json!({ "cmd": "/etc/shells" }), "/etc/shells"),
        (
            json!({ "cmd": "ls", "cwd": "nowhere" }),
            "cwd 'nowhere' does not exist",
        ),
        (
            json!({ "cmd": "ls", "cwd": "/nowhere" }),
            "cwd '/nowhere' does not exist",
        ),
        (json!({ "cmd": "ls", "envs": { "A=B": "x" } }), "A=B"),
    ] {
        let (code, message) = ended(process.clone()).await;
        assert!(
            code == "invalid_argument" && message.contains(expected),
            "{process}: {code} {message}"
        );
    }
    server.stop().await;
}

#[tokio::test]
async fn malformed_calls_are_refused() {
    let server = serve().await;
    let sandbox = server.create_default().await;
    let ask = async |method: Method, path: &str, kind: &str, body: &'static str| {
        let request = sandbox.request(method, path).header("content-type", kind);
        server.ask(request.body(Full::from(body)).unwrap()).await
    };
    let list = "/process.Process/List";
    let json = "application/json";
    assert_eq!(
        ask(Method::GET, list, json, "").await.status,
        StatusCode::METHOD_NOT_ALLOWED
    );
    assert_eq!(
        ask(Method::POST, list, "application/proto", "")
            .await
            .status
            .as_u16(),
        415
    );
    assert_eq!(
        ask(Method::POST, list, json, "{").await.status,
        StatusCode::OK
    );
    assert_eq!(
        ask(Method::POST, "/process.Process/No", json, "{}")
            .await
            .status
            .as_u16(),
        404
    );
    assert_eq!(
        ask(Method::POST, "/other.Service/List", json, "{}")
            .await
            .status
            .as_u16(),
        404
    );
    let bad = ask(Method::POST, "/process.Process/SendSignal", json, "{").await;
    assert_eq!(bad.json()["code"], "invalid_argument");
    let charset = ask(Method::POST, list, "application/json; charset=utf-8", "{}").await;
    assert_eq!(
        (charset.status, charset.header("content-type")),
        (StatusCode::OK, Some(json))
    );
    server.stop().await;
}

#[tokio::test]
async fn output_waits_for_a_slow_subscriber_but_not_for_a_stalled_one() {
    let mut limits = ServerLimits::default();
    limits.idle = Duration::from_millis(500);
    let server = serve_with(|builder| builder.limits(limits)).await;
    let sandbox = server.create_default().await;
    let line = "head -c 50000000 /dev/zero; echo done > finished; sleep 300";
    let mut stream = sandbox.start(line, &[]).await;
    stream.pid().await;
    // The reader is idle, so the command eventually continues without it.
    eventually("the command has written all of it", async || {
        sandbox.get("/files?path=finished").await.status == StatusCode::OK
    })
    .await;
    server.stop().await;
}

#[tokio::test]
async fn a_stalled_subscriber_does_not_delay_the_end_for_others() {
    let server = serve().await;
    let sandbox = server.create_default().await;
    let line = "while head -c 100000 /dev/zero; do echo >> blocks; done";
    let mut stream = sandbox.start(line, &[]).await;
    let pid = stream.pid().await;
    let (count, mut blocks) = ("[ -s blocks ] && wc -c < blocks; sleep 0.2", String::new());
    eventually("the command waits for the reader", async || {
        let now = sandbox.run(count).await.0;
        let before = std::mem::replace(&mut blocks, now.clone());
        !now.is_empty() && before == now
    })
    .await;
    let message = json!({ "process": { "pid": pid }, "signal": 9 });
    assert_eq!(call(&sandbox, "SendSignal", message).await, OK);
    assert_eq!(running(&sandbox).await, 0);
    server.stop().await;
}

#[tokio::test]
async fn the_number_of_commands_is_limited() {
    let mut limits = ServerLimits::default();
    limits.commands = 2;
    let server = serve_with(|builder| builder.limits(limits)).await;
    let sandbox = server.create_default().await;
    let mut streams = Vec::new();
    for _ in 0..2 {
        let mut stream = sandbox.start("sleep 300", &[]).await;
        stream.pid().await;
        streams.push(stream);
    }
    let mut refused = sandbox.start("true", &[]).await;
    let StreamEvent::End(end) = refused.next().await else {
        panic!()
    };
    assert_eq!(end["error"]["code"], "resource_exhausted");
    server.stop().await;
}

#[tokio::test]
async fn other_user_names_are_refused() {
    let server = serve().await;
    let sandbox = server.create_default().await;
    let root = format!("Basic {}", STANDARD.encode("root:"));
    let mut stream = sandbox.start("id", &[("authorization", &root)]).await;
    let StreamEvent::End(end) = stream.next().await else {
        panic!()
    };
    assert_eq!(end["error"]["code"], "unauthenticated");
    let own = format!("Basic {}", STANDARD.encode("user:"));
    sandbox
        .start("id", &[("authorization", &own)])
        .await
        .pid()
        .await;
    let file = sandbox.get("/files?path=x&username=root").await;
    assert_eq!(file.status, StatusCode::UNAUTHORIZED);
    server.stop().await;
}
