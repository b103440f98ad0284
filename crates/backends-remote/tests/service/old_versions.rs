//! Sandboxes with old versions of envd.

use bytes::Bytes;
use cantle_core::sandbox::{SandboxErrorKind, SandboxExt as _, SandboxPath, SpawnRequest, Stdin};

use crate::open_through;
use crate::proxy::{Fault, ReceivedRequest};
use crate::support::TestServer;

/// The version in the server's responses.
const CURRENT_VERSION: &str = "\"envdVersion\":\"0.6.13\"";

fn replace_version(response: &str, version: &str) -> String {
    assert!(response.contains(CURRENT_VERSION), "{response}");
    response.replace(CURRENT_VERSION, &format!("\"envdVersion\":\"{version}\""))
}

/// Changes the version in the server's responses.
fn changing(change: fn(String) -> String) -> impl Fn(&ReceivedRequest) -> Fault {
    move |request| match request.is_creation() {
        true => Fault::ChangeResponse(change),
        false => Fault::None,
    }
}

/// Content that resembles the delimiters of a form.
fn content() -> Bytes {
    let mut bytes = b"\r\n--cantle-\r\nContent-Disposition: form-data\r\n\r\n--\r\n".to_vec();
    bytes.extend((0..3_000_000_u32).map(|it| (it % 251) as u8));
    bytes.extend(b"\r\n--");
    bytes.into()
}

#[tokio::test]
async fn files_are_uploaded_as_forms_to_old_versions() {
    let server = TestServer::start().await;
    let plan = changing(|response| replace_version(&response, "0.5.6"));
    let (proxy, sandbox) = open_through(&server, plan).await;
    let path: SandboxPath = "a \"strange\" näme; \r\n.bin".parse().unwrap();
    for content in [content(), Bytes::new()] {
        sandbox.write_bytes(&path, content.clone()).await.unwrap();
        let back = sandbox.read_bytes(&path, 10_000_000).await.unwrap();
        assert!(back == content, "{} bytes of {}", back.len(), content.len());
    }
    let uploads = proxy.requests(|it| it.path == "/files" && it.method == "POST");
    assert_eq!(uploads.len(), 2);
    for upload in uploads {
        let kind = upload.header("content-type");
        assert!(kind.starts_with("multipart/form-data; boundary="), "{kind}");
        // This version has a default user.
        assert!(!upload.query.contains("username"), "{}", upload.query);
        assert_eq!(upload.header("authorization"), "");
    }
    sandbox.close().await.unwrap();
    server.stop().await;
}

#[tokio::test]
async fn requests_to_very_old_versions_name_the_user() {
    let server = TestServer::start().await;
    let plan = changing(|response| replace_version(&response, "0.3.9"));
    let (proxy, sandbox) = open_through(&server, plan).await;
    let path: SandboxPath = "file".parse().unwrap();
    sandbox.write_bytes(&path, "text".into()).await.unwrap();
    let output = sandbox.run(SpawnRequest::shell("cat file")).await.unwrap();
    assert_eq!(output.stdout.text(), "text");
    assert_eq!(sandbox.read_bytes(&path, 10).await.unwrap(), "text");
    let files = proxy.requests(|it| it.path == "/files");
    assert_eq!(files.len(), 2);
    for file in files {
        assert!(file.query.contains("username=user"), "{}", file.query);
    }
    let calls =
        proxy.requests(|it| it.path.starts_with("/process.") || it.path.starts_with("/filesy"));
    assert!(calls.len() > 3);
    for call in calls {
        // User `user` without a password.
        assert_eq!(
            call.header("authorization"),
            "Basic dXNlcjo=",
            "{}",
            call.path
        );
    }
    // The command's stdin could not be closed.
    let request = SpawnRequest::shell("cat").with_stdin(Stdin::Bytes("text".into()));
    let error = sandbox.run(request).await.unwrap_err();
    assert_eq!(error.kind(), SandboxErrorKind::Unsupported);
    assert!(error.advice().is_some());
    sandbox.close().await.unwrap();
    server.stop().await;
}
