//! Causes of an error, read from its chain of sources.

use std::error::Error as StdError;
use std::io;

use cantle_tls::causes;

/// Returns the kind of the first I/O error among the causes.
pub(super) fn io_kind(error: &(dyn StdError + 'static)) -> Option<io::ErrorKind> {
    causes(error).find_map(|error| error.downcast_ref::<io::Error>().map(io::Error::kind))
}

/// Returns whether the response could not be parsed as HTTP.
pub(super) fn is_not_http(error: &(dyn StdError + 'static)) -> bool {
    causes(error).any(|error| {
        let error = error.downcast_ref::<hyper::Error>();
        error.is_some_and(hyper::Error::is_parse)
    })
}
