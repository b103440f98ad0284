//! When is a backend right? When this passes.

use cantle_backends_local::LocalBackend;
use cantle_core::ids::RunId;
use cantle_core::policy::Policy;
use cantle_core::sandbox::{Backend, SandboxContext, SandboxExt, SpawnRequest};
use cantle_example_backend::Polite;

#[tokio::test]
async fn it_conforms() {
    cantle_testkit::conformance::sandbox(&Polite::new(LocalBackend::new(), 10)).await.assert();
}

#[tokio::test]
async fn commands_run_with_low_priority() {
    let backend = Polite::new(LocalBackend::new(), 10);
    let cx = SandboxContext::new(RunId::new(), Policy::unconfined());
    let sandbox = backend.open(cx).await.unwrap();
    let output = sandbox.run(SpawnRequest::shell("nice")).await.unwrap();
    assert_eq!(output.stdout.text(), "10\n");
    sandbox.close().await.unwrap();
}
