//! `GET /files/KEY`: stored files at signed addresses that expire.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Path, Query, State};
use axum::response::{AppendHeaders, IntoResponse as _, Response};
use cantle_files::{FileRecord, FilesErrorKind};
use http::{Request, StatusCode, header};
use serde::Deserialize;

use super::{Refusal, ServedTools};
use crate::envd::files::{RangeRequest, disposition, parse_range};

#[derive(Deserialize)]
pub(super) struct Signature {
    #[serde(default)]
    expires: i64,
    #[serde(default)]
    signature: String,
}

pub(super) async fn serve(
    State(served): State<Arc<ServedTools>>,
    Path(key): Path<String>,
    Query(signature): Query<Signature>,
    request: Request<Body>,
) -> Result<Response, Refusal> {
    // A body can't be shared with other threads.
    let request = request.map(drop);
    let not_found = || Refusal::new(StatusCode::NOT_FOUND, "File not found");
    let files = served.service.files.as_ref().ok_or_else(not_found)?;
    let Signature { expires, signature } = signature;
    if !files.store().is_signed(&key, expires, &signature) {
        let detail = "the address of the file is wrong or has expired";
        return Err(Refusal::new(StatusCode::FORBIDDEN, detail));
    }
    let failed = |error: cantle_files::FilesError| match error.kind() {
        FilesErrorKind::NotFound => not_found(),
        _ => {
            tracing::warn!(%error, "a stored file could not be served");
            Refusal::new(StatusCode::BAD_GATEWAY, error.to_string())
        }
    };
    let record = files.find_by_key(&key).await.map_err(failed)?;
    // Its owner pays for the connection: the address belongs to no key.
    served.admit(&request, &record.owner.clone().into()).await?;
    let range = request.headers().get(header::RANGE);
    let size_bytes = record.size_bytes;
    let requested = parse_range(range.and_then(|it| it.to_str().ok()), size_bytes);
    let (status, sizes) = requested.head(size_bytes);
    let part = match requested {
        RangeRequest::Whole => None,
        RangeRequest::Part { first, last } => Some(first..last + 1),
        RangeRequest::Unsatisfiable => return Ok((status, AppendHeaders(sizes)).into_response()),
    };
    let content = files.content(&record, part).await.map_err(failed)?;
    let headers = AppendHeaders(headers(&record));
    let body = Body::from_stream(content);
    Ok((status, AppendHeaders(sizes), headers, body).into_response())
}

fn headers(record: &FileRecord) -> Vec<(header::HeaderName, String)> {
    vec![
        (header::CONTENT_TYPE, record.mime_type.clone()),
        (header::CONTENT_DISPOSITION, disposition(&record.filename)),
        (header::ETAG, format!("\"{}\"", record.sha256)),
        (header::CACHE_CONTROL, "private".to_owned()),
        // A page that code has made gets no rights of this server's pages.
        (header::CONTENT_SECURITY_POLICY, "sandbox".to_owned()),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff".to_owned()),
    ]
}
