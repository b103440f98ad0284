//! Handshakes in memory with a server that verifies its clients.
#![expect(
    clippy::unwrap_used,
    reason = "clippy exempts test functions only, not their helpers"
)]

use std::fs;
use std::io::Cursor;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base64::Engine as _;
use cantle_tls::{TlsOptions, find_error, without_roots};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures")
        .join(name)
}

/// A server that accepts only clients with the certificate that it has itself.
fn server() -> ServerConnection {
    let certificate = CertificateDer::from_pem_file(fixture("cert.pem")).unwrap();
    let key = PrivatePkcs8KeyDer::from(fs::read(fixture("key.der")).unwrap());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = RootCertStore::empty();
    roots.add(certificate.clone()).unwrap();
    let clients = WebPkiClientVerifier::builder_with_provider(roots.into(), Arc::clone(&provider))
        .build()
        .unwrap();
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(clients)
        .with_single_cert(vec![certificate], key.into())
        .unwrap();
    ServerConnection::new(Arc::new(config)).unwrap()
}

/// Exchanges handshake messages until neither side has more to send.
fn handshake(config: ClientConfig) -> Result<(), rustls::Error> {
    let mut server = server();
    let name = ServerName::try_from("localhost").unwrap();
    let mut client = ClientConnection::new(Arc::new(config), name).unwrap();
    while client.wants_write() || server.wants_write() {
        let mut bytes = Vec::new();
        client.write_tls(&mut bytes).unwrap();
        server.read_tls(&mut Cursor::new(bytes)).unwrap();
        server.process_new_packets()?;
        let mut bytes = Vec::new();
        server.write_tls(&mut bytes).unwrap();
        client.read_tls(&mut Cursor::new(bytes)).unwrap();
        client.process_new_packets()?;
    }
    Ok(())
}

#[test]
fn extra_ca_and_client_certificate_authenticate_both_sides() {
    let directory = tempfile::tempdir().unwrap();
    let key = directory.path().join("key.pem");
    let encoded =
        base64::engine::general_purpose::STANDARD.encode(fs::read(fixture("key.der")).unwrap());
    let label = "PRIVATE KEY";
    let pem = format!("-----BEGIN {label}-----\n{encoded}\n-----END {label}-----\n");
    fs::write(&key, pem).unwrap();
    let trusting = TlsOptions::new().with_extra_ca(fixture("cert.pem"));

    let anonymous = handshake(trusting.build().unwrap());
    assert_eq!(anonymous, Err(rustls::Error::NoCertificatesPresented));
    let identified = trusting.with_client_certificate(fixture("cert.pem"), &key);
    assert_eq!(handshake(identified.build().unwrap()), Ok(()));
}

#[test]
fn unknown_certificate_is_refused() {
    for config in [TlsOptions::new().build(), without_roots()] {
        let error = handshake(config.unwrap()).unwrap_err();
        let error = std::io::Error::other(std::io::Error::other(error));
        let advice = cantle_tls::advice(find_error(&error).unwrap());
        assert!(advice.contains("SSL_CERT_FILE"), "{advice}");
    }
}

#[test]
fn unreadable_file_is_named() {
    for file in [fixture("missing.pem"), fixture("README.md")] {
        let error = TlsOptions::new().with_extra_ca(&file).build().unwrap_err();
        let message = error.to_string();
        assert_eq!(message, format!("failed to read `{}`", file.display()));
        assert!(error.advice().contains("PEM"));
        assert!(std::error::Error::source(&error).is_some());
    }
}
