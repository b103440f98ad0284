//! Reading of files.

use std::time::Duration;

use bytes::Bytes;
use cantle_core::sandbox::{
    ByteRange, ByteStream, Channel, FileKind, SandboxError, SandboxErrorKind, SandboxPath,
};
use futures_util::stream;
use reqwest::header::RANGE;
use reqwest::{Method, Response, StatusCode};

use super::resolve::FinalLink;
use crate::envd::{EventStream, Fault, ProcessEvent, in_time};
use crate::shared::ActiveSandbox;

/// Time limit between two chunks.
const CHUNK_TIMEOUT: Duration = Duration::from_secs(10);
/// Time limit for the response's head.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);

impl ActiveSandbox {
    /// Reads a regular file, or a range of it.
    pub(crate) async fn read(
        self,
        path: &SandboxPath,
        range: ByteRange,
    ) -> Result<ByteStream, SandboxError> {
        let doing = format!("failed to read `{path}`");
        let resolved = self.resolve(path, FinalLink::Follow, &doing).await?;
        if resolved.stat(&doing)?.kind != FileKind::File {
            let message = format!("{doing}: it is not a regular file");
            return Err(SandboxError::new(SandboxErrorKind::NotAFile, message));
        }
        if range.length == Some(0) {
            return Ok(Box::pin(stream::empty()));
        }
        let source = match resolved.text() {
            Some(text) => self.get(text, range).await,
            None => {
                let events = self.read_by_script(&resolved.bytes, range.offset).await;
                events.map(|events| Some((FileSource::Script(events), 0)))
            }
        };
        let Some((source, skip)) = self.explained(source, &doing).await? else {
            // The range begins past the end.
            return Ok(Box::pin(stream::empty()));
        };
        let reader = FileReader {
            source,
            active: self,
            skip,
            remaining: range.length.unwrap_or(u64::MAX),
            doing,
        };
        Ok(Box::pin(stream::try_unfold(reader, async |mut reader| {
            let piece = reader.next().await?;
            Ok(piece.map(|piece| (piece, reader)))
        })))
    }

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
        let response = in_time(RESPONSE_TIMEOUT, request.send()).await?;
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
            let piece = self.piece().await;
            let Some(mut piece) = self.active.explained(piece, &self.doing).await? else {
                return Ok(None);
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
            FileSource::Response(response) => in_time(CHUNK_TIMEOUT, response.chunk()).await,
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
