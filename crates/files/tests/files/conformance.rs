//! The suite for each store with each catalogue.

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
