//! Services behind TLS.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use cantle_backends_remote::RemoteBackend;
use cantle_core::sandbox::{Backend as _, SandboxErrorKind, SandboxExt as _, SpawnRequest};
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use tokio::process::Command;
use tokio_rustls::TlsAcceptor;

use crate::proxy::{Fault, Proxy};
use crate::support::{KEY, TestServer};
use crate::{context, refused, through};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/service/tls")
        .join(name)
}

/// Starts a TLS proxy with the self-signed certificate in `cert.pem`.
async fn start_tls_proxy(server: &TestServer) -> Proxy {
    let certificate = CertificateDer::from_pem_file(fixture("cert.pem")).unwrap();
    let key = PrivatePkcs8KeyDer::from(std::fs::read(fixture("key.der")).unwrap());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key.into())
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    Proxy::start_with_tls(&server.url, Some(acceptor), |_| Fault::None).await
}

/// Runs an ignored test of this binary in a subprocess with its own environment.
async fn run_with_env(test: &str, variables: &[(&str, &str)]) {
    let output = Command::new(env::current_exe().unwrap())
        .args(["--exact", test, "--ignored", "--nocapture"])
        .env_remove("SSL_CERT_DIR")
        .envs(variables.iter().copied())
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stdout}{stderr}");
    assert!(stdout.contains("1 passed"), "{stdout}");
}

#[tokio::test]
async fn untrusted_certificate_is_refused() {
    let server = TestServer::start().await;
    let proxy = start_tls_proxy(&server).await;
    let error = refused(&through(&proxy).build().unwrap()).await;
    assert_eq!(error.kind(), SandboxErrorKind::Unavailable);
    let expected = format!(
        "failed to create a sandbox: failed to reach {}: ",
        proxy.url
    );
    assert!(error.to_string().starts_with(&expected), "{error}");
    let advice = error.advice().unwrap();
    assert!(advice.contains("SSL_CERT_FILE"), "{error} ({advice})");
    assert!(proxy.requests(|_| true).is_empty());
    server.stop().await;
}

#[tokio::test]
async fn server_without_tls_is_reported_with_advice() {
    let server = TestServer::start().await;
    let url = server.url.replace("http://", "https://");
    let backend = server.builder().api_url(&url).build().unwrap();
    let error = refused(&backend).await;
    let advice = error.advice().unwrap();
    assert!(advice.contains("http://"), "{error} ({advice})");
    server.stop().await;
}

#[tokio::test]
async fn certificate_in_ssl_cert_file_is_trusted() {
    let server = TestServer::start().await;
    let proxy = start_tls_proxy(&server).await;
    let certificate = fixture("cert.pem");
    let variables = [
        ("TEST_URL", proxy.url.as_str()),
        ("SSL_CERT_FILE", &certificate.to_string_lossy()),
    ];
    run_with_env("tls::subprocess_runs_a_command", &variables).await;
    assert!(!proxy.requests(|it| it.path.ends_with("/Start")).is_empty());
    server.stop().await;
}

#[tokio::test]
#[ignore = "run by certificate_in_ssl_cert_file_is_trusted"]
async fn subprocess_runs_a_command() {
    let url = env::var("TEST_URL").unwrap();
    let backend = RemoteBackend::builder()
        .api_key(KEY)
        .api_url(&url)
        .sandbox_url(&url)
        .creation_rate(8, Duration::ZERO)
        .build()
        .unwrap();
    let sandbox = backend.open(context()).await.unwrap();
    let output = sandbox.run(SpawnRequest::shell("echo sealed")).await;
    assert_eq!(output.unwrap().stdout.text(), "sealed\n");
    sandbox.close().await.unwrap();
}

#[tokio::test]
async fn missing_ssl_cert_file_is_reported() {
    let test = "tls::subprocess_fails_to_build_a_backend";
    run_with_env(test, &[("SSL_CERT_FILE", "/no/such/file.pem")]).await;
}

#[test]
#[ignore = "run by missing_ssl_cert_file_is_reported"]
fn subprocess_fails_to_build_a_backend() {
    let built = RemoteBackend::builder().api_key(KEY).build();
    let error = built.map(drop).unwrap_err();
    assert_eq!(
        error.to_string(),
        "no certificate could be read from where SSL_CERT_FILE points"
    );
}
