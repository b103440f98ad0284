//! Requests to the proxy of a sandbox.

use std::net::IpAddr;

use cantle_proxy::proxied_request;
use http::header::HeaderName;
use http::{Method, Request, Uri};

/// `METHOD URI`, and a header on each further line. What is accepted names a host, and is forwarded without what
/// was for the proxy.
pub(crate) fn request(data: &[u8]) {
    let Some((host, forwarded)) = parse(data).and_then(proxied_request) else {
        return;
    };
    assert!(host.parse::<IpAddr>().is_err(), "{host}");
    if let Some(forwarded) = forwarded {
        for name in ["proxy-authorization", "proxy-connection", "te", "upgrade"] {
            assert!(!forwarded.headers().contains_key(name), "{name}");
        }
        assert_eq!(forwarded.headers()["connection"], "close");
        assert_eq!(forwarded.headers().get_all("host").iter().count(), 1);
    }
}

fn parse(data: &[u8]) -> Option<Request<()>> {
    let mut lines = data.split(|byte| *byte == b'\n');
    let first = lines.next()?;
    let at = first.iter().position(|byte| *byte == b' ')?;
    let method = Method::from_bytes(&first[..at]).ok()?;
    let uri = Uri::try_from(&first[at + 1..]).ok()?;
    let mut request = Request::builder().method(method).uri(uri);
    for line in lines {
        let at = line.iter().position(|byte| *byte == b':')?;
        let name = HeaderName::from_bytes(&line[..at]).ok()?;
        request = request.header(name, line[at + 1..].trim_ascii());
    }
    request.body(()).ok()
}
