use std::sync::Arc;

use cantle_core::sandbox::Sandbox;
use cantle_testkit::conformance::{SandboxOptions, sandbox_with};

use crate::support::Served;

/// What is not the client's to mend: the connection's own buffers hold more than the suite expects.
const ELSEWHERE: [&str; 1] = ["a_reader_that_stops_holds_the_command"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn conforms() {
    let served = Served::start().await;
    let backend = served.builder().build().unwrap();
    let kill = async |sandbox: Arc<dyn Sandbox>| served.kill(&sandbox.info().id).await;
    let options = SandboxOptions::new().quick().killed_by(kill);
    let report = sandbox_with(&backend, options).await;
    println!("{report}");
    served.stop().await;
    let failed: Vec<_> = report.failures().map(|case| case.name.as_str()).collect();
    let ours: Vec<_> = failed
        .iter()
        .filter(|name| !ELSEWHERE.contains(name))
        .collect();
    assert!(
        !report.cases.is_empty() && ours.is_empty(),
        "{ours:?}\n{report}"
    );
}
