//! The control plane: sandboxes made, found, paused and ended over REST.

mod create;
mod idempotency;
mod list;
mod network;
mod sandboxes;
mod shapes;
mod usage;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::FromRef;
use axum::response::{IntoResponse as _, Response};
use axum::routing::{any, get, post, put};
use http::{Request, StatusCode};
use hyper::service::Service as _;
use hyper_util::service::TowerToHyperService;
use serde::de::DeserializeOwned;

use self::idempotency::Answered;
use crate::address;
use crate::body;
use crate::fleet::Fleet;
use crate::refusal::Refusal;

/// Bytes of a request.
const REQUEST_BYTES: usize = 1 << 20;
/// How long a request's body may stand still.
const IDLE: Duration = Duration::from_secs(30);

/// Answers requests of the control plane.
pub(crate) struct Control {
    fleet: Arc<Fleet>,
    router: TowerToHyperService<Router>,
}

/// What handlers need.
#[derive(Clone)]
struct State {
    fleet: Arc<Fleet>,
    answered: Arc<Answered>,
}

impl FromRef<State> for Arc<Fleet> {
    fn from_ref(state: &State) -> Self {
        Arc::clone(&state.fleet)
    }
}

impl Control {
    pub(crate) fn new(fleet: Arc<Fleet>) -> Self {
        let state = State {
            fleet: Arc::clone(&fleet),
            answered: Arc::default(),
        };
        let router = Router::new()
            .route("/sandboxes", post(create::v1).get(list::all))
            .route("/v2/sandboxes", post(create::v2).get(list::pages))
            .route("/sandboxes/metrics", get(usage::many))
            .route(
                "/sandboxes/{id}",
                get(sandboxes::detail).delete(sandboxes::kill),
            )
            .route("/sandboxes/{id}/connect", post(sandboxes::connect))
            .route("/v2/sandboxes/{id}/connect", post(sandboxes::connect))
            .route("/sandboxes/{id}/resume", post(sandboxes::resume))
            .route("/sandboxes/{id}/timeout", post(sandboxes::timeout))
            .route("/sandboxes/{id}/refreshes", post(sandboxes::refresh))
            .route("/sandboxes/{id}/pause", post(sandboxes::pause))
            .route("/sandboxes/{id}/metrics", get(usage::one))
            .route("/sandboxes/{id}/logs", get(sandboxes::logs))
            .route("/v2/sandboxes/{id}/logs", get(sandboxes::logs))
            .route("/sandboxes/{id}/network", put(sandboxes::network))
            .route("/sandboxes/{id}/fork", any(unsupported))
            .route("/sandboxes/{id}/snapshots", any(unsupported))
            .route("/snapshots", any(unsupported))
            .route("/templates", any(unsupported))
            .route("/templates/{*rest}", any(unsupported))
            .route("/v2/templates", any(unsupported))
            .route("/v2/templates/{*rest}", any(unsupported))
            .route("/v3/templates", any(unsupported))
            .route("/volumes", any(unsupported))
            .route("/volumes/{*rest}", any(unsupported))
            .route("/secrets", any(unsupported))
            .route("/secrets/{*rest}", any(unsupported))
            .fallback(unknown)
            .method_not_allowed_fallback(wrong_method)
            .with_state(state);
        Self {
            fleet,
            router: TowerToHyperService::new(router),
        }
    }

    /// Answers a request.
    pub(crate) async fn answer(&self, mut request: Request<Body>) -> Response {
        if request.uri().path() == "/health" {
            return StatusCode::NO_CONTENT.into_response();
        }
        let settings = &self.fleet.settings;
        // A key that any will do for is none: then a page from elsewhere must not get through.
        if settings.keys.is_empty() && !address::is_own(&request, settings.domain.as_deref()) {
            let message = "this server answers to its own names only";
            return Refusal::new(StatusCode::FORBIDDEN, message).into_response();
        }
        let key = request.headers().get("x-api-key");
        let key = key.and_then(|key| key.to_str().ok()).unwrap_or_default();
        let Some(owner) = settings.keys.owner(key) else {
            let message = "the API key is missing or wrong: send it as X-API-KEY";
            return Refusal::new(StatusCode::UNAUTHORIZED, message).into_response();
        };
        request.extensions_mut().insert(owner);
        match self.router.call(request).await {
            Ok(response) => response,
            Err(never) => match never {},
        }
    }
}

async fn unsupported() -> Refusal {
    Refusal::unsupported("this server has no templates, snapshots, forks, volumes or secrets")
}

async fn unknown() -> Refusal {
    Refusal::new(StatusCode::NOT_FOUND, "there is no such path")
}

async fn wrong_method() -> Refusal {
    Refusal::new(
        StatusCode::METHOD_NOT_ALLOWED,
        "this path has no such method",
    )
}

/// Reads a request; an empty one says nothing.
async fn read<T: DeserializeOwned>(request: Body) -> Result<T, Refusal> {
    let bytes = body::whole(request, REQUEST_BYTES, IDLE).await;
    parse(&bytes.map_err(|error| Refusal::bad_request(error.to_string()))?)
}

fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Refusal> {
    let text = if bytes.is_empty() { b"{}" } else { bytes };
    serde_json::from_slice(text)
        .map_err(|error| Refusal::bad_request(format!("the request can't be read: {error}")))
}
