//! Endpoints behind a proxy. Names as `models.example` mean nothing to a resolver, so what gets there
//! went through the proxy.

use std::env;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use cantle_clients::chat::Timeouts;
use cantle_core::llm::LlmErrorKind;

use crate::support::{DEADLINE, builder, complete, taken};
use crate::tls::{again_with, fixture, serve_tls};

/// What a proxy does with a request.
#[derive(Clone)]
enum Does {
    /// It answers itself, as a plain proxy does for a server it asked.
    Answer(&'static str),
    /// It connects to this address, whatever it is asked for.
    Connect(String),
}

const HI: &str = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n\r\n\
                  {\"choices\":[{\"message\":{\"content\":\"Hi\"}}]}";
const WHO: &str = "HTTP/1.1 407 Proxy Authentication Required\r\ncontent-length: 0\r\n\r\n";
const NOBODY: &str = "HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n";

/// Serves one connection; its address, and the head of what it was asked.
fn proxy(does: Does) -> (String, Receiver<Vec<String>>) {
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
        match does {
            Does::Answer(answer) => {
                (&client).write_all(answer.as_bytes()).unwrap();
                client.shutdown(Shutdown::Write).unwrap();
                // What the client still says is its own.
                let _ = reader.read_to_end(&mut Vec::new());
            }
            Does::Connect(to) => {
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

/// The host and the port in a base URL.
fn host_of(url: &str) -> String {
    let rest = url.strip_prefix("https://").unwrap();
    rest.strip_suffix("/v1").unwrap().to_owned()
}

/// Asks for an answer in another process, with these variables and nothing else that names a proxy.
pub(crate) fn ask(url: &str, expected: &str, variables: &[(&str, &str)]) {
    let given = [("TEST_URL", url), ("TEST_EXPECTED", expected)];
    let variables = [&given, variables].concat();
    again_with("proxy::in_another_environment", &variables);
}

#[tokio::test]
#[ignore = "run by the tests below"]
async fn in_another_environment() {
    let url = env::var("TEST_URL").unwrap();
    // Where nobody answers for a network, it takes long until a host has no address.
    let mut timeouts = Timeouts::default();
    timeouts.connect = DEADLINE.mul_f64(0.9);
    let client = builder(&url, false).api_key("sk-key").max_retries(0);
    let client = client.timeouts(timeouts);
    let said = match complete(&client.build().unwrap()).await {
        Ok(completion) => completion.message.text(),
        Err(error) => {
            assert!(matches!(
                error.kind(),
                LlmErrorKind::Connection | LlmErrorKind::Permission
            ));
            format!("{error}. {}", error.advice().unwrap_or_default())
        }
    };
    assert_eq!(said, env::var("TEST_EXPECTED").unwrap());
}

#[test]
fn an_http_address_is_asked_for_at_the_proxy() {
    let (at, asked) = proxy(Does::Answer(HI));
    let named = format!("http://me:secret@{at}");
    ask("http://models.example/v1", "Hi", &[("http_proxy", &named)]);
    let head = asked.recv().unwrap();
    assert_eq!(
        head[0],
        "POST http://models.example/v1/chat/completions HTTP/1.1"
    );
    // `me:secret` in Base64.
    let name = "proxy-authorization: Basic bWU6c2VjcmV0".to_owned();
    assert!(head.contains(&name), "{head:?}");
}

#[test]
fn an_https_address_is_reached_through_a_tunnel_that_sees_no_key() {
    let server = serve_tls();
    let to = host_of(&server);
    let (at, asked) = proxy(Does::Connect(to));
    let certificate = fixture("cert.pem");
    ask(
        "https://models.example/v1",
        "Hi",
        &[
            ("HTTPS_PROXY", &at),
            ("SSL_CERT_FILE", &certificate.to_string_lossy()),
        ],
    );
    let head = asked.recv().unwrap();
    assert_eq!(head[0], "CONNECT models.example:443 HTTP/1.1");
    assert!(!head.iter().any(|line| line.contains("sk-key")), "{head:?}");
}

#[test]
fn another_hosts_certificate_behind_a_tunnel_is_refused() {
    let server = serve_tls();
    let to = host_of(&server);
    let (at, _asked) = proxy(Does::Connect(to));
    let certificate = fixture("cert.pem");
    let expected = format!(
        "failed to reach https://other.example/v1 through the proxy http://{at} (ALL_PROXY): no secure \
         connection: invalid peer certificate: certificate not valid for name \"other.example\"; \
         certificate is only valid for IpAddress(127.0.0.1), DnsName(\"localhost\") or \
         DnsName(\"models.example\"). The certificate is for another host: check the host's name in the \
         base URL."
    );
    ask(
        "https://other.example/v1",
        &expected,
        &[
            ("ALL_PROXY", &at),
            ("SSL_CERT_FILE", &certificate.to_string_lossy()),
        ],
    );
}

#[test]
fn what_goes_wrong_at_the_proxy_names_it() {
    let certificate = fixture("cert.pem");
    let trusting = ("SSL_CERT_FILE", &*certificate.to_string_lossy());
    for (url, does, expected) in [
        (
            "https://models.example/v1",
            WHO,
            "failed to reach https://models.example/v1 through the proxy http://AT (HTTPS_PROXY): tunnel \
             error: proxy authorization required. Put a name and a password for it into HTTPS_PROXY: \
             http://NAME:PASSWORD@HOST:PORT.",
        ),
        (
            "https://models.example/v1",
            NOBODY,
            "failed to reach https://models.example/v1 through the proxy http://AT (HTTPS_PROXY): tunnel \
             error: unsuccessful. The proxy is there and lets nobody through to that address: check the \
             base URL, and what the proxy allows.",
        ),
        (
            "http://models.example/v1",
            WHO,
            "the provider does not permit the request (no reason given); the proxy http://AT said so \
             (HTTP 407). Put a name and a password for it into HTTP_PROXY: http://NAME:PASSWORD@HOST:PORT.",
        ),
    ] {
        let (at, _asked) = proxy(Does::Answer(does));
        let named = format!("http://someone:secret@{at}");
        let set = [("HTTPS_PROXY", &*named), ("HTTP_PROXY", &*named), trusting];
        ask(url, &expected.replace("AT", &at), &set);
    }
}

#[test]
fn a_proxy_that_is_not_there_is_named() {
    let taken = taken();
    let at = taken.local_addr().unwrap().to_string();
    let expected = format!(
        "failed to reach http://models.example/v1 through the proxy http://{at} (HTTP_PROXY): Connection \
         refused (os error 111). Check that the proxy is running, and its address in HTTP_PROXY; a host \
         that needs none belongs in NO_PROXY."
    );
    ask(
        "http://models.example/v1",
        &expected,
        &[("HTTP_PROXY", &at)],
    );
}

#[test]
fn this_machine_is_reached_directly() {
    // Nobody is at port 1, so that what went through the proxy would fail otherwise.
    let expected = "failed to reach http://127.0.0.1:1/v1: connection refused. Check that the server is \
                    running, and the port in the base URL.";
    ask(
        "http://127.0.0.1:1/v1",
        expected,
        &[("HTTP_PROXY", "http://models.example")],
    );
}
