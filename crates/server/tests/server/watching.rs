//! Watched directories.

use http::StatusCode;
use serde_json::{Value, json};

use crate::support::{Sandbox, Stream, StreamEvent, eventually, serve};

async fn watch(sandbox: &Sandbox<'_>) -> Value {
    let create = json!({ "path": "" });
    let answer = sandbox.call("filesystem.Filesystem/CreateWatcher", create);
    let created = answer.await.json();
    json!({ "watcherId": created["watcherId"] })
}

/// Returns the events since the latest call.
async fn events(sandbox: &Sandbox<'_>, watcher: &Value) -> Vec<Value> {
    let call = "filesystem.Filesystem/GetWatcherEvents";
    let answer = sandbox.call(call, watcher.clone()).await.json();
    answer["events"].as_array().cloned().unwrap_or_default()
}

#[tokio::test]
async fn changes_are_reported_by_each_watcher() {
    let server = serve().await;
    let sandbox = server.create_default().await;
    let (one, other) = (watch(&sandbox).await, watch(&sandbox).await);
    sandbox
        .run("for n in $(seq 500); do echo x > f$n; done")
        .await;
    for watcher in [&one, &other] {
        let events = events(&sandbox, watcher).await;
        let created = events
            .iter()
            .filter(|event| event["type"] == "EVENT_TYPE_CREATE");
        assert_eq!(created.count(), 500);
    }
    sandbox.run("rm f*").await;
    assert_eq!(events(&sandbox, &one).await.len(), 500);
    let removed = sandbox
        .call("filesystem.Filesystem/RemoveWatcher", one.clone())
        .await;
    assert_eq!(removed.status, StatusCode::OK);
    let gone = sandbox
        .call("filesystem.Filesystem/GetWatcherEvents", one)
        .await;
    assert_eq!(gone.json()["code"], "not_found");
    server.stop().await;
}

#[tokio::test]
async fn an_upload_of_a_new_file_is_three_events() {
    let server = serve().await;
    let sandbox = server.create_default().await;
    let watcher = watch(&sandbox).await;
    sandbox.put("/home/user/uploaded", "content").await;
    sandbox.run("echo x > written").await;
    let events = events(&sandbox, &watcher).await;
    let expected = json!([
        { "name": "uploaded", "type": "EVENT_TYPE_CREATE" },
        { "name": "uploaded", "type": "EVENT_TYPE_CHMOD" },
        { "name": "uploaded", "type": "EVENT_TYPE_WRITE" },
        { "name": "written", "type": "EVENT_TYPE_CREATE" },
        { "name": "written", "type": "EVENT_TYPE_WRITE" },
    ]);
    assert_eq!(Value::from(events), expected);
    server.stop().await;
}

#[tokio::test]
async fn changes_between_two_fetches_are_reported() {
    let server = serve().await;
    let sandbox = server.create_default().await;
    let watcher = watch(&sandbox).await;
    // Repeated, because a busy machine may look too late.
    eventually("a short-lived file is seen", async || {
        sandbox.run("touch short; sleep 0.5; rm short").await;
        let events = events(&sandbox, &watcher).await;
        let kinds: Vec<&Value> = events.iter().map(|event| &event["type"]).collect();
        kinds == ["EVENT_TYPE_CREATE", "EVENT_TYPE_REMOVE"]
    })
    .await;
    server.stop().await;
}

/// Returns the id of a new process in the sandbox, which counts those before it.
async fn process_number(sandbox: &Sandbox<'_>) -> u32 {
    let (shown, _) = sandbox.run("exec sh -c 'echo $$'").await;
    shown.trim().parse().unwrap()
}

/// Reads messages of a watched directory until `count` keep-alive messages have come, one a second.
async fn keepalives(stream: &mut Stream, count: usize) {
    for _ in 0..count {
        let message = stream.next().await;
        assert_eq!(message, StreamEvent::Message(json!({ "keepalive": {} })));
    }
}

/// Reads messages until a change is reported.
async fn next_change(stream: &mut Stream) -> Value {
    loop {
        match stream.next().await {
            StreamEvent::Message(message) if message["filesystem"].is_null() => {}
            StreamEvent::Message(message) => return message["filesystem"].clone(),
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_watchers_start_no_process() {
    let server = serve().await;
    let sandbox = server.create_default().await;
    sandbox
        .run("mkdir -p many/{1..20}; cd many; for d in *; do touch $d/{1..20}; done")
        .await;
    let many = json!({ "path": "many", "recursive": true });
    let watch = "filesystem.Filesystem/WatchDir";
    let every_second = [("keepalive-ping-interval", "1")];
    let mut stream = sandbox.stream(watch, many.clone(), &every_second).await;
    let started = StreamEvent::Message(json!({ "start": {} }));
    assert_eq!(stream.next().await, started);
    let create = sandbox.call("filesystem.Filesystem/CreateWatcher", many);
    let watcher = json!({ "watcherId": create.await.json()["watcherId"] });

    let cost_of_asking = {
        let first = process_number(&sandbox).await;
        process_number(&sandbox).await - first
    };
    // Directories are listed until they are watched. Without notices, each would be listed at least once a second.
    eventually("nothing is listed any more", async || {
        let before = process_number(&sandbox).await;
        keepalives(&mut stream, 3).await;
        process_number(&sandbox).await - before <= cost_of_asking
    })
    .await;
    // New directories are watched, too.
    for (line, name) in [
        ("mkdir many/7/new", "7/new"),
        ("touch many/7/new/file", "7/new/file"),
    ] {
        sandbox.run(line).await;
        let event = json!({ "name": name, "type": "EVENT_TYPE_CREATE" });
        assert_eq!(next_change(&mut stream).await, event);
        assert_eq!(events(&sandbox, &watcher).await, [event]);
    }
    server.stop().await;
}
