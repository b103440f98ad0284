//! What a broken connection means, and what to try.

use std::error::Error as StdError;
use std::io;

use cantle_core::llm::{LlmError, LlmErrorKind};

use super::errors::Diagnosis;

impl Diagnosis {
    /// The error for a request that got no response.
    pub(super) fn no_response(&self, error: reqwest::Error) -> LlmError {
        // The address stands in the texts below, where a person reads it; and the error's own may
        // have a query.
        let error = error.without_url();
        let at = match &self.way {
            Some(way) => &format!(
                "{} through the proxy {} ({})",
                self.base_url, way.at, way.variable
            ),
            None => &self.base_url,
        };
        let unreached = |why: &str, advice: &str| {
            let message = format!("failed to reach {at}: {why}");
            LlmError::new(LlmErrorKind::Connection, message).with_advice(advice)
        };
        let explained = if error.is_timeout() {
            let message = format!("failed to reach {at}: no connection within the time allowed");
            LlmError::new(LlmErrorKind::Timeout, message)
                .with_advice("Check the address, and that no firewall is in the way.")
        } else if let Some(way) = &self.way
            && tls_error(&error).is_none()
            && error.is_connect()
        {
            way.unreached(at, &error)
        } else if error.is_dns() {
            unreached(
                "its host has no address",
                "Check the host's name in the base URL, and the network.",
            )
        } else if let Some(tls) = tls_error(&error) {
            unreached(&format!("no secure connection: {tls}"), tls_advice(tls))
        } else if io_kind(&error) == Some(io::ErrorKind::ConnectionRefused) {
            unreached(
                "connection refused",
                "Check that the server is running, and the port in the base URL.",
            )
        } else if error.is_connect() {
            unreached(&root(&error), "Check the base URL, and the network.")
        } else {
            let why = root(&error);
            let message = format!("the connection to {at} broke before the answer began: {why}");
            LlmError::new(LlmErrorKind::Connection, message)
        };
        explained.with_source(error)
    }
}

fn chain<'a>(
    error: &'a (dyn StdError + 'static),
) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    std::iter::successors(Some(error), |&error| error.source())
}

/// The innermost cause: what is around it only says where it came through.
pub(super) fn root(error: &(dyn StdError + 'static)) -> String {
    chain(error).last().unwrap_or(error).to_string()
}

fn io_kind(error: &(dyn StdError + 'static)) -> Option<io::ErrorKind> {
    chain(error).find_map(|error| error.downcast_ref::<io::Error>().map(io::Error::kind))
}

fn tls_error<'a>(error: &'a (dyn StdError + 'static)) -> Option<&'a rustls::Error> {
    chain(error).find_map(wrapped_tls_error)
}

/// An I/O error's source is not the error it wraps but that one's source, so those are looked into.
fn wrapped_tls_error<'a>(error: &'a (dyn StdError + 'static)) -> Option<&'a rustls::Error> {
    error.downcast_ref().or_else(|| {
        let wrapped = error.downcast_ref::<io::Error>()?.get_ref()?;
        wrapped_tls_error(wrapped)
    })
}

fn tls_advice(error: &rustls::Error) -> &'static str {
    use rustls::CertificateError as Bad;
    match error {
        rustls::Error::InvalidCertificate(
            Bad::NotValidForName | Bad::NotValidForNameContext { .. },
        ) => "The certificate is for another host: check the host's name in the base URL.",
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
            "The server seems not to speak TLS: try http:// in the base URL."
        }
        _ => "Check that the base URL is meant to begin with https://.",
    }
}
