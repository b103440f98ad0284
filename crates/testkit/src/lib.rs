//! Test support for authors of Cantle backends, model clients and tool providers.
//!
//! - [`conformance`] has one suite for each of the three: a function over the trait that returns a
//!   report.
//! - [`openai`] is a scripted model server with scripted faults.
//! - [`lane`] selects between quick tests and the long matrix.
//!
//! Use it as a dev-dependency beside `cantle-core`; nothing here is for use in a program.

pub mod conformance;
pub mod lane;
pub mod openai;
