//! Files over plain HTTP and RPC.

use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use http::{Method, StatusCode};
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::Frame;
use serde_json::{Value, json};

use crate::support::{Sandbox, TestResponse, serve, serve_with};

async fn names(sandbox: &Sandbox<'_>, path: &str) -> Vec<String> {
    let answer = sandbox
        .call("filesystem.Filesystem/ListDir", json!({ "path": path }))
        .await;
    let entries = answer.json()["entries"].clone();
    let names = entries.as_array().into_iter().flatten();
    names
        .map(|entry| entry["name"].as_str().unwrap().to_owned())
        .collect()
}

#[tokio::test]
async fn files_are_read_whole_and_in_parts() {
    let server = serve().await;
    let sandbox = server.create_default().await;
    let put = sandbox.put("a/b.txt", "0123456789").await;
    assert_eq!(
        put.json(),
        json!([{ "name": "b.txt", "type": "file", "path": "/home/user/a/b.txt" }])
    );
    let whole = sandbox.get("/files?path=a/b.txt").await;
    assert_eq!(
        (whole.status, whole.text().as_str()),
        (StatusCode::OK, "0123456789")
    );
    assert_eq!(whole.header("content-length"), Some("10"));
    assert_eq!(
        whole.header("content-type"),
        Some("text/plain; charset=utf-8")
    );
    assert_eq!(
        whole.header("content-disposition"),
        Some("inline; filename=\"b.txt\"")
    );
    let part = async |range: &str| -> TestResponse {
        let request = sandbox
            .request(Method::GET, "/files?path=a/b.txt")
            .header("range", range);
        server.ask(request.body(Full::default()).unwrap()).await
    };
    let some = part("bytes=2-4").await;
    assert_eq!((some.status.as_u16(), some.text().as_str()), (206, "234"));
    assert_eq!(some.header("content-range"), Some("bytes 2-4/10"));
    assert_eq!(part("bytes=10-").await.status.as_u16(), 416);
    sandbox.put("empty", "").await;
    let empty = sandbox.get("/files?path=empty").await;
    assert_eq!(empty.header("content-length"), Some("0"));
    for (path, status) in [
        ("nowhere", 404),
        ("a", 400),
        ("~root/x", 400),
        ("a%00b", 400),
    ] {
        let answer = sandbox.get(&format!("/files?path={path}")).await;
        assert_eq!(answer.json()["code"], status, "{path}");
    }
    server.stop().await;
}

#[tokio::test]
async fn links_are_followed_within_the_sandbox_only() {
    let server = serve().await;
    let sandbox = server.create_default().await;
    sandbox
        .run("echo in > file; ln -s file good; ln -s /etc/shells system; ln -s nowhere bad")
        .await;
    assert_eq!(sandbox.get("/files?path=good").await.text(), "in\n");
    assert!(
        sandbox
            .get("/files?path=system")
            .await
            .text()
            .contains("bash")
    );
    assert_eq!(
        sandbox.get("/files?path=bad").await.status,
        StatusCode::NOT_FOUND
    );
    // The host's file, which the sandbox can't see.
    for path in ["/etc/shadow", "/root", "/proc/1/environ"] {
        let answer = sandbox.get(&format!("/files?path={path}")).await;
        assert!(answer.status.is_client_error(), "{path}: {answer:?}");
    }
    let put = sandbox.put("/usr/written", "x").await;
    assert_eq!(put.status, StatusCode::FORBIDDEN);
    server.stop().await;
}

#[tokio::test]
async fn several_files_are_uploaded_in_one_form() {
    let server = serve().await;
    let sandbox = server.create_default().await;
    let large = "x".repeat(3_000_000);
    let form = |names: [&str; 2]| {
        let part = |name: &str| {
            format!(
                "--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"{name}\"\r\n\r\n{name}!{large}\r\n"
            )
        };
        let other = "--b\r\nContent-Disposition: form-data; name=\"other\"\r\n\r\nx\r\n";
        format!("{}{other}{}--b--\r\n", part(names[0]), part(names[1]))
    };
    let post = async |path: &str, names| {
        let request = sandbox
            .request(Method::POST, path)
            .header("content-type", "multipart/form-data; boundary=b")
            .header("x-metadata-Author", "me");
        server
            .ask(request.body(Full::from(form(names))).unwrap())
            .await
    };
    let answer = post("/files", ["dir/one", "/tmp/two%22"]).await;
    assert_eq!(
        answer.json(),
        json!([
            { "name": "one", "type": "file", "path": "/home/user/dir/one", "metadata": { "author": "me" } },
            { "name": "two\"", "type": "file", "path": "/tmp/two\"", "metadata": { "author": "me" } },
        ])
    );
    let body = sandbox.get("/files?path=dir/one").await.text();
    assert!(body == format!("dir/one!{large}"), "{} bytes", body.len());
    assert_eq!(
        post("/files", ["same", "./same"]).await.status,
        StatusCode::BAD_REQUEST
    );
    let stat = sandbox
        .call("filesystem.Filesystem/Stat", json!({ "path": "dir/one" }))
        .await
        .json();
    assert_eq!(stat["entry"]["metadata"], json!({ "author": "me" }));
    server.stop().await;
}

#[tokio::test]
async fn an_existing_file_keeps_its_mode() {
    let server = serve().await;
    let sandbox = server.create_default().await;
    sandbox.put("script", "echo 1").await;
    sandbox.run("chmod 750 script").await;
    sandbox.put("script", "echo 2").await;
    assert_eq!(
        sandbox.run("stat -c %a script; ./script").await.0,
        "750\n2\n"
    );
    server.stop().await;
}

#[tokio::test]
async fn a_large_file_streams_both_ways() {
    const CHUNK: usize = 1 << 20;
    const CHUNKS: usize = 64;
    let server = serve().await;
    let sandbox = server.create_default().await;
    let pieces = stream::iter(0..CHUNKS).map(|index| {
        let piece = Bytes::from(vec![u8::try_from(index).unwrap(); CHUNK]);
        Ok::<_, std::convert::Infallible>(Frame::data(piece))
    });
    let request = sandbox
        .request(Method::POST, "/files?path=large")
        .header("content-type", "application/octet-stream")
        .body(StreamBody::new(pieces))
        .unwrap();
    let put = server.send_streamed(request).await;
    assert_eq!(put.status, StatusCode::OK);
    let request = sandbox
        .request(Method::GET, "/files?path=large")
        .body(Full::default())
        .unwrap();
    let mut body = server.send(request).await.into_body();
    let mut read = 0;
    while let Some(frame) = body.frame().await {
        let data = frame.unwrap().into_data().unwrap();
        let expected = u8::try_from(read / CHUNK).unwrap();
        assert_eq!(data.first(), Some(&expected));
        read += data.len();
    }
    assert_eq!(read, CHUNK * CHUNKS);
    server.stop().await;
}

#[tokio::test]
async fn a_stalled_upload_is_aborted_and_leaves_nothing() {
    let mut limits = cantle_server::ServerLimits::default();
    limits.idle = Duration::from_millis(300);
    let server = serve_with(|builder| builder.limits(limits)).await;
    let sandbox = server.create_default().await;
    let first = stream::iter([Ok::<_, std::convert::Infallible>(Frame::data(Bytes::from(
        "x",
    )))]);
    let request = sandbox
        .request(Method::POST, "/files?path=half")
        .header("content-type", "application/octet-stream")
        .body(StreamBody::new(first.chain(stream::pending())))
        .unwrap();
    let put = server.send_streamed(request).await;
    assert_eq!(put.status, StatusCode::BAD_REQUEST);
    assert_eq!(names(&sandbox, "").await, [""; 0]);
    server.stop().await;
}

#[tokio::test]
async fn a_token_or_a_signature_is_required() {
    let server = serve().await;
    let mut sandbox = server.create_default().await;
    sandbox.put("file", "x").await;
    sandbox.token = "wrong".to_owned();
    for path in ["/files?path=file", "/envs", "/metrics"] {
        let answer = sandbox.get(path).await;
        assert_eq!(answer.json()["code"], 401, "{path}");
    }
    let call = sandbox
        .call("filesystem.Filesystem/Stat", json!({ "path": "file" }))
        .await;
    assert_eq!(call.status, StatusCode::UNAUTHORIZED);
    assert_eq!(sandbox.get("/health").await.status, StatusCode::NO_CONTENT);
    let signed = sandbox.get("/files?path=file&signature=v1_x").await;
    assert_eq!(signed.status, StatusCode::UNAUTHORIZED);
    server.stop().await;
}

#[tokio::test]
async fn entries_are_described() {
    let server = serve().await;
    let sandbox = server.create_default().await;
    sandbox
        .run("umask 022; mkdir d; printf 12345 > d/f; ln -s f d/l; mkfifo d/p")
        .await;
    // More than `find` takes.
    let list = json!({ "path": "d", "depth": u32::MAX });
    let listed = sandbox
        .call("filesystem.Filesystem/ListDir", list)
        .await
        .json();
    let entries: Vec<Value> = listed["entries"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| {
            let mut entry = entry.clone();
            let fields = entry.as_object_mut().unwrap();
            let modified = fields.remove("modifiedTime").unwrap();
            assert!(modified.as_str().unwrap().ends_with('Z'), "{modified}");
            entry
        })
        .collect();
    let entry = |name: &str, kind: &str, size: &str, mode: u32, permissions: &str| {
        json!({
            "name": name, "type": kind, "path": format!("/home/user/d/{name}"), "size": size, "mode": mode,
            "permissions": permissions, "owner": "user", "group": "user",
        })
    };
    let mut link = entry("l", "FILE_TYPE_FILE", "1", 0o644, "Lrwxrwxrwx");
    link["isSymlink"] = json!(true);
    link["symlinkTarget"] = json!("/home/user/d/f");
    assert_eq!(
        entries,
        [
            entry("f", "FILE_TYPE_FILE", "5", 0o644, "-rw-r--r--"),
            link,
            entry("p", "FILE_TYPE_UNSPECIFIED", "0", 0o644, "-rw-r--r--"),
        ]
    );
    server.stop().await;
}

#[tokio::test]
async fn metadata_of_commands_is_described() {
    let server = serve().await;
    let sandbox = server.create_default().await;
    let line = "import os; open('f', 'w'); os.setxattr('f', 'user.e2b.author', b'me')";
    let (_, end) = sandbox.run(&format!("python3 -c \"{line}\"")).await;
    if end["exited"] != json!(true) || !end["error"].is_null() {
        return cantle_testkit::lane::skip("the file system has no attributes");
    }
    let stat = sandbox.call("filesystem.Filesystem/Stat", json!({ "path": "f" }));
    let stat = stat.await.json();
    assert_eq!(stat["entry"]["metadata"], json!({ "author": "me" }));
    sandbox.run("ln -s f a; mv f g; touch h").await;
    let list = sandbox.call("filesystem.Filesystem/ListDir", json!({ "path": "" }));
    let list = list.await.json();
    let listed = list["entries"].as_array().unwrap().iter();
    let listed = listed.map(|entry| (entry["name"].as_str().unwrap(), &entry["metadata"]));
    let (author, none) = (json!({ "author": "me" }), Value::Null);
    let expected = [("a", &none), ("g", &author), ("h", &none)];
    let listed: Vec<_> = listed.filter(|(name, _)| name.len() == 1).collect();
    assert_eq!(listed, expected);
    server.stop().await;
}

#[tokio::test]
async fn hostile_names_are_listed() {
    let server = serve().await;
    let sandbox = server.create_default().await;
    sandbox
        .run(r#"touch $'new\nline' -- '-dash' 'sp ace' $'\xff' '%s' 'ü'"#)
        .await;
    let mut found = names(&sandbox, "").await;
    found.sort();
    assert_eq!(
        found,
        ["%s", "-dash", "new\nline", "sp ace", "ü", "\u{fffd}"]
    );
    server.stop().await;
}

#[tokio::test]
async fn directories_are_created_moved_and_removed() {
    let server = serve().await;
    let sandbox = server.create_default().await;
    let call = async |method: &str, message: Value| {
        let answer = sandbox
            .call(&format!("filesystem.Filesystem/{method}"), message)
            .await;
        (
            answer.status.as_u16(),
            answer.json()["code"].as_str().unwrap_or("").to_owned(),
        )
    };
    let ok = (200, String::new());
    let error = |status, code: &str| (status, code.to_owned());
    assert_eq!(call("MakeDir", json!({ "path": "a/b" })).await, ok);
    assert_eq!(
        call("MakeDir", json!({ "path": "a/b" })).await,
        error(409, "already_exists")
    );
    sandbox.put("a/f", "x").await;
    assert_eq!(
        call("MakeDir", json!({ "path": "a/f" })).await,
        error(400, "invalid_argument")
    );
    let to = json!({ "source": "a/f", "destination": "new/place/g" });
    assert_eq!(call("Move", to.clone()).await, ok);
    assert_eq!(call("Move", to).await, error(404, "not_found"));
    assert_eq!(
        call("Stat", json!({ "path": "a/f" })).await,
        error(404, "not_found")
    );
    assert_eq!(
        call("ListDir", json!({ "path": "new/place/g" })).await,
        error(400, "invalid_argument")
    );
    assert_eq!(call("Remove", json!({ "path": "new" })).await, ok);
    assert_eq!(call("Remove", json!({ "path": "new" })).await, ok);
    assert_eq!(names(&sandbox, "/home/user").await, ["a"]);
    assert_eq!(
        call("MakeDir", json!({ "path": "/usr/x" })).await,
        error(403, "permission_denied")
    );
    server.stop().await;
}

#[tokio::test]
async fn writing_follows_links_and_keeps_hard_links() {
    let server = serve().await;
    let sandbox = server.create_default().await;
    sandbox
        .run(
            "printf long-content > target; ln -s target link; ln target hard; ln -s new dangling; \
             ln -s /etc/shells system; ln -s . directory; mkfifo pipe; ln -s pipe to-pipe; \
             touch read-only; chmod 444 read-only",
        )
        .await;
    assert_eq!(sandbox.put("link", "one").await.status, StatusCode::OK);
    let (shown, _) = sandbox.run("cat target hard; readlink link").await;
    assert_eq!(shown, "oneonetarget\n");
    sandbox.put("target", "two").await;
    assert_eq!(sandbox.run("cat hard").await.0, "two");
    sandbox.put("dangling", "three").await;
    assert_eq!(sandbox.run("cat new").await.0, "three");
    sandbox.put("read-only", "four").await;
    assert_eq!(
        sandbox.run("cat read-only; stat -c %a read-only").await.0,
        "four444\n"
    );
    for (path, status) in [
        ("system", StatusCode::FORBIDDEN),
        ("directory", StatusCode::BAD_REQUEST),
        ("pipe", StatusCode::BAD_REQUEST),
        ("to-pipe", StatusCode::BAD_REQUEST),
    ] {
        let answer = sandbox.put(path, "x").await;
        assert_eq!(answer.status, status, "{path}: {answer:?}");
    }
    server.stop().await;
}
