//! The service of tools: `/manifest`, `/execute` and `/files`, as the orchestrator of code_executor calls them.
//!
//! A key is a service token, whose calls name the principal that they are for, unless it is bound to one.
//! Each principal has a sandbox, which is leased until it has been idle for some time ([`leases`]).

mod call;
mod download;
mod leases;
mod manifest;

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{DefaultBodyLimit, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use cantle_core::principal::PrincipalId;
use cantle_core::tool::DynTool;
use cantle_files::Files;
use http::{HeaderValue, Request, StatusCode, header};
use hyper::service::Service as _;
use hyper_util::service::TowerToHyperService;
use serde_json::{Value, json};

use self::leases::Leases;
use crate::address;
use crate::api_error::bounded;
use crate::connections;
use crate::fleet::Fleet;

/// The time without a call after which a sandbox is closed.
const IDLE: Duration = Duration::from_secs(600);
/// Calls of one principal in a minute.
const CALLS_PER_MINUTE: u32 = 120;

/// Tools that a [`Server`](crate::Server) offers to orchestrators, in a leased sandbox for each principal.
#[must_use]
#[derive(Clone, Debug)]
pub struct ToolService {
    module: String,
    description: String,
    tools: Vec<DynTool>,
    without_sandbox: Vec<String>,
    files: Option<Files>,
    calls_per_minute: u32,
    idle: Duration,
}

impl ToolService {
    /// Creates a service of the module `name`, whose tools are called `name.tool`.
    pub fn new(
        module: impl Into<String>,
        description: impl Into<String>,
        tools: Vec<DynTool>,
    ) -> Self {
        Self {
            module: module.into(),
            description: description.into(),
            tools,
            without_sandbox: Vec::new(),
            files: None,
            calls_per_minute: CALLS_PER_MINUTE,
            idle: IDLE,
        }
    }

    /// Names tools that need no sandbox: none is opened for their calls, and none has to make room for one.
    pub fn without_sandbox<T: Into<String>>(mut self, tools: impl IntoIterator<Item = T>) -> Self {
        self.without_sandbox = tools.into_iter().map(Into::into).collect();
        self
    }

    /// Serves files at the signed addresses of their store ([`Urls::Signed`](cantle_files::Urls::Signed)).
    pub fn files(mut self, files: Files) -> Self {
        self.files = Some(files);
        self
    }

    /// Sets the time without a call after which a sandbox is closed; 10 minutes by default.
    pub fn idle(mut self, time: Duration) -> Self {
        self.idle = time;
        self
    }

    /// Sets how many calls a principal may make in a minute; 120 by default.
    pub fn calls_per_minute(mut self, calls: u32) -> Self {
        self.calls_per_minute = calls;
        self
    }
}

/// State of the handlers.
struct ServedTools {
    service: ToolService,
    leases: Arc<Leases>,
}

/// A running [`ToolService`].
pub(crate) struct ToolRoutes {
    router: TowerToHyperService<Router>,
    leases: Arc<Leases>,
}

impl ToolRoutes {
    pub(crate) fn new(service: ToolService, fleet: &Arc<Fleet>) -> Self {
        let leases = Leases::new(fleet, service.calls_per_minute, service.idle);
        let served = Arc::new(ServedTools {
            service,
            leases: Arc::clone(&leases),
        });
        let router = Router::new()
            .route("/health", get(async || Json(json!({ "status": "ok" }))))
            .route("/manifest", get(manifest))
            .route("/execute", post(call::execute))
            .route("/files/{*key}", get(download::serve))
            // The handler bounds and charges bodies.
            .layer(DefaultBodyLimit::disable())
            .with_state(served);
        Self {
            router: TowerToHyperService::new(router),
            leases,
        }
    }

    /// Returns whether a path belongs to the service.
    pub(crate) fn has(path: &str) -> bool {
        matches!(path, "/health" | "/manifest" | "/execute") || path.starts_with("/files/")
    }

    pub(crate) async fn answer(&self, request: Request<Body>) -> Response {
        let Ok(response) = self.router.call(request).await;
        response
    }

    /// Ends all calls and closes the leased sandboxes.
    pub(crate) async fn stop(&self) {
        self.leases.stop().await;
    }
}

/// `GET /manifest`.
async fn manifest(
    State(served): State<Arc<ServedTools>>,
    request: Request<Body>,
) -> Result<Json<Value>, Refusal> {
    served.authenticate(&request.map(drop)).await?;
    Ok(Json(manifest::of(&served.service)))
}

/// A refused request.
#[derive(Debug)]
struct Refusal {
    status: StatusCode,
    detail: String,
    retry_after: Option<Duration>,
}

impl Refusal {
    fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        Self {
            status,
            detail: bounded(detail),
            retry_after: None,
        }
    }

    /// A limit is reached, and the request may be repeated after a time.
    fn limited(detail: impl Into<String>, retry_after: Duration) -> Self {
        Self {
            retry_after: Some(retry_after),
            ..Self::new(StatusCode::TOO_MANY_REQUESTS, detail)
        }
    }

    fn stopping() -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "the server is stopping")
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(json!({ "detail": self.detail }))).into_response();
        if let Some(after) = self.retry_after {
            let seconds = HeaderValue::from(after.as_secs().max(1));
            response.headers_mut().insert(header::RETRY_AFTER, seconds);
        }
        response
    }
}

impl ServedTools {
    /// Returns the principal of the request's key.
    async fn authenticate(&self, request: &Request<()>) -> Result<PrincipalId, Refusal> {
        let unauthorized = |detail| Refusal::new(StatusCode::UNAUTHORIZED, detail);
        let settings = &self.leases.fleet.settings;
        // If any key is accepted, only the host check keeps cross-origin pages out.
        if settings.keys.is_empty() && !address::is_own_host(request, settings.domain.as_deref()) {
            let detail = "this server answers only requests to its own host names";
            return Err(Refusal::new(StatusCode::FORBIDDEN, detail));
        }
        let given = request.headers().get(header::AUTHORIZATION);
        let given = given.and_then(|given| given.to_str().ok()?.strip_prefix("Bearer "));
        let given = given.ok_or_else(|| unauthorized("Missing service auth token"))?;
        let owner = settings.keys.owner(given);
        let owner = owner.ok_or_else(|| unauthorized("Invalid service auth token"))?;
        self.admit(request, &owner).await?;
        Ok(owner)
    }

    /// Accounts the request's connection to a principal.
    async fn admit(&self, request: &Request<()>, owner: &PrincipalId) -> Result<(), Refusal> {
        let admitted = connections::admit(request.extensions(), owner).await;
        admitted.map_err(|error| Refusal::limited(error.to_string(), Duration::from_secs(1)))
    }
}
