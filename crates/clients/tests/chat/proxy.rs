//! Endpoints behind a proxy. The host names do not resolve, so requests that arrive went through it.

use std::env;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use cantle_clients::chat::Timeouts;
use cantle_clients::retry::RetryPolicy;
use cantle_core::llm::LlmErrorKind;

use crate::support::{DEADLINE, builder, complete, taken};
use crate::tls::{again_with, fixture, serve_tls};

/// Behaviour of the test proxy.
#[derive(Clone)]
enum ProxyMode {
    /// Sends this response.
    Answer(&'static str),
    /// Connects to this address instead of the requested one.
    Connect(String),
}

const HI: &str = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n\r\n\
                  {\"choices\":[{\"message\":{\"content\":\"Hi\"}}]}";
const AUTHENTICATION_REQUIRED: &str =
    "HTTP/1.1 407 Proxy Authentication Required\r\ncontent-length: 0\r\n\r\n";
const FORBIDDEN: &str = "HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n";

/// Serves one connection. Returns the proxy's address, and a channel for the request's head.
fn proxy(mode: ProxyMode) -> (String, Receiver<Vec<String>>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (heads, asked) = channel();
    thread::spawn(move || {
        let (client, _) = listener.accept().unwrap();
        let mut reader = BufReader::new(client.try_clone().unwrap());
        let mut head = Vec::new();
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).unwrap();
            if line.trim().is_empty() {
                break;
            }
            head.push(line.trim().to_owned());
        }
        heads.send(head).unwrap();
        match mode {
            ProxyMode::Answer(answer) => {
                (&client).write_all(answer.as_bytes()).unwrap();
                client.shutdown(Shutdown::Write).unwrap();
                let _ = reader.read_to_end(&mut Vec::new());
            }
            ProxyMode::Connect(to) => {
                let server = TcpStream::connect(to).unwrap();
                (&client)
                    .write_all(b"HTTP/1.1 200 Connection established\r\n\r\n")
                    .unwrap();
                let (mut there, mut back) = (server.try_clone().unwrap(), client);
                let up = thread::spawn(move || {
                    let _ = io::copy(&mut reader, &mut there);
                    let _ = there.shutdown(Shutdown::Write);
                });
                let _ = io::copy(&mut &server, &mut back);
                let _ = back.shutdown(Shutdown::Both);
                up.join().unwrap();
            }
        }
    });
    (address, asked)
}

/// Returns the host and port of a base URL.
fn host_of(url: &str) -> String {
    let rest = url.strip_prefix("https://").unwrap();
    rest.strip_suffix("/v1").unwrap().to_owned()
}

/// Calls the model in a subprocess with these variables, and no other proxy settings.
pub(crate) fn call(url: &str, expected: &str, variables: &[(&str, &str)]) {
    let given = [("TEST_URL", url), ("TEST_EXPECTED", expected)];
    let variables = [&given, variables].concat();
    again_with("proxy::rerun_with_environment", &variables);
}

#[tokio::test]
#[ignore = "run by the tests below"]
async fn rerun_with_environment() {
    let url = env::var("TEST_URL").unwrap();
    // Without a reachable resolver, a lookup takes long to fail.
    let mut timeouts = Timeouts::default();
    timeouts.connect = DEADLINE.mul_f64(0.9);
    let client = builder(&url, false)
        .api_key("sk-key")
        .retry(RetryPolicy::never());
    let client = client.timeouts(timeouts);
    let outcome = match complete(&client.build().unwrap()).await {
        Ok(completion) => completion.message.text(),
        Err(error) => {
            assert!(matches!(
                error.kind(),
                LlmErrorKind::Unreachable | LlmErrorKind::Tls | LlmErrorKind::Permission
            ));
            format!("{error}. {}", error.advice().unwrap_or_default())
        }
    };
    assert_eq!(outcome, env::var("TEST_EXPECTED").unwrap());
}

#[test]
fn http_requests_go_to_the_proxy() {
    let (at, asked) = proxy(ProxyMode::Answer(HI));
    let named = format!("http://me:secret@{at}");
    call(
        "http://models.example.com/v1",
        "Hi",
        &[("http_proxy", &named)],
    );
    let head = asked.recv().unwrap();
    assert_eq!(
        head[0],
        "POST http://models.example.com/v1/chat/completions HTTP/1.1"
    );
    // `me:secret` in Base64.
    let name = "proxy-authorization: Basic bWU6c2VjcmV0".to_owned();
    assert!(head.contains(&name), "{head:?}");
}

#[test]
fn https_requests_are_tunnelled() {
    let server = serve_tls();
    let to = host_of(&server);
    let (at, asked) = proxy(ProxyMode::Connect(to));
    let certificate = fixture("cert.pem");
    call(
        "https://models.example.com/v1",
        "Hi",
        &[
            ("HTTPS_PROXY", &at),
            ("SSL_CERT_FILE", &certificate.to_string_lossy()),
        ],
    );
    let head = asked.recv().unwrap();
    assert_eq!(head[0], "CONNECT models.example.com:443 HTTP/1.1");
    assert!(!head.iter().any(|line| line.contains("sk-key")), "{head:?}");
}

#[test]
fn a_wrong_certificate_behind_a_tunnel_is_rejected() {
    let server = serve_tls();
    let to = host_of(&server);
    let (at, _asked) = proxy(ProxyMode::Connect(to));
    let certificate = fixture("cert.pem");
    let expected = format!(
        "failed to reach https://other.example.com/v1 through the proxy http://{at} (ALL_PROXY): the TLS \
         handshake failed: invalid peer certificate: certificate not valid for name \"other.example.com\"; \
         certificate is only valid for IpAddress(127.0.0.1), DnsName(\"localhost\") or \
         DnsName(\"models.example.com\"). The certificate is for another host: check the host's name in the \
         URL."
    );
    call(
        "https://other.example.com/v1",
        &expected,
        &[
            ("ALL_PROXY", &at),
            ("SSL_CERT_FILE", &certificate.to_string_lossy()),
        ],
    );
}

#[test]
fn proxy_errors_name_the_proxy() {
    let certificate = fixture("cert.pem");
    let trusting = ("SSL_CERT_FILE", &*certificate.to_string_lossy());
    for (url, response, expected) in [
        (
            "https://models.example.com/v1",
            AUTHENTICATION_REQUIRED,
            "failed to reach https://models.example.com/v1 through the proxy http://AT (HTTPS_PROXY): tunnel \
             error: proxy authorization required. Set the proxy's credentials in HTTPS_PROXY: \
             http://USER:PASSWORD@HOST:PORT.",
        ),
        (
            "https://models.example.com/v1",
            FORBIDDEN,
            "failed to reach https://models.example.com/v1 through the proxy http://AT (HTTPS_PROXY): tunnel \
             error: unsuccessful. The proxy refused the connection to that address: check the base \
             URL, and the proxy's rules.",
        ),
        (
            "http://models.example.com/v1",
            AUTHENTICATION_REQUIRED,
            "the provider denied permission for the request (no reason given); reported by the proxy \
             http://AT (HTTP 407). Set the proxy's credentials in HTTP_PROXY: http://USER:PASSWORD@HOST:PORT.",
        ),
    ] {
        let (at, _asked) = proxy(ProxyMode::Answer(response));
        let named = format!("http://someone:secret@{at}");
        let set = [("HTTPS_PROXY", &*named), ("HTTP_PROXY", &*named), trusting];
        call(url, &expected.replace("AT", &at), &set);
    }
}

#[test]
fn an_unreachable_proxy_is_named() {
    let taken = taken();
    let at = taken.local_addr().unwrap().to_string();
    let expected = format!(
        "failed to reach http://models.example.com/v1 through the proxy http://{at} (HTTP_PROXY): Connection \
         refused (os error 111). Check that the proxy is running, and its URL in HTTP_PROXY; add hosts \
         that need no proxy to NO_PROXY."
    );
    call(
        "http://models.example.com/v1",
        &expected,
        &[("HTTP_PROXY", &at)],
    );
}

#[test]
fn loopback_is_reached_directly() {
    // Nothing listens on port 1; a request through the proxy would fail differently.
    let expected = "failed to reach http://127.0.0.1:1/v1: connection refused. Check that the server is \
                    running, and the port in the base URL.";
    call(
        "http://127.0.0.1:1/v1",
        expected,
        &[("HTTP_PROXY", "http://models.example.com")],
    );
}
