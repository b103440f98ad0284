//! S3: credentials and presigned addresses.

use std::io::Write as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use cantle_files::{FileStore, Files, FilesErrorKind, MemoryRecords, NewFile, Records as _, Urls};

/// A store below a prefix of a run's own, if there is an S3 server.
pub(crate) fn store(name: &str) -> Option<FileStore> {
    store_at("CANTLE_TEST_S3_URL", "cantle-secret", name)
}

/// A store of the server whose address a variable has.
pub(crate) fn store_at(variable: &str, secret: &str, name: &str) -> Option<FileStore> {
    let Ok(url) = std::env::var(variable) else {
        cantle_testkit::lane::skip(&format!("there is no S3 server: {variable} is not set"));
        return None;
    };
    let mut file = tempfile::NamedTempFile::new().unwrap();
    writeln!(
        file,
        "# A comment.\nexport AWS_ACCESS_KEY_ID=cantle\nAWS_SECRET_ACCESS_KEY=\"{secret}\"\n\
         AWS_REGION=us-east-1\nAWS_ALLOW_HTTP=true\nAWS_ENDPOINT_URL={url}"
    )
    .unwrap();
    let store = FileStore::s3("cantle", Some(file.path())).unwrap();
    let prefix = format!("{name}/{}", cantle_core::ids::RunId::new());
    Some(store.with_prefix(&prefix).unwrap())
}

#[tokio::test]
async fn a_presigned_address_needs_no_credentials() {
    let Some(store) = store("presigned") else {
        return;
    };
    let store = store
        .with_urls(Urls::Presigned(Duration::from_secs(60)))
        .unwrap();
    let files = Files::open(store, MemoryRecords::new()).await.unwrap();
    let record = files
        .put_bytes("alice", NewFile::named("a é.txt"), "hello")
        .await
        .unwrap();
    let url = files.url(&record).await.unwrap().unwrap();
    assert!(!url.contains("cantle-secret"), "{url}");
    let answer = Command::new("curl").args(["-sf", &url]).output().unwrap();
    assert_eq!(String::from_utf8(answer.stdout).unwrap(), "hello");
}

#[tokio::test]
async fn a_server_that_checks_signatures_refuses_a_wrong_secret_and_a_changed_address() {
    let Some(wrong) = store_at("CANTLE_TEST_S3S_URL", "cantle-wrong", "wrong") else {
        return;
    };
    let error = wrong.check().await.unwrap_err();
    assert_eq!(error.kind(), FilesErrorKind::Store);
    let error = Files::open(wrong, MemoryRecords::new()).await.unwrap_err();
    assert!(!format!("{error:?}").contains("cantle-wrong"), "{error:?}");
    let store = store_at("CANTLE_TEST_S3S_URL", "cantle-secret", "signed").unwrap();
    store.check().await.unwrap();
    let store = store
        .with_urls(Urls::Presigned(Duration::from_secs(60)))
        .unwrap();
    let files = Files::open(store, MemoryRecords::new()).await.unwrap();
    let record = files
        .put_bytes("alice", NewFile::named("a"), "hello")
        .await
        .unwrap();
    let url = files.url(&record).await.unwrap().unwrap();
    let get = |url: &str| Command::new("curl").args(["-sf", url]).output().unwrap();
    assert_eq!(get(&url).stdout, b"hello");
    assert!(
        !get(&url.replacen("Expires=60", "Expires=99", 1))
            .status
            .success()
    );
}

#[tokio::test]
async fn an_object_without_a_record_is_not_swept() {
    let Some(store) = store("outputs") else {
        return;
    };
    let files = Files::open(store.clone(), MemoryRecords::new())
        .await
        .unwrap();
    let content = futures_util::stream::iter([Ok::<_, std::io::Error>("hello".into())]);
    let object = store.put_object("run/dir/a #1.txt", content).await.unwrap();
    assert!(object.key.ends_with("/run/dir/a %231.txt"), "{object:?}");
    assert_eq!(object.size_bytes, 5);
    // Named like the object of a file.
    let key = format!("run/{:032}_a_b.txt", 7);
    let content = futures_util::stream::iter([Ok::<_, std::io::Error>("hello".into())]);
    let object = store.put_object(&key, content).await.unwrap();
    assert!(object.key.ends_with("7%5Fa_b.txt"), "{object:?}");
    assert_eq!(files.sweep(Duration::ZERO).await.unwrap().objects, 0);
}

#[tokio::test]
async fn a_sweep_of_s3_removes_orphans() {
    let Some(store) = store("sweep") else {
        return;
    };
    let records = std::sync::Arc::new(MemoryRecords::new());
    let files = Files::open(store, std::sync::Arc::clone(&records))
        .await
        .unwrap();
    let kept = files
        .put_bytes("alice", NewFile::named("a"), "x")
        .await
        .unwrap();
    let orphan = files
        .put_bytes("alice", NewFile::named("b"), "xy")
        .await
        .unwrap();
    records.remove("alice", orphan.id).await.unwrap();
    let swept = files.sweep(Duration::ZERO).await.unwrap();
    assert_eq!((swept.objects, swept.bytes), (1, 2));
    assert_eq!(files.read_bytes("alice", kept.id, 9).await.unwrap(), "x");
}

#[test]
fn a_file_of_credentials_with_mistakes_is_refused_without_its_content() {
    for text in [
        "AWS_SECRET_ACCESS_KEY hunter2",
        "hunter2",
        "NO_SUCH=hunter2",
    ] {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        writeln!(file, "{text}").unwrap();
        let error = FileStore::s3("b", Some(file.path())).unwrap_err();
        assert_eq!(error.kind(), FilesErrorKind::Configuration);
        assert!(
            error.to_string().ends_with("has no AWS_…=VALUE in line 1"),
            "{error}"
        );
        assert!(!format!("{error:?}").contains("hunter2"));
    }
}

#[test]
fn a_file_of_credentials_that_others_can_read_is_refused() {
    use std::os::unix::fs::PermissionsExt as _;
    let mut file = tempfile::NamedTempFile::new().unwrap();
    writeln!(
        file,
        "AWS_ACCESS_KEY_ID=a\nAWS_SECRET_ACCESS_KEY=b\nAWS_REGION=c"
    )
    .unwrap();
    for (mode, is_accepted) in [(0o644, false), (0o602, false), (0o640, true), (0o400, true)] {
        let permissions = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(file.path(), permissions).unwrap();
        let opened = FileStore::s3("b", Some(file.path()));
        let opened = opened.map(drop).map_err(|error| error.to_string());
        match is_accepted {
            true => assert_eq!(opened, Ok(()), "{mode:o}"),
            false => assert!(opened.unwrap_err().ends_with("chmod 600 it"), "{mode:o}"),
        }
    }
}

#[test]
fn a_file_of_credentials_without_end_is_refused() {
    let error = FileStore::s3("b", Some(Path::new("/dev/zero"))).unwrap_err();
    assert!(error.to_string().contains("is too large"), "{error}");
}

#[tokio::test]
async fn a_server_that_is_gone_is_an_error() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    let lines = "AWS_ACCESS_KEY_ID=a\nAWS_SECRET_ACCESS_KEY=b\nAWS_ENDPOINT_URL=http://127.0.0.1:1\n\
                 AWS_ALLOW_HTTP=true";
    writeln!(file, "{lines}").unwrap();
    let store = FileStore::s3("b", Some(file.path())).unwrap();
    let error = Files::open(store, MemoryRecords::new()).await.unwrap_err();
    assert_eq!(error.kind(), FilesErrorKind::Store);
}
