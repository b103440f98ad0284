//! Which certificates are trusted.
//!
//! The system's, or those that `SSL_CERT_FILE` and `SSL_CERT_DIR` name; where there are none, as in
//! an empty container, Mozilla's, which are built in. Reading the system's takes milliseconds, so it
//! is done for `https` alone. And what it means where a server's is not.

use std::env;
use std::error::Error as StdError;
use std::io;
use std::sync::{Arc, OnceLock};

use cantle_core::sandbox::{SandboxError, SandboxErrorKind};
use rustls::{CertificateError as Bad, ClientConfig, RootCertStore};

/// How the `https` addresses of one service are asked: the system's certificates are read once, and
/// sessions gone on with.
#[derive(Debug, Default)]
pub(crate) struct Trust(OnceLock<ClientConfig>);

impl Trust {
    pub(crate) fn configuration(&self) -> Result<ClientConfig, SandboxError> {
        if let Some(known) = self.0.get() {
            return Ok(known.clone());
        }
        let read = trusting()?;
        Ok(self.0.get_or_init(|| read).clone())
    }
}

fn trusting() -> Result<ClientConfig, SandboxError> {
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

/// What TLS has to say of an error, if anything. An I/O error's source is not the error that it wraps but
/// that one's source, so those are looked into.
pub(crate) fn cause<'a>(error: &'a (dyn StdError + 'static)) -> Option<&'a rustls::Error> {
    error.downcast_ref().or_else(|| {
        let wrapped = error.downcast_ref::<io::Error>()?.get_ref()?;
        cause(wrapped)
    })
}

/// What to do about it.
pub(crate) fn advice(error: &rustls::Error) -> &'static str {
    match error {
        rustls::Error::InvalidCertificate(
            Bad::NotValidForName | Bad::NotValidForNameContext { .. },
        ) => "The certificate is for another host: check the host's name in the URL.",
        rustls::Error::InvalidCertificate(
            Bad::Expired
            | Bad::ExpiredContext { .. }
            | Bad::NotValidYet
            | Bad::NotValidYetContext { .. },
        ) => {
            "The certificate's time is over or has not come: check this machine's clock, and renew \
             the certificate where the server is yours."
        }
        rustls::Error::InvalidCertificate(_) => {
            "The server's certificate is not one to trust. Where it comes from an authority of \
             your own, set SSL_CERT_FILE to a file with that authority's certificate."
        }
        rustls::Error::InvalidMessage(_) => {
            "The server seems not to speak TLS: try http:// in the URL."
        }
        _ => "Check that the URL is meant to begin with https://.",
    }
}
