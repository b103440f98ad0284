//! What the engine, or the way to it, answers instead of what was asked for.

use std::error::Error as StdError;
use std::io;

use bollard::errors::Error;
use cantle_core::sandbox::{SandboxError, SandboxErrorKind};

use super::address::Address;

/// The HTTP status that the engine answered with, where it answered. Podman says 500 of some of what
/// Docker has its own for.
pub(crate) fn status(error: &Error) -> Option<u16> {
    let Error::DockerResponseServerError {
        status_code,
        message,
    } = error
    else {
        return None;
    };
    let says = |words: &str| message.contains(words);
    match status_code {
        500 if says("container name") && says("is already in use") => Some(409),
        500 if says("container state improper") => Some(409),
        500 if says("invalid reference format") => Some(400),
        code => Some(*code),
    }
}

/// What it said, without the client's words around it.
pub(crate) fn message(error: &Error) -> String {
    match error {
        Error::DockerResponseServerError { message, .. } => message.trim().to_owned(),
        Error::DockerStreamError { error } => error.trim().to_owned(),
        _ => match innermost_io(error) {
            Some(error) => error.to_string(),
            None => error.to_string(),
        },
    }
}

/// A request that failed; `doing` reads like "failed to create the container".
pub(crate) fn failed(doing: &str, error: Error) -> SandboxError {
    let said = message(&error);
    let (kind, advice) = match (&error, status(&error)) {
        (_, Some(404)) => (SandboxErrorKind::NotFound, None),
        (_, Some(409)) => (SandboxErrorKind::AlreadyExists, None),
        (_, Some(400)) => (SandboxErrorKind::InvalidInput, None),
        (_, Some(403)) => (SandboxErrorKind::PermissionDenied, None),
        (_, Some(_)) if said.contains("no space left on device") => (
            SandboxErrorKind::StorageFull,
            Some("Free space where the engine keeps its data (`docker system df` says for what)."),
        ),
        (_, Some(_)) => (SandboxErrorKind::Io, None),
        (Error::RequestTimeoutError, _) => (
            SandboxErrorKind::Unavailable,
            Some("The engine is overloaded or hangs; see its log."),
        ),
        _ if innermost_io(&error).is_some() => (
            SandboxErrorKind::Unavailable,
            Some("The engine doesn't answer any more: see whether it runs."),
        ),
        _ => (SandboxErrorKind::Io, None),
    };
    let failed = SandboxError::new(kind, format!("{doing}: {said}")).with_source(error);
    match advice {
        Some(advice) => failed.with_advice(advice),
        None => failed,
    }
}

/// The first word with an engine failed: says what is in the way.
pub(crate) fn unreachable(address: &Address, error: Error) -> SandboxError {
    let io = innermost_io(&error).map(io::Error::kind);
    let missing =
        matches!(error, Error::SocketNotFoundError(_)) || io == Some(io::ErrorKind::NotFound);
    let (why, advice) = match (address, io) {
        (Address::Socket(path), _) if missing => (
            format!("there is no socket at `{}`", path.display()),
            "Install and start Docker or Podman (`podman system service --time 0 unix:///PATH`), or set \
             DOCKER_HOST to where an engine listens.",
        ),
        (Address::Socket(path), Some(io::ErrorKind::PermissionDenied)) => (
            format!("this user may not use the socket `{}`", path.display()),
            "Add the user to the group `docker` (which makes it as good as root) and log in again, or use a \
             rootless engine.",
        ),
        (_, Some(io::ErrorKind::ConnectionRefused)) => (
            "nobody listens there".to_owned(),
            "Start the engine, or set DOCKER_HOST to where one listens.",
        ),
        _ => (
            message(&error),
            "See whether the engine runs (`docker version`), and what DOCKER_HOST and `docker context ls` say.",
        ),
    };
    let message = format!("no container engine answers at `{address}`: {why}");
    SandboxError::new(SandboxErrorKind::Unavailable, message)
        .with_advice(advice)
        .with_source(error)
}

fn innermost_io(error: &Error) -> Option<&io::Error> {
    let mut found = None;
    let mut next: Option<&(dyn StdError + 'static)> = Some(error);
    while let Some(error) = next {
        found = error.downcast_ref::<io::Error>().or(found);
        next = error.source();
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_podman_says_otherwise_has_dockers_status() {
        let said = |status_code, message: &str| {
            status(&Error::DockerResponseServerError {
                status_code,
                message: message.to_owned(),
            })
        };
        let in_use =
            "creating container storage: the container name \"x\" is already in use by 4c8a";
        let state = "sending SIGKILL to container 06ec: container state improper: stopped";
        let name = "normalizing image: invalid reference format";
        assert_eq!(said(500, in_use), Some(409));
        assert_eq!(said(500, state), Some(409));
        assert_eq!(said(500, name), Some(400));
        assert_eq!(said(500, "something else"), Some(500));
        assert_eq!(said(404, in_use), Some(404));
        assert_eq!(status(&Error::RequestTimeoutError), None);
    }
}
