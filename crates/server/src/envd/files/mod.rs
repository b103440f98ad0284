//! Files over plain HTTP: `GET /files` and `POST /files`.

mod download;
mod range;
pub(crate) mod signature;
mod upload;

use std::sync::Arc;

use axum::body::Body;
use axum::response::Response;
use http::{Method, Request, StatusCode, Uri};
use url::form_urlencoded;

pub(crate) use self::signature::Operation;
use super::fault::{Fault, plain};
use crate::fleet::Live;

/// What the address of a file says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Query {
    pub(crate) path: Option<String>,
    pub(crate) username: Option<String>,
    pub(crate) signature: Option<String>,
    pub(crate) signature_expiration: Option<i64>,
}

impl Query {
    pub(crate) fn of(uri: &Uri) -> Self {
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

/// What a request wants to do with a file.
pub(crate) fn operation(method: &Method) -> Option<Operation> {
    match *method {
        Method::GET | Method::HEAD => Some(Operation::Read),
        Method::POST => Some(Operation::Write),
        _ => None,
    }
}

/// Answers a request whose sender may do this.
pub(crate) async fn serve(live: &Arc<Live>, query: Query, request: Request<Body>) -> Response {
    let answered = match operation(request.method()) {
        Some(Operation::Read) => download::serve(live, &query, request.headers()).await,
        Some(Operation::Write) => upload::serve(live, query, request).await,
        None => return plain(StatusCode::METHOD_NOT_ALLOWED, "files are read and written"),
    };
    answered.unwrap_or_else(Fault::into_plain)
}
