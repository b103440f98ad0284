//! Writing to an existing file.
//!
//! As in envd, the file is truncated and written, not replaced: symbolic links are followed, hard links and
//! open descriptors keep their file. A program in the sandbox does it, so that links lead where they do for
//! commands, and the limits of commands apply.

use std::time::Duration;

use cantle_core::sandbox::{
    ByteStream, Channel, Exit, ExitStatus, SandboxError, SandboxErrorKind, SandboxPath,
    SpawnRequest, Stdin,
};
use futures_util::TryStreamExt as _;
use tokio::time::timeout;

use crate::body::BodyError;
use crate::envd::SandboxUse;
use crate::envd::directories::listing;
use crate::envd::error::{EnvdError, Result};

/// Opens the file, reports it, and writes. The exit codes are those below.
const SCRIPT: &str = r#"
[ ! -e "$0" ] || [ -f "$0" ] || exit 97
[ ! -e "$0" ] || [ -w "$0" ] || exit 98
exec 3> "$0" && echo && exec cat >&3
"#;
const NOT_A_FILE: i32 = 97;
const READ_ONLY: i32 = 98;

/// SIGXFSZ: the file would be larger than the limit.
const FILE_SIZE_SIGNAL: i32 = 25;
/// Kept bytes of the program's messages.
const MESSAGE_BYTES: usize = 4096;

/// Writes to the file at `path`, or returns `false` without reading `data` if only replacing it is possible.
pub(super) async fn overwrite(
    sandbox: &SandboxUse,
    path: &SandboxPath,
    data: &mut ByteStream,
    idle: Duration,
) -> Result<bool> {
    let _descriptors = sandbox.account.take_descriptors()?;
    let argv = [
        "/bin/sh".into(),
        "-c".into(),
        SCRIPT.into(),
        listing::os_path(path),
    ];
    let request = SpawnRequest::argv(argv)
        .with_stdin(Stdin::Piped)
        .with_grace(Duration::ZERO)
        .with_env("LC_ALL", "C");
    let mut process = match sandbox.spawn(request).await {
        Ok(process) => process,
        Err(error) if error.kind() == SandboxErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error.into()),
    };
    let (Some(mut output), Some(mut stdin)) = (process.take_output(), process.take_stdin()) else {
        return Ok(false);
    };
    let mut messages = Vec::new();
    let opening = async {
        while let Some(chunk) = output.try_next().await? {
            if chunk.channel == Channel::Stdout {
                return Ok::<_, SandboxError>(true);
            }
            keep(&mut messages, &chunk.bytes);
        }
        Ok(false)
    };
    // Commands of the sandbox can stop the program.
    let is_open = timeout(idle, opening).await;
    if is_open.map_err(|_| BodyError::Idle)?? {
        let feeding = async {
            while let Some(chunk) = data.try_next().await? {
                match timeout(idle, stdin.write(chunk)).await {
                    Err(_) => return Err(EnvdError::from(BodyError::Idle)),
                    // The program has ended; its exit says why.
                    Ok(Err(error)) if error.kind() == SandboxErrorKind::Closed => break,
                    Ok(written) => written?,
                }
            }
            drop(stdin);
            Ok(())
        };
        let mut reading = std::pin::pin!(async {
            while let Some(chunk) = output.try_next().await? {
                keep(&mut messages, &chunk.bytes);
            }
            Ok::<_, SandboxError>(())
        });
        tokio::select! {
            // The program has ended before its input; its exit says why.
            read = &mut reading => read?,
            fed = feeding => {
                fed?;
                let read = timeout(idle, reading).await;
                read.map_err(|_| BodyError::Idle)??;
            }
        }
    }
    let exit = timeout(idle, process.wait()).await;
    let exit = exit.map_err(|_| BodyError::Idle)??;
    match exit.status {
        ExitStatus::Code(0) => Ok(true),
        ExitStatus::Code(READ_ONLY) => Ok(false),
        _ => Err(failure(path, &exit, &String::from_utf8_lossy(&messages))),
    }
}

fn keep(messages: &mut Vec<u8>, bytes: &[u8]) {
    let left = MESSAGE_BYTES.saturating_sub(messages.len());
    messages.extend(bytes.iter().take(left));
}

/// Converts the program's failure.
fn failure(path: &SandboxPath, exit: &Exit, messages: &str) -> EnvdError {
    let says = |texts: &[&str]| texts.iter().any(|text| messages.contains(text));
    let kind = match exit.status {
        ExitStatus::Code(NOT_A_FILE) => SandboxErrorKind::NotAFile,
        ExitStatus::Signal(FILE_SIZE_SIGNAL) | ExitStatus::LimitReached { .. } => {
            SandboxErrorKind::StorageFull
        }
        _ if says(&["No space left", "quota exceeded", "File too large"]) => {
            SandboxErrorKind::StorageFull
        }
        _ if says(&["Permission denied", "Read-only", "not permitted"]) => {
            SandboxErrorKind::PermissionDenied
        }
        _ if says(&[
            "No such file",
            "nonexistent",
            "Not a directory",
            "symbolic links",
        ]) =>
        {
            SandboxErrorKind::InvalidInput
        }
        _ => SandboxErrorKind::Io,
    };
    let reason = match kind {
        SandboxErrorKind::NotAFile => "it is not a regular file",
        _ => messages.trim(),
    };
    SandboxError::new(kind, format!("failed to write `{path}`: {reason}")).into()
}
