//! Languages without an interpreter that keeps variables: each execution is a process of its own.

use cantle_core::code::{CodeEnd, CodeError, CodeObserver, CodeRequest};
use cantle_core::sandbox::{Sandbox, SandboxError, SpawnRequest, Stdin};
use futures_util::StreamExt as _;

use crate::envd::contexts::Language;

/// The code comes on standard input, because arguments are limited to 128 KiB. Bash reads all of it first, so that
/// commands in the code don't read the rest of it.
const BASH: &str = r#"cd -- "$0" && eval "$(cat)""#;
const NODE: &str = r#"cd -- "$0" && exec node -"#;

/// Runs code to its end.
pub(super) async fn run(
    sandbox: &dyn Sandbox,
    language: Language,
    request: CodeRequest,
    observer: &mut dyn CodeObserver,
) -> Result<CodeEnd, SandboxError> {
    let (shell, script) = match language {
        Language::Javascript => ("/bin/sh", NODE),
        _ => ("/bin/bash", BASH),
    };
    let directory = request.directory.unwrap_or_default();
    let mut spawn = SpawnRequest::argv([shell, "-c", script, &directory])
        .with_stdin(Stdin::Bytes(request.code.into()))
        .with_timeout(request.timeout)
        .with_cancellation(request.cancellation);
    for (name, value) in request.environment {
        spawn = spawn.with_env(name, value);
    }
    let mut process = sandbox.spawn(spawn).await?;
    if let Some(mut output) = process.take_output() {
        while let Some(chunk) = output.next().await {
            let chunk = chunk?;
            observer.output(chunk.channel, chunk.bytes).await;
        }
    }
    let exit = process.wait().await?;
    let error =
        (!exit.status.success()).then(|| CodeError::new("ProcessFailed", exit.status.to_string()));
    Ok(CodeEnd::new(error, exit.notes))
}
