//! Requests to servers inside a sandbox: HTTP, and protocols that a request upgrades to, such as WebSocket.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use cantle_core::sandbox::SandboxErrorKind;
use http::header::{self, HeaderMap, HeaderName};
use http::{Request, StatusCode};
use http_body_util::BodyExt as _;
use hyper::client::conn::http1;
use hyper::upgrade::{self, OnUpgrade};
use hyper_util::rt::TokioIo;
use tokio::io::copy_bidirectional;
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;

use crate::address::{ID_HEADER, PORT_HEADER, TOKEN_HEADER, TRAFFIC_TOKEN_HEADER};
use crate::connections::Connection;
use crate::envd::RunningSandbox;

/// Time limit for the head of a response.
const RESPONSE_HEAD_TIMEOUT: Duration = Duration::from_secs(600);

/// Headers that concern one connection only.
const CONNECTION_HEADERS: [HeaderName; 8] = [
    header::CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];

/// Status and reason of a port that does not answer.
pub(crate) type Unanswered = (StatusCode, String);

/// Returns the reason of a port without a server.
pub(crate) fn closed() -> Unanswered {
    let message = "The sandbox is running but port is not open";
    (StatusCode::BAD_GATEWAY, message.to_owned())
}

/// Passes a request to a port of a sandbox. It has a connection of its own, which ends with the response.
pub(crate) async fn forward(
    live: &Arc<RunningSandbox>,
    port: u16,
    mut request: Request<Body>,
) -> Result<Response, Unanswered> {
    let sandbox = live
        .acquire()
        .map_err(|error| (StatusCode::BAD_GATEWAY, error.to_string()))?;
    let descriptors = sandbox.account.take_descriptors();
    let descriptors =
        descriptors.map_err(|error| (StatusCode::TOO_MANY_REQUESTS, error.to_string()))?;
    let connected = sandbox.connect(port).await;
    let connection = connected.map_err(|error| match error.kind() {
        SandboxErrorKind::NotFound => closed(),
        SandboxErrorKind::Unavailable => (StatusCode::TOO_MANY_REQUESTS, error.to_string()),
        _ => (StatusCode::BAD_GATEWAY, error.to_string()),
    })?;
    drop(sandbox);
    let invalid = |error: hyper::Error| {
        let reason = format!("the server at this port did not answer in HTTP: {error}");
        (StatusCode::BAD_GATEWAY, reason)
    };
    let handshake = http1::handshake(TokioIo::new(connection)).await;
    let (mut sender, driver) = handshake.map_err(invalid)?;
    let driver = AbortOnDropHandle::new(tokio::spawn(async move {
        // Its error is that of the request.
        let _ = driver.with_upgrades().await;
        drop(descriptors);
    }));
    let upgraded = request.extensions_mut().remove::<OnUpgrade>();
    // Keeps its place after it has been upgraded.
    let client_connection = request.extensions().get::<Arc<Connection>>().cloned();
    let is_upgrade = asks_for_upgrade(request.headers());
    let headers = request.headers_mut();
    for name in [ID_HEADER, PORT_HEADER, TOKEN_HEADER, TRAFFIC_TOKEN_HEADER] {
        headers.remove(name);
    }
    remove_connection_headers(headers, is_upgrade);
    let path = request.uri().path_and_query();
    let path = path.map_or("/", |path| path.as_str()).parse();
    *request.uri_mut() = path.unwrap_or_default();
    let answer = timeout(RESPONSE_HEAD_TIMEOUT, sender.send_request(request)).await;
    let answer = answer.map_err(|_| {
        let reason = "the server at this port did not answer in time";
        (StatusCode::GATEWAY_TIMEOUT, reason.to_owned())
    })?;
    let mut answer = answer.map_err(invalid)?;
    let is_upgraded = answer.status() == StatusCode::SWITCHING_PROTOCOLS;
    match (is_upgraded, upgraded.filter(|_| is_upgrade)) {
        (true, Some(client)) => {
            let server = upgrade::on(&mut answer);
            live.spawn(async move {
                let _held = (client_connection, driver);
                copy(client, server).await;
            });
            remove_connection_headers(answer.headers_mut(), true);
            Ok(answer.map(|_| Body::empty()))
        }
        (true, None) => {
            let reason = "the server at this port changed the protocol unasked";
            Err((StatusCode::BAD_GATEWAY, reason.to_owned()))
        }
        (false, _) => {
            remove_connection_headers(answer.headers_mut(), false);
            // The connection lives as long as the body.
            Ok(answer.map(|body| {
                Body::new(body.map_frame(move |frame| {
                    let _ = &driver;
                    frame
                }))
            }))
        }
    }
}

/// Copies between the two ends of an upgraded connection until both are closed.
async fn copy(client: OnUpgrade, server: OnUpgrade) {
    let Ok((client, server)) = tokio::try_join!(client, server) else {
        return;
    };
    let (mut client, mut server) = (TokioIo::new(client), TokioIo::new(server));
    // An error ends the connection like its end.
    let _ = copy_bidirectional(&mut client, &mut server).await;
}

/// Returns the words of the `Connection` headers.
fn connection_words(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let values = headers.get_all(header::CONNECTION).iter();
    let values = values.filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).map(str::trim)
}

/// Returns whether a request asks to change to another protocol.
fn asks_for_upgrade(headers: &HeaderMap) -> bool {
    let mut words = connection_words(headers);
    headers.contains_key(header::UPGRADE) && words.any(|word| word.eq_ignore_ascii_case("upgrade"))
}

/// Removes the headers that concern one connection; an upgrade concerns both.
fn remove_connection_headers(headers: &mut HeaderMap, is_upgrade: bool) {
    let protocol = headers.get(header::UPGRADE).filter(|_| is_upgrade).cloned();
    let listed = connection_words(headers).filter_map(|name| name.parse::<HeaderName>().ok());
    let listed: Vec<_> = listed.collect();
    for name in CONNECTION_HEADERS.iter().chain(&listed) {
        headers.remove(name);
    }
    if let Some(protocol) = protocol {
        headers.insert(header::UPGRADE, protocol);
        let upgrade = http::HeaderValue::from_static("upgrade");
        headers.insert(header::CONNECTION, upgrade);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_of_one_connection_are_removed() {
        let given = [
            ("connection", "keep-alive, X-Private, Upgrade"),
            ("keep-alive", "timeout=5"),
            ("x-private", "1"),
            ("upgrade", "websocket"),
            ("x-kept", "2"),
        ];
        let headers = || -> HeaderMap {
            let pairs = given.map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()));
            pairs.into_iter().collect()
        };
        assert!(asks_for_upgrade(&headers()));
        let mut plain = headers();
        remove_connection_headers(&mut plain, false);
        assert_eq!(plain.len(), 1);
        assert_eq!(plain["x-kept"], "2");
        let mut upgrade = headers();
        remove_connection_headers(&mut upgrade, true);
        assert_eq!(upgrade.len(), 3);
        assert_eq!(upgrade["connection"], "upgrade");
        assert_eq!(upgrade["upgrade"], "websocket");
        assert!(!asks_for_upgrade(&plain));
        upgrade.insert("connection", "keep-alive".parse().unwrap());
        assert!(!asks_for_upgrade(&upgrade));
        upgrade.append("connection", "Upgrade".parse().unwrap());
        assert!(asks_for_upgrade(&upgrade), "in one of two headers");
    }
}
