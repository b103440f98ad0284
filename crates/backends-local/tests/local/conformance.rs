//! What every sandbox must do.

use cantle_backends_local::LocalBackend;

#[tokio::test(flavor = "multi_thread")]
async fn the_local_backend_conforms() {
    cantle_testkit::conformance::sandbox(&LocalBackend::new())
        .await
        .assert();
}
