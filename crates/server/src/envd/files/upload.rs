//! `POST /files`: files as parts of a form, or one file as the body.

use std::collections::{BTreeMap, BTreeSet};
use std::future::ready;
use std::io::Write as _;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::multipart::{Field, MultipartError};
use axum::extract::{DefaultBodyLimit, FromRequest as _, Multipart};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use cantle_core::sandbox::{
    ByteStream, FileKind, Sandbox, SandboxError, SandboxErrorKind, SandboxPath, WriteOptions,
};
use flate2::write::MultiGzDecoder;
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use http::{HeaderMap, HeaderName, Request, header};
use serde::Serialize;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::FileQuery;
use super::form::{self, FormStep};
use super::overwrite::overwrite;
use crate::accounts::MemoryCharge;
use crate::body::{self, BodyError};
use crate::envd::RunningSandbox;
use crate::envd::error::{EnvdError, Result, RpcCode};
use crate::envd::rpc::LargeMessage;
use crate::envd::{metadata, path};

/// Queued chunks of a form part.
const QUEUED_CHUNKS: usize = 4;
/// Compressed bytes per step; they expand to at most about 2 MiB.
const DECOMPRESSION_STEP_BYTES: usize = 2048;
/// Maximum files in one form.
const MAX_FILES: usize = 10_000;
/// Memory of one file's entry in the response.
const WRITTEN_FILE_BYTES: usize = 160;

#[derive(Debug, Serialize)]
struct WrittenFile {
    name: String,
    #[serde(rename = "type")]
    kind: &'static str,
    path: String,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    metadata: BTreeMap<String, String>,
}

pub(super) async fn serve(
    live: &Arc<RunningSandbox>,
    query: FileQuery,
    request: Request<Body>,
) -> Result<Response> {
    let metadata_values = metadata::from_headers(request.headers())?;
    let kind = header_text(request.headers(), header::CONTENT_TYPE);
    let encoding = header_text(request.headers(), header::CONTENT_ENCODING);
    let is_gzip = match encoding.as_str() {
        "" | "identity" => false,
        "gzip" => true,
        _ => {
            let message = format!("the encoding {encoding} is not supported");
            return Err(EnvdError::invalid(message));
        }
    };
    // The memory of the paths and of the response.
    let mut charge = live.account.charge();
    let written = if kind.starts_with("multipart/form-data") {
        if is_gzip {
            return Err(EnvdError::invalid("a form can't be compressed as a whole"));
        }
        form(live, &query, request, &metadata_values, &mut charge).await?
    } else if kind.starts_with("application/octet-stream") {
        let Some(path) = query.path.filter(|path| !path.is_empty()) else {
            return Err(EnvdError::invalid("the URL has no path"));
        };
        let path = path::resolve(&path, &live.home)?;
        let data = body_stream(request.into_body(), live.commands.idle_timeout);
        let data = if is_gzip { decompress(data) } else { data };
        vec![write(live, &path, data, &metadata_values).await?]
    } else {
        return Err(EnvdError::invalid(
            "the content type must be multipart/form-data or application/octet-stream",
        ));
    };
    Ok(LargeMessage::new(written, 0, charge).await?.into_response())
}

/// Returns a header in lower case; empty if it is missing.
fn header_text(headers: &HeaderMap, name: HeaderName) -> String {
    let value = headers.get(name).and_then(|value| value.to_str().ok());
    value.unwrap_or_default().to_ascii_lowercase()
}

async fn form(
    live: &Arc<RunningSandbox>,
    query: &FileQuery,
    request: Request<Body>,
    metadata_values: &BTreeMap<String, String>,
    charge: &mut MemoryCharge,
) -> Result<Vec<WrittenFile>> {
    let (head, body) = request.into_parts();
    let (body, step) = form::in_pieces(body);
    let mut request = Request::from_parts(head, body);
    // Files are streamed, so the framework's limit does not apply.
    DefaultBodyLimit::disable().apply(&mut request);
    let parts = Multipart::from_request(request, &()).await;
    let mut parts =
        parts.map_err(|error| EnvdError::invalid(format!("the form: {}", error.body_text())))?;
    let idle = live.commands.idle_timeout;
    let mut written = Vec::new();
    let mut targets = BTreeSet::new();
    loop {
        step.begin();
        let part = timeout(idle, parts.next_field()).await;
        let part = part.map_err(|_| BodyError::Idle)?;
        let part = part.map_err(|error| EnvdError::invalid(form_failure(&step, &error)))?;
        let Some(mut part) = part else { break };
        if part.name() != Some("file") {
            while let Some(chunk) = next_chunk(&mut part, &step, idle).await {
                chunk?;
            }
            continue;
        }
        let named = match &query.path {
            Some(path) if !path.is_empty() => path.clone(),
            _ => file_name(part.file_name().unwrap_or_default()),
        };
        if named.is_empty() {
            return Err(EnvdError::invalid("a file has no path"));
        }
        let path = path::resolve(&named, &live.home)?;
        let kept_bytes = WRITTEN_FILE_BYTES + 4 * path.relative_bytes().len();
        charge.grow(kept_bytes + metadata::size_bytes(&path, metadata_values))?;
        add_target(&mut targets, &path)?;
        let (sender, mut receiver) = mpsc::channel(QUEUED_CHUNKS);
        let feed = async {
            let sender = sender;
            while let Some(chunk) = next_chunk(&mut part, &step, idle).await {
                let is_last = chunk.is_err();
                if sender.send(chunk).await.is_err() || is_last {
                    break;
                }
            }
        };
        let data: ByteStream = Box::pin(stream::poll_fn(move |cx| receiver.poll_recv(cx)));
        let writing = write(live, &path, data, metadata_values);
        let (_, result) = futures_util::future::join(feed, writing).await;
        written.push(result?);
    }
    if written.is_empty() {
        return Err(EnvdError::invalid("the form has no file"));
    }
    Ok(written)
}

fn add_target(targets: &mut BTreeSet<SandboxPath>, path: &SandboxPath) -> Result<()> {
    let message = if targets.len() >= MAX_FILES {
        format!("a form may have at most {MAX_FILES} files")
    } else if targets.insert(path.clone()) {
        return Ok(());
    } else {
        format!("you cannot upload multiple files to the same path '{path}'")
    };
    Err(EnvdError::invalid(message))
}

/// Returns the next data of a part, or `None` at its end.
async fn next_chunk(
    part: &mut Field<'_>,
    step: &FormStep,
    idle: Duration,
) -> Option<Result<Bytes, SandboxError>> {
    step.begin();
    match timeout(idle, part.chunk()).await {
        Err(_) => Some(Err(input_error(BodyError::Idle.to_string()))),
        Ok(Err(error)) => Some(Err(input_error(form_failure(step, &error)))),
        Ok(Ok(chunk)) => chunk.map(Ok),
    }
}

fn form_failure(step: &FormStep, error: &MultipartError) -> String {
    let too_large = step.too_large().map(|error| error.to_string());
    format!(
        "the form: {}",
        too_large.unwrap_or_else(|| error.body_text())
    )
}

/// Decodes the characters that forms encode in file names.
fn file_name(name: &str) -> String {
    name.replace("%22", "\"")
        .replace("%0D", "\r")
        .replace("%0A", "\n")
}

async fn write(
    live: &RunningSandbox,
    path: &SandboxPath,
    mut data: ByteStream,
    metadata_values: &BTreeMap<String, String>,
) -> Result<WrittenFile> {
    let sandbox = live.acquire()?;
    let existing = sandbox.stat(path).await.ok();
    let kind = existing.as_ref().map(|info| info.kind);
    if kind == Some(FileKind::Directory) {
        return Err(EnvdError::invalid(format!("path '{path}' is a directory")));
    }
    let idle = live.commands.idle_timeout;
    let exists = matches!(kind, Some(FileKind::File | FileKind::Symlink));
    let is_written = exists && overwrite(&sandbox, path, &mut data, idle).await?;
    if !is_written {
        if kind == Some(FileKind::Symlink) {
            let message = format!("failed to write `{path}`: the target of the link is read-only");
            return Err(EnvdError::new(RpcCode::PermissionDenied, message));
        }
        let is_new = existing.is_none();
        let upload = is_new.then(|| live.uploads.begin(path, live.account.charge()));
        let _upload = upload.transpose()?;
        // An existing file keeps its mode.
        let mode = existing.and_then(|info| info.mode);
        let options = WriteOptions::default().with_mode(mode.unwrap_or(0o644));
        Sandbox::write(&*sandbox, path, options, data).await?;
    }
    live.metadata.set(path, metadata_values.clone())?;
    let name = path.file_name().unwrap_or_default();
    Ok(WrittenFile {
        name: String::from_utf8_lossy(name).into_owned(),
        kind: "file",
        path: path.to_string(),
        metadata: metadata_values.clone(),
    })
}

fn body_stream(body: Body, idle: Duration) -> ByteStream {
    Box::pin(stream::try_unfold(body, move |mut body| async move {
        let chunk = body::next_chunk(&mut body, idle).await;
        let chunk = chunk.map_err(|error| input_error(error.to_string()))?;
        Ok(chunk.map(|chunk| (chunk, body)))
    }))
}

fn input_error(error: impl Into<String>) -> SandboxError {
    SandboxError::new(SandboxErrorKind::InvalidInput, error)
}

/// Decompresses a stream in small steps.
fn decompress(data: ByteStream) -> ByteStream {
    let steps = data.map_ok(|mut chunk| {
        let next = move || {
            let length = DECOMPRESSION_STEP_BYTES.min(chunk.len());
            (length > 0).then(|| Ok::<_, SandboxError>(Some(chunk.split_to(length))))
        };
        stream::iter(std::iter::from_fn(next))
    });
    let mut decoder = MultiGzDecoder::new(Vec::new());
    let output = steps.try_flatten().chain(stream::iter([Ok(None)]));
    let output = output.map(move |step| -> Result<Bytes, SandboxError> {
        let decoded = match step? {
            Some(step) => decoder.write_all(&step),
            None => decoder.try_finish(),
        };
        decoded.map_err(|error| input_error(format!("the body is not valid gzip: {error}")))?;
        Ok(std::mem::take(decoder.get_mut()).into())
    });
    Box::pin(output.try_filter(|bytes: &Bytes| ready(!bytes.is_empty())))
}

#[cfg(test)]
mod tests {
    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    async fn decompressed(chunks: Vec<Vec<u8>>) -> Result<Vec<u8>, SandboxError> {
        let chunks = chunks.into_iter().map(|chunk| Ok(chunk.into()));
        let output = decompress(Box::pin(stream::iter(chunks)));
        let output: Vec<Bytes> = output.try_collect().await?;
        assert!(output.iter().all(|bytes| !bytes.is_empty()));
        Ok(output.concat())
    }

    #[tokio::test]
    async fn a_body_is_decompressed_however_it_is_cut() {
        let compressed = |text: &[u8]| {
            let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
            encoder.write_all(text).unwrap();
            encoder.finish().unwrap()
        };
        let noise: Vec<u8> = (0..20_000_u32).map(|it| (it * it % 251) as u8).collect();
        let zeros = vec![0; 5 << 20];
        let members = [compressed(&noise), compressed(b""), compressed(&zeros)].concat();
        let expected = [noise, zeros].concat();
        for size in [members.len(), 1000, 7] {
            let chunks = members.chunks(size).map(<[u8]>::to_vec);
            // Bodies may have empty chunks.
            let chunks = std::iter::once(Vec::new()).chain(chunks).collect();
            assert!(decompressed(chunks).await.unwrap() == expected, "{size}");
        }
        let truncated = members[..members.len() - 1].to_vec();
        for broken in [truncated, b"text".to_vec(), Vec::new()] {
            let error = decompressed(vec![broken]).await.unwrap_err();
            assert!(error.to_string().contains("not valid gzip"), "{error}");
        }
    }

    #[test]
    fn the_files_of_a_form_are_distinct_and_limited() {
        let mut targets = BTreeSet::new();
        let mut refusal = |name: &str| {
            let path = SandboxPath::new(name).unwrap();
            add_target(&mut targets, &path).map_err(|error| error.message)
        };
        for number in 0..MAX_FILES {
            refusal(&format!("/{number}")).unwrap();
            if number == 0 {
                let twice = refusal("/0").unwrap_err();
                assert!(twice.contains("same path '/0'"), "{twice}");
            }
        }
        let one_more = refusal("/one").unwrap_err();
        assert!(one_more.contains("at most 10000 files"), "{one_more}");
    }
}
