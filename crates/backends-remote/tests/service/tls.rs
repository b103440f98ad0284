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

use crate::proxy::{Fate, Proxy};
use crate::support::{KEY, Served};
use crate::{context, refused, through};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/service/tls")
        .join(name)
}

/// Ends TLS with a certificate that only `cert.pem` vouches for.
async fn over_tls(served: &Served) -> Proxy {
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
    Proxy::with(&served.url, Some(acceptor), |_| Fate::Passed).await
}

/// The environment is the process's own, so this runs in one of its own: this test binary again.
async fn again_with(test: &str, variables: &[(&str, &str)]) {
    let output = Command::new(env::current_exe().unwrap())
        .args(["--exact", test, "--ignored", "--nocapture"])
        .env_remove("SSL_CERT_DIR")
        .envs(variables.iter().copied())
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let more = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}{more}");
    assert!(said.contains("1 passed"), "{said}");
}

#[tokio::test]
async fn a_certificate_that_nobody_vouches_for_is_refused() {
    let served = Served::start().await;
    let proxy = over_tls(&served).await;
    let error = refused(&through(&proxy).build().unwrap()).await;
    assert_eq!(error.kind(), SandboxErrorKind::Unavailable);
    let expected = format!("failed to make a sandbox: failed to reach {}: ", proxy.url);
    assert!(error.to_string().starts_with(&expected), "{error}");
    let advice = error.advice().unwrap();
    assert!(advice.contains("SSL_CERT_FILE"), "{error} ({advice})");
    assert!(proxy.seen(|_| true).is_empty());
    served.stop().await;
}

#[tokio::test]
async fn a_server_that_speaks_no_tls_is_told_from_one_that_does() {
    let served = Served::start().await;
    let url = served.url.replace("http://", "https://");
    let backend = served.builder().api_url(&url).build().unwrap();
    let error = refused(&backend).await;
    let advice = error.advice().unwrap();
    assert!(advice.contains("http://"), "{error} ({advice})");
    served.stop().await;
}

#[tokio::test]
async fn a_certificate_that_the_environment_names_is_trusted() {
    let served = Served::start().await;
    let proxy = over_tls(&served).await;
    let certificate = fixture("cert.pem");
    let variables = [
        ("TEST_URL", proxy.url.as_str()),
        ("SSL_CERT_FILE", &certificate.to_string_lossy()),
    ];
    again_with("tls::in_another_environment_a_command_runs", &variables).await;
    assert!(!proxy.seen(|it| it.path.ends_with("/Start")).is_empty());
    served.stop().await;
}

#[tokio::test]
#[ignore = "run by a_certificate_that_the_environment_names_is_trusted"]
async fn in_another_environment_a_command_runs() {
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
async fn certificates_that_the_environment_names_wrongly_are_missed() {
    let test = "tls::in_another_environment_no_backend_is_made";
    again_with(test, &[("SSL_CERT_FILE", "/no/such/file.pem")]).await;
}

#[test]
#[ignore = "run by certificates_that_the_environment_names_wrongly_are_missed"]
fn in_another_environment_no_backend_is_made() {
    let built = RemoteBackend::builder().api_key(KEY).build();
    let error = built.map(drop).unwrap_err();
    assert_eq!(
        error.to_string(),
        "no certificate could be read from where SSL_CERT_FILE points"
    );
}
