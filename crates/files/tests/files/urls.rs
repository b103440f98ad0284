//! Addresses of files.

use std::time::Duration;

use cantle_files::{FileStore, Files, FilesErrorKind, MemoryRecords, NewFile, Urls};

async fn url(urls: Urls) -> (Files, Option<String>, String) {
    let store = FileStore::memory().with_urls(urls).unwrap();
    let files = Files::open(store, MemoryRecords::new()).await.unwrap();
    let record = files
        .put_bytes("alice", NewFile::named("a é.txt"), "x")
        .await
        .unwrap();
    let url = files.url(&record).await.unwrap();
    (files, url, record.key)
}

#[tokio::test]
async fn without_a_setting_files_have_no_address() {
    assert_eq!(url(Urls::None).await.1, None);
}

#[tokio::test]
async fn a_public_address_is_below_its_base_and_kept() {
    let base = "https://example.com/files".parse().unwrap();
    let (files, url, key) = url(Urls::Public(base)).await;
    assert!(key.is_ascii() && key.ends_with("_a__.txt"), "{key}");
    assert_eq!(url.unwrap(), format!("https://example.com/files/{key}"));
    let listed = files.list("alice", None, 1).await.unwrap();
    assert!(listed[0].public_url.is_some());
}

fn signed(valid: Duration) -> Urls {
    Urls::Signed {
        base: "http://127.0.0.1:1/".parse().unwrap(),
        key: "secret".into(),
        valid,
    }
}

fn query(url: &str) -> (i64, String) {
    let (_, query) = url.split_once("?expires=").unwrap();
    let (expires, signature) = query.split_once("&signature=").unwrap();
    (expires.parse().unwrap(), signature.to_owned())
}

#[tokio::test]
async fn a_signed_address_is_valid_for_one_key_and_a_time() {
    let (files, url, key) = url(signed(Duration::from_secs(60))).await;
    let url = url.unwrap();
    assert!(
        url.starts_with("http://127.0.0.1:1/files/uploads/"),
        "{url}"
    );
    let (expires, signature) = query(&url);
    let store = files.store();
    assert!(store.is_signed(&key, expires, &signature));
    assert!(!store.is_signed("uploads/other", expires, &signature));
    assert!(!store.is_signed(&key, expires + 1, &signature));
    let (_, shorter) = signature.split_at(2);
    for wrong in ["", "00", "é", "+f", shorter] {
        assert!(!store.is_signed(&key, expires, wrong), "{wrong}");
    }
    let other = FileStore::memory();
    assert!(!other.is_signed(&key, expires, &signature));
}

#[tokio::test]
async fn an_expired_address_is_refused() {
    // The signature is right, and its time is before the present second only after that second.
    let (files, url, key) = url(signed(Duration::ZERO)).await;
    let (expires, signature) = query(&url.unwrap());
    let expired = async {
        while files.store().is_signed(&key, expires, &signature) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), expired)
        .await
        .unwrap();
}

#[test]
fn settings_that_can_not_work_are_refused() {
    let presigned = FileStore::memory().with_urls(Urls::Presigned(Duration::from_secs(60)));
    assert_eq!(presigned.unwrap_err().kind(), FilesErrorKind::Configuration);
    let base = "data:x".parse().unwrap();
    let public = FileStore::memory().with_urls(Urls::Public(base));
    assert_eq!(public.unwrap_err().kind(), FilesErrorKind::Configuration);
    for prefix in ["a//b", "../a"] {
        let store = FileStore::memory().with_prefix(prefix);
        assert_eq!(store.unwrap_err().kind(), FilesErrorKind::Configuration);
    }
}
