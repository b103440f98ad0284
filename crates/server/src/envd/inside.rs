//! Programs of the sandbox that look at its files for us: what backends don't say (times, owners, what
//! links lead to), and what is outside of their own directories.

use std::time::Duration;

use cantle_core::sandbox::{
    Channel, Exit, Sandbox, SandboxError, SandboxErrorKind, SandboxExt as _, SpawnRequest,
};

use super::fault::{Code, Fault};

/// How long such a program may take.
const LIMIT: Duration = Duration::from_secs(30);

/// What a program wrote.
pub(crate) struct Output {
    pub(crate) exit: Exit,
    pub(crate) stdout: Vec<u8>,
}

/// Runs a program that writes at most `limit_bytes`; `None` where there is no such program.
pub(crate) async fn run<I, S>(
    sandbox: &dyn Sandbox,
    argv: I,
    limit_bytes: usize,
) -> Result<Option<Output>, Fault>
where
    I: IntoIterator<Item = S>,
    S: Into<std::ffi::OsString>,
{
    let request = SpawnRequest::argv(argv)
        .with_timeout(LIMIT)
        .with_grace(Duration::ZERO)
        .with_env("LC_ALL", "C");
    let token = request.cancellation.clone();
    let mut stdout = Vec::new();
    let mut is_too_much = false;
    let ran = sandbox
        .exec(request, &mut |chunk| {
            if chunk.channel != Channel::Stdout {
                return;
            }
            if stdout.len() + chunk.bytes.len() > limit_bytes {
                is_too_much = true;
                token.cancel();
                return;
            }
            stdout.extend_from_slice(&chunk.bytes);
        })
        .await;
    match ran {
        Ok(_) if is_too_much => {
            let message = "there is too much to be listed at once";
            Err(Fault::new(Code::ResourceExhausted, message))
        }
        Ok(exit) => Ok(Some(Output { exit, stdout })),
        Err(error) if is_missing(&error) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Whether a program could not be started because there is none, or none may be.
fn is_missing(error: &SandboxError) -> bool {
    matches!(
        error.kind(),
        SandboxErrorKind::NotFound
            | SandboxErrorKind::PermissionDenied
            | SandboxErrorKind::Unsupported
    )
}
