//! Files over plain HTTP: `GET /files` and `POST /files`.

mod download;
mod form;
mod overwrite;
mod range;
pub(crate) mod signature;
mod upload;

use std::sync::Arc;

use axum::body::Body;
use axum::response::Response;
use http::{Method, Request, StatusCode, Uri};
use url::form_urlencoded;

pub(crate) use self::download::disposition;
pub(crate) use self::range::{RangeRequest, parse as parse_range};
pub(crate) use self::signature::FileOperation;
use super::error::{EnvdError, plain};
use crate::envd::RunningSandbox;

/// Query parameters of a file URL.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FileQuery {
    pub(crate) path: Option<String>,
    pub(crate) username: Option<String>,
    pub(crate) signature: Option<String>,
    pub(crate) signature_expiration: Option<i64>,
}

impl FileQuery {
    pub(crate) fn parse(uri: &Uri) -> Self {
        let mut query = Self::default();
        for (name, value) in form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes()) {
            let value = value.into_owned();
            match &*name {
                "path" => query.path = Some(value),
                "username" => query.username = Some(value),
                "signature" => query.signature = Some(value),
                "signature_expiration" => query.signature_expiration = value.parse().ok(),
                _ => {}
            }
        }
        query
    }
}

/// Returns the operation of an HTTP method.
pub(crate) fn operation(method: &Method) -> Option<FileOperation> {
    match *method {
        Method::GET | Method::HEAD => Some(FileOperation::Read),
        Method::POST => Some(FileOperation::Write),
        _ => None,
    }
}

/// Serves an authorized request.
pub(crate) async fn serve(
    live: &Arc<RunningSandbox>,
    query: FileQuery,
    request: Request<Body>,
) -> Response {
    let answered = match operation(request.method()) {
        Some(FileOperation::Read) => download::serve(live, &query, request.headers()).await,
        Some(FileOperation::Write) => upload::serve(live, query, request).await,
        None => {
            return plain(
                StatusCode::METHOD_NOT_ALLOWED,
                "method not allowed: use GET or POST",
            );
        }
    };
    answered.unwrap_or_else(EnvdError::into_plain)
}
