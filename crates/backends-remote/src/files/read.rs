//! Reading of files.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cantle_core::sandbox::{
    ByteRange, ByteStream, Channel, FileKind, SandboxError, SandboxErrorKind, SandboxPath,
};
use futures_util::stream;
use reqwest::header::RANGE;
use reqwest::{Method, Response, StatusCode};
use tokio::time::timeout;

use super::resolve::FinalLink;
use crate::envd::{EventStream, Fault, ProcessEvent};
use crate::http::RequestError;
use crate::shared::{ActiveSandbox, Shared};

/// Time limit between two chunks.
const CHUNK_TIMEOUT: Duration = Duration::from_secs(10);
/// Time limit for the response's head.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);

/// Reads a regular file, or a range of it.
pub(crate) async fn read(
    shared: &Arc<Shared>,
    path: &SandboxPath,
    range: ByteRange,
) -> Result<ByteStream, SandboxError> {
    let doing = format!("failed to read `{path}`");
    let active = shared.activate().await?;
    let resolved = active.resolve(path, FinalLink::Follow, &doing).await?;
    if resolved.stat(&doing)?.kind != FileKind::File {
        let message = format!("{doing}: it is not a regular file");
        return Err(SandboxError::new(SandboxErrorKind::NotAFile, message));
    }
    if range.length == Some(0) {
        return Ok(Box::pin(stream::empty()));
    }
    let source = match resolved.text() {
        Some(text) => active.get(text, range).await,
        None => {
            let events = active.read_by_script(&resolved.bytes, range.offset).await;
            events.map(|events| Some((FileSource::Script(events), 0)))
        }
    };
    let (source, skip) = match source {
        Ok(Some(found)) => found,
        // The range begins past the end.
        Ok(None) => return Ok(Box::pin(stream::empty())),
        Err(fault) if fault.has_code("not_found") => return Err(fault.into_error(&doing)),
        Err(fault) => return Err(active.explain(fault, &doing).await),
    };
    let reader = FileReader {
        source,
        active,
        skip,
        remaining: range.length.unwrap_or(u64::MAX),
        doing,
    };
    Ok(Box::pin(stream::unfold(Some(reader), |reader| async {
        let mut reader = reader?;
        match reader.next().await {
            Ok(None) => None,
            Ok(Some(piece)) => Some((Ok(piece), Some(reader))),
            Err(error) => Some((Err(error), None)),
        }
    })))
}

impl ActiveSandbox {
    /// Requests a file; returns its body and the number of bytes before the range. `None` if the range is past the end.
    async fn get(&self, text: &str, range: ByteRange) -> Result<Option<(FileSource, u64)>, Fault> {
        let mut request = self.envd.file_request(Method::GET, text);
        if range.offset > 0 || range.length.is_some() {
            let first = range.offset;
            let last = range
                .length
                .map(|length| first.saturating_add(length - 1).to_string());
            request = request.header(RANGE, format!("bytes={first}-{}", last.unwrap_or_default()));
        }
        let response = match timeout(RESPONSE_TIMEOUT, request.send()).await {
            Ok(response) => response?,
            Err(_) => return Err(RequestError::timed_out(RESPONSE_TIMEOUT).into()),
        };
        if response.status() == StatusCode::RANGE_NOT_SATISFIABLE {
            return Ok(None);
        }
        let response = self.envd.check_status(response).await?;
        let is_part = response.status() == StatusCode::PARTIAL_CONTENT;
        let skip = if is_part { 0 } else { range.offset };
        Ok(Some((FileSource::Response(response), skip)))
    }
}

enum FileSource {
    Response(Response),
    Script(EventStream),
}

/// State of a download.
struct FileReader {
    source: FileSource,
    active: ActiveSandbox,
    /// Bytes to skip: the server ignored the range.
    skip: u64,
    /// Bytes of the range that remain.
    remaining: u64,
    doing: String,
}

impl FileReader {
    async fn next(&mut self) -> Result<Option<Bytes>, SandboxError> {
        loop {
            if self.remaining == 0 {
                return Ok(None);
            }
            let mut piece = match self.piece().await {
                Ok(Some(piece)) => piece,
                Ok(None) => return Ok(None),
                Err(fault) => {
                    return Err(self.active.explain(fault, &self.doing).await);
                }
            };
            let skipped = piece.split_to(clamp(self.skip, piece.len()));
            self.skip -= skipped.len() as u64;
            piece.truncate(clamp(self.remaining, piece.len()));
            self.remaining -= piece.len() as u64;
            if !piece.is_empty() {
                return Ok(Some(piece));
            }
        }
    }

    async fn piece(&mut self) -> Result<Option<Bytes>, Fault> {
        match &mut self.source {
            FileSource::Response(response) => {
                match timeout(CHUNK_TIMEOUT, response.chunk()).await {
                    Ok(piece) => Ok(piece?),
                    Err(_) => Err(RequestError::timed_out(CHUNK_TIMEOUT).into()),
                }
            }
            FileSource::Script(events) => loop {
                match events.next().await? {
                    Some(ProcessEvent::Output(Channel::Stdout, bytes)) => return Ok(Some(bytes)),
                    Some(ProcessEvent::Ended(status)) if status.success() => return Ok(None),
                    Some(ProcessEvent::Ended(_)) | None => {
                        return Err(Fault::Refused {
                            code: "internal".to_owned(),
                            message: "the program that reads it failed".to_owned(),
                        });
                    }
                    Some(_) => {}
                }
            },
        }
    }
}

fn clamp(limit: u64, length: usize) -> usize {
    usize::try_from(limit).unwrap_or(usize::MAX).min(length)
}
