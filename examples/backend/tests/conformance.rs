//! The conformance suite, with the backend's declared gaps.

use cantle_backends_local::LocalBackend;
use cantle_example_backend::PlainBackend;
use cantle_testkit::conformance::{SandboxOptions, sandbox_with, transfers};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_plain_backend_conforms() {
    let report = sandbox_with(&PlainBackend, SandboxOptions::new().quick()).await;
    println!("{report}");
    report.assert();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_are_copied_to_and_from_another_backend() {
    transfers(&PlainBackend, &LocalBackend::new()).await.assert();
}
