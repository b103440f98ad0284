//! A confined sandbox in another program; the program needs no file of its build.

use cantle_backends_local::LocalBackend;
use cantle_core::ids::RunId;
use cantle_core::policy::Policy;
use cantle_core::sandbox::{Backend as _, SandboxContext, SandboxExt as _, SpawnRequest};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let cx = SandboxContext::new(RunId::new(), Policy::workspace());
    let sandbox = LocalBackend::new().open(cx).await?;
    let line = "echo inside > file && cat file; touch /usr/outside || echo refused";
    let output = sandbox.run(SpawnRequest::shell(line)).await?;
    print!("{}", output.stdout.text());
    sandbox.close().await?;
    Ok(())
}
