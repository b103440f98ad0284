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
fn tunnel_and_url_targets_are_parsed() {
    let expect = |host: &str, port| Ok((host.to_owned(), port));
    assert_eq!(
        asked("CONNECT", "Index.Example.org:443"),
        expect("index.example.org", 443)
    );
    assert_eq!(
        asked("GET", "http://index.example.org/a?b"),
        expect("index.example.org", 80)
    );
    assert_eq!(
        asked("GET", "http://index.example.org.:8080/"),
        expect("index.example.org", 8080)
    );
}

#[test]
fn request_not_for_a_proxy_is_malformed() {
    for (method, uri) in [
        ("GET", "/index.html"),
        ("OPTIONS", "*"),
        ("GET", "https://index.example.org/"),
        ("GET", "ftp://index.example.org/"),
        ("CONNECT", "index.example.org"),
        ("CONNECT", "index.example.org:99999"),
        ("GET", "http://index.example.org:99999/"),
    ] {
        let status = asked(method, uri).unwrap_err();
        assert_eq!(status, StatusCode::BAD_REQUEST, "{method} {uri}");
    }
}

#[test]
fn addresses_and_user_names_are_refused_as_hosts() {
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
        "index.example.org@127.0.0.1",
        "user:password@index.example.org",
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
fn host_header_must_match_the_url() {
    let with = |hosts: &[&str]| {
        let headers: Vec<_> = hosts.iter().map(|host| ("host", *host)).collect();
        target(&request("GET", "http://index.example.org/", &headers)).is_ok()
    };
    for host in [
        "index.example.org",
        "INDEX.EXAMPLE.ORG",
        "index.example.org:80",
    ] {
        assert!(with(&[host]), "{host}");
    }
    for host in [
        "other.example.org",
        "index.example.org:8080",
        "a@index.example.org",
        "",
        "index.example.org.evil.example.com",
    ] {
        assert!(!with(&[host]), "{host}");
    }
    assert!(!with(&["index.example.org", "index.example.org"]));
}

#[test]
fn hop_by_hop_headers_are_removed() {
    let sent = request(
        "POST",
        "http://index.example.org:8080/path?query",
        &[
            ("host", "index.example.org:8080"),
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
        "host: index.example.org:8080",
    ];
    assert_eq!(headers, expected);
}

#[test]
fn content_length_with_transfer_encoding_is_removed() {
    let both = [("content-length", "5"), ("transfer-encoding", "chunked")];
    let sent = request("POST", "http://index.example.org/", &both);
    let target = target(&sent).unwrap();
    let forwarded = forwarded(sent, &target).unwrap();
    let names: Vec<_> = forwarded.headers().keys().map(HeaderName::as_str).collect();
    assert_eq!(names, ["host", "connection"]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Mutations of valid requests.
    #[test]
    fn mutated_requests_never_panic_or_name_an_address(
        method in select(&["GET", "CONNECT", "POST", "OPTIONS"][..]),
        uri in select(&["http://index.example.org/a?b", "index.example.org:443", "http://u:p@a.b:1/", "http://10.0.0.1/"][..]),
        host in select(&["", "index.example.org", "index.example.org:443", "other", "10.0.0.1"][..]),
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
