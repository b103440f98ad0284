//! Routing of requests to the control plane or to a port of a sandbox.

use std::net::IpAddr;

use http::{HeaderMap, Request, Uri};

pub(crate) const ID_HEADER: &str = "e2b-sandbox-id";
pub(crate) const PORT_HEADER: &str = "e2b-sandbox-port";
/// The port of envd.
pub(crate) const ENVD_PORT: u16 = 49983;
const ENVD_PORT_TEXT: &str = "49983";
pub(crate) const TOKEN_HEADER: &str = "x-access-token";
pub(crate) const TRAFFIC_TOKEN_HEADER: &str = "e2b-traffic-access-token";

/// Destination of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Destination {
    ControlPlane,
    Sandbox {
        id: String,
        port: u16,
    },
    /// A sandbox identified only by an access token or a signed URL.
    ByCredential,
    /// Incomplete or invalid sandbox headers.
    Malformed,
}

/// Determines the destination from the two headers, or from the first label of the host name,
/// `PORT-ID.domain`.
pub(crate) fn destination<B>(request: &Request<B>) -> Destination {
    let header = |name| request.headers().get(name).map(|value| value.to_str());
    match (header(ID_HEADER), header(PORT_HEADER)) {
        // The Python SDK 2.10 sends the headers of envd to the control plane, too.
        (Some(_), Some(Ok(ENVD_PORT_TEXT))) if is_control_path(request.uri().path()) => {
            Destination::ControlPlane
        }
        (Some(Ok(id)), Some(Ok(port))) => sandbox(id, port).unwrap_or(Destination::Malformed),
        (None, None) => {
            let host = host(request.uri(), request.headers()).unwrap_or_default();
            // Host names have no case, and IDs are in lower case.
            let label = host.split('.').next().unwrap_or_default();
            let label = label.to_ascii_lowercase();
            let named = label.split_once('-').filter(|_| host.contains('.'));
            match named.and_then(|(port, id)| sandbox(id, port)) {
                Some(named) => named,
                None if is_control_path(request.uri().path()) => Destination::ControlPlane,
                None if has_sandbox_credential(request) => Destination::ByCredential,
                None => Destination::ControlPlane,
            }
        }
        _ => Destination::Malformed,
    }
}

/// Whether a request carries a sandbox's credential: the Python SDK 2.10 sends only the token to
/// sandboxes it connects to, and signed URLs contain only the signature.
fn has_sandbox_credential<B>(request: &Request<B>) -> bool {
    request.headers().contains_key(TOKEN_HEADER) || request.uri().path() == "/files"
}

/// Whether a path belongs to the control plane; envd has no such paths.
fn is_control_path(path: &str) -> bool {
    matches!(
        path.split('/').nth(1),
        Some("sandboxes" | "v2" | "v3" | "templates" | "snapshots" | "volumes" | "secrets")
    )
}

fn sandbox(id: &str, port: &str) -> Option<Destination> {
    let is_allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let is_id = (1..=64).contains(&id.len()) && id.bytes().all(is_allowed);
    let port = port.parse().ok()?;
    is_id.then(|| Destination::Sandbox {
        id: id.to_owned(),
        port,
    })
}

/// The request's host name without the port.
fn host<'r>(uri: &'r Uri, headers: &'r HeaderMap) -> Option<&'r str> {
    let authority = match uri.authority() {
        Some(authority) => authority.as_str(),
        None => headers.get(http::header::HOST)?.to_str().ok()?,
    };
    if let Some(rest) = authority.strip_prefix('[') {
        return rest.split(']').next();
    }
    authority.split(':').next()
}

/// Whether the host is this machine or `domain`. Protects against DNS rebinding: a page in a browser
/// sends the host name it was loaded from.
pub(crate) fn is_own_host<B>(request: &Request<B>, domain: Option<&str>) -> bool {
    let Some(host) = host(request.uri(), request.headers()) else {
        // HTTP/1.0, which browsers do not use.
        return true;
    };
    let lowercase = host.to_ascii_lowercase();
    let is_in = |domain: &str| {
        // Host names have no case, and the domain may have a port.
        let domain = domain.split(':').next().unwrap_or_default();
        let above = lowercase.strip_suffix(&domain.to_ascii_lowercase());
        above.is_some_and(|above| above.is_empty() || above.ends_with('.'))
    };
    host.parse::<IpAddr>().is_ok() || is_in("localhost") || domain.is_some_and(is_in)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(headers: &[(&str, &str)]) -> Request<()> {
        let mut builder = Request::get("/files");
        for (name, value) in headers {
            builder = builder.header(*name, *value);
        }
        builder.body(()).unwrap()
    }

    fn envd(id: &str) -> Destination {
        Destination::Sandbox {
            id: id.to_owned(),
            port: 49983,
        }
    }

    #[test]
    fn headers_or_the_host_name_select_a_sandbox() {
        let by_headers = request(&[
            ("host", "127.0.0.1:3010"),
            (ID_HEADER, "iabc1"),
            (PORT_HEADER, "49983"),
        ]);
        assert_eq!(destination(&by_headers), envd("iabc1"));
        for host in [
            "49983-iabc1.sbx.example.com:8443",
            "49983-IABC1.SBX.example.com",
        ] {
            let by_host = request(&[("host", host)]);
            assert_eq!(destination(&by_host), envd("iabc1"), "{host}");
        }
        let by_credential = request(&[("host", "127.0.0.1:3010"), (TOKEN_HEADER, "t")]);
        assert_eq!(destination(&by_credential), Destination::ByCredential);
        assert_eq!(
            destination(&request(&[("host", "127.0.0.1:3010")])),
            Destination::ByCredential
        );
        for control in [
            "api.sbx.example.com",
            "127.0.0.1:3010",
            "[::1]:3010",
            "49983-iabc",
        ] {
            let request = Request::get("/v2/sandboxes").header("host", control);
            assert_eq!(
                destination(&request.body(()).unwrap()),
                Destination::ControlPlane,
                "{control}"
            );
        }
    }

    #[test]
    fn the_control_plane_keeps_its_paths() {
        let request = Request::post("/sandboxes/iabc1/connect")
            .header(ID_HEADER, "iabc1")
            .header(PORT_HEADER, "49983");
        assert_eq!(
            destination(&request.body(()).unwrap()),
            Destination::ControlPlane
        );
    }

    #[test]
    fn incomplete_headers_are_malformed() {
        for headers in [
            [(ID_HEADER, "iabc1"), ("x", "y")],
            [(PORT_HEADER, "49983"), ("x", "y")],
            [(ID_HEADER, "I../x"), (PORT_HEADER, "49983")],
            [(ID_HEADER, "iabc1"), (PORT_HEADER, "http")],
        ] {
            assert_eq!(
                destination(&request(&headers)),
                Destination::Malformed,
                "{headers:?}"
            );
        }
    }

    #[test]
    fn foreign_host_names_are_not_own() {
        for domain in ["sbx.example.com", "SBX.example.com", "sbx.example.com:8443"] {
            let own = |host: &str| is_own_host(&request(&[("host", host)]), Some(domain));
            for host in [
                "127.0.0.1:1",
                "localhost:3010",
                "LOCALHOST",
                "[::1]:80",
                "api.sbx.example.com",
                "API.SBX.EXAMPLE.COM",
                "sbx.example.com:8443",
            ] {
                assert!(own(host), "{host}, {domain}");
            }
            for host in [
                "evil.example.com",
                "localhost.evil.example.com",
                "evilsbx.example.com",
            ] {
                assert!(!own(host), "{host}, {domain}");
            }
        }
    }
}
