use proptest::prelude::*;
use proptest::sample::{Index, select};

use super::*;

fn request(method: &str, uri: &str, headers: &[(&str, &str)]) -> Request<()> {
    let mut request = Request::builder().method(method).uri(uri);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(()).unwrap()
}

fn asked(method: &str, uri: &str) -> Result<(String, u16), StatusCode> {
    target(&request(method, uri, &[]))
        .map(|target| (target.host.to_string(), target.port))
        .map_err(|rejection| rejection.status())
}

#[test]
fn a_tunnel_and_a_url_name_their_host_and_port() {
    let expect = |host: &str, port| Ok((host.to_owned(), port));
    assert_eq!(asked("CONNECT", "PyPI.org:443"), expect("pypi.org", 443));
    assert_eq!(asked("GET", "http://pypi.org/a?b"), expect("pypi.org", 80));
    assert_eq!(
        asked("GET", "http://pypi.org.:8080/"),
        expect("pypi.org", 8080)
    );
}

#[test]
fn what_is_no_request_to_a_proxy_is_malformed() {
    for (method, uri) in [
        ("GET", "/index.html"),
        ("OPTIONS", "*"),
        ("GET", "https://pypi.org/"),
        ("GET", "ftp://pypi.org/"),
        ("CONNECT", "pypi.org"),
        ("CONNECT", "pypi.org:99999"),
        ("GET", "http://pypi.org:99999/"),
    ] {
        let status = asked(method, uri).unwrap_err();
        assert_eq!(status, StatusCode::BAD_REQUEST, "{method} {uri}");
    }
}

#[test]
fn no_address_and_no_user_passes_for_a_name() {
    for authority in [
        "127.0.0.1",
        "2130706433",
        "0x7f000001",
        "0x7f.1",
        "0177.0.0.1",
        "127.1",
        "127.0.0.1.",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "[fd00::1]",
        "localhost",
        "pypi.org@127.0.0.1",
        "user:password@pypi.org",
    ] {
        for (method, uri) in [
            ("CONNECT", format!("{authority}:443")),
            ("GET", format!("http://{authority}/")),
            ("GET", format!("http://{authority}:80/")),
        ] {
            let status = asked(method, &uri).unwrap_err();
            assert_eq!(status, StatusCode::FORBIDDEN, "{method} {uri}");
        }
    }
}

#[test]
fn the_host_header_must_name_the_same_server() {
    let with = |hosts: &[&str]| {
        let headers: Vec<_> = hosts.iter().map(|host| ("host", *host)).collect();
        target(&request("GET", "http://pypi.org/", &headers)).is_ok()
    };
    for host in ["pypi.org", "PYPI.ORG", "pypi.org:80"] {
        assert!(with(&[host]), "{host}");
    }
    for host in [
        "evil.org",
        "pypi.org:8080",
        "a@pypi.org",
        "",
        "pypi.org.evil.org",
    ] {
        assert!(!with(&[host]), "{host}");
    }
    assert!(!with(&["pypi.org", "pypi.org"]));
}

#[test]
fn what_is_meant_for_one_connection_is_not_passed_on() {
    let sent = request(
        "POST",
        "http://pypi.org:8080/path?query",
        &[
            ("host", "pypi.org:8080"),
            ("connection", "keep-alive, X-Own, content-length"),
            ("x-own", "1"),
            ("proxy-authorization", "Basic secret"),
            ("proxy-connection", "keep-alive"),
            ("keep-alive", "timeout=5"),
            ("te", "trailers"),
            ("upgrade", "websocket"),
            ("expect", "100-continue"),
            ("content-length", "5"),
            ("accept", "*/*"),
        ],
    );
    let target = target(&sent).unwrap();
    let forwarded = forwarded(sent, &target).unwrap();
    assert_eq!(forwarded.uri(), "/path?query");
    let mut headers: Vec<String> = forwarded
        .headers()
        .iter()
        .map(|(name, value)| format!("{name}: {}", value.to_str().unwrap()))
        .collect();
    headers.sort();
    let expected = [
        "accept: */*",
        "connection: close",
        "content-length: 5",
        "host: pypi.org:8080",
    ];
    assert_eq!(headers, expected);
}

#[test]
fn a_length_beside_an_encoding_is_dropped() {
    let both = [("content-length", "5"), ("transfer-encoding", "chunked")];
    let sent = request("POST", "http://pypi.org/", &both);
    let target = target(&sent).unwrap();
    let forwarded = forwarded(sent, &target).unwrap();
    let names: Vec<_> = forwarded.headers().keys().map(HeaderName::as_str).collect();
    assert_eq!(names, ["host", "connection"]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// A few bytes away from requests that are fine.
    #[test]
    fn no_request_panics_or_names_an_address(
        method in select(&["GET", "CONNECT", "POST", "OPTIONS"][..]),
        uri in select(&["http://pypi.org/a?b", "pypi.org:443", "http://u:p@a.b:1/", "http://10.0.0.1/"][..]),
        host in select(&["", "pypi.org", "pypi.org:443", "other", "10.0.0.1"][..]),
        edits in proptest::collection::vec((any::<Index>(), select(&b"[]:@/.%0x1-# *a\\"[..])), 0..4),
    ) {
        let mut bytes = uri.as_bytes().to_vec();
        for (at, byte) in edits {
            bytes.insert(at.index(bytes.len() + 1), byte);
        }
        let built = Request::builder().method(method).uri(bytes.as_slice());
        let Ok(request) = built.header("host", host).body(()) else {
            return Ok(());
        };
        if let Ok(target) = target(&request) {
            let name = target.host.to_string();
            prop_assert!(name.parse::<std::net::IpAddr>().is_err(), "{name}");
            if let Some(forwarded) = forwarded(request, &target) {
                prop_assert!(forwarded.uri().authority().is_none());
            }
        }
    }
}
