//! `GET /files`: streams a file or a part of it.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::response::{AppendHeaders, IntoResponse as _, Response};
use cantle_core::sandbox::{
    Background, ByteRange, ByteStream, Channel, FileKind, SandboxError, SandboxErrorKind,
    SandboxPath, SpawnRequest, media_type_of_name,
};
use futures_util::{StreamExt as _, stream};
use http::{HeaderMap, header};
use tokio::time::timeout;

use super::FileQuery;
use super::range::{self, RangeRequest};
use crate::body::BodyError;
use crate::envd::directories::listing::{self, StartLink};
use crate::envd::error::{EnvdError, Result, RpcCode, plain};
use crate::envd::path;
use crate::envd::{RunningSandbox, SandboxUse};

pub(super) async fn serve(
    live: &Arc<RunningSandbox>,
    query: &FileQuery,
    headers: &HeaderMap,
) -> Result<Response> {
    let requested_path = query.path.as_deref().unwrap_or_default();
    let path = path::resolve(requested_path, &live.home)?;
    let sandbox = live.acquire()?;
    let missing = || EnvdError::not_found(format!("path '{path}' does not exist"));
    // The backend is faster than a helper program, which is needed only to follow links.
    let found = match sandbox.stat(&path).await {
        Ok(info) if info.kind != FileKind::Symlink => Some((info.kind, info.size_bytes, true)),
        Ok(_) => None,
        Err(error) => match error.kind() {
            SandboxErrorKind::NotFound | SandboxErrorKind::NotADirectory => return Err(missing()),
            SandboxErrorKind::OutsideSandbox => None,
            _ => return Err(error.into()),
        },
    };
    let (kind, size_bytes, size_is_reliable) = match found {
        Some(found) => found,
        None => {
            let listed = listing::list(&sandbox, &path, StartLink::Follow, 0).await?;
            let listed = listed.entries.into_iter().next().ok_or_else(missing)?;
            // Files in /proc and /sys report size 0.
            (listed.kind, listed.size_bytes, listed.size_bytes > 0)
        }
    };
    match kind {
        FileKind::File => {}
        FileKind::Directory => {
            return Err(EnvdError::invalid(format!("path '{path}' is a directory")));
        }
        // A dangling link.
        FileKind::Symlink => return Err(missing()),
        FileKind::Other => {
            let message = format!("path '{path}' is not a regular file");
            return Err(EnvdError::invalid(message));
        }
    }
    let range = headers.get(header::RANGE).filter(|_| size_is_reliable);
    let range = range.and_then(|range| range.to_str().ok());
    let requested = range::parse(range, size_bytes);
    let bytes = match requested {
        RangeRequest::Unsatisfiable => {
            let (status, headers) = requested.head(size_bytes);
            let response = plain(status, "the requested range does not exist");
            return Ok((AppendHeaders(headers), response).into_response());
        }
        RangeRequest::Whole => ByteRange::all(),
        RangeRequest::Part { first, last } => ByteRange::new(first, last - first + 1),
    };
    let (data, size_is_reliable) = match sandbox.read(&path, bytes).await {
        Ok(data) => (data, size_is_reliable),
        Err(error) => match error.kind() {
            SandboxErrorKind::OutsideSandbox if requested == RangeRequest::Whole => {
                let idle = live.commands.idle_timeout;
                (read_outside(sandbox, &path, idle).await?, false)
            }
            SandboxErrorKind::NotFound => return Err(missing()),
            _ => return Err(error.into()),
        },
    };
    let name = String::from_utf8_lossy(path.file_name().unwrap_or_default());
    let headers = [
        (header::CONTENT_TYPE, content_type(&name)),
        (header::CONTENT_DISPOSITION, disposition(&name)),
        (header::VARY, "Accept-Encoding".to_owned()),
    ];
    let body = (headers, Body::from_stream(data));
    if !size_is_reliable {
        return Ok(body.into_response());
    }
    let (status, sizes) = requested.head(size_bytes);
    Ok((status, AppendHeaders(sizes), body).into_response())
}

/// Reads a file outside the backend's directories with a command. Other commands of the sandbox can stop it: it fails if
/// there is no data, or no end, for as long as `idle`.
async fn read_outside(
    sandbox: SandboxUse,
    path: &SandboxPath,
    idle: Duration,
) -> Result<ByteStream> {
    let argv = ["cat".into(), "--".into(), listing::os_path(path)];
    let request = SpawnRequest::argv(argv).with_background(Background::Kill);
    let descriptors = sandbox.account.take_descriptors()?;
    let mut process = sandbox.spawn(request).await?;
    let Some(output) = process.take_output() else {
        return Err(EnvdError::not_found(format!("path '{path}' can't be read")));
    };
    // The first chunk shows whether the file is readable.
    let mut chunks = Box::pin(output.filter_map(|chunk| async move {
        match chunk {
            Ok(chunk) if chunk.channel == Channel::Stdout => Some(Ok(chunk.bytes)),
            Ok(_) => None,
            Err(error) => Some(Err(error)),
        }
    }));
    let first = timeout(idle, chunks.next()).await;
    let Some(first) = first.map_err(|_| BodyError::Idle)? else {
        let exit = timeout(idle, process.wait()).await;
        if exit.map_err(|_| BodyError::Idle)??.status.success() {
            return Ok(Box::pin(stream::empty()));
        }
        let message = format!("path '{path}' can't be read");
        return Err(EnvdError::new(RpcCode::PermissionDenied, message));
    };
    // The stream keeps the command alive, and fails if the command was ended before the end of the file.
    let parts = (chunks, process, sandbox, descriptors);
    let rest = stream::unfold(Some(parts), move |parts| async move {
        let mut parts = parts?;
        let failed = |error| SandboxError::io("failed to read a file", error);
        let error = match timeout(idle, parts.0.next()).await {
            Ok(Some(chunk)) => return Some((chunk, Some(parts))),
            Ok(None) => match timeout(idle, parts.1.wait()).await {
                Ok(Ok(exit)) if exit.status.success() => return None,
                Ok(Ok(exit)) => {
                    let message = format!("reading the file ended early: {}", exit.status);
                    failed(io::Error::other(message))
                }
                Ok(Err(error)) => error,
                Err(_) => failed(io::ErrorKind::TimedOut.into()),
            },
            Err(_) => failed(io::ErrorKind::TimedOut.into()),
        };
        Some((Err(error), None))
    });
    Ok(Box::pin(stream::iter([first]).chain(rest)))
}

/// Formats `Content-Disposition`; names that are not printable ASCII are encoded (RFC 6266).
pub(crate) fn disposition(name: &str) -> String {
    let plain = |character: char| {
        character.is_ascii_graphic() && !matches!(character, '"' | '\\') || character == ' '
    };
    if name.chars().all(plain) {
        return format!("inline; filename=\"{name}\"");
    }
    let mut encoded = String::new();
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    format!("inline; filename*=UTF-8''{encoded}")
}

/// Returns the content type of a file.
fn content_type(name: &str) -> String {
    match media_type_of_name(name) {
        Some(text) if text.starts_with("text/") => format!("{text}; charset=utf-8"),
        other => other.unwrap_or("application/octet-stream").to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::disposition;

    #[test]
    fn file_names_are_quoted_or_encoded() {
        assert_eq!(disposition("a b.txt"), "inline; filename=\"a b.txt\"");
        assert_eq!(
            disposition("ä\"\n"),
            "inline; filename*=UTF-8''%C3%A4%22%0A"
        );
    }
}
