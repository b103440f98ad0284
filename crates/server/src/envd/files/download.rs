//! `GET /files`: a file, or a part of it, as it is read.

use std::sync::Arc;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use cantle_core::sandbox::{
    Background, ByteRange, ByteStream, Channel, FileKind, SandboxErrorKind, SandboxPath,
    SpawnRequest,
};
use futures_util::{StreamExt as _, stream};
use http::{HeaderMap, HeaderValue, StatusCode, header};

use super::Query;
use super::range::{self, Wanted};
use crate::envd::fault::{Fault, plain};
use crate::envd::filesystem::census::{self, Start};
use crate::envd::path;
use crate::fleet::{Live, Visit};

pub(super) async fn serve(
    live: &Arc<Live>,
    query: &Query,
    headers: &HeaderMap,
) -> Result<Response, Fault> {
    let said = query.path.as_deref().unwrap_or_default();
    let path = path::resolve(said, &live.home)?;
    let sandbox = live.visit()?;
    let missing = || Fault::not_found(format!("path '{path}' does not exist"));
    // What the backend says of it costs less than what a program says; links are followed by the latter.
    let found = match sandbox.stat(&path).await {
        Ok(info) if info.kind != FileKind::Symlink => Some((info.kind, info.size_bytes, true)),
        Ok(_) => None,
        Err(error) => match error.kind() {
            SandboxErrorKind::NotFound | SandboxErrorKind::NotADirectory => return Err(missing()),
            SandboxErrorKind::OutsideSandbox => None,
            _ => return Err(error.into()),
        },
    };
    let (kind, size_bytes, is_known) = match found {
        Some(found) => found,
        None => {
            let seen = census::take(&*sandbox, &path, Start::Followed, 0).await?;
            let seen = seen.into_iter().next().ok_or_else(missing)?;
            // Files of the system may have more in them than their size says.
            (seen.kind, seen.size_bytes, seen.size_bytes > 0)
        }
    };
    match kind {
        FileKind::File => {}
        FileKind::Directory => {
            return Err(Fault::invalid(format!("path '{path}' is a directory")));
        }
        // A link that leads nowhere.
        FileKind::Symlink => return Err(missing()),
        FileKind::Other => {
            return Err(Fault::invalid(format!(
                "path '{path}' is not a regular file"
            )));
        }
    }
    let range = headers.get(header::RANGE);
    let range = range
        .and_then(|range| range.to_str().ok())
        .filter(|_| is_known);
    let wanted = range::wanted(range, size_bytes);
    let bytes = match wanted {
        Wanted::Unsatisfiable => {
            let mut response = plain(StatusCode::RANGE_NOT_SATISFIABLE, "there is no such range");
            if let Ok(value) = HeaderValue::from_str(&format!("bytes */{size_bytes}")) {
                response.headers_mut().insert(header::CONTENT_RANGE, value);
            }
            return Ok(response);
        }
        Wanted::Whole => ByteRange::all(),
        Wanted::Part { first, last } => ByteRange::new(first, last - first + 1),
    };
    let (data, is_known) = match sandbox.read(&path, bytes).await {
        Ok(data) => (data, is_known),
        Err(error) if error.kind() == SandboxErrorKind::OutsideSandbox => {
            if wanted != Wanted::Whole {
                return Err(error.into());
            }
            (outside(sandbox, &path).await?, false)
        }
        Err(error) if error.kind() == SandboxErrorKind::NotFound => return Err(missing()),
        Err(error) => return Err(error.into()),
    };
    let mut response = Body::from_stream(data).into_response();
    let headers = response.headers_mut();
    let name = String::from_utf8_lossy(path.file_name().unwrap_or_default()).into_owned();
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static(media_type(&name)),
    );
    if let Ok(value) = HeaderValue::from_str(&disposition(&name)) {
        headers.insert(header::CONTENT_DISPOSITION, value);
    }
    headers.insert(header::VARY, HeaderValue::from_static("Accept-Encoding"));
    if is_known {
        headers.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
        let length = match wanted {
            Wanted::Part { first, last } => last - first + 1,
            _ => size_bytes,
        };
        headers.insert(header::CONTENT_LENGTH, length.into());
    }
    if let Wanted::Part { first, last } = wanted {
        if let Ok(value) = HeaderValue::from_str(&format!("bytes {first}-{last}/{size_bytes}")) {
            headers.insert(header::CONTENT_RANGE, value);
        }
        *response.status_mut() = StatusCode::PARTIAL_CONTENT;
    }
    Ok(response)
}

/// A file that is not the backend's to give, but that commands may read: by a command.
async fn outside(sandbox: Visit, path: &SandboxPath) -> Result<ByteStream, Fault> {
    let argv = ["cat".into(), "--".into(), census::os_path(path)];
    let request = SpawnRequest::argv(argv).with_background(Background::Kill);
    let mut process = sandbox.spawn(request).await?;
    let Some(output) = process.take_output() else {
        return Err(Fault::not_found(format!("path '{path}' can't be read")));
    };
    // The first piece says whether it can be read at all.
    let mut pieces = Box::pin(output.filter_map(|chunk| async move {
        match chunk {
            Ok(chunk) if chunk.channel == Channel::Stdout => Some(Ok(chunk.bytes)),
            Ok(_) => None,
            Err(error) => Some(Err(error)),
        }
    }));
    let first = pieces.next().await;
    if first.is_none() && !process.wait().await?.status.success() {
        let message = format!("path '{path}' can't be read");
        return Err(Fault::new(
            crate::envd::fault::Code::PermissionDenied,
            message,
        ));
    }
    // The command lives as long as somebody reads.
    let rest = stream::unfold((pieces, process, sandbox), |mut parts| async move {
        parts.0.next().await.map(|piece| (piece, parts))
    });
    Ok(Box::pin(stream::iter(first).chain(rest)))
}

/// `Content-Disposition`, with a name that is no ASCII in the form for such (RFC 6266).
fn disposition(name: &str) -> String {
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

/// A media type by the name's ending.
fn media_type(name: &str) -> &'static str {
    let ending = name
        .rsplit_once('.')
        .map(|(_, ending)| ending.to_ascii_lowercase());
    match ending.as_deref().unwrap_or_default() {
        "txt" | "md" | "log" | "py" | "rs" | "sh" | "toml" | "yaml" | "yml" => {
            "text/plain; charset=utf-8"
        }
        "html" | "htm" => "text/html; charset=utf-8",
        "css" => "text/css; charset=utf-8",
        "csv" => "text/csv; charset=utf-8",
        "js" | "mjs" => "text/javascript; charset=utf-8",
        "xml" => "text/xml; charset=utf-8",
        "json" => "application/json",
        "pdf" => "application/pdf",
        "zip" => "application/zip",
        "gz" | "tgz" => "application/gzip",
        "png" => "image/png",
        "jpg" | "jpeg" => "image/jpeg",
        "gif" => "image/gif",
        "webp" => "image/webp",
        "svg" => "image/svg+xml",
        _ => "application/octet-stream",
    }
}

#[cfg(test)]
mod tests {
    use super::disposition;

    #[test]
    fn names_are_quoted_or_encoded() {
        assert_eq!(disposition("a b.txt"), "inline; filename=\"a b.txt\"");
        assert_eq!(
            disposition("ä\"\n"),
            "inline; filename*=UTF-8''%C3%A4%22%0A"
        );
    }
}
