//! Which certificates are trusted.
//!
//! The system's, or those that `SSL_CERT_FILE` and `SSL_CERT_DIR` name; where there are none, as in
//! an empty container, Mozilla's, which are built in. Reading the system's takes milliseconds, so it
//! is done for `https` alone.

use std::env;
use std::sync::Arc;

use cantle_core::sandbox::{SandboxError, SandboxErrorKind};
use rustls::{ClientConfig, RootCertStore};

/// A configuration for an `https` address.
pub(crate) fn trusting() -> Result<ClientConfig, SandboxError> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    // A certificate that rustls can't parse is one it can't verify with; the others still count.
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        let named = ["SSL_CERT_FILE", "SSL_CERT_DIR"];
        if let Some(name) = named.into_iter().find(|name| env::var_os(name).is_some()) {
            let message = format!("no certificate could be read from where {name} points");
            let mut error = SandboxError::new(SandboxErrorKind::Unavailable, message)
                .with_advice(format!("Correct {name}, or unset it."));
            if let Some(cause) = found.errors.into_iter().next() {
                error = error.with_source(cause);
            }
            return Err(error);
        }
        roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
    }
    configuration(roots)
}

/// A configuration for an address without TLS. It trusts nobody and costs nothing.
pub(crate) fn none() -> Result<ClientConfig, SandboxError> {
    configuration(RootCertStore::empty())
}

fn configuration(roots: RootCertStore) -> Result<ClientConfig, SandboxError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| {
            let message = "TLS can't be set up";
            SandboxError::new(SandboxErrorKind::Unavailable, message).with_source(error)
        })?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}
