//! Errors of the container engine, and of the connection to it.

use std::io;

use bollard::errors::Error;
use cantle_core::sandbox::{SandboxError, SandboxErrorKind};

use super::address::Address;

/// Returns the HTTP status of an error response.
///
/// Podman answers 500 in some cases for which Docker has a specific status; those are mapped to Docker's.
pub(crate) fn status(error: &Error) -> Option<u16> {
    let Error::DockerResponseServerError {
        status_code,
        message,
    } = error
    else {
        return None;
    };
    let has = |text: &str| message.contains(text);
    match status_code {
        500 if has("container name") && has("is already in use") => Some(409),
        500 if has("container state improper") => Some(409),
        500 if has("invalid reference format") => Some(400),
        code => Some(*code),
    }
}

/// Returns the engine's own message, without the client library's text around it.
pub(crate) fn engine_message(error: &Error) -> String {
    match error {
        Error::DockerResponseServerError { message, .. } => message.trim().to_owned(),
        Error::DockerStreamError { error } => error.trim().to_owned(),
        _ => match innermost_io(error) {
            Some(error) => error.to_string(),
            None => error.to_string(),
        },
    }
}

/// Converts the error of a request; `doing` reads like "failed to create the container".
pub(crate) fn request_failed(doing: &str, error: &Error) -> SandboxError {
    let cause = engine_message(error);
    let (kind, advice) = match (error, status(error)) {
        (_, Some(404)) => (SandboxErrorKind::NotFound, None),
        (_, Some(409)) => (SandboxErrorKind::AlreadyExists, None),
        (_, Some(400)) => (SandboxErrorKind::InvalidInput, None),
        (_, Some(403)) => (SandboxErrorKind::PermissionDenied, None),
        (_, Some(_)) if cause.contains("no space left on device") => (
            SandboxErrorKind::StorageFull,
            Some(
                "Free disk space where the engine keeps its data (`docker system df` shows its use).",
            ),
        ),
        (_, Some(_)) => (SandboxErrorKind::Io, None),
        (Error::RequestTimeoutError, _) => (
            SandboxErrorKind::Unavailable,
            Some("The engine is overloaded or hangs; see its log."),
        ),
        _ if innermost_io(error).is_some() => (
            SandboxErrorKind::Unavailable,
            Some("The engine no longer responds: check that it is running."),
        ),
        _ => (SandboxErrorKind::Io, None),
    };
    let failed = SandboxError::new(kind, format!("{doing}: {cause}"));
    match advice {
        Some(advice) => failed.with_advice(advice),
        None => failed,
    }
}

/// Explains why the first request to an engine failed.
pub(crate) fn unreachable(address: &Address, error: &Error) -> SandboxError {
    let io = innermost_io(error).map(io::Error::kind);
    let missing =
        matches!(error, Error::SocketNotFoundError(_)) || io == Some(io::ErrorKind::NotFound);
    let (why, advice) = match (address, io) {
        (Address::Socket(path), _) if missing => (
            format!("there is no socket at `{}`", path.display()),
            "Install and start Docker or Podman (`podman system service --time 0 unix:///PATH`), or set \
             DOCKER_HOST to its address.",
        ),
        (Address::Socket(path), Some(io::ErrorKind::PermissionDenied)) => (
            format!("this user may not use the socket `{}`", path.display()),
            "Add the user to the group `docker` (which is equivalent to root access) and log in again, or use a \
             rootless engine.",
        ),
        (_, Some(io::ErrorKind::ConnectionRefused)) => (
            "nothing listens there".to_owned(),
            "Start the engine, or set DOCKER_HOST to its address.",
        ),
        _ => (
            engine_message(error),
            "Check that the engine is running (`docker version`), and the settings DOCKER_HOST and `docker context ls`.",
        ),
    };
    let message = format!("no container engine answers at `{address}`: {why}");
    SandboxError::unavailable(message).with_advice(advice)
}

fn innermost_io(error: &Error) -> Option<&io::Error> {
    cantle_tls::causes(error)
        .filter_map(|error| error.downcast_ref())
        .last()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn podman_errors_map_to_dockers_status() {
        let mapped = |status_code, message: &str| {
            status(&Error::DockerResponseServerError {
                status_code,
                message: message.to_owned(),
            })
        };
        let in_use =
            "creating container storage: the container name \"x\" is already in use by 4c8a";
        let state = "sending SIGKILL to container 06ec: container state improper: stopped";
        let name = "normalizing image: invalid reference format";
        assert_eq!(mapped(500, in_use), Some(409));
        assert_eq!(mapped(500, state), Some(409));
        assert_eq!(mapped(500, name), Some(400));
        assert_eq!(mapped(500, "something else"), Some(500));
        assert_eq!(mapped(404, in_use), Some(404));
        assert_eq!(status(&Error::RequestTimeoutError), None);
    }
}
