//! Running helper programs in the sandbox. They report what backends do not: times, owners, link
//! targets, and files outside the working directory.

use std::time::Duration;

use cantle_core::sandbox::{
    Channel, Exit, Sandbox, SandboxError, SandboxErrorKind, SandboxExt as _, SpawnRequest,
};

use super::error::{EnvdError, Result, RpcCode};

/// Time limit of a helper program.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Result of a helper program.
pub(crate) struct ProgramOutput {
    pub(crate) exit: Exit,
    pub(crate) stdout: Vec<u8>,
}

/// Runs a program with at most `limit_bytes` of output. Returns `None` if it can't be started.
pub(crate) async fn run<I, S>(
    sandbox: &dyn Sandbox,
    argv: I,
    limit_bytes: usize,
) -> Result<Option<ProgramOutput>>
where
    I: IntoIterator<Item = S>,
    S: Into<std::ffi::OsString>,
{
    let request = SpawnRequest::argv(argv)
        .with_timeout(TIMEOUT)
        .with_grace(Duration::ZERO)
        .with_env("LC_ALL", "C");
    let token = request.cancellation.clone();
    let mut stdout = Vec::new();
    let mut exceeds_limit = false;
    let ran = sandbox
        .exec(request, &mut |chunk| {
            if chunk.channel != Channel::Stdout {
                return;
            }
            if stdout.len() + chunk.bytes.len() > limit_bytes {
                exceeds_limit = true;
                token.cancel();
                return;
            }
            stdout.extend_from_slice(&chunk.bytes);
        })
        .await;
    match ran {
        Ok(_) if exceeds_limit => {
            let message = "the output is too large";
            Err(EnvdError::new(RpcCode::ResourceExhausted, message))
        }
        Ok(exit) => Ok(Some(ProgramOutput { exit, stdout })),
        Err(error) if is_not_executable(&error) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Whether a program does not exist or may not be executed.
fn is_not_executable(error: &SandboxError) -> bool {
    matches!(
        error.kind(),
        SandboxErrorKind::NotFound
            | SandboxErrorKind::PermissionDenied
            | SandboxErrorKind::Unsupported
    )
}
