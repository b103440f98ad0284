//! Directories of a sandbox: listings, the changes between two of them, and watchers.

pub(crate) mod changes;
pub(crate) mod listing;
pub(crate) mod uploads;
pub(crate) mod watchers;
