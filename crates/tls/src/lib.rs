//! TLS client configuration for everything in Cantle that connects to a server, and the causes of a failed connection.
//!
//! Trusted roots are those of the system, or the ones that `SSL_CERT_FILE` and `SSL_CERT_DIR` name. Where
//! the system has none, as in an empty container, Mozilla's bundled roots are used. Certificates are always
//! verified. Loading the system's roots takes milliseconds, so build a configuration only for `https` and
//! reuse it.

#![forbid(unsafe_code)]

use std::env;
use std::error::Error as StdError;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use rustls::ClientConfig;
use rustls::client::WantsClientCert;
use rustls::pki_types::pem::{Error as PemError, PemObject as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{CertificateError, ConfigBuilder, RootCertStore};

/// Builder of a [`ClientConfig`] that verifies servers and speaks HTTP/1.1.
#[must_use]
#[derive(Clone, Debug, Default)]
pub struct TlsOptions {
    extra_ca: Option<PathBuf>,
    client_certificate: Option<(PathBuf, PathBuf)>,
}

impl TlsOptions {
    /// Options that trust the system's roots and present no client certificate.
    pub fn new() -> Self {
        Self::default()
    }

    /// Trusts the certificate authorities in this PEM file as well.
    pub fn with_extra_ca(mut self, file: impl Into<PathBuf>) -> Self {
        self.extra_ca = Some(file.into());
        self
    }

    /// Presents the certificate chain of one PEM file with the private key of another.
    pub fn with_client_certificate(
        mut self,
        certificate: impl Into<PathBuf>,
        key: impl Into<PathBuf>,
    ) -> Self {
        self.client_certificate = Some((certificate.into(), key.into()));
        self
    }

    /// Builds the configuration; reads files.
    ///
    /// # Errors
    /// A file can't be read, the environment names roots that can't be, or the key doesn't fit its certificate.
    pub fn build(&self) -> Result<ClientConfig, TlsError> {
        let mut roots = default_roots()?;
        if let Some(file) = &self.extra_ca {
            roots.add_parsable_certificates(read_certificates(file)?);
        }
        let config = with_roots(roots)?;
        let Some((certificate, key)) = &self.client_certificate else {
            return Ok(with_http1(config.with_no_client_auth()));
        };
        let chain = read_certificates(certificate)?;
        let private_key =
            PrivateKeyDer::from_pem_file(key).map_err(|error| unreadable(key, error))?;
        let config = config
            .with_client_auth_cert(chain, private_key)
            .map_err(|error| {
                let message = format!("failed to use the client key `{}`", key.display());
                let advice = "Use the key that belongs to the certificate.";
                TlsError::new(TlsErrorKind::WrongKey, message, advice, error)
            })?;
        Ok(with_http1(config))
    }
}

/// Returns a configuration that trusts no server, for clients that only use plain `http`.
///
/// It reads no files.
///
/// # Errors
/// The TLS library refuses its own defaults.
pub fn without_roots() -> Result<ClientConfig, TlsError> {
    Ok(with_http1(
        with_roots(RootCertStore::empty())?.with_no_client_auth(),
    ))
}

fn default_roots() -> Result<RootCertStore, TlsError> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    // Certificates that rustls can't parse are skipped: old system stores have some.
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        let variables = ["SSL_CERT_FILE", "SSL_CERT_DIR"];
        if let Some(name) = variables.iter().find(|name| env::var_os(name).is_some()) {
            let message = format!("no certificate could be read from where {name} points");
            let cause = found.errors.into_iter().next().map(Into::into);
            let cause = cause.unwrap_or_else(|| Cause::from("no certificates found"));
            let advice = format!("Correct {name}, or unset it.");
            return Err(TlsError::new(
                TlsErrorKind::UnreadableFile,
                message,
                advice,
                cause,
            ));
        }
        roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
    }
    Ok(roots)
}

fn with_roots(
    roots: RootCertStore,
) -> Result<ConfigBuilder<ClientConfig, WantsClientCert>, TlsError> {
    // Named explicitly, so that no process-wide default provider is needed.
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| {
            TlsError::new(
                TlsErrorKind::Setup,
                "failed to set up TLS".to_owned(),
                "",
                error,
            )
        })?;
    Ok(builder.with_root_certificates(roots))
}

fn with_http1(mut config: ClientConfig) -> ClientConfig {
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    config
}

fn read_certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let certificates: Vec<_> = CertificateDer::pem_file_iter(file)
        .and_then(Iterator::collect)
        .map_err(|error| unreadable(file, error))?;
    if certificates.is_empty() {
        return Err(unreadable(file, PemError::NoItemsFound));
    }
    Ok(certificates)
}

fn unreadable(file: &Path, error: PemError) -> TlsError {
    let message = format!("failed to read `{}`", file.display());
    let advice = "Name a readable file in PEM format.";
    TlsError::new(TlsErrorKind::UnreadableFile, message, advice, error)
}

type Cause = Box<dyn StdError + Send + Sync>;

/// A TLS configuration that can't be built.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct TlsError {
    kind: TlsErrorKind,
    message: String,
    advice: String,
    source: Cause,
}

/// The kind of a [`TlsError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TlsErrorKind {
    /// A file can't be read or holds no certificate or key.
    UnreadableFile,
    /// The key doesn't belong to the certificate.
    WrongKey,
    /// The TLS library refuses its own defaults.
    Setup,
}

impl TlsError {
    fn new(
        kind: TlsErrorKind,
        message: String,
        advice: impl Into<String>,
        source: impl Into<Cause>,
    ) -> Self {
        Self {
            kind,
            message,
            advice: advice.into(),
            source: source.into(),
        }
    }

    /// Returns the kind.
    pub fn kind(&self) -> TlsErrorKind {
        self.kind
    }

    /// The step that fixes the cause; may be empty.
    pub fn advice(&self) -> &str {
        &self.advice
    }

    /// Returns the cause, for an error that repeats this one's message and advice.
    pub fn into_source(self) -> Box<dyn StdError + Send + Sync> {
        self.source
    }
}

/// Returns an error and its sources, the innermost one last.
pub fn causes<'a>(
    error: &'a (dyn StdError + 'static),
) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    std::iter::successors(Some(error), |&error| error.source())
}

/// Returns the message of an error's innermost source. The errors around it only name the layers of the HTTP client.
pub fn root_cause(error: &(dyn StdError + 'static)) -> String {
    causes(error).last().unwrap_or(error).to_string()
}

/// Finds the TLS error in an error's chain of sources.
pub fn find_error<'a>(error: &'a (dyn StdError + 'static)) -> Option<&'a rustls::Error> {
    causes(error).find_map(unwrap_error)
}

/// `io::Error::source` skips the error that an I/O error wraps, so that one is inspected here.
fn unwrap_error<'a>(error: &'a (dyn StdError + 'static)) -> Option<&'a rustls::Error> {
    error.downcast_ref().or_else(|| {
        let wrapped = error.downcast_ref::<io::Error>()?.get_ref()?;
        unwrap_error(wrapped)
    })
}

/// Returns the step that fixes a failed TLS handshake.
pub fn advice(error: &rustls::Error) -> &'static str {
    match error {
        rustls::Error::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
        ) => "The certificate is for another host: check the host's name in the URL.",
        rustls::Error::InvalidCertificate(
            CertificateError::Expired
            | CertificateError::ExpiredContext { .. }
            | CertificateError::NotValidYet
            | CertificateError::NotValidYetContext { .. },
        ) => {
            "The certificate has expired or is not valid yet: check this machine's clock, and renew \
             the certificate if the server is yours."
        }
        rustls::Error::InvalidCertificate(CertificateError::Other(other))
            if other.to_string().contains("CaUsedAsEndEntity") =>
        {
            "The server presents the certificate of an authority, which `openssl req -x509` creates by default. \
             Create it with -addext basicConstraints=critical,CA:FALSE, and set SSL_CERT_FILE to its file."
        }
        rustls::Error::InvalidCertificate(_) => {
            "The server's certificate is not trusted. If it comes from a certificate authority of \
             your own, set SSL_CERT_FILE to a file with that authority's certificate."
        }
        rustls::Error::InvalidMessage(_) => {
            "The server seems not to speak TLS: try http:// in the URL."
        }
        _ => "Check that the URL is meant to begin with https://.",
    }
}
