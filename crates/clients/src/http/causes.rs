//! Causes of an error, read from its chain of sources.

use std::error::Error as StdError;
use std::io;

fn chain<'a>(
    error: &'a (dyn StdError + 'static),
) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    std::iter::successors(Some(error), |&error| error.source())
}

/// Returns the innermost cause; the errors around it add no information.
pub(super) fn root_cause(error: &(dyn StdError + 'static)) -> String {
    chain(error).last().unwrap_or(error).to_string()
}

/// Returns the kind of the first I/O error among the causes.
pub(super) fn io_kind(error: &(dyn StdError + 'static)) -> Option<io::ErrorKind> {
    chain(error).find_map(|error| error.downcast_ref::<io::Error>().map(io::Error::kind))
}

/// Returns whether the response could not be parsed as HTTP.
pub(super) fn is_not_http(error: &(dyn StdError + 'static)) -> bool {
    chain(error).any(|error| {
        let error = error.downcast_ref::<hyper::Error>();
        error.is_some_and(hyper::Error::is_parse)
    })
}
