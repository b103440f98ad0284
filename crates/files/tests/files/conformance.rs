//! The suite for each store with each catalogue.

#[cfg(feature = "postgres")]
use std::{
    io::{Read as _, Write as _},
    os::unix::net::{UnixListener, UnixStream},
    path::Path,
    sync::Arc,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

use cantle_files::{FileStore, Files, MemoryRecords};
use cantle_testkit::conformance;

use crate::{directory, local, records};

#[tokio::test]
async fn memory_conforms() {
    let store = FileStore::memory();
    let files = Files::open(store, MemoryRecords::new()).await.unwrap();
    conformance::files(&files).await.assert();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_with_sqlite_conforms() {
    let directory = directory();
    conformance::files(&local(&directory).await).await.assert();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prefix_conforms() {
    let directory = directory();
    let store = FileStore::directory(directory.path().join("objects")).unwrap();
    let store = store.with_prefix("team/cantle/").unwrap();
    let files = Files::open(store, records(&directory).await).await.unwrap();
    conformance::files(&files).await.assert();
}

#[cfg(all(feature = "s3", feature = "postgres"))]
#[tokio::test(flavor = "multi_thread")]
async fn s3_with_postgres_conforms() {
    let (Some(store), Some(address)) = (crate::s3::store("conformance"), postgres_address()) else {
        return;
    };
    let records = cantle_files::PostgresRecords::connect(&address)
        .await
        .unwrap();
    let files = Files::open(store, records).await.unwrap();
    conformance::files(&files).await.assert();
}

/// In the full lane; it checks signatures.
#[cfg(feature = "s3")]
#[tokio::test(flavor = "multi_thread")]
async fn s3s_conforms() {
    let variable = "CANTLE_TEST_S3S_URL";
    let Some(store) = crate::s3::store_at(variable, "cantle-secret", "conformance") else {
        return;
    };
    let files = Files::open(store, MemoryRecords::new()).await.unwrap();
    let report = conformance::files(&files).await;
    let failures: Vec<_> = report.failures().map(|case| case.name.as_str()).collect();
    // This server has keys in the names of its own files, as Base64, where keys of 200 bytes do not fit.
    assert_eq!(failures, ["unusual_names_are_stored"], "{report:?}");
}

/// In the full lane.
#[cfg(feature = "azure")]
#[tokio::test(flavor = "multi_thread")]
async fn azure_conforms_and_signs_addresses() {
    let Some(store) = azure("cantle") else {
        return;
    };
    let prefix = format!("conformance/{}", cantle_core::ids::RunId::new());
    let urls = cantle_files::Urls::Presigned(std::time::Duration::from_secs(60));
    let store = store.with_prefix(&prefix).unwrap().with_urls(urls).unwrap();
    store.check().await.unwrap();
    let files = Files::open(store, MemoryRecords::new()).await.unwrap();
    conformance::files(&files).await.assert();
    let new = cantle_files::NewFile::named("a é.txt");
    let record = files.put_bytes("alice", new, "hello").await.unwrap();
    let url = files.url(&record).await.unwrap().unwrap();
    let mut curl = std::process::Command::new("curl");
    let answer = curl.args(["-sf", &url]).output().unwrap();
    assert_eq!(String::from_utf8(answer.stdout).unwrap(), "hello");
    assert!(azure("no-such-container").unwrap().check().await.is_err());
}

#[cfg(feature = "azure")]
fn azure(container: &str) -> Option<FileStore> {
    let names = ["CANTLE_TEST_AZURE_URL", "CANTLE_TEST_AZURE_KEY"];
    let [Ok(url), Ok(key)] = names.map(std::env::var) else {
        cantle_testkit::lane::skip("there is no Azurite: CANTLE_TEST_AZURE_URL is not set");
        return None;
    };
    let file = tempfile::NamedTempFile::new().unwrap();
    let lines = format!(
        "AZURE_STORAGE_ACCOUNT_NAME=devstoreaccount1\nAZURE_STORAGE_ACCOUNT_KEY={key}\n\
         AZURE_STORAGE_ENDPOINT={url}\nAZURE_ALLOW_HTTP=true"
    );
    std::fs::write(file.path(), lines).unwrap();
    Some(FileStore::azure(container, Some(file.path())).unwrap())
}

#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread")]
async fn a_store_in_memory_with_postgres_conforms() {
    let Some(address) = postgres_address() else {
        return;
    };
    let records = cantle_files::PostgresRecords::connect(&address)
        .await
        .unwrap();
    let again = cantle_files::PostgresRecords::connect(&address)
        .await
        .unwrap();
    assert_eq!(
        cantle_files::Records::identity(&records),
        cantle_files::Records::identity(&again)
    );
    let files = Files::open(FileStore::memory(), records).await.unwrap();
    conformance::files(&files).await.assert();
}

#[cfg(feature = "postgres")]
fn postgres_address() -> Option<String> {
    let address = std::env::var("CANTLE_TEST_POSTGRES").ok();
    if address.is_none() {
        cantle_testkit::lane::skip("there is no PostgreSQL: CANTLE_TEST_POSTGRES is not set");
    }
    address
}

#[cfg(feature = "postgres")]
#[tokio::test]
async fn a_postgres_server_that_is_gone_is_named() {
    // Port 1 of this machine refuses.
    let error = cantle_files::PostgresRecords::connect("postgres://cantle:pw@127.0.0.1:1/x").await;
    let error = error.err().unwrap();
    assert_eq!(error.kind(), cantle_files::FilesErrorKind::Catalogue);
    assert!(!format!("{error:?}").contains("pw"), "{error:?}");
}

/// In the full lane: the deadline is that of users.
#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread")]
async fn a_postgres_server_that_hangs_is_an_error_within_the_deadline() {
    use std::time::{Duration, Instant};

    use cantle_files::Records as _;
    if !cantle_testkit::lane::is_full() {
        return cantle_testkit::lane::skip("the full lane tests PostgreSQL's deadline");
    }
    let directory = directory();
    let Some((records, silent)) = relayed(directory.path()).await else {
        return;
    };
    silent.store(usize::MAX, Ordering::SeqCst);
    let begun = Instant::now();
    let error = records.usage("alice").await.unwrap_err();
    assert_eq!(error.kind(), cantle_files::FilesErrorKind::Catalogue);
    assert!(begun.elapsed() < Duration::from_secs(90));
}

#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread")]
async fn a_postgres_connection_that_hangs_is_replaced() {
    use cantle_files::Records as _;
    let directory = directory();
    let Some((records, silent)) = relayed(directory.path()).await else {
        return;
    };
    // Only the one in the pool.
    silent.store(1, Ordering::SeqCst);
    records.usage("alice").await.unwrap();
}

/// Connects through a relay that stops passing on the first connections, as many as the number says; none at first.
#[cfg(feature = "postgres")]
async fn relayed(directory: &Path) -> Option<(cantle_files::PostgresRecords, Arc<AtomicUsize>)> {
    use cantle_files::Records as _;
    let address = postgres_address()?;
    let words = address.split(' ');
    let host = words.filter_map(|it| it.strip_prefix("host=")).next();
    let host = host.unwrap();
    let silent = Arc::default();
    relay(directory, Path::new(host), &silent);
    let address = address.replace(host, directory.to_str().unwrap());
    let records = cantle_files::PostgresRecords::connect(&address).await;
    let records = records.unwrap();
    records.usage("alice").await.unwrap();
    Some((records, silent))
}

/// Passes connections on in threads, except for the first `silent` ones.
#[cfg(feature = "postgres")]
fn relay(directory: &Path, server: &Path, silent: &Arc<AtomicUsize>) {
    const SOCKET: &str = ".s.PGSQL.5432";
    let listener = UnixListener::bind(directory.join(SOCKET)).unwrap();
    let (server, silent) = (server.join(SOCKET), Arc::clone(silent));
    thread::spawn(move || {
        for (number, client) in listener.incoming().enumerate() {
            let (mut client, mut to_server) =
                (client.unwrap(), UnixStream::connect(&server).unwrap());
            let mut from_server = to_server.try_clone().unwrap();
            let mut to_client = client.try_clone().unwrap();
            let silent = Arc::clone(&silent);
            thread::spawn(move || std::io::copy(&mut from_server, &mut to_client));
            thread::spawn(move || {
                let mut chunk = [0; 4096];
                while let Ok(length @ 1..) = client.read(&mut chunk) {
                    while number < silent.load(Ordering::SeqCst) {
                        thread::park();
                    }
                    if to_server.write_all(chunk.get(..length).unwrap()).is_err() {
                        return;
                    }
                }
            });
        }
    });
}
