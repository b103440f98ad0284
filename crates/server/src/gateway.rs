//! The gateway to the services of sandboxes: finds the sandbox of a request, resumes it if it is paused,
//! and checks the request's credentials.
//!
//! A request identifies its sandbox by its headers or host name ([`crate::address`]), or by a token or
//! URL signature that belongs to the sandbox.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::Body;
use axum::response::{IntoResponse as _, Response};
use http::{HeaderValue, Method, Request, StatusCode, header};
use serde_json::json;

use crate::address::{ENVD_PORT, TOKEN_HEADER, TRAFFIC_TOKEN_HEADER};
use crate::connections;
use crate::envd;
use crate::envd::error::{EnvdError, RpcCode};
use crate::envd::files::signature::{self, SignatureCheck};
use crate::envd::files::{self, FileQuery};
use crate::envd::rpc::{self, CallKind};
use crate::fleet::{Fleet, Member};
use crate::interpreter;
use crate::keys;
use crate::ports::{self, Unanswered};

/// The port of the code interpreter.
const INTERPRETER_PORT: u16 = 49999;

/// Lifetime of a sandbox that a request resumed, unless the limit is lower.
const RESUMED_LIFETIME: Duration = Duration::from_secs(300);

/// Serves a request to a port of a sandbox. Its own services answer pages of any origin: the token protects the
/// sandbox.
pub(crate) async fn serve(
    fleet: &Arc<Fleet>,
    id: &str,
    port: u16,
    request: Request<Body>,
) -> Response {
    if !is_own_service(port) {
        return respond(fleet, id, port, request).await;
    }
    allow_any_origin(match *request.method() {
        Method::OPTIONS => StatusCode::NO_CONTENT.into_response(),
        _ => respond(fleet, id, port, request).await,
    })
}

async fn respond(fleet: &Arc<Fleet>, id: &str, port: u16, request: Request<Body>) -> Response {
    let Some(member) = fleet.find(id) else {
        return not_found(id);
    };
    let access = authorize(&member, port, &request);
    if access.is_ok()
        && let Err(error) = connections::admit(request.extensions(), &member.identity.owner).await
    {
        return EnvdError::exhausted(error.to_string()).into_plain();
    }
    let is_health_check = is_own_service(port) && is_health_check(&request);
    let resumes = member.is_paused() && member.identity.spec.auto_resume;
    if resumes && access.is_ok() && !is_health_check {
        // A failure shows as "not found" below.
        let lifetime = RESUMED_LIFETIME.min(fleet.settings.limits.lifetime);
        let _ = fleet.connect(&member, lifetime).await;
    }
    let Some(live) = member.running() else {
        return not_found(id);
    };
    let contexts = match port {
        ENVD_PORT => None,
        INTERPRETER_PORT => match live.contexts() {
            Some(contexts) => Some(contexts),
            None => return unanswered(id, port, ports::closed()),
        },
        _ => {
            if let Err(error) = access {
                return error.into_plain();
            }
            let forwarded = envd::serve(&live, async {
                let answered = ports::forward(&live, port, request).await;
                answered.unwrap_or_else(|error| unanswered(id, port, error))
            });
            return forwarded.await.unwrap_or_else(|| not_found(id));
        }
    };
    if let Err(error) = access
        && !is_health_check
    {
        return error.into_plain();
    }
    if let Err(error) = check_user(&request, fleet) {
        return match request.uri().path() {
            "/files" => error.into_plain(),
            _ if rpc::check(&request, CallKind::Streaming).is_ok() => rpc::stream_error(error),
            _ => error.into_rpc(),
        };
    }
    let environment = || member.identity.environment();
    let answered = match contexts {
        Some(contexts) => envd::serve(&live, interpreter::route(&live, contexts, request)).await,
        None => envd::serve(&live, envd::route(&live, environment, request)).await,
    };
    answered.unwrap_or_else(|| not_found(id))
}

/// Serves a request that identifies its sandbox only by a token or a URL signature.
pub(crate) async fn serve_by_credential(fleet: &Arc<Fleet>, request: Request<Body>) -> Response {
    let query = FileQuery::parse(request.uri());
    let operation = files::operation(request.method());
    let is_credential_for = |member: &&Arc<Member>| {
        let token = member.identity.token.expose();
        header_is(&request, TOKEN_HEADER, token)
            || operation.is_some_and(|operation| {
                signature::check(&query, operation, token) != SignatureCheck::Invalid
            })
    };
    match fleet.members().iter().find(is_credential_for) {
        Some(member) => serve(fleet, &member.identity.id, ENVD_PORT, request).await,
        // The token of a sandbox that has ended.
        None if request.headers().contains_key(TOKEN_HEADER) => allow_any_origin(not_found("")),
        None => allow_any_origin(unauthorized().into_plain()),
    }
}

/// Whether this server itself answers at a port, in every sandbox.
fn is_own_service(port: u16) -> bool {
    matches!(port, ENVD_PORT | INTERPRETER_PORT)
}

/// Whether a request only asks if the sandbox runs. It needs no credentials and does not resume the sandbox.
fn is_health_check(request: &Request<Body>) -> bool {
    request.uri().path() == "/health" && request.method() == Method::GET
}

/// Checks the token or signature of a request.
fn authorize(member: &Member, port: u16, request: &Request<Body>) -> Result<(), EnvdError> {
    let path = request.uri().path();
    let token = member.identity.token.expose();
    let is_own_service = is_own_service(port);
    let is_public = !is_own_service && !member.identity.spec.restricts_public_traffic();
    // SDKs send only the traffic token with requests about contexts.
    let has_traffic_token = || {
        let token = member.identity.traffic_token();
        port != ENVD_PORT && header_is(request, TRAFFIC_TOKEN_HEADER, token.expose())
    };
    if is_public || header_is(request, TOKEN_HEADER, token) || has_traffic_token() {
        return Ok(());
    }
    if !is_own_service {
        let message = format!("the port needs the sandbox's token in {TRAFFIC_TOKEN_HEADER}");
        return Err(EnvdError::new(RpcCode::PermissionDenied, message));
    }
    let verdict = match files::operation(request.method()) {
        Some(operation) if port == ENVD_PORT && path == "/files" => {
            signature::check(&FileQuery::parse(request.uri()), operation, token)
        }
        _ => SignatureCheck::Invalid,
    };
    match verdict {
        SignatureCheck::Valid => Ok(()),
        SignatureCheck::Expired => Err(EnvdError::new(
            RpcCode::Unauthenticated,
            "signature is already expired",
        )),
        SignatureCheck::Invalid => Err(unauthorized()),
    }
}

fn header_is(request: &Request<Body>, name: &str, token: &str) -> bool {
    let given = request.headers().get(name);
    given.is_some_and(|given| keys::constant_time_eq(given.as_bytes(), token.as_bytes()))
}

fn unauthorized() -> EnvdError {
    let message =
        "unauthorized access, please provide a valid access token or method signing if supported";
    EnvdError::new(RpcCode::Unauthenticated, message)
}

/// Refuses user names other than the sandbox's user.
fn check_user(request: &Request<Body>, fleet: &Fleet) -> Result<(), EnvdError> {
    let user = match request.uri().path() {
        "/files" => FileQuery::parse(request.uri()).username,
        _ => basic_auth_user(request),
    };
    let own = &fleet.settings.user;
    match user.filter(|user| !user.is_empty()) {
        Some(user) if user != *own => {
            let message = format!("invalid username: '{user}' (everything here runs as '{own}')");
            Err(EnvdError::new(RpcCode::Unauthenticated, message))
        }
        _ => Ok(()),
    }
}

/// Returns the user name of `Authorization: Basic`, if present.
fn basic_auth_user(request: &Request<Body>) -> Option<String> {
    let header = request.headers().get(header::AUTHORIZATION)?;
    let (scheme, encoded) = header.to_str().ok()?.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let mut text = String::from_utf8(rpc::json::decode_base64(encoded)?).ok()?;
    text.truncate(text.find(':').unwrap_or(text.len()));
    Some(text)
}

/// Adds CORS headers for any origin.
fn allow_any_origin(mut response: Response) -> Response {
    for name in [
        header::ACCESS_CONTROL_ALLOW_ORIGIN,
        header::ACCESS_CONTROL_ALLOW_METHODS,
        header::ACCESS_CONTROL_ALLOW_HEADERS,
        header::ACCESS_CONTROL_EXPOSE_HEADERS,
    ] {
        response
            .headers_mut()
            .insert(name, HeaderValue::from_static("*"));
    }
    response
}

fn not_found(id: &str) -> Response {
    let message = "The sandbox was not found";
    let body = json!({ "sandboxId": id, "message": message, "code": 502 });
    (StatusCode::BAD_GATEWAY, Json(body)).into_response()
}

fn unanswered(id: &str, port: u16, (status, message): Unanswered) -> Response {
    let code = status.as_u16();
    let body = json!({ "sandboxId": id, "message": message, "port": port, "code": code });
    (status, Json(body)).into_response()
}
