//! Files coming out.

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

use super::Files;
use super::place::Last;
use crate::envd::{EventStream, Fault, Happened};
use crate::http::Broken;
use crate::sandbox::{Awake, Shared};

/// Between two pieces of a file.
const SILENCE: Duration = Duration::from_secs(10);
/// For the first one.
const FIRST: Duration = Duration::from_secs(30);

/// Reads a regular file, or a range of it.
pub(crate) async fn read(
    shared: &Arc<Shared>,
    path: &SandboxPath,
    range: ByteRange,
) -> Result<ByteStream, SandboxError> {
    let doing = format!("failed to read `{path}`");
    let files = Files::open(shared).await?;
    let place = files.find(path, Last::Followed, &doing).await?;
    if place.seen(&doing)?.kind != FileKind::File {
        let message = format!("{doing}: it is no regular file");
        return Err(SandboxError::new(SandboxErrorKind::NotAFile, message));
    }
    if range.length == Some(0) {
        return Ok(Box::pin(stream::empty()));
    }
    let source = match place.text() {
        Some(text) => files.get(text, range).await,
        None => {
            let events = files.read_by_script(&place.bytes, range.offset).await;
            events.map(|events| Some((Source::Script(events), 0)))
        }
    };
    let (source, skip) = match source {
        Ok(Some(found)) => found,
        // The range begins past the end.
        Ok(None) => return Ok(Box::pin(stream::empty())),
        Err(fault) if fault.is("not_found") => return Err(fault.into_error(&doing)),
        Err(fault) => return Err(files.explain(fault, &doing).await),
    };
    let Files { shared, awake } = files;
    let reader = Reader {
        source,
        shared: Arc::clone(shared),
        awake,
        skip,
        room: range.length.unwrap_or(u64::MAX),
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

impl Files<'_> {
    /// The answer with the file, and how much of it comes before what was asked for.
    async fn get(&self, text: &str, range: ByteRange) -> Result<Option<(Source, u64)>, Fault> {
        let mut request = self.awake.envd.files(Method::GET, text);
        if range.offset > 0 || range.length.is_some() {
            let first = range.offset;
            let last = range
                .length
                .map(|length| first.saturating_add(length - 1).to_string());
            request = request.header(RANGE, format!("bytes={first}-{}", last.unwrap_or_default()));
        }
        let response = match timeout(FIRST, request.send()).await {
            Ok(response) => response?,
            Err(_) => return Err(Broken::silent(FIRST).into()),
        };
        if response.status() == StatusCode::RANGE_NOT_SATISFIABLE {
            return Ok(None);
        }
        let response = self.awake.envd.accepted(response).await?;
        let is_part = response.status() == StatusCode::PARTIAL_CONTENT;
        let skip = if is_part { 0 } else { range.offset };
        Ok(Some((Source::Answer(response), skip)))
    }
}

enum Source {
    Answer(Response),
    Script(EventStream),
}

/// A file on its way here.
struct Reader {
    source: Source,
    shared: Arc<Shared>,
    /// It must not fall asleep meanwhile.
    awake: Awake,
    /// Bytes that were not asked for, to pass over.
    skip: u64,
    /// Bytes that are asked for still.
    room: u64,
    doing: String,
}

impl Reader {
    async fn next(&mut self) -> Result<Option<Bytes>, SandboxError> {
        loop {
            if self.room == 0 {
                return Ok(None);
            }
            let mut piece = match self.piece().await {
                Ok(Some(piece)) => piece,
                Ok(None) => return Ok(None),
                Err(fault) => {
                    return Err(self
                        .shared
                        .explain(&self.awake.envd, fault, &self.doing)
                        .await);
                }
            };
            let skipped = piece.split_to(at_most(self.skip, piece.len()));
            self.skip -= skipped.len() as u64;
            piece.truncate(at_most(self.room, piece.len()));
            self.room -= piece.len() as u64;
            if !piece.is_empty() {
                return Ok(Some(piece));
            }
        }
    }

    async fn piece(&mut self) -> Result<Option<Bytes>, Fault> {
        match &mut self.source {
            Source::Answer(response) => match timeout(SILENCE, response.chunk()).await {
                Ok(piece) => Ok(piece?),
                Err(_) => Err(Broken::silent(SILENCE).into()),
            },
            Source::Script(events) => loop {
                match events.next().await? {
                    Some(Happened::Wrote(Channel::Stdout, bytes)) => return Ok(Some(bytes)),
                    Some(_) => {}
                    None => return Ok(None),
                }
            },
        }
    }
}

fn at_most(limit: u64, length: usize) -> usize {
    usize::try_from(limit).unwrap_or(usize::MAX).min(length)
}
