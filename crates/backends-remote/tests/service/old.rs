//! Sandboxes of templates that were made long ago.

use bytes::Bytes;
use cantle_core::sandbox::{
    Backend as _, SandboxErrorKind, SandboxExt as _, SandboxPath, SpawnRequest, Stdin,
};

use crate::proxy::{Fate, Proxy, Seen};
use crate::support::Served;
use crate::{context, through};

/// What the server says of itself.
const NEW: &str = "\"envdVersion\":\"0.6.13\"";

fn older(answer: &str, version: &str) -> String {
    assert!(answer.contains(NEW), "{answer}");
    answer.replace(NEW, &format!("\"envdVersion\":\"{version}\""))
}

/// A proxy for a server that claims to be as old as this.
async fn of_version(served: &Served, change: fn(String) -> String) -> Proxy {
    let plan = move |seen: &Seen| match seen.makes_a_sandbox() {
        true => Fate::Changed(change),
        false => Fate::Passed,
    };
    Proxy::start(&served.url, plan).await
}

/// Bytes that a form must not take for its own.
fn content() -> Bytes {
    let mut bytes = b"\r\n--cantle-\r\nContent-Disposition: form-data\r\n\r\n--\r\n".to_vec();
    bytes.extend((0..3_000_000_u32).map(|it| (it % 251) as u8));
    bytes.extend(b"\r\n--");
    bytes.into()
}

#[tokio::test]
async fn files_go_to_an_old_sandbox_as_forms() {
    let served = Served::start().await;
    let proxy = of_version(&served, |answer| older(&answer, "0.5.6")).await;
    let sandbox = through(&proxy)
        .build()
        .unwrap()
        .open(context())
        .await
        .unwrap();
    let path: SandboxPath = "a \"strange\" näme; \r\n.bin".parse().unwrap();
    for content in [content(), Bytes::new()] {
        sandbox.write_bytes(&path, content.clone()).await.unwrap();
        let back = sandbox.read_bytes(&path, 10_000_000).await.unwrap();
        assert!(back == content, "{} bytes of {}", back.len(), content.len());
    }
    let uploads = proxy.seen(|it| it.path == "/files" && it.method == "POST");
    assert_eq!(uploads.len(), 2);
    for upload in uploads {
        let kind = upload.header("content-type");
        assert!(kind.starts_with("multipart/form-data; boundary="), "{kind}");
        // The user is the sandbox's choice already.
        assert!(!upload.query.contains("username"), "{}", upload.query);
        assert_eq!(upload.header("authorization"), "");
    }
    sandbox.close().await.unwrap();
    served.stop().await;
}

#[tokio::test]
async fn a_very_old_sandbox_is_told_who_its_user_is() {
    let served = Served::start().await;
    let proxy = of_version(&served, |answer| older(&answer, "0.3.9")).await;
    let sandbox = through(&proxy)
        .build()
        .unwrap()
        .open(context())
        .await
        .unwrap();
    let path: SandboxPath = "file".parse().unwrap();
    sandbox.write_bytes(&path, "text".into()).await.unwrap();
    let output = sandbox.run(SpawnRequest::shell("cat file")).await.unwrap();
    assert_eq!(output.stdout.text(), "text");
    assert_eq!(sandbox.read_bytes(&path, 10).await.unwrap(), "text");
    let files = proxy.seen(|it| it.path == "/files");
    assert_eq!(files.len(), 2);
    for file in files {
        assert!(file.query.contains("username=user"), "{}", file.query);
    }
    let calls = proxy.seen(|it| it.path.starts_with("/process.") || it.path.starts_with("/filesy"));
    assert!(calls.len() > 3);
    for call in calls {
        // `user` and no password.
        assert_eq!(
            call.header("authorization"),
            "Basic dXNlcjo=",
            "{}",
            call.path
        );
    }
    // It would wait for its input's end for ever.
    let request = SpawnRequest::shell("cat").with_stdin(Stdin::Bytes("text".into()));
    let error = sandbox.run(request).await.unwrap_err();
    assert_eq!(error.kind(), SandboxErrorKind::Unsupported);
    assert!(error.advice().is_some());
    sandbox.close().await.unwrap();
    served.stop().await;
}
