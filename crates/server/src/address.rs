//! Whom a request is for: the control plane, or a port of a sandbox.

use std::net::IpAddr;

use http::{HeaderMap, Request, Uri};

const ID: &str = "e2b-sandbox-id";
const PORT: &str = "e2b-sandbox-port";
pub(crate) const TOKEN: &str = "x-access-token";

/// Whom a request is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Address {
    Control,
    Sandbox {
        id: String,
        port: u16,
    },
    /// What it is sent with says which sandbox: a token, or a signed address.
    Unnamed,
    /// It names a sandbox, but not how.
    Broken,
}

/// Reads the address of a request: its two headers, or the first label of its host,
/// `PORT-ID.domain`.
pub(crate) fn of<B>(request: &Request<B>) -> Address {
    let header = |name| request.headers().get(name).map(|value| value.to_str());
    match (header(ID), header(PORT)) {
        // Python's SDK 2.10 sends them to both.
        (Some(_), Some(_)) if is_of_control(request.uri().path()) => Address::Control,
        (Some(Ok(id)), Some(Ok(port))) => sandbox(id, port).unwrap_or(Address::Broken),
        (None, None) => {
            let host = host(request.uri(), request.headers()).unwrap_or_default();
            let label = host.split('.').next().unwrap_or_default();
            let named = label
                .split_once('-')
                .filter(|_| host.contains('.'))
                .and_then(|(port, id)| sandbox(id, port));
            named.unwrap_or(
                if is_of_control(request.uri().path()) || !speaks_for_one(request) {
                    Address::Control
                } else {
                    Address::Unnamed
                },
            )
        }
        _ => Address::Broken,
    }
}

/// Whether a request comes with what belongs to one sandbox: Python's SDK 2.10 sends the token alone to
/// those that it connects to, and signed addresses never say more.
fn speaks_for_one<B>(request: &Request<B>) -> bool {
    request.headers().contains_key(TOKEN) || request.uri().path() == "/files"
}

/// Whether a path is one of the control plane's, of which sandboxes have none.
fn is_of_control(path: &str) -> bool {
    let first = path.split('/').nth(1).unwrap_or_default();
    [
        "sandboxes",
        "v2",
        "v3",
        "templates",
        "snapshots",
        "volumes",
        "secrets",
    ]
    .contains(&first)
}

fn sandbox(id: &str, port: &str) -> Option<Address> {
    let is_id = !id.is_empty()
        && id.len() <= 64
        && id
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
    let port = port.parse().ok()?;
    is_id.then(|| Address::Sandbox {
        id: id.to_owned(),
        port,
    })
}

/// The host that a request names, without its port.
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

/// Whether a request names this machine, or `domain`, and not a name that some page in a browser was
/// loaded from.
pub(crate) fn is_own<B>(request: &Request<B>, domain: Option<&str>) -> bool {
    let Some(host) = host(request.uri(), request.headers()) else {
        // HTTP/1.0, which no browser speaks.
        return true;
    };
    let is_of_domain = |domain: &str| {
        host.strip_suffix(domain)
            .is_some_and(|above| above.is_empty() || above.ends_with('.'))
    };
    host.parse::<IpAddr>().is_ok()
        || host == "localhost"
        || host.ends_with(".localhost")
        || domain.is_some_and(is_of_domain)
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

    fn envd(id: &str) -> Address {
        Address::Sandbox {
            id: id.to_owned(),
            port: 49983,
        }
    }

    #[test]
    fn headers_or_the_host_name_a_sandbox() {
        let by_headers = request(&[("host", "127.0.0.1:3010"), (ID, "iabc1"), (PORT, "49983")]);
        assert_eq!(of(&by_headers), envd("iabc1"));
        let by_host = request(&[("host", "49983-iabc1.sbx.example.com:8443")]);
        assert_eq!(of(&by_host), envd("iabc1"));
        let by_token = request(&[("host", "127.0.0.1:3010"), (TOKEN, "t")]);
        assert_eq!(of(&by_token), Address::Unnamed);
        assert_eq!(
            of(&request(&[("host", "127.0.0.1:3010")])),
            Address::Unnamed
        );
        for control in [
            "api.sbx.example.com",
            "127.0.0.1:3010",
            "[::1]:3010",
            "49983-iabc",
        ] {
            let request = Request::get("/v2/sandboxes").header("host", control);
            assert_eq!(
                of(&request.body(()).unwrap()),
                Address::Control,
                "{control}"
            );
        }
    }

    #[test]
    fn the_control_plane_keeps_its_paths() {
        let request = Request::post("/sandboxes/iabc1/connect")
            .header(ID, "iabc1")
            .header(PORT, "49983");
        assert_eq!(of(&request.body(()).unwrap()), Address::Control);
    }

    #[test]
    fn half_an_address_is_broken() {
        for headers in [
            [(ID, "iabc1"), ("x", "y")],
            [(PORT, "49983"), ("x", "y")],
            [(ID, "I../x"), (PORT, "49983")],
            [(ID, "iabc1"), (PORT, "http")],
        ] {
            assert_eq!(of(&request(&headers)), Address::Broken, "{headers:?}");
        }
    }

    #[test]
    fn a_foreign_name_is_not_ours() {
        let own = |host: &str| is_own(&request(&[("host", host)]), Some("sbx.example.com"));
        for host in [
            "127.0.0.1:1",
            "localhost:3010",
            "[::1]:80",
            "api.sbx.example.com",
        ] {
            assert!(own(host), "{host}");
        }
        for host in [
            "evil.example",
            "localhost.evil.example",
            "evilsbx.example.com",
        ] {
            assert!(!own(host), "{host}");
        }
    }
}
