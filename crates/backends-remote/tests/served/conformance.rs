//! The conformance suite.

use std::sync::Arc;

use cantle_core::sandbox::Sandbox;
use cantle_testkit::conformance::{SandboxOptions, sandbox_with};

use crate::support::TestServer;

/// Cases that fail because the connection's buffers hold more than the suite expects.
const EXPECTED_FAILURES: [&str; 1] = ["a_stopped_reader_blocks_the_command"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn remote_backend_conforms() {
    let server = TestServer::start().await;
    let backend = server.builder().build().unwrap();
    let kill = async |sandbox: Arc<dyn Sandbox>| server.kill(&sandbox.info().id).await;
    let options = SandboxOptions::new().in_lane().killed_by(kill);
    let report = sandbox_with(&backend, options).await;
    println!("{report}");
    server.stop().await;
    let failed: Vec<_> = report.failures().map(|case| case.name.as_str()).collect();
    let unexpected: Vec<_> = failed
        .iter()
        .filter(|name| !EXPECTED_FAILURES.contains(name))
        .collect();
    assert!(
        !report.cases.is_empty() && unexpected.is_empty(),
        "{unexpected:?}\n{report}"
    );
}
