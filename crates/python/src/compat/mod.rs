//! The interfaces of other interpreters, as thin functions over this crate.

pub mod mellea;
