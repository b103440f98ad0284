//! The control plane: creating, listing, pausing and ending sandboxes over REST.

mod create;
mod idempotency;
mod list;
mod network;
mod responses;
mod sandboxes;
mod usage;

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{FromRequest, FromRequestParts, Path};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{any, get, post, put};
use axum::{Json, Router};
use bytes::Bytes;
use http::request::Parts;
use http::{Request, StatusCode, Uri};
use hyper::service::Service as _;
use hyper_util::service::TowerToHyperService;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use self::create::{V1_SECONDS, V2_SECONDS, create};
use self::idempotency::IdempotencyCache;
use crate::accounts::{Account, MemoryCharge};
use crate::address;
use crate::api_error::{ApiError, ApiResult};
use crate::body::{self, BodyError};
use crate::connections;
use crate::extension::{ExtensionClient, Extensions};
use crate::fleet::{Fleet, Member};
use cantle_core::principal::PrincipalId;

/// Maximum size of a request body.
const REQUEST_BYTES: usize = 1 << 20;
/// Bytes charged for each byte of a request: small strings, parsed, are that much larger.
const REQUEST_WEIGHT: usize = 8;
/// How long a request body may make no progress.
const IDLE: Duration = Duration::from_secs(30);

/// Handler of the control plane.
pub(crate) struct Control {
    pub(crate) fleet: Arc<Fleet>,
    router: TowerToHyperService<Router>,
    pub(crate) extensions: Extensions,
}

/// State shared by the handlers.
#[derive(Clone)]
struct ControlState {
    fleet: Arc<Fleet>,
    idempotency: Arc<IdempotencyCache>,
}

/// The fleet, and the client's share of it.
struct Client {
    fleet: Arc<Fleet>,
    owner: PrincipalId,
}

impl FromRequestParts<ControlState> for Client {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &ControlState) -> ApiResult<Self> {
        // `Control::answer` has inserted it.
        let owner = parts.extensions.get().cloned().ok_or_else(unauthorized)?;
        let fleet = Arc::clone(&state.fleet);
        Ok(Self { fleet, owner })
    }
}

/// The sandbox in the path of a request, which the client owns.
struct Addressed {
    fleet: Arc<Fleet>,
    member: Arc<Member>,
}

impl FromRequestParts<ControlState> for Addressed {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &ControlState) -> ApiResult<Self> {
        let Client { fleet, owner } = Client::from_request_parts(parts, state).await?;
        let id = Path::<String>::from_request_parts(parts, state).await;
        let Path(id) = id.map_err(|error| ApiError::bad_request(error.body_text()))?;
        let member = fleet.find_of(&owner, &id)?;
        Ok(Self { fleet, member })
    }
}

/// A JSON request; an empty body is `{}`.
struct Message<T>(T);

impl<T: DeserializeOwned> FromRequest<ControlState> for Message<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request<Body>, state: &ControlState) -> ApiResult<Self> {
        let owner = request.extensions().get().ok_or_else(unauthorized)?;
        let mut charge = Account::new(&state.fleet.accounts, owner).charge();
        parse(&read(request.into_body(), &mut charge).await?).map(Self)
    }
}

impl Control {
    pub(crate) fn new(fleet: Arc<Fleet>, extensions: Extensions) -> Self {
        let state = ControlState {
            fleet: Arc::clone(&fleet),
            idempotency: Arc::default(),
        };
        let router = Router::new()
            .route("/sandboxes", post(create::<V1_SECONDS>).get(list::all))
            .route("/v2/sandboxes", post(create::<V2_SECONDS>).get(list::pages))
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
            .route("/sandboxes/{id}/network", put(sandboxes::update_network))
            .route("/sandboxes/{id}/fork", any(unsupported_of))
            .route("/sandboxes/{id}/snapshots", any(unsupported_of))
            .route("/templates/aliases/{alias}", get(template_alias))
            .fallback(unknown)
            .method_not_allowed_fallback(wrong_method)
            .with_state(state);
        Self {
            fleet,
            router: TowerToHyperService::new(router),
            extensions,
        }
    }

    /// Responds to one request.
    pub(crate) async fn answer(&self, mut request: Request<Body>) -> Response {
        if request.uri().path() == "/health" {
            return StatusCode::NO_CONTENT.into_response();
        }
        let settings = &self.fleet.settings;
        let extension = self.extensions.get(request.uri().path());
        // If any key is accepted, only the host check keeps cross-origin pages out.
        let checks_host = settings.keys.is_empty() || extension.is_some();
        if checks_host && !address::is_own_host(&request, settings.domain.as_deref()) {
            let message = "this server answers only requests to its own host names";
            return ApiError::new(StatusCode::FORBIDDEN, message).into_response();
        }
        let headers = request.headers();
        let header = |name| headers.get(name)?.to_str().ok();
        let bearer = || header("authorization")?.strip_prefix("Bearer ");
        let key = header("x-api-key").or_else(|| bearer().filter(|_| extension.is_some()));
        let key = key.unwrap_or_default();
        let Some(owner) = settings.keys.owner(key) else {
            return unauthorized().into_response();
        };
        if let Err(error) = connections::admit(request.extensions(), &owner).await {
            return ApiError::from(error).into_response();
        }
        if let Some(extension) = extension {
            let client = ExtensionClient {
                principal: owner,
                fleet: Arc::clone(&self.fleet),
            };
            return extension.answer(client, request).await;
        }
        let charge = Account::new(&self.fleet.accounts, &owner).charge();
        request.extensions_mut().insert(owner);
        let Ok(response) = self.router.call(request).await;
        body::charge_response(response, charge)
            .unwrap_or_else(|error| ApiError::quota_exceeded(error.to_string()).into_response())
    }
}

fn unauthorized() -> ApiError {
    let message = "the API key is missing or wrong: send it as X-API-KEY";
    ApiError::new(StatusCode::UNAUTHORIZED, message)
}

/// `GET /templates/aliases/{alias}`: whether a template exists.
async fn template_alias(
    Client { fleet, .. }: Client,
    Path(alias): Path<String>,
) -> ApiResult<Json<Value>> {
    fleet.backend(&alias)?;
    Ok(Json(json!({ "templateID": alias, "public": false })))
}

async fn unsupported() -> ApiError {
    ApiError::unsupported(
        "this server does not support templates, snapshots, forks, volumes or secrets",
    )
}

/// Refuses a request about a sandbox, which exists.
async fn unsupported_of(_: Addressed) -> ApiError {
    unsupported().await
}

/// Refuses a path that this server does not have.
async fn unknown(uri: Uri) -> ApiError {
    let mut segments = uri.path().split('/').skip(1);
    match segments.find(|it| !matches!(*it, "v2" | "v3")) {
        Some("snapshots" | "templates" | "volumes" | "secrets") => unsupported().await,
        _ => ApiError::new(StatusCode::NOT_FOUND, "path not found"),
    }
}

async fn wrong_method() -> ApiError {
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "method not allowed")
}

async fn read(request: Body, charge: &mut MemoryCharge) -> ApiResult<Bytes> {
    let bytes = body::read_all(request, REQUEST_BYTES, IDLE, charge, REQUEST_WEIGHT).await;
    bytes.map_err(|error| match error {
        BodyError::Memory(error) => ApiError::quota_exceeded(error.to_string()),
        BodyError::TooLarge { .. } => {
            ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, error.to_string())
        }
        error => ApiError::bad_request(error.to_string()),
    })
}

fn parse<T: DeserializeOwned>(bytes: &[u8]) -> ApiResult<T> {
    let text = if bytes.is_empty() { b"{}" } else { bytes };
    serde_json::from_slice(text)
        .map_err(|error| ApiError::bad_request(format!("invalid request: {error}")))
}
