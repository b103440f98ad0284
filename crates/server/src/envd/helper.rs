//! Running helper programs in the sandbox. They report what backends do not: times, owners, link
//! targets, and files outside the working directory.

use std::ffi::OsString;
use std::time::Duration;

use cantle_core::sandbox::{Channel, Exit, SandboxErrorKind, SandboxExt as _, SpawnRequest};

use super::SandboxUse;
use super::error::{EnvdError, Result};
use crate::accounts::MemoryCharge;

/// Time limit of a helper program.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Result of a helper program.
pub(crate) struct ProgramOutput {
    pub(crate) exit: Exit,
    pub(crate) stdout: Vec<u8>,
    /// The memory of `stdout`.
    pub(crate) charge: MemoryCharge,
}

/// Runs a program with at most `limit_bytes` of output. Returns `None` if it can't be started.
pub(crate) async fn run(
    sandbox: &SandboxUse,
    argv: impl IntoIterator<Item = impl Into<OsString>>,
    limit_bytes: usize,
) -> Result<Option<ProgramOutput>> {
    let request = SpawnRequest::argv(argv)
        .with_timeout(TIMEOUT)
        .with_grace(Duration::ZERO)
        .with_env("LC_ALL", "C");
    let token = request.cancellation.clone();
    let _descriptors = sandbox.account.take_descriptors()?;
    let mut charge = sandbox.account.charge();
    let mut stdout = Vec::new();
    let mut failure = None;
    let ran = sandbox
        .exec(request, &mut |chunk| {
            if chunk.channel != Channel::Stdout {
                return;
            }
            let charged = if stdout.len() + chunk.bytes.len() > limit_bytes {
                Err(EnvdError::exhausted("the output is too large"))
            } else {
                charge.grow(chunk.bytes.len()).map_err(EnvdError::from)
            };
            match charged {
                Ok(()) => stdout.extend_from_slice(&chunk.bytes),
                Err(error) => {
                    failure.get_or_insert(error);
                    token.cancel();
                }
            }
        })
        .await;
    if let Some(failure) = failure {
        return Err(failure);
    }
    match ran {
        Ok(exit) => Ok(Some(ProgramOutput {
            exit,
            stdout,
            charge,
        })),
        Err(error) => match error.kind() {
            // It does not exist or may not be executed.
            SandboxErrorKind::NotFound
            | SandboxErrorKind::PermissionDenied
            | SandboxErrorKind::Unsupported => Ok(None),
            _ => Err(error.into()),
        },
    }
}
