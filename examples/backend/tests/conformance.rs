//! When is a backend right? When this passes.

use cantle_backends_local::LocalBackend;
use cantle_core::ids::RunId;
use cantle_core::policy::Policy;
use cantle_core::sandbox::{Backend, SandboxContext, SandboxExt, SpawnRequest};
use cantle_example_backend::Polite;
use cantle_testkit::conformance::{SandboxOptions, sandbox_with, transfers};

fn polite() -> Polite<LocalBackend> {
    Polite::new(LocalBackend::new(), 10)
}

#[tokio::test(flavor = "multi_thread")]
async fn it_conforms() {
    let report = sandbox_with(&polite(), SandboxOptions::new().quick()).await;
    println!("{report}");
    report.assert();
}

#[tokio::test(flavor = "multi_thread")]
async fn files_go_to_other_backends_and_come_back() {
    transfers(&polite(), &LocalBackend::new()).await.assert();
}

#[tokio::test]
async fn commands_run_with_low_priority() {
    let cx = SandboxContext::new(RunId::new(), Policy::unconfined());
    let sandbox = polite().open(cx).await.unwrap();
    let output = sandbox.run(SpawnRequest::shell("nice")).await.unwrap();
    assert_eq!(output.stdout.text(), "10\n");
    sandbox.close().await.unwrap();
}
