//! Endpoints that speak TLS, or should.

use std::env;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::thread;

use cantle_clients::retry::RetryPolicy;
use cantle_core::llm::LlmErrorKind;
use cantle_testkit::openai::Turn;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use crate::support::{builder, complete, serve};

pub(crate) fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures/tls")
        .join(name)
}

/// Serves one connection with a certificate that only `cert.pem` vouches for.
pub(crate) fn serve_tls() -> String {
    serve_certificate("cert.pem")
}

fn serve_certificate(file: &str) -> String {
    let certificate = CertificateDer::from_pem_file(fixture(file)).unwrap();
    let key = PrivatePkcs8KeyDer::from(std::fs::read(fixture("key.der")).unwrap());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key.into())
        .unwrap();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let url = format!("https://{}/v1", listener.local_addr().unwrap());
    thread::spawn(move || {
        let (socket, _) = listener.accept().unwrap();
        let connection = ServerConnection::new(Arc::new(config)).unwrap();
        let mut stream = StreamOwned::new(connection, socket);
        let mut seen = Vec::new();
        let mut buffer = [0; 4096];
        // A client that does not trust us leaves within the handshake.
        while let Ok(count) = stream.read(&mut buffer) {
            seen.extend_from_slice(&buffer[..count]);
            if count == 0 {
                break;
            }
            if seen.ends_with(b"}]}]}") {
                let body = r#"{"choices":[{"message":{"content":"Hi"}}]}"#;
                let length = body.len();
                write!(
                    stream,
                    "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
                )
                .unwrap();
                break;
            }
        }
    });
    url
}

#[tokio::test]
async fn an_untrusted_certificate_is_rejected() {
    let url = serve_tls();
    let client = builder(&url, false)
        .retry(RetryPolicy::never())
        .build()
        .unwrap();
    let error = complete(&client).await.unwrap_err();
    assert_eq!(error.kind(), LlmErrorKind::Tls);
    let text = error.to_string();
    assert!(
        text.starts_with(&format!(
            "failed to reach {url}: the TLS handshake failed: "
        )),
        "{text}"
    );
    assert!(
        error
            .advice()
            .is_some_and(|advice| advice.contains("SSL_CERT_FILE"))
    );
}

/// `openssl req -x509` creates such a certificate by default. Trusting it does not help.
#[test]
fn the_certificate_of_an_authority_has_its_own_advice() {
    let url = serve_certificate("authority.pem");
    again_with(
        "tls::subprocess_call_is_advised",
        &[
            ("TEST_URL", &url),
            ("SSL_CERT_FILE", &fixture("authority.pem").to_string_lossy()),
        ],
    );
}

#[tokio::test]
#[ignore = "run by the_certificate_of_an_authority_has_its_own_advice"]
async fn subprocess_call_is_advised() {
    let client = builder(&env::var("TEST_URL").unwrap(), false);
    let error = complete(&client.build().unwrap()).await.unwrap_err();
    assert_eq!(error.kind(), LlmErrorKind::Tls);
    let advice = error.advice().unwrap();
    assert!(
        advice.contains("basicConstraints=critical,CA:FALSE"),
        "{advice}"
    );
}

#[tokio::test]
async fn a_server_with_tls_is_recognized() {
    let url = serve_tls().replace("https://", "http://");
    let client = builder(&url, false).build().unwrap();
    let error = complete(&client).await.unwrap_err();
    assert_eq!(error.kind(), LlmErrorKind::Protocol);
    assert_eq!(
        error.advice(),
        Some("If the server expects TLS, begin the base URL with https://.")
    );
}

#[tokio::test]
async fn a_server_without_tls_is_recognized() {
    let server = serve(Turn::text("Hi")).await;
    let url = server.url().replace("http://", "https://");
    let client = builder(&url, false)
        .retry(RetryPolicy::never())
        .build()
        .unwrap();
    let error = complete(&client).await.unwrap_err();
    assert_eq!(error.kind(), LlmErrorKind::Tls);
    assert_eq!(
        error.advice(),
        Some("The server seems not to speak TLS: try http:// in the URL.")
    );
}

/// The environment is the process's own, so these run in one of theirs: this test binary again.
pub(crate) fn again_with(test: &str, variables: &[(&str, &str)]) {
    let mut command = Command::new(env::current_exe().unwrap());
    for (name, _) in env::vars_os() {
        let upper = name.to_string_lossy().to_uppercase();
        if upper.ends_with("_PROXY") || upper == "SSL_CERT_DIR" {
            command.env_remove(name);
        }
    }
    let output = command
        .args(["--exact", test, "--ignored", "--nocapture"])
        .envs(variables.iter().copied())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let more = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}{more}");
    assert!(said.contains("1 passed"), "{said}");
}

#[test]
fn ssl_cert_file_is_trusted() {
    let url = serve_tls();
    let certificate = fixture("cert.pem");
    again_with(
        "tls::subprocess_call_succeeds",
        &[
            ("TEST_URL", &url),
            ("SSL_CERT_FILE", &certificate.to_string_lossy()),
        ],
    );
}

#[tokio::test]
#[ignore = "run by ssl_cert_file_is_trusted"]
async fn subprocess_call_succeeds() {
    let url = env::var("TEST_URL").unwrap();
    let client = builder(&url, false)
        .retry(RetryPolicy::never())
        .build()
        .unwrap();
    assert_eq!(complete(&client).await.unwrap().message.text(), "Hi");
}

#[test]
fn an_invalid_ssl_cert_file_is_an_error() {
    again_with(
        "tls::subprocess_build_fails",
        &[("SSL_CERT_FILE", "/no/such/file.pem")],
    );
}

#[test]
#[ignore = "run by an_invalid_ssl_cert_file_is_an_error"]
fn subprocess_build_fails() {
    let error = builder("https://localhost/v1", true).build().unwrap_err();
    assert_eq!(
        error.to_string(),
        "no certificate could be read from where SSL_CERT_FILE points"
    );
    assert_eq!(error.advice(), Some("Correct SSL_CERT_FILE, or unset it."));
    // An `http` address needs none.
    builder("http://localhost/v1", true).build().unwrap();
}
