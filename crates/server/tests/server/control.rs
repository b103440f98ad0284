//! The control plane: authorization, quotas, responses.

use cantle_core::policy::Policy;
use cantle_core::secret::SecretText;
use cantle_server::{ServeErrorKind, ServerLimits};
use http::{Method, Request, StatusCode};
use http_body_util::Full;
use serde_json::{Value, json};

use crate::support::{builder, serve, serve_with, shared_tempdir};

#[tokio::test]
async fn a_sandbox_is_created_runs_a_command_and_is_killed() {
    let server = serve().await;
    let sandbox = server.create_default().await;
    let (written, end) = sandbox
        .run("pwd; whoami; echo $HOME $E2B_SANDBOX_ID; exit 3")
        .await;
    assert_eq!(
        written,
        format!("/home/user\nuser\n/home/user {}\n", sandbox.id)
    );
    let status = "exit status 3";
    assert_eq!(
        end,
        json!({ "exitCode": 3, "exited": true, "status": status, "error": status })
    );
    assert_eq!(server.sandbox_directories(), 1);
    assert_eq!(sandbox.kill().await, StatusCode::NO_CONTENT);
    assert_eq!(sandbox.kill().await, StatusCode::NOT_FOUND);
    assert_eq!(server.sandbox_directories(), 0);
    let health = sandbox.get("/health").await;
    assert_eq!(health.status, StatusCode::BAD_GATEWAY);
    assert_eq!(
        health.json(),
        json!({ "sandboxId": sandbox.id, "message": "The sandbox was not found", "code": 502 })
    );
    server.stop().await;
}

#[tokio::test]
async fn each_key_has_separate_sandboxes() {
    let keys = [SecretText::from("one"), SecretText::from("two")];
    let server = serve_with(|builder| builder.key(&keys[0]).key(&keys[1])).await;
    let create = |key: &'static str| {
        let body = Some(json!({ "templateID": "base" }));
        server.control_as(key, Method::POST, "/v2/sandboxes", body)
    };
    assert_eq!(create("three").await.status, StatusCode::UNAUTHORIZED);
    assert_eq!(create("").await.status, StatusCode::UNAUTHORIZED);
    let made = create("one").await.json();
    let path = format!("/sandboxes/{}", made["sandboxID"].as_str().unwrap());
    let list = server
        .control_as("two", Method::GET, "/v2/sandboxes", None)
        .await;
    assert_eq!(
        (list.json(), list.header("x-total-running")),
        (json!([]), Some("0"))
    );
    for method in [Method::GET, Method::DELETE] {
        let answer = server.control_as("two", method, &path, None).await;
        assert_eq!(answer.status, StatusCode::NOT_FOUND);
    }
    let answer = server.control_as("one", Method::GET, &path, None).await;
    assert_eq!(answer.status, StatusCode::OK);
    server.stop().await;
}

#[tokio::test]
async fn a_public_address_needs_a_key() {
    let directory = shared_tempdir();
    let error = builder(&directory)
        .bind("0.0.0.0:0".parse().unwrap())
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ServeErrorKind::KeyNeeded);
    let with_key = builder(&directory).key(&"key".into());
    with_key.bind("0.0.0.0:0".parse().unwrap()).await.unwrap();
}

#[tokio::test]
async fn without_keys_cross_origin_pages_are_refused() {
    let server = serve().await;
    let request = |host: &str| {
        let request = Request::get("/v2/sandboxes")
            .header("host", host)
            .header("x-api-key", "x");
        request.body(Full::default()).unwrap()
    };
    assert_eq!(
        server.ask(request("evil.example.com:3010")).await.status,
        StatusCode::FORBIDDEN
    );
    assert_eq!(
        server.ask(request("localhost:3010")).await.status,
        StatusCode::OK
    );
    server.stop().await;
}

#[tokio::test]
async fn quotas_are_enforced_and_clients_told_not_to_retry() {
    let mut limits = ServerLimits::default();
    limits.sandboxes = 3;
    limits.sandboxes_per_key = 2;
    let server =
        serve_with(|builder| builder.limits(limits).key(&"a".into()).key(&"b".into())).await;
    let create = |key: &'static str| {
        let body = Some(json!({ "templateID": "base" }));
        server.control_as(key, Method::POST, "/sandboxes", body)
    };
    let first = create("a").await;
    assert_eq!(first.status, StatusCode::CREATED);
    assert_eq!(create("a").await.status, StatusCode::CREATED);
    let refused = create("a").await;
    assert_eq!(refused.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(refused.header("should-retry"), Some("false"));
    assert_eq!(create("b").await.status, StatusCode::CREATED);
    let refused = create("b").await;
    assert_eq!(refused.json()["error_code"], "sandbox_capacity_unavailable");
    let path = format!("/sandboxes/{}", first.json()["sandboxID"].as_str().unwrap());
    let killed = server.control_as("a", Method::DELETE, &path, None).await;
    assert_eq!(killed.status, StatusCode::NO_CONTENT);
    assert_eq!(create("b").await.status, StatusCode::CREATED);
    server.stop().await;
}

#[tokio::test]
async fn unsupported_requests_are_refused() {
    let server = serve().await;
    let refused = async |body: Value| {
        let answer = server
            .control(Method::POST, "/v2/sandboxes", Some(body))
            .await;
        let error = answer.json();
        assert_eq!(error["code"], answer.status.as_u16());
        (
            answer.status.as_u16(),
            error["message"].as_str().unwrap().to_owned(),
        )
    };
    for (body, status, expected) in [
        (json!({}), 400, "templateID"),
        (json!({ "templateID": "x" }), 404, "template 'x' not found"),
        (
            json!({ "templateID": "base", "timeout": -1 }),
            400,
            "negative",
        ),
        (
            json!({ "templateID": "base", "timeout": 10_000_000 }),
            400,
            "86400",
        ),
        (json!({ "templateID": "base", "mcp": {} }), 400, "mcp"),
        (
            json!({ "templateID": "base", "volumeMounts": [{}] }),
            400,
            "volumeMounts",
        ),
        (
            json!({ "templateID": "base", "network": { "dnsServers": ["1.1.1.1"] } }),
            400,
            "dnsServers",
        ),
        (json!({ "templateID": 3 }), 400, "invalid request"),
        (
            json!({ "templateID": "base", "envVars": { "A": "x\0y" } }),
            400,
            "variable `A`",
        ),
        (
            json!({ "templateID": "base", "envVars": { "A=B": "x" } }),
            400,
            "variable `A=B`",
        ),
    ] {
        let (code, message) = refused(body.clone()).await;
        assert!(
            code == status && message.contains(expected),
            "{body}: {code} {message}"
        );
    }
    let fork = "/sandboxes/none/fork";
    for (path, status) in [
        ("/v3/templates", 501),
        ("/snapshots", 501),
        ("/v2/secrets/x", 501),
        ("/x", 404),
        (fork, 404),
    ] {
        let answer = server.control(Method::POST, path, Some(json!({}))).await;
        assert_eq!(answer.json()["code"], status, "{path}");
    }
    assert_eq!(server.sandbox_directories(), 0);
    let sandbox = server.create_default().await;
    let fork = format!("/sandboxes/{}/fork", sandbox.id);
    let answer = server.control(Method::POST, &fork, Some(json!({}))).await;
    assert_eq!(answer.json()["code"], 501);
    server.stop().await;
}

#[tokio::test]
async fn existing_templates_are_found() {
    let server = serve().await;
    for (alias, status) in [("base", 200), ("base:latest", 200), ("other", 404)] {
        let path = format!("/templates/aliases/{alias}");
        let answer = server.control(Method::GET, &path, None).await;
        assert_eq!(answer.status.as_u16(), status, "{alias}");
    }
    server.stop().await;
}

#[tokio::test]
async fn null_means_absent() {
    let server = serve().await;
    let network = json!({ "allowOut": null, "denyOut": null, "dnsServers": null });
    let body = json!({ "templateID": "base", "timeout": null, "network": network });
    let sandbox = server.create(body).await;
    let process = json!({ "cmd": "/bin/true", "args": null, "envs": null, "cwd": null });
    let start = json!({ "process": process, "pty": null, "tag": null, "stdin": null });
    let mut stream = sandbox.stream("process.Process/Start", start, &[]).await;
    assert_eq!(stream.until_end().await["exited"], true);
    for (method, message) in [
        ("ListDir", json!({ "path": null, "depth": null })),
        ("CreateWatcher", json!({ "path": null, "recursive": null })),
    ] {
        let method = format!("filesystem.Filesystem/{method}");
        let answer = sandbox.call(&method, message).await;
        assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
    }
    server.stop().await;
}

#[tokio::test]
async fn a_repeated_request_has_the_same_response() {
    let server = serve().await;
    let create = async |key: &str, timeout: u32| {
        let request = Request::post("/v2/sandboxes")
            .header("x-api-key", "key")
            .header("idempotency-key", key);
        let body = json!({ "templateID": "base", "timeout": timeout }).to_string();
        server.ask(request.body(Full::from(body)).unwrap()).await
    };
    let (first, again) = (create("k-1", 60).await, create("k-1", 60).await);
    assert_eq!(again.status, StatusCode::CREATED);
    assert_eq!(first.json(), again.json());
    let other = create("k-1", 61).await;
    assert_eq!(other.status, StatusCode::CONFLICT);
    assert_eq!(other.json()["error_code"], "idempotency_request_mismatch");
    assert_ne!(create("k-2", 60).await.json(), first.json());
    assert_eq!(create("K", 60).await.status, StatusCode::BAD_REQUEST);
    server.stop().await;
}

#[tokio::test]
async fn lists_come_in_pages_and_by_metadata() {
    let server = serve().await;
    let mut ids = Vec::new();
    for index in 0..5 {
        let metadata = json!({ "index": index.to_string(), "all": "a b" });
        let body = json!({ "templateID": "base", "metadata": metadata });
        ids.push(server.create(body).await.id);
    }
    let list = async |query: &str| {
        let path = format!("/v2/sandboxes?{query}");
        let answer = server.control(Method::GET, &path, None).await;
        let ids: Vec<String> = answer
            .json()
            .as_array()
            .unwrap()
            .iter()
            .map(|one| one["sandboxID"].as_str().unwrap().to_owned())
            .collect();
        (ids, answer.header("x-next-token").map(str::to_owned))
    };
    let (mut found, mut token) = list("limit=2&order=asc").await;
    while let Some(next) = token.take() {
        let (more, after) = list(&format!("limit=2&order=asc&nextToken={next}")).await;
        found.extend(more);
        token = after;
    }
    assert_eq!(found, ids);
    ids.reverse();
    assert_eq!(list("").await, (ids.clone(), None));
    assert_eq!(list("metadata=index%3D3").await.0, [ids[1].clone()]);
    assert_eq!(list("metadata=all%3Da%252520b").await.0.len(), 5);
    assert_eq!(list("state=paused").await.0, [""; 0]);
    let all = server.control(Method::GET, "/sandboxes", None).await.json();
    assert_eq!(all.as_array().unwrap().len(), 5);
    let newest = all[0]["startedAt"].as_str().unwrap();
    let since_newest = list(&format!("startedAfter={newest}")).await.0;
    assert_eq!(since_newest, [ids[0].clone()], "E2B includes the time");
    server.stop().await;
}

#[tokio::test]
async fn the_deadline_can_be_moved_and_connecting_only_extends_it() {
    let server = serve().await;
    let sandbox = server
        .create(json!({ "templateID": "base", "timeout": 100 }))
        .await;
    let end = async || {
        let path = format!("/sandboxes/{}", sandbox.id);
        server.control(Method::GET, &path, None).await.json()["endAt"].clone()
    };
    let post = async |what: &str, body: Value| {
        let path = format!("/sandboxes/{}/{what}", sandbox.id);
        server
            .control(Method::POST, &path, Some(body))
            .await
            .status
            .as_u16()
    };
    let first = end().await;
    assert_eq!(post("connect", json!({ "timeout": 10 })).await, 200);
    assert_eq!(end().await, first);
    assert_eq!(post("refreshes", json!({ "duration": 10 })).await, 204);
    assert_eq!(end().await, first);
    assert_eq!(post("timeout", json!({ "timeout": 50 })).await, 204);
    let shorter = end().await;
    assert!(shorter.as_str() < first.as_str(), "{shorter} {first}");
    assert_eq!(post("connect", json!({ "timeout": 200 })).await, 200);
    assert!(end().await.as_str() > first.as_str());
    assert_eq!(post("timeout", json!({})).await, 400);
    server.stop().await;
}

#[tokio::test]
async fn total_memory_is_that_of_the_policy() {
    let mut policy = Policy::workspace();
    policy.limits.memory_bytes = Some(256 << 20);
    let server = serve_with(|builder| builder.policy(policy)).await;
    let sandbox = server.create_default().await;
    let path = format!("/sandboxes/{}/metrics", sandbox.id);
    let one = server.control(Method::GET, &path, None).await.json();
    let path = format!("/sandboxes/metrics?sandbox_ids={}", sandbox.id);
    let many = server.control(Method::GET, &path, None).await.json();
    let many = &many["sandboxes"][&sandbox.id];
    assert_eq!(
        (&one[0]["memTotal"], &many["memTotal"]),
        (&json!(256 << 20), &json!(256 << 20))
    );
    server.stop().await;
}

#[tokio::test]
async fn resource_usage_is_measured() {
    let server = serve().await;
    let (one, other) = (server.create_default().await, server.create_default().await);
    let path = format!("/sandboxes/{}/metrics", one.id);
    let metrics = server.control(Method::GET, &path, None).await.json();
    assert!(metrics[0]["cpuCount"].as_u64().unwrap() > 0, "{metrics}");
    assert!(
        metrics[0]["memTotal"].as_u64() > metrics[0]["memUsed"].as_u64(),
        "{metrics}"
    );
    let now = metrics[0]["timestampUnix"].as_i64().unwrap();
    let count = async |start: i64, end: i64| {
        let path = format!("{path}?start={start}&end={end}");
        let metrics = server.control(Method::GET, &path, None).await.json();
        metrics.as_array().unwrap().len()
    };
    assert_eq!(count(now - 60, now + 60).await, 1);
    assert_eq!(count(now - 60, now - 30).await, 0);
    assert_eq!(count(now + 600, now + 660).await, 0);
    let info = format!("/sandboxes/{}", one.id);
    let info = server.control(Method::GET, &info, None).await.json();
    assert!(info["memoryMB"].as_u64().unwrap() > 0, "{info}");
    let path = format!(
        "/sandboxes/metrics?sandbox_ids={},{},nothing",
        one.id, other.id
    );
    let metrics = server.control(Method::GET, &path, None).await.json();
    assert_eq!(metrics["sandboxes"].as_object().unwrap().len(), 2);
    assert!(
        one.get("/metrics").await.json()["mem_total"]
            .as_u64()
            .unwrap()
            > 0
    );
    server.stop().await;
}

#[tokio::test]
async fn a_requested_network_is_enforced_or_refused() {
    let server = serve().await;
    let body = json!({ "templateID": "base", "allow_internet_access": false });
    let sandbox = server.create(body).await;
    let put = async |body: Value| {
        let path = format!("/sandboxes/{}/network", sandbox.id);
        server
            .control(Method::PUT, &path, Some(body))
            .await
            .status
            .as_u16()
    };
    assert_eq!(put(json!({ "allow_internet_access": false })).await, 204);
    assert_eq!(put(json!({ "allow_internet_access": true })).await, 400);
    assert_eq!(put(json!({ "denyOut": ["10.0.0.0/8"] })).await, 400);
    server.stop().await;
}
