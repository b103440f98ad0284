//! `POST /files`: files as parts of a form, or one as the body itself.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::Body;
use axum::extract::{DefaultBodyLimit, FromRequest as _, Multipart};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use cantle_core::sandbox::{
    ByteStream, FileKind, Sandbox, SandboxError, SandboxErrorKind, SandboxPath, WriteOptions,
};
use flate2::write::MultiGzDecoder;
use futures_util::stream;
use http::{HeaderMap, HeaderName, Request, header};
use serde::Serialize;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::Query;
use crate::body::{self, BodyError};
use crate::envd::fault::Fault;
use crate::envd::{metadata, path};
use crate::fleet::Live;

/// Pieces of a part that wait to be written.
const PIECES_IN_FLIGHT: usize = 4;
/// How much is decompressed at once: at most some 2 MiB come of it.
const COMPRESSED_BYTES: usize = 2048;
/// Files of one form.
const MOST_FILES: usize = 10_000;

#[derive(Debug, Serialize)]
struct Written {
    name: String,
    #[serde(rename = "type")]
    kind: &'static str,
    path: String,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    metadata: BTreeMap<String, String>,
}

pub(super) async fn serve(
    live: &Arc<Live>,
    query: Query,
    request: Request<Body>,
) -> Result<Response, Fault> {
    let said = metadata::of_headers(request.headers())?;
    let kind = header_text(request.headers(), header::CONTENT_TYPE);
    let encoding = header_text(request.headers(), header::CONTENT_ENCODING);
    let is_gzip = match encoding.as_str() {
        "" | "identity" => false,
        "gzip" => true,
        _ => {
            return Err(Fault::invalid(format!(
                "the encoding {encoding} is not supported"
            )));
        }
    };
    let written = if kind.starts_with("multipart/form-data") {
        if is_gzip {
            return Err(Fault::invalid("a form can't be compressed as a whole"));
        }
        form(live, &query, request, &said).await?
    } else if kind.starts_with("application/octet-stream") {
        let Some(path) = query.path.filter(|path| !path.is_empty()) else {
            return Err(Fault::invalid("the address says no path"));
        };
        let path = path::resolve(&path, &live.home)?;
        let data = of_body(request.into_body(), live.commands.patience);
        let data = if is_gzip { decompressed(data) } else { data };
        vec![write(live, &path, data, &said).await?]
    } else {
        return Err(Fault::invalid(
            "a file comes as multipart/form-data or as application/octet-stream",
        ));
    };
    Ok(Json(written).into_response())
}

/// A header in lower case; nothing where there is none.
fn header_text(headers: &HeaderMap, name: HeaderName) -> String {
    let value = headers.get(name).and_then(|value| value.to_str().ok());
    value.unwrap_or_default().to_ascii_lowercase()
}

async fn form(
    live: &Arc<Live>,
    query: &Query,
    mut request: Request<Body>,
    said: &BTreeMap<String, String>,
) -> Result<Vec<Written>, Fault> {
    // Files are written as they come, whatever their size.
    DefaultBodyLimit::disable().apply(&mut request);
    let broken = |error: &dyn std::fmt::Display| Fault::invalid(format!("the form: {error}"));
    let mut parts = Multipart::from_request(request, &())
        .await
        .map_err(|error| broken(&error.body_text()))?;
    let idle = live.commands.patience;
    let too_slow = |_| Fault::from(BodyError::Idle);
    let mut written = Vec::new();
    let mut targets = BTreeSet::new();
    while let Some(mut part) = timeout(idle, parts.next_field())
        .await
        .map_err(too_slow)?
        .map_err(|error| broken(&error.body_text()))?
    {
        if part.name() != Some("file") {
            continue;
        }
        let named = match &query.path {
            Some(path) if !path.is_empty() => path.clone(),
            _ => file_name(part.file_name().unwrap_or_default()),
        };
        if named.is_empty() {
            return Err(Fault::invalid("a file has no path"));
        }
        let path = path::resolve(&named, &live.home)?;
        if !targets.insert(path.clone()) || targets.len() > MOST_FILES {
            let message = format!("you cannot upload multiple files to the same path '{path}'");
            return Err(Fault::invalid(message));
        }
        let (sender, receiver) = mpsc::channel(PIECES_IN_FLIGHT);
        let feed = async {
            loop {
                let piece = match timeout(idle, part.chunk()).await {
                    Err(_) => Err(broken_off(BodyError::Idle)),
                    Ok(Err(error)) => Err(SandboxError::new(
                        SandboxErrorKind::InvalidInput,
                        format!("the form: {}", error.body_text()),
                    )),
                    Ok(Ok(None)) => break,
                    Ok(Ok(Some(piece))) => Ok(piece),
                };
                let is_last = piece.is_err();
                if sender.send(piece).await.is_err() || is_last {
                    break;
                }
            }
            drop(sender);
        };
        let data: ByteStream = Box::pin(stream::unfold(receiver, |mut receiver| async move {
            receiver.recv().await.map(|piece| (piece, receiver))
        }));
        let writing = write(live, &path, data, said);
        let (_, result) = futures_util::future::join(feed, writing).await;
        written.push(result?);
    }
    if written.is_empty() {
        return Err(Fault::invalid("the form has no file"));
    }
    Ok(written)
}

/// The name of a file in a form, with what forms encode in names.
fn file_name(name: &str) -> String {
    name.replace("%22", "\"")
        .replace("%0D", "\r")
        .replace("%0A", "\n")
}

async fn write(
    live: &Live,
    path: &SandboxPath,
    data: ByteStream,
    said: &BTreeMap<String, String>,
) -> Result<Written, Fault> {
    let sandbox = live.visit()?;
    let mode = match sandbox.stat(path).await {
        // It stays what it was.
        Ok(info) if info.kind == FileKind::File => info.mode,
        Ok(info) if info.kind == FileKind::Directory => {
            return Err(Fault::invalid(format!("path '{path}' is a directory")));
        }
        _ => None,
    };
    let options = WriteOptions::default().with_mode(mode.unwrap_or(0o644));
    Sandbox::write(&*sandbox, path, options, data).await?;
    live.metadata.set(path, said.clone())?;
    let name = path.file_name().unwrap_or_default();
    Ok(Written {
        name: String::from_utf8_lossy(name).into_owned(),
        kind: "file",
        path: path.to_string(),
        metadata: said.clone(),
    })
}

fn of_body(body: Body, idle: Duration) -> ByteStream {
    Box::pin(stream::unfold(Some(body), move |body| async move {
        let mut body = body?;
        match body::next(&mut body, idle).await {
            Ok(Some(piece)) => Some((Ok(piece), Some(body))),
            Ok(None) => None,
            Err(error) => Some((Err(broken_off(error)), None)),
        }
    }))
}

fn broken_off(error: BodyError) -> SandboxError {
    SandboxError::new(SandboxErrorKind::InvalidInput, error.to_string())
}

/// Decompresses as it is read, a little at a time.
fn decompressed(data: ByteStream) -> ByteStream {
    struct State {
        data: ByteStream,
        decoder: Option<MultiGzDecoder<Vec<u8>>>,
        rest: Bytes,
    }
    let state = State {
        data,
        decoder: Some(MultiGzDecoder::new(Vec::new())),
        rest: Bytes::new(),
    };
    let broken = |error: std::io::Error| {
        let message = format!("the body is not what gzip makes: {error}");
        SandboxError::new(SandboxErrorKind::InvalidInput, message)
    };
    Box::pin(stream::unfold(state, move |mut state| async move {
        use futures_util::StreamExt as _;

        loop {
            let decoder = state.decoder.as_mut()?;
            if state.rest.is_empty() {
                match state.data.next().await {
                    Some(Ok(piece)) => state.rest = piece,
                    Some(Err(error)) => {
                        state.decoder = None;
                        return Some((Err(error), state));
                    }
                    None => {
                        let last = state.decoder.take()?.finish().map_err(broken);
                        return match last {
                            Ok(last) if last.is_empty() => None,
                            last => Some((last.map(Bytes::from), state)),
                        };
                    }
                }
                continue;
            }
            let some = state.rest.split_to(COMPRESSED_BYTES.min(state.rest.len()));
            if let Err(error) = decoder.write_all(&some) {
                state.decoder = None;
                return Some((Err(broken(error)), state));
            }
            let out = std::mem::take(decoder.get_mut());
            if !out.is_empty() {
                return Some((Ok(out.into()), state));
            }
        }
    }))
}
